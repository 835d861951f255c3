// Package rstream exchanges the same bytes over a stream as rdma-core's rstream, so either end may
// be that program.
//
// A test is a number of iterations. In each, the end that has connected sends a number of transfers
// of one size, and then the other end sends as many back. Both ends have to know the test, because
// they do not exchange it. Before each test 16 bytes go each way, outside of the measured time.
//
// All bytes that an end sends count up from 0, modulo 256, through all tests and connections, as
// rstream -T v sends and expects them. Without -T v rstream sends whatever its memory contains.
package rstream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// A Test holds the parameters on which both ends agree.
type Test struct {
	Size       int // bytes of a transfer
	Transfers  int // consecutive ones in one direction
	Iterations int
}

// The limits of a Test.
const (
	MaxSize  = 1 << 30
	MaxCount = 1 << 30 // of Transfers and Iterations
)

// The Test of rstream's options -S, -C and -I if only some are given.
const (
	DefaultSize       = 1000
	DefaultTransfers  = 1000
	DefaultIterations = 1
)

// syncSize is the number of bytes that go each way before a test.
const syncSize = 16

// Latency reports whether each iteration is a round trip.
func (t Test) Latency() bool { return t.Transfers == 1 }

// sizes are the sizes that rstream tests by default. With -S all it also tests sizes between them:
// each power of two, and one and a half times each.
var sizes = []int{64, 4 << 10, 64 << 10, 1 << 20}

// Sizes returns the sizes of a run without -S, or with all set the sizes of -S all.
func Sizes(all bool) []int {
	if !all {
		return sizes
	}
	list := []int{64}
	for n := 128; n <= 4<<20; n *= 2 {
		list = append(list, n, n+n/2)
	}
	return list
}

// often returns the number of round trips, or transfers, for a size.
func often(size int) int {
	for _, class := range []struct{ below, count int }{
		{1 << 10, 100_000}, {64 << 10, 10_000}, {1 << 20, 1000},
	} {
		if size < class.below {
			return class.count
		}
	}
	return 100
}

// LatencyOf returns the test of round trips of a size. The first connection of a run without -S, -C
// and -I has one for each size.
func LatencyOf(size int) Test { return Test{Size: size, Transfers: 1, Iterations: often(size)} }

// BandwidthOf returns the test of one direction after the other, for the second connection.
func BandwidthOf(size int) Test { return Test{Size: size, Transfers: often(size), Iterations: 1} }

// Conn is a stream.
type Conn interface {
	io.ReadWriter
	SetDeadline(time.Time) error
}

// End is one end of a run. Its zero value is the end that connected, and does not verify.
type End struct {
	Accepted bool          // this end has accepted the connections
	Verify   bool          // compare what arrives with the pattern
	Patience time.Duration // how long no byte may arrive or leave; 0 means forever

	moved    atomic.Uint64 // bytes of both directions
	sent     byte          // the next byte of the pattern to send
	received byte          // and to receive
	pattern  []byte        // one transfer and 256 bytes
	buf      []byte
}

// ErrEnded reports that the peer ended the connection before the test was over.
var ErrEnded = errors.New("the peer ended the connection in the middle of a test")

// ErrQuiet reports that no byte arrived or left for End.Patience.
var ErrQuiet = errors.New("nothing was exchanged")

// Run does one test over c. The result counts both directions. Ops is the number of transfers, or
// of round trips for a test of latency. After an error c can only be closed.
func (e *End) Run(ctx context.Context, c Conn, t Test) (load.Result, error) {
	for _, l := range []struct {
		what       string
		n, highest int
	}{
		{"size", t.Size, MaxSize}, {"transfers", t.Transfers, MaxCount},
		{"iterations", t.Iterations, MaxCount},
	} {
		if l.n < 1 || l.n > l.highest {
			return load.Result{}, fmt.Errorf("%s %d: has to be 1 to %d", l.what, l.n, l.highest)
		}
	}
	stop := e.watch(ctx, c)
	r, err := e.run(c, t)
	if quiet := stop(); quiet != nil && err != nil {
		err = quiet
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = ErrEnded
	}
	return r, err
}

func (e *End) run(c Conn, t Test) (r load.Result, err error) {
	e.grow(max(t.Size, syncSize))
	send, receive := e.send, e.receive
	if e.Accepted {
		send, receive = receive, send
	}
	if err := send(c, syncSize); err != nil {
		return r, err
	}
	if err := receive(c, syncSize); err != nil {
		return r, err
	}
	var hist *load.Histogram
	if t.Latency() {
		hist = new(load.Histogram)
	}
	m := load.StartMeter()
	began := time.Now()
	var last time.Duration
	for range t.Iterations {
		for range t.Transfers {
			if err := send(c, t.Size); err != nil {
				return r, err
			}
		}
		for range t.Transfers {
			if err := receive(c, t.Size); err != nil {
				return r, err
			}
		}
		if hist != nil {
			now := time.Since(began)
			hist.Add(now - last)
			last = now
		}
	}
	each := uint64(t.Iterations) * uint64(t.Transfers)
	r.Ops, r.Octets = 2*each, 2*each*uint64(t.Size)
	if hist != nil {
		r.Ops, r.Lat = each, hist.Latency()
	}
	r.Elapsed, r.Client = m.Stop(r.Ops)
	return r, nil
}

// grow makes room for transfers of n bytes.
func (e *End) grow(n int) {
	if len(e.buf) >= n {
		return
	}
	e.buf = make([]byte, n)
	e.pattern = make([]byte, n+256)
	for i := range e.pattern {
		e.pattern[i] = byte(i)
	}
}

func (e *End) send(c Conn, n int) error {
	k, err := c.Write(e.pattern[e.sent:][:n])
	e.sent += byte(k)
	e.moved.Add(uint64(k))
	return err
}

func (e *End) receive(c Conn, n int) error {
	for got := 0; got < n; {
		k, err := c.Read(e.buf[got:n])
		if e.Verify && !bytes.Equal(e.buf[got:got+k], e.pattern[e.received:][:k]) {
			return e.differs(e.buf[got : got+k])
		}
		e.received += byte(k)
		e.moved.Add(uint64(k))
		got += k
		if err != nil && got < n {
			return err
		}
	}
	return nil
}

// differs returns an error that names the first byte that differs from the pattern.
func (e *End) differs(got []byte) error {
	for i, b := range got {
		if want := e.received + byte(i); b != want {
			return fmt.Errorf("a byte is %#02x, and not %#02x: what came is not what is sent for "+
				"verification (rstream sends it with -T v only)", b, want)
		}
	}
	return nil
}

// watch ends the calls on c when ctx ends, or when nothing is transferred for Patience. stop ends
// this, and returns why c was ended, or nil.
func (e *End) watch(ctx context.Context, c Conn) (stop func() error) {
	over := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		var tick <-chan time.Time
		if e.Patience > 0 {
			t := time.NewTicker(e.Patience)
			defer t.Stop()
			tick = t.C
		}
		for last := e.moved.Load(); ; last = e.moved.Load() {
			select {
			case <-over:
				ended <- nil
				return
			case <-ctx.Done():
				ended <- ctx.Err()
			case <-tick:
				if e.moved.Load() != last {
					continue
				}
				ended <- fmt.Errorf("%w for %v", ErrQuiet, e.Patience)
			}
			_ = c.SetDeadline(time.Unix(1, 0)) // makes waiting calls return
			return
		}
	}()
	return func() error {
		close(over)
		return <-ended
	}
}
