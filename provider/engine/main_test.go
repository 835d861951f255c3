package engine

import (
	"bytes"
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// children are the second processes of tests that have two, by the environment variable that has
// this binary run one instead of the tests. Each is called with the variable's value.
var children = map[string]func(t *testing.T, value string){}

func TestMain(m *testing.M) {
	for name, run := range children {
		if value := os.Getenv(name); value != "" {
			runChild(func(t *testing.T) { run(t, value) })
		}
	}
	goleak.VerifyTestMain(m)
}

// runChild runs one child as the only test, and ends the process with its status.
func runChild(run func(t *testing.T)) {
	all := func(_, _ string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "child", F: func(t *testing.T) {
		defer goleak.VerifyNone(t)
		run(t)
	}}}, nil, nil)
}

// noNetwork is a network whose pollers never have anything, for tests of
// objects that need no wire. It has nothing else: using it panics.
type noNetwork struct{ transport.Network }

func (noNetwork) NewPoller() (transport.Poller, error) {
	return &noPoller{wake: make(chan struct{}, 1), done: make(chan struct{})}, nil
}

type noPoller struct {
	transport.Poller
	wake chan struct{}
	done chan struct{}
	once sync.Once
}

func (p *noPoller) Poll() int { return 0 }

func (p *noPoller) Serve() int { return 0 }

func (p *noPoller) Spin(int) {}

func (p *noPoller) BeforeSleep() {}

func (p *noPoller) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *noPoller) Wait(ctx context.Context) error {
	select {
	case <-p.wake:
		return nil
	case <-p.done:
		return os.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *noPoller) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// wantErr fails the test unless err is a *provider.Error with want in it.
func wantErr(t testing.TB, err, want error) {
	t.Helper()
	var perr *provider.Error
	if !errors.As(err, &perr) || !errors.Is(err, want) {
		t.Fatalf("error %v, want a *provider.Error with %v", err, want)
	}
}

// errOf is the error of a call that returns something beside it.
func errOf[T any](_ T, err error) error { return err }

// unwired opens a device on noNetwork and closes it when the test ends.
func unwired(t testing.TB) *device {
	t.Helper()
	d := testkit.Must(New(&Options{Network: noNetwork{}}).Open(""))(t).(*device)
	t.Cleanup(func() { testkit.OK(t, d.Close()) })
	return d
}

// What tests fill memory with, and how they see that it has not changed. Their loops over single
// bytes have taken a good part of the time of tests under the race detector, which would note each
// of them. So these do not tell it of single bytes, but, with copy, of all at once.

// freshOctet is what memory is filled with that nobody has written to.
const freshOctet = 0xa5

var freshOctets = bytes.Repeat([]byte{freshOctet}, 16<<10)

// freshen makes all bytes of b fresh.
func freshen(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, freshOctets):]
	}
}

// isFresh reports whether all bytes of b are.
func isFresh(b []byte) bool {
	var got [16 << 10]byte
	for len(b) > 0 {
		n := copy(got[:], b)
		if !bytes.Equal(got[:n], freshOctets[:n]) {
			return false
		}
		b = b[n:]
	}
	return true
}

// pattern fills b so that no two places look alike for long.
func pattern(b []byte, seed int) {
	patternUnseen(b, seed)
	copy(b, b) // for the race detector
}

//go:norace
func patternUnseen(b []byte, seed int) {
	x := uint32(seed)*2654435761 + 12345
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
}

// What tests see of a stream. Only these functions know which part of it stores what, and under
// which lock, so a change of the layout changes no test.

// alone calls f with the locks of both sides, so neither side moves meanwhile.
func (s *stream) alone(f func()) {
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	f()
}

// replaceConn makes the stream use the Conn that wrap makes of its own. It is written without
// records.
func (s *stream) replaceConn(wrap func(transport.Conn) transport.Conn) {
	s.alone(func() { s.conn, s.tx.records = wrap(s.conn), nil })
}

// sent returns how many bytes the socket has taken.
func (s *stream) sent() uint64 { return s.tx.moved.Load() }

// full reports whether the socket was full, and the poller watches for room.
func (s *stream) full() bool { return s.tx.blocked.Load() }

// receivedFPDUs returns how many FPDUs were received. No other goroutine receives.
func (s *stream) receivedFPDUs() int { return int(s.rx.received) }

// receivedBytes returns how many bytes of FPDUs were received. No other goroutine receives.
func (s *stream) receivedBytes() uint64 { return s.rx.fpdu.Pos() }

// keeps is what the receive side of a stream keeps between turns.
type keeps struct {
	part    int  // capacity of the part of an FPDU that was moved out of a context; 0 without one
	context bool // a receive context
	storing bool // the segments that an object stores
}

func (s *stream) keeps() keeps {
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	k := keeps{context: s.rx.c != nil, storing: s.rx.storing()}
	if s.rx.part != nil {
		k.part = cap(s.rx.part.b)
	}
	return k
}

// holdsBuffers reports whether the stream has a batch, a receive context or a part.
func (s *stream) holdsBuffers() (holds bool) {
	s.alone(func() { holds = s.tx.b != nil || s.rx.c != nil || s.rx.part != nil })
	return holds
}

// idleness is what a stream still has to do, and what it keeps.
type idleness struct {
	unsent, reads, unreported int
	batch, context            bool
}

func (s *stream) idle() (i idleness) {
	s.alone(func() {
		sq := &s.q.sq
		sq.done.Lock()
		defer sq.done.Unlock()
		tail := sq.tail.Load()
		i = idleness{
			unsent: int(tail - s.tx.next), reads: s.outstanding.Len(), unreported: int(tail - sq.head),
			batch: s.tx.b != nil, context: s.rx.c != nil,
		}
	})
	return i
}

// pins returns what the transmit side of a stream holds for a socket that is full.
func (s *stream) pins() (batch, octets int) {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	if s.tx.b != nil {
		batch = 1
		chunks, _ := s.tx.b.Copied()
		octets = chunks * policy.Chunk
	}
	if s.tx.held != nil {
		octets += s.tx.held.Len()
	}
	return batch, octets
}
