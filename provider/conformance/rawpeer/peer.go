// Package rawpeer is a scripted iWARP peer: it speaks MPA, DDP and RDMAP over an
// ordinary TCP connection, exactly as its script says, legal or not. It keeps no
// protocol state of its own beyond what framing needs.
//
// Frames are built with the codecs of the layers, and each field can be overridden, so
// that a script breaks exactly one rule at a time. The answers are decoded here, and
// judged by the script.
package rawpeer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// connNumbers numbers the ends that taps see; the engine's numbers count from one.
var connNumbers atomic.Uint64

func init() { connNumbers.Store(1 << 32) }

// A Peer is one end of a connection. It is used by one goroutine.
type Peer struct {
	conn   *net.TCPConn
	tap    transport.Tap
	record transport.TapRecord // with the fields that are the same in each record

	// CRC says whether FPDUs are sent with CRCs. The script sets it after
	// start-up.
	CRC bool

	// Over, if not nil, is closed when the answers are not wanted any more. Waits then end with
	// ErrSilence.
	Over <-chan struct{}

	marking *marking // nil: no Markers

	in    []byte // received and not yet consumed
	taken int    // octets received so far
	inEnd error  // io.EOF, ECONNRESET or ErrTooMuch once no more is read

	finSent bool
	closed  bool
}

// Dial connects to addr as initiator. The tap may be nil.
func Dial(ctx context.Context, addr netip.AddrPort, tap transport.Tap) (*Peer, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return newPeer(c.(*net.TCPConn), tap, true), nil
}

// A Listener waits for the provider under test to connect.
type Listener struct {
	l   *net.TCPListener
	tap transport.Tap
}

// Listen listens on addr. The tap may be nil.
func Listen(addr netip.AddrPort, tap transport.Tap) (*Listener, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return nil, err
	}
	return &Listener{l, tap}, nil
}

// Accept waits for a connection.
func (l *Listener) Accept(ctx context.Context) (*Peer, error) {
	stop := context.AfterFunc(ctx, func() { _ = l.l.SetDeadline(time.Now()) })
	defer stop()
	c, err := l.l.AcceptTCP()
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("no connection to the raw peer: %w", err)
	}
	return newPeer(c, l.tap, false), nil
}

// Addr returns the address that it listens on.
func (l *Listener) Addr() netip.AddrPort { return l.l.Addr().(*net.TCPAddr).AddrPort() }

// Close stops listening.
func (l *Listener) Close() error { return l.l.Close() }

func newPeer(c *net.TCPConn, tap transport.Tap, dialed bool) *Peer {
	p := &Peer{conn: c, tap: tap, record: transport.TapRecord{
		Conn: connNumbers.Add(1), Dialed: dialed,
		Local:  c.LocalAddr().(*net.TCPAddr).AddrPort(),
		Remote: c.RemoteAddr().(*net.TCPAddr).AddrPort(),
	}}
	p.tapped(time.Now(), transport.TapOpen, dialed, nil)
	return p
}

func (p *Peer) tapped(at time.Time, event transport.TapEvent, sent bool, data []byte) {
	if p.tap == nil {
		return
	}
	r := p.record
	r.Time, r.Event, r.Sent, r.Data = at, event, sent, data
	p.tap.Tap(r)
}

// Send sends octets as they are, in one write.
func (p *Peer) Send(octets []byte) error {
	p.tapped(time.Now(), transport.TapData, true, octets)
	_ = p.conn.SetWriteDeadline(time.Now().Add(10 * time.Second))
	_, err := p.conn.Write(octets)
	return err
}

// SendPieces sends octets in pieces of n octets, so that the receiver is likely
// to read them one at a time.
func (p *Peer) SendPieces(octets []byte, n int, pause time.Duration) error {
	for len(octets) > 0 {
		k := min(n, len(octets))
		if err := p.Send(octets[:k]); err != nil {
			return err
		}
		octets = octets[k:]
		time.Sleep(pause)
	}
	return nil
}

// CloseWrite sends a FIN. It is idempotent.
func (p *Peer) CloseWrite() error {
	if p.finSent || p.closed {
		return nil
	}
	p.finSent = true
	p.tapped(time.Now(), transport.TapFIN, true, nil)
	return p.conn.CloseWrite()
}

// Finished reports whether the peer has ended its direction.
func (p *Peer) Finished() bool { return p.finSent || p.closed }

// Reset ends the connection with an RST, if it has not been closed.
func (p *Peer) Reset() error {
	if p.closed {
		return nil
	}
	p.tapped(time.Now(), transport.TapReset, true, nil)
	p.closed = true
	_ = p.conn.SetLinger(0)
	return p.conn.Close()
}

// Close ends the connection. It is idempotent.
func (p *Peer) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	if !p.finSent {
		p.tapped(time.Now(), transport.TapFIN, true, nil)
	}
	return p.conn.Close()
}

// ErrSilence says that nothing came in the time given.
var ErrSilence = errors.New("nothing came")

// MostReceived is how many octets are read of a connection, 3 MiB. Scripts wait for 1 MiB at most,
// but siw may then answer with 2 MiB (kernel-notes/siw-zero-length-read.md). A stack that sends
// without end must not fill the memory of this program.
const MostReceived = 3 << 20

// ErrTooMuch says that more than MostReceived octets came. The rest is not read.
var ErrTooMuch = fmt.Errorf("more than %d octets came", MostReceived)

// isOver reports whether Over is closed.
func (p *Peer) isOver() bool {
	select {
	case <-p.Over:
		return true
	default:
		return false
	}
}

// tick is the most that one unsuccessful read takes off a wait.
const tick = 10 * time.Millisecond

