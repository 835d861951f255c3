package capture

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider/conformance"
)

// rcvbufBytes is how much the kernel may queue for us: several of the largest
// messages of the suite.
const rcvbufBytes = 64 << 20

// How long no packet must have come until a run's packets are complete. If all connections have
// ended, only an ACK or an RST can follow. If they have not, a kernel may send a FIN later, or, if
// the network loses packets, send it again. The last time is for when it is not known whether they
// have ended. TCP sends its first retransmissions after 200 and 400 ms.
const (
	quietEnded = 3 * time.Millisecond
	quietOpen  = 150 * time.Millisecond
	quietLossy = 1200 * time.Millisecond
	quiet      = 30 * time.Millisecond
	limit      = time.Second // for all of it
)

// Wire captures on a network interface with a packet socket, which needs
// CAP_NET_RAW.
type Wire struct {
	Interface string // with Ethernet framing; "lo" for traffic between local addresses
	Lossy     bool   // the network may lose packets, so that the end of a connection may come late

	// Listen has the addresses that runs listen on. Packets to and from the port at any other
	// address belong to other processes, such as another run, and are left out. Without any,
	// and if one is 0.0.0.0 or ::, every address is recorded. Zones are ignored, as packets have
	// none.
	Listen []netip.Addr

	// Limit is how many bytes the recordings under way may have together, with 128 for each packet;
	// 0 means any number. The one that exceeds it keeps nothing, and its Stop fails.
	Limit int
	held  atomic.Int64

	rcvbuf int // instead of rcvbufBytes, for tests
}

// Source implements conformance.Capturer.
func (w *Wire) Source() string { return "wire" }

// Usable reports why the interface can't be captured on, nil if it can.
func (w *Wire) Usable() error {
	fd, _, err := w.open(1)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

// stamped opens a socket that wants time stamps, and leaves it open. The kernel patches
// its code when the first such socket is opened and when the last one is closed: with
// hundreds of recordings it does so hundreds of times during traffic, and an emulated
// kernel may be caught between two states of an instruction (seen on 6.12.117 under
// QEMU's TCG: "Oops: int3" in __netif_receive_skb_core).
var stamped = sync.OnceValue(func() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("a socket for time stamps: %w", err)
	}
	return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1)
})

// Start implements conformance.Capturer. Packets are recorded from when it
// returns.
func (w *Wire) Start(port uint16) (conformance.Capture, error) {
	r, err := w.capture(port)
	if err != nil {
		return nil, err
	}
	r.size = size{all: &w.held, most: w.Limit}
	if !slices.ContainsFunc(w.Listen, netip.Addr.IsUnspecified) {
		for _, addr := range w.Listen {
			r.listen = append(r.listen, addr.Unmap().WithZone(""))
		}
	}
	r.quietOpen, r.limit = quietOpen, limit
	if w.Lossy {
		r.quietOpen, r.limit = quietLossy, 4*limit
	}
	go r.loop()
	return r, nil
}

// capture opens a socket for packets to and from a port.
func (w *Wire) capture(port uint16) (*wireCapture, error) {
	if err := stamped(); err != nil {
		return nil, err
	}
	fd, ifc, err := w.open(port)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "packet socket")
	raw, err := f.SyscallConn()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return &wireCapture{
		file: f, raw: raw, name: ifc.Name, port: port, last: time.Now(), done: make(chan struct{}),
		buf: make([]byte, 1<<18), oob: make([]byte, 256), // offload lets packets on lo exceed 64 KiB
	}, nil
}

// open makes the socket. It is bound last, with filter and options in place, so that it
// never receives other packets.
func (w *Wire) open(port uint16) (int, *net.Interface, error) {
	ifc, err := net.InterfaceByName(w.Interface)
	if err != nil {
		return -1, nil, fmt.Errorf("interface %s: not found; ip link lists those of this machine: %w", w.Interface, err)
	}
	const noProtocolYet = 0
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, noProtocolYet)
	if err != nil {
		if errors.Is(err, unix.EPERM) {
			err = fmt.Errorf("packet sockets need root or CAP_NET_RAW: %w", err)
		}
		return -1, nil, fmt.Errorf("packet socket: %w", err)
	}
	if err := w.prepare(fd, ifc, port); err != nil {
		_ = unix.Close(fd)
		return -1, nil, fmt.Errorf("packet socket on %s: %w", w.Interface, err)
	}
	return fd, ifc, nil
}

