package victim

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// grant has the regions that the server's peers may use, in the private data of its Reply.
type grant struct {
	source, sink         uint64 // addresses
	sourceKey, sinkKey   uint32
	sourceSize, sinkSize uint32
}

const grantLen = 8 + 8 + 4*4

func (g grant) appendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, g.source)
	b = binary.BigEndian.AppendUint64(b, g.sink)
	for _, v := range []uint32{g.sourceKey, g.sinkKey, g.sourceSize, g.sinkSize} {
		b = binary.BigEndian.AppendUint32(b, v)
	}
	return b
}

func parseGrant(b []byte) (g grant, err error) {
	if len(b) < grantLen {
		return g, fmt.Errorf("the Reply has %d bytes of private data, want %d: "+
			"it is not from the server of this measurement", len(b), grantLen)
	}
	g.source, g.sink = binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	for i, v := range []*uint32{&g.sourceKey, &g.sinkKey, &g.sourceSize, &g.sinkSize} {
		*v = binary.BigEndian.Uint32(b[16+4*i:])
	}
	return g, nil
}

// socket has the options of a peer's socket. Zero means the system's default.
type socket struct {
	mss     int
	receive int // SO_RCVBUF
	send    int // SO_SNDBUF
}

// link is a hostile peer's connection.
type link struct {
	*net.TCPConn
	ird   int // the number of Reads that the server takes at a time
	grant grant
	place uint64 // where in the sink the peer writes
	in    []byte // bytes that came after the Reply
}

// patience is how long a peer waits for the server to answer.
const patience = 20 * time.Second

// connect makes a TCP connection, which ends with ctx.
func (h *hostile) connect(ctx context.Context, s socket) (*net.TCPConn, error) {
	d := net.Dialer{Timeout: patience, Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		outer := c.Control(func(fd uintptr) { err = s.set(int(fd)) })
		return errors.Join(outer, err)
	}}
	c, err := d.DialContext(ctx, "tcp", h.addr.String())
	if err != nil {
		return nil, err
	}
	h.counts.tcp.Add(1)
	tcp := c.(*net.TCPConn)
	// Close resets the connection: otherwise ports would run out, and the server would wait for
	// this end to read what it sent.
	_ = tcp.SetLinger(0)
	return tcp, nil
}

func (s socket) set(fd int) error {
	errs := []error{unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, cong)}
	if s.mss > 0 {
		errs = append(errs, unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG, s.mss))
	}
	if s.receive > 0 {
		errs = append(errs, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, s.receive))
	}
	if s.send > 0 {
		errs = append(errs, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, s.send))
	}
	return errors.Join(errs...)
}

// maxDepth is what peers offer as their ORD, and what the server grants as its IRD.
const maxDepth = 128

// open makes a connection and completes MPA's start-up.
func (h *hostile) open(ctx context.Context, s socket) (_ *link, err error) {
	c, err := h.connect(ctx, s)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			_ = c.Close()
		}
	}()
	l := &link{TCPConn: c}
	if err := l.request(); err != nil {
		return nil, err
	}
	if err := l.reply(); err != nil {
		return nil, err
	}
	h.counts.connections.Add(1)
	return l, nil
}

func (l *link) request() error {
	_, err := l.Write(rawpeer.Request(true, 1, maxDepth, nil).AppendTo(nil))
	return err
}

func (l *link) reply() error {
	_ = l.SetReadDeadline(time.Now().Add(patience))
	defer func() { _ = l.SetReadDeadline(time.Time{}) }()
	buf := make([]byte, mpa.MaxFrameLen)
	for have := 0; ; {
		n, err := l.Read(buf[have:])
		if err != nil {
			return fmt.Errorf("waiting for the Reply: %w", err)
		}
		have += n
		f, used, err := mpa.ParseFrame(buf[:have], mpa.KindReply)
		switch {
		case errors.Is(err, mpa.ErrShort):
			continue
		case err != nil:
			return fmt.Errorf("parsing the Reply: %w", err)
		case f.Reject:
			return errors.New("the server rejected the connection")
		}
		e, private, err := f.SplitPrivateData()
		if err != nil {
			return err
		}
		l.ird, l.in = int(e.IRD), buf[used:have]
		l.grant, err = parseGrant(private)
		return err
	}
}

// until closes the connection when ctx ends, so that blocked calls return. The returned function
// also closes the connection.
func (l *link) until(ctx context.Context) func() {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	return func() {
		stop()
		_ = l.Close()
	}
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// addrPort is an address in orders.
type addrPort = netip.AddrPort