// readBuffers are for fill, because a new one for each read would keep the garbage collector busy.
var readBuffers = sync.Pool{New: func() any {
	buf := make([]byte, 1<<17)
	return &buf
}}

// fill reads once, waits for at most what is left, and subtracts from that the time that
// it took. It returns ErrSilence when nothing came or earlier reads have used up the wait,
// io.EOF or ECONNRESET when the direction has ended, and ErrTooMuch after MostReceived octets.
//
// Time in which this program did not run counts little, because on a machine that is busy with
// other work the program that has to answer does not run either. So a wait is many short
// waits, each of which counts for at most its planned length.
func (p *Peer) fill(left *time.Duration) error {
	if p.inEnd != nil {
		return p.inEnd
	}
	if *left < 0 || p.isOver() {
		return ErrSilence // octets come one by one, perhaps forever
	}
	pooled := readBuffers.Get().(*[]byte)
	defer readBuffers.Put(pooled)
	buf := *pooled
	n, err := 0, error(nil)
	for {
		began, part := time.Now(), max(min(*left, tick), time.Millisecond)
		_ = p.conn.SetReadDeadline(began.Add(part))
		n, err = p.conn.Read(buf)
		*left -= min(time.Since(began), part)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		if *left <= 0 || p.isOver() {
			return ErrSilence
		}
	}
	if n > 0 {
		p.tapped(time.Now(), transport.TapData, false, buf[:n])
		p.in = append(p.in, buf[:n]...)
		if p.taken += n; p.taken > MostReceived {
			p.inEnd = ErrTooMuch
		}
		return nil
	}
	switch {
	case errors.Is(err, io.EOF):
		p.inEnd = io.EOF
		p.tapped(time.Now(), transport.TapFIN, false, nil)
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		p.inEnd = syscall.ECONNRESET
		p.tapped(time.Now(), transport.TapReset, false, nil)
	default:
		p.inEnd = err
	}
	return p.inEnd
}

// Poll takes in what has come and keeps it for later. The error says how the peer's direction
// has ended; it is nil while the direction has not ended.
func (p *Peer) Poll() error {
	for range mostPolls {
		wait := time.Millisecond
		if err := p.fill(&wait); err != nil {
			if errors.Is(err, ErrSilence) {
				return nil
			}
			return err
		}
	}
	return nil // more comes all the time
}

// mostPolls is how many reads one Poll makes at most.
const mostPolls = 1000

// ReadFrame reads a start-up frame, for at most wait. Its private data is the caller's.
// The error is ErrSilence, io.EOF, ECONNRESET or ErrTooMuch, with the part of a frame that
// came before it, or says that what came is no such frame.
func (p *Peer) ReadFrame(kind mpa.Kind, wait time.Duration) (mpa.Frame, error) {
	for {
		f, n, err := mpa.ParseFrame(p.in, kind)
		switch {
		case err == nil:
			f.PrivateData = append([]byte(nil), f.PrivateData...)
			p.in = p.in[n:]
			return f, nil
		case !errors.Is(err, mpa.ErrShort):
			return mpa.Frame{}, fmt.Errorf("%w: % x", err, p.in[:min(len(p.in), 32)])
		}
		if err := p.fill(&wait); err != nil {
			if n := len(p.in); n > 0 {
				err = fmt.Errorf("%d octets of an unfinished frame (% x), then: %w", n, p.in[:min(n, 32)], err)
			}
			return mpa.Frame{}, err
		}
	}
}

// A Segment is an FPDU that came.
type Segment struct {
	Header  ddp.Header
	Payload []byte // the caller's
	Octets  []byte // the whole FPDU; the caller's
	CRC     uint32 // its CRC field
}

// CRCRight reports whether the CRC field fits the FPDU's octets.
func (s *Segment) CRCRight() bool {
	n := len(s.Octets) - mpa.CRCLen
	return mpa.CheckCRC(mpa.CRC(0, s.Octets[:n]), s.Octets[n:]) == nil
}

// ReadFPDU reads one FPDU, for at most wait, without Markers unless Mark was called.
// The error is ErrSilence, io.EOF, ECONNRESET, ErrTooMuch, or about an FPDU that can't be decoded.
func (p *Peer) ReadFPDU(wait time.Duration) (*Segment, error) {
	if p.marking != nil {
		return p.readMarked(wait)
	}
	for {
		ulpduLen, fpduLen, ok := mpa.ParseHeader(p.in)
		if ok && len(p.in) >= fpduLen {
			octets := append([]byte(nil), p.in[:fpduLen]...)
			p.in = p.in[fpduLen:]
			h, payload, err := ddp.Parse(octets[mpa.HeaderLen : mpa.HeaderLen+ulpduLen])
			if err != nil {
				return nil, err
			}
			field := octets[fpduLen-mpa.CRCLen:]
			crc := uint32(field[0]) | uint32(field[1])<<8 | uint32(field[2])<<16 | uint32(field[3])<<24
			return &Segment{h, payload, octets, crc}, nil
		}
		if err := p.fill(&wait); err != nil {
			if len(p.in) > 0 && !errors.Is(err, ErrSilence) {
				return nil, fmt.Errorf("%d octets of an unfinished FPDU, then: %w", len(p.in), err)
			}
			return nil, err
		}
	}
}

// Drain reads until the peer's direction ends or wait has passed, and returns
// what it read beyond what was consumed before. The error is ErrSilence, io.EOF,
// ECONNRESET or ErrTooMuch.
func (p *Peer) Drain(wait time.Duration) ([]byte, error) {
	for {
		if err := p.fill(&wait); err != nil {
			rest := p.in
			p.in = nil
			return rest, err
		}
	}
}

// LocalAddr returns the peer's own address.
func (p *Peer) LocalAddr() netip.AddrPort { return p.record.Local }