func (w *Wire) prepare(fd int, ifc *net.Interface, port uint16) error {
	rcvbuf := w.rcvbuf
	if rcvbuf == 0 {
		rcvbuf = rcvbufBytes
	}
	// The first may need a privilege that CAP_NET_RAW does not include; then
	// the second gives what the system's limit allows.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, rcvbuf) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, rcvbuf)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1); err != nil {
		return fmt.Errorf("time stamps: %w", err)
	}
	if ifc.Flags&net.FlagLoopback != 0 {
		// On loopback each packet is seen on its way out and on its way in.
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1); err != nil {
			return fmt.Errorf("leaving out outgoing packets: %w", err)
		}
	}
	program := portFilter(port)
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(unix.ETH_P_ALL), Ifindex: ifc.Index}); err != nil {
		return err
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return err
	}
	if ll, ok := name.(*unix.SockaddrLinklayer); !ok || ll.Hatype != unix.ARPHRD_ETHER && ll.Hatype != unix.ARPHRD_LOOPBACK {
		return errors.New("its packets have no Ethernet header, which is all that can be recorded here")
	}
	return nil
}

// networkOrder returns the number whose bytes in memory are v in network order.
func networkOrder(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

// wireCapture is a recording under way. All but its last fields belong to loop
// until done, and to Stop afterwards.
type wireCapture struct {
	file interface {
		Close() error
		SetReadDeadline(time.Time) error
	}
	raw interface {
		Read(func(fd uintptr) bool) error
		Control(func(fd uintptr)) error
	}
	name      string
	port      uint16
	listen    []netip.Addr // as Wire.Listen
	quietOpen time.Duration
	limit     time.Duration
	buf, oob  []byte
	packets   []packet
	size      size
	err       error
	done      chan struct{}

	mu   sync.Mutex
	last time.Time // when the last packet came
	ends lifetimes
}

// loop receives until the deadline that Stop sets. After an error it closes the socket, because the
// kernel would keep packets for it that nobody reads.
func (c *wireCapture) loop() {
	defer close(c.done)
	for c.err == nil {
		err := c.raw.Read(func(fd uintptr) bool { return c.receive(int(fd)) })
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return
		case err != nil:
			c.err = fmt.Errorf("packet socket: %w", err)
		}
	}
	_ = c.file.Close()
}

// receive takes one packet from the socket. It returns false if there was none.
func (c *wireCapture) receive(fd int) bool {
	n, oobn, _, _, err := unix.Recvmsg(fd, c.buf, c.oob, unix.MSG_TRUNC)
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false
	case errors.Is(err, unix.EINTR):
		return true
	case err != nil:
		c.err = fmt.Errorf("packet socket: %w", err)
		return true
	case n > len(c.buf):
		c.err = fmt.Errorf("a packet of %d octets is longer than the capture's buffer", n)
		return true
	}
	if !c.wanted(c.buf[:n]) {
		return true
	}
	if c.err = c.size.add(n); c.err != nil {
		c.packets = nil
		c.size.end()
		return true
	}
	c.packets = append(c.packets, packet{time: stampOf(c.oob[:oobn]), data: append([]byte(nil), c.buf[:n]...)})
	c.mu.Lock()
	c.last = time.Now()
	c.ends.see(c.buf[:n])
	c.mu.Unlock()
	return true
}

// wanted reports whether a packet goes to or comes from one of the addresses that runs listen on.
// A frame in which no addresses are found is recorded as well.
func (c *wireCapture) wanted(frame []byte) bool {
	from, to, _, ok := segmentOf(frame)
	if !ok || len(c.listen) == 0 {
		return true
	}
	listens := func(a netip.AddrPort) bool {
		return a.Port() == c.port && slices.Contains(c.listen, a.Addr())
	}
	return listens(from) || listens(to)
}

// stampOf finds the kernel's time of a packet.
func stampOf(oob []byte) time.Time {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Now()
	}
	for _, m := range msgs {
		if m.Header.Level == unix.SOL_SOCKET && m.Header.Type == unix.SCM_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Now()
}

// Stop implements conformance.Capture. It waits until the end of each connection is in the file, or
// until no packet has come for a moment, and takes what is still queued. A capture of which the
// kernel dropped a packet is an error, and leaves no file.
func (c *wireCapture) Stop(name string) error {
	awaitQuiet(c.limit, func() (time.Time, time.Duration) {
		if c.queued() {
			return time.Now(), c.quietOpen
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ends.all() {
			return c.last, quietEnded
		}
		return c.last, c.quietOpen
	})
	_ = c.file.SetReadDeadline(time.Now())
	<-c.done
	dropped, err := c.drain()
	defer c.size.end()
	_ = c.file.Close()
	switch {
	case c.err != nil:
		return c.err
	case err != nil:
		return fmt.Errorf("packet socket: %w", err)
	case dropped > 0:
		return fmt.Errorf("the kernel dropped %d packets: the capture is not complete", dropped)
	}
	return writeOne(name, c.name, "", layers.LinkTypeEthernet, c.packets)
}

// awaitQuiet returns when no packet has come for the time quiet since last, as state says, or when
// the limit has passed.
func awaitQuiet(limit time.Duration, state func() (last time.Time, quiet time.Duration)) {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if last, quiet := state(); time.Since(last) >= quiet {
			return
		}
	}
}

