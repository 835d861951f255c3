package capture

import (
	"cmp"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// Tap captures at the sockets of the engine and of the raw peer, without any privilege.
// It puts their octets into made-up TCP packets: sequence numbers count from one, nothing
// is lost or sent twice, and each write is a packet. The capture may have octets whose
// writing failed. The kernel provider's sockets can't be captured this way.
//
// It is the transport.Tap for all that takes part in a run. Recordings that are under way at the
// same time have different ports.
type Tap struct {
	// Limit is how many bytes the recordings under way may have together, with 128 for each record;
	// 0 means any number. The one that exceeds it keeps nothing, and its Stop fails. It is set
	// before the first recording.
	Limit int
	held  atomic.Int64

	mu      sync.Mutex
	current map[uint16]*tapCapture // by the responder's port
}

// Source implements conformance.Capturer.
func (t *Tap) Source() string { return "tap" }

// Start implements conformance.Capturer.
func (t *Tap) Start(port uint16) (conformance.Capture, error) {
	c := &tapCapture{tap: t, port: port, size: size{all: &t.held, most: t.Limit}}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current == nil {
		t.current = make(map[uint16]*tapCapture)
	}
	t.current[port] = c
	return c, nil
}

// Tap implements transport.Tap.
func (t *Tap) Tap(r transport.TapRecord) {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.current[r.Local.Port()]
	if c == nil {
		c = t.current[r.Remote.Port()]
	}
	if c == nil || c.err != nil {
		return
	}
	if c.err = c.size.add(len(r.Data)); c.err != nil {
		c.records = nil
		c.size.end()
		return
	}
	r.Data = slices.Clone(r.Data)
	c.records = append(c.records, r)
	c.last = time.Now()
}

type tapCapture struct {
	tap     *Tap
	port    uint16
	records []transport.TapRecord // guarded by tap.mu, as the following
	size    size
	err     error // why it has ended
	last    time.Time
}

// Stop implements conformance.Capture.
func (c *tapCapture) Stop(name string) error {
	awaitQuiet(limit, func() (time.Time, time.Duration) {
		c.tap.mu.Lock()
		defer c.tap.mu.Unlock()
		return c.last, quiet
	})
	c.tap.mu.Lock()
	if c.tap.current[c.port] == c {
		delete(c.tap.current, c.port)
	}
	records, err := c.records, c.err
	c.tap.mu.Unlock()
	defer c.size.end()
	if err != nil {
		return err
	}
	return writeOne(name, "tap", "octets seen at sockets, put into packets that never were", layers.LinkTypeRaw, synthesise(records))
}

// connKey names a connection, its initiator first. Connections that use the same
// ports one after another have their number, from 0.
type connKey struct {
	initiator, responder netip.AddrPort
	number               int
}

// numbered finds the connection that each record belongs to. The numbers of connections' ends
// rise, so the n-th end that dialed and the n-th that accepted belong together, if they have the
// same two ports.
type numbered map[connKey][2][]uint64

func (n numbered) key(r *transport.TapRecord) connKey {
	k := connKey{initiator: r.Remote, responder: r.Local}
	side := 1
	if r.Dialed {
		k.initiator, k.responder, side = r.Local, r.Remote, 0
	}
	ends := n[k]
	at := slices.Index(ends[side], r.Conn)
	if at < 0 {
		at = len(ends[side])
		ends[side] = append(ends[side], r.Conn)
		n[k] = ends
	}
	k.number = at
	return k
}

// synthesise makes packets of records. If both ends of a connection were seen, it takes what each
// sent. If only one was, it also takes what that end received.
func synthesise(records []transport.TapRecord) []packet {
	slices.SortStableFunc(records, func(a, b transport.TapRecord) int { return cmp.Compare(a.Time.UnixNano(), b.Time.UnixNano()) })
	keys := make([]connKey, len(records))
	names := make(numbered)
	ends := make(map[connKey]map[bool]bool)
	for i := range records {
		k := names.key(&records[i])
		keys[i] = k
		if ends[k] == nil {
			ends[k] = make(map[bool]bool)
		}
		ends[k][records[i].Dialed] = true
	}
	conns := make(map[connKey]*tapConn)
	var out []packet
	for i := range records {
		r, k := &records[i], keys[i]
		if len(ends[k]) == 2 && !r.Sent && r.Event != transport.TapOpen {
			continue
		}
		c := conns[k]
		if c == nil {
			isn := uint32(k.number) << 24 // distinguishes connections of the same ports
			c = &tapConn{key: k, seq: [2]uint32{isn, isn}}
			conns[k] = c
			out = c.handshake(out, r.Time)
		}
		out = c.add(out, r)
	}
	return out
}

// tapConn has the next sequence number of each side of a made-up connection, 0 for the
// initiator.
type tapConn struct {
	key connKey
	seq [2]uint32
}

func (c *tapConn) handshake(out []packet, at time.Time) []packet {
	out = c.emit(out, at, 0, nil, func(t *layers.TCP) { t.SYN, t.ACK = true, false })
	c.seq[0]++
	out = c.emit(out, at, 1, nil, func(t *layers.TCP) { t.SYN = true })
	c.seq[1]++
	return c.emit(out, at, 0, nil, nil)
}

// maxSegment keeps an IPv4 packet below 64 KiB.
const maxSegment = 65000

func (c *tapConn) add(out []packet, r *transport.TapRecord) []packet {
	side := 0
	if r.Dialed != r.Sent {
		side = 1
	}
	switch r.Event {
	case transport.TapData:
		for data := r.Data; len(data) > 0; {
			n := min(len(data), maxSegment)
			out = c.emit(out, r.Time, side, data[:n], func(t *layers.TCP) { t.PSH = true })
			c.seq[side] += uint32(n)
			data = data[n:]
		}
	case transport.TapFIN:
		out = c.emit(out, r.Time, side, nil, func(t *layers.TCP) { t.FIN = true })
		c.seq[side]++
	case transport.TapReset:
		out = c.emit(out, r.Time, side, nil, func(t *layers.TCP) { t.RST = true })
	}
	return out
}

// emit appends one packet from a side.
func (c *tapConn) emit(out []packet, at time.Time, side int, data []byte, flags func(*layers.TCP)) []packet {
	src, dst := c.key.initiator, c.key.responder
	if side == 1 {
		src, dst = dst, src
	}
	tcp := &layers.TCP{
		SrcPort: layers.TCPPort(src.Port()), DstPort: layers.TCPPort(dst.Port()),
		Seq: c.seq[side], Ack: c.seq[1-side], ACK: true, Window: 65535,
	}
	if flags != nil {
		flags(tcp)
	}
	if !tcp.ACK {
		tcp.Ack = 0
	}
	var ip gopacket.SerializableLayer
	if src.Addr().Unmap().Is4() {
		v4 := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: src.Addr().Unmap().AsSlice(), DstIP: dst.Addr().Unmap().AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(v4)
		ip = v4
	} else {
		v6 := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: src.Addr().AsSlice(), DstIP: dst.Addr().AsSlice()}
		_ = tcp.SetNetworkLayerForChecksum(v6)
		ip = v6
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	if err := gopacket.SerializeLayers(buf, opts, ip, tcp, gopacket.Payload(data)); err != nil {
		panic("capture: a packet of valid addresses cannot be serialised: " + err.Error())
	}
	return append(out, packet{time: at, data: slices.Clone(buf.Bytes())})
}