// queued reports whether packets have come that loop has not taken yet.
func (c *wireCapture) queued() bool {
	n := 0
	_ = c.raw.Control(func(fd uintptr) {
		n, _ = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
	})
	return n > 0
}

// drain takes the packets that are queued, except for those that came after it was called. It
// returns how many packets did not fit the queue.
func (c *wireCapture) drain() (dropped uint32, err error) {
	ctlErr := c.raw.Control(func(fd uintptr) {
		until := time.Now()
		for c.err == nil && c.receive(int(fd)) {
			if n := len(c.packets); n > 0 && c.packets[n-1].time.After(until) {
				break
			}
		}
		var s *unix.TpacketStats
		if s, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			dropped = s.Drops
		}
	})
	return dropped, errors.Join(ctlErr, err)
}

// Where to look in an Ethernet frame, and for what.
const (
	etherTypeAt = 12
	ipAt        = 14
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	ipv6Len     = 40
	protocolTCP = 6
	wholePacket = 0xffffffff
)

// portFilter returns the BPF program that lets TCP segments to and from a port
// pass, over IPv4 and IPv6, in Ethernet frames. The kernel applies it, so that
// other traffic takes no room in the socket's queue. After IPv6 extension
// headers nothing is found: neither siw nor an ordinary socket sends any.
func portFilter(port uint16) []unix.SockFilter {
	const (
		ldb  = unix.BPF_LD | unix.BPF_B | unix.BPF_ABS
		ldh  = unix.BPF_LD | unix.BPF_H | unix.BPF_ABS
		ldhx = unix.BPF_LD | unix.BPF_H | unix.BPF_IND
		ldx  = unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH
		jeq  = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		jset = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		ja   = unix.BPF_JMP | unix.BPF_JA
		ret  = unix.BPF_RET | unix.BPF_K
	)
	// Jumps count from the next instruction.
	return []unix.SockFilter{
		0:  {Code: ldh, K: etherTypeAt},
		1:  {Code: jeq, K: etherIPv4, Jf: 9},    // else 11
		2:  {Code: ldb, K: ipAt + 9},            // protocol
		3:  {Code: jeq, K: protocolTCP, Jf: 15}, // else 19
		4:  {Code: ldh, K: ipAt + 6},            // fragment offset
		5:  {Code: jset, K: 0x1fff, Jt: 13},     // then 19
		6:  {Code: ldx, K: ipAt},                // X is the length of the header
		7:  {Code: ldhx, K: ipAt},
		8:  {Code: jeq, K: uint32(port), Jt: 9}, // then 18
		9:  {Code: ldhx, K: ipAt + 2},
		10: {Code: ja, K: 6},                   // 17
		11: {Code: jeq, K: etherIPv6, Jf: 7},   // else 19
		12: {Code: ldb, K: ipAt + 6},           // next header
		13: {Code: jeq, K: protocolTCP, Jf: 5}, // else 19
		14: {Code: ldh, K: ipAt + ipv6Len},
		15: {Code: jeq, K: uint32(port), Jt: 2}, // then 18
		16: {Code: ldh, K: ipAt + ipv6Len + 2},
		17: {Code: jeq, K: uint32(port), Jf: 1}, // else 19
		18: {Code: ret, K: wholePacket},
		19: {Code: ret, K: 0},
	}
}

// Follower hands out the packets of a Wire while they come.
type Follower struct {
	c *wireCapture
}

// Follow begins to take the packets to and from a port. The kernel keeps those that Packets does
// not take in time, up to 64 MiB; Listen and Limit have no effect. Close it.
func (w *Wire) Follow(port uint16) (*Follower, error) {
	c, err := w.capture(port)
	if err != nil {
		return nil, err
	}
	c.size.all = new(atomic.Int64)
	return &Follower{c}, nil
}

// atATime is how many packets Packets takes at most.
const atATime = 4096

// Packets waits for packets until ctx ends, and calls take with those that have come, Ethernet
// header included. data is take's. The error is ctx.Err(), or one of the socket.
func (f *Follower) Packets(ctx context.Context, take func(data []byte, at time.Time)) error {
	defer context.AfterFunc(ctx, func() { _ = f.c.file.SetReadDeadline(time.Unix(1, 0)) })()
	err := f.c.raw.Read(func(fd uintptr) bool {
		n := 0
		for n < atATime && f.c.err == nil && f.c.receive(int(fd)) {
			n++
		}
		return n > 0
	})
	for _, p := range f.c.packets {
		take(p.data, p.time)
	}
	f.c.packets = nil
	f.c.size.end()
	switch {
	case f.c.err != nil:
		return f.c.err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("packet socket: %w", err)
	}
	return nil
}

// Close returns how many packets did not fit the kernel's queue.
func (f *Follower) Close() (dropped uint32, err error) {
	ctlErr := f.c.raw.Control(func(fd uintptr) {
		var s *unix.TpacketStats
		if s, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			dropped = s.Drops
		}
	})
	return dropped, errors.Join(ctlErr, err, f.c.file.Close())
}
