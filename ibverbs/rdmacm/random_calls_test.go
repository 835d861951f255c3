package rdmacm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

var (
	callsTime = flag.Duration("calls.time", 0, "how long TestConnCallsAtRandom runs at least")
	callsSeed = flag.Uint64("calls.seed", 0, "its seed; 0 draws one")
)

// TestConnCallsAtRandom: two or three goroutines for each side of each connection make random
// calls, until one of the sides ends the connection at a random time in a random way. The program
// also posts its own work and receives messages. Every call returns, a successful Read has read its
// bytes, and each message and completion comes once, unless the CQ had no room for it.
func TestConnCallsAtRandom(t *testing.T) {
	rounds := 40
	switch {
	case testing.Short():
		rounds = 8
	case onKernel():
		rounds = 10
	}
	seed := *callsSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	t.Logf("seed %#x", seed)
	until := time.Now().Add(*callsTime)
	for round := 0; round < rounds || time.Now().Before(until); round++ {
		if !t.Run(strconv.Itoa(round), func(t *testing.T) {
			(&callsWorld{t: t, rnd: rand.New(rand.NewPCG(seed, uint64(round)))}).run()
		}) {
			break
		}
	}
}

// callsWorld is one round.
type callsWorld struct {
	t    *testing.T
	vctx *ibverbs.Context
	mu   sync.Mutex // of rnd
	rnd  *rand.Rand
	all  sync.WaitGroup
}

const (
	callerOctets = 64 // of each caller's buffer
	callersMost  = 3
	messageSize  = 16
	patternAt    = callersMost * callerOctets // bytes that the peer reads, then those it writes
)

// callsSide is one end of a connection.
type callsSide struct {
	w      *callsWorld
	c      *rdmacm.Conn
	mr     *ibverbs.MR // callersMost buffers, and the bytes for the peer
	remote ibverbs.RemoteRegion
	here   ibverbs.RemoteRegion

	places    int // of the send queue
	hasOnSend bool
	own       int64        // the program's own signalled work requests posted; under w.mu
	owned     atomic.Int64 // of these, how many have come to OnSend

	seen [callersMost][256]bool // messages received from each of the peer's callers; under w.mu
}

func (w *callsWorld) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

// pattern returns the bytes of a side's memory that the peer reads.
var pattern = bytes.Repeat([]byte("pattern."), callerOctets/8)

// config returns a configuration for s.
func (s *callsSide) config() *rdmacm.ConnConfig {
	s.places = 2 + s.w.draw(14)
	cfg := &rdmacm.ConnConfig{
		Cap:      ibverbs.QPCap{MaxSendWR: s.places},
		Receives: 64, ReceiveSize: messageSize,
		Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) (err error) {
			if s.mr != nil {
				_ = s.mr.Close() // of another try
			}
			if s.mr, err = c.PD().AllocMR(patternAt+2*callerOctets, allRights); err != nil {
				return err
			}
			copy(s.mr.Bytes()[patternAt:], pattern)
			if s.here, err = s.mr.Remote(patternAt, 2*callerOctets); err != nil {
				return err
			}
			for range 1 + s.w.draw(2) {
				s.w.all.Go(func() { s.receive(c) })
			}
			param.PrivateData, err = s.here.MarshalBinary()
			return err
		},
	}
	if s.hasOnSend = s.w.draw(2) == 0; s.hasOnSend {
		cfg.OnSend = s.onSend
	}
	return cfg
}

// onSend gets the completions of the program's own work, in order and each once. Unsignalled work,
// whose WRID is 0, completes only if it is flushed.
func (s *callsSide) onSend(wc *ibverbs.WC) {
	switch {
	case wc.WRID == 0 && wc.Status != ibverbs.WCSuccess:
	case wc.WRID != uint64(s.owned.Load())+1 && !s.lost():
		s.w.t.Errorf("OnSend got %+v after work request %d", *wc, s.owned.Load())
	default:
		s.owned.Store(int64(wc.WRID))
	}
}

// lost reports whether completions were lost, because the program goes on posting after the end.
func (s *callsSide) lost() bool {
	st, err := s.c.SendCQ().Stats()
	return err == nil && st.Lost > 0
}

// brief returns a context that ends soon, or never.
func (w *callsWorld) brief() (context.Context, context.CancelFunc) {
	if w.draw(3) > 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(w.draw(2000))*time.Microsecond)
}

// receive takes messages until the end of the connection.
func (s *callsSide) receive(c *rdmacm.Conn) {
	for {
		ctx, cancel := s.w.brief()
		m, err := c.Receive(ctx)
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			continue
		case err != nil:
			if !errors.Is(err, ibverbs.ErrFlushed) && !errors.Is(err, syscall.ENOTCONN) &&
				!errors.Is(err, os.ErrClosed) && !errors.As(err, new(*ibverbs.WCError)) {
				s.w.t.Errorf("Receive: %v", err)
			}
			return
		}
		s.check(m.Data)
		if s.w.draw(8) > 0 {
			_ = m.Release() // fails once the connection is closed
		}
	}
}

// putMessage makes a message.
func putMessage(text []byte, caller int, number uint64) {
	binary.BigEndian.PutUint64(text, uint64(caller))
	binary.BigEndian.PutUint64(text[8:], number)
}

// check checks a message, which may come only once. Two goroutines may call it in an order other
// than the messages' order.
func (s *callsSide) check(data []byte) {
	caller, number := binary.BigEndian.Uint64(data), binary.BigEndian.Uint64(data[8:])
	if len(data) != messageSize || caller >= callersMost || number == 0 {
		s.w.t.Errorf("a message of %d bytes: %x", len(data), data)
		return
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if number >= uint64(len(s.seen[caller])) {
		return
	}
	if s.seen[caller][number] {
		s.w.t.Errorf("message %d of caller %d comes twice", number, caller)
	}
	s.seen[caller][number] = true
}

// call makes calls until one fails for a reason other than its context. Work of a call that was
// given up may still use the caller's buffer, so call does not write there any more.
func (s *callsSide) call(k int) {
	t, c := s.w.t, s.c
	at := k * callerOctets
	sink := testkit.Must(s.mr.SGE(at, callerOctets-messageSize))(t)
	read := s.mr.Bytes()[at : at+callerOctets-messageSize]
	message := testkit.Must(s.mr.SGE(at+len(read), messageSize))(t)
	text := s.mr.Bytes()[at+len(read) : at+callerOctets]
	from := testkit.Must(s.mr.SGE(patternAt, callerOctets))(t)
	source := testkit.Must(s.remote.Part(0, len(read)))(t)
	to := testkit.Must(s.remote.Part(callerOctets, callerOctets))(t)
	var copied [messageSize]byte
	givenUp := false
	for number := uint64(1); ; {
		ctx, cancel := s.w.brief()
		var err error
		kind := s.w.draw(10)
		if kind <= 1 && !givenUp {
			clear(read)
		}
		switch kind {
		case 0:
			err = c.Read(ctx, sink, source)
		case 1:
			err = c.Do(ctx, ibverbs.NewWrite(to, from), ibverbs.NewRead(source, sink))
		case 2:
			err = c.Write(ctx, to, from)
		case 3:
			if !givenUp {
				putMessage(text, k, number)
				number++
				err = c.Send(ctx, message)
			}
		case 9:
			putMessage(copied[:], k, number) // even after a call that was given up
			number++
			err = c.SendBytes(ctx, copied[:])
		case 4:
			s.post(to, from)
		case 5:
			_, _ = c.QP().Stats()
			_, _ = c.String(), c.RemoteAddr()
			_ = s.w.vctx.WriteState(io.Discard)
		case 6:
			end, stop := c.UntilEnd(ctx)
			if s.w.draw(2) == 0 {
				_ = c.Wait(end)
			}
			stop()
		default:
			err = c.Do(ctx, ibverbs.SendWR{}, ibverbs.SendWR{})
		}
		ended := ctx.Err() != nil
		cancel()
		givenUp = givenUp || err != nil
		if kind <= 1 && !givenUp && !bytes.Equal(read, pattern[:len(read)]) {
			t.Errorf("a Read that succeeded brought %q", read)
		}
		if err != nil && !(ended && errors.Is(err, context.DeadlineExceeded)) {
			return
		}
	}
}

// post posts a work request of the program's own, if there is room. It is signalled only if its
// completion comes to OnSend.
func (s *callsSide) post(to ibverbs.RemoteRegion, from ibverbs.SGE) {
	wr := ibverbs.NewWrite(to, from)
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !s.hasOnSend || s.w.rnd.IntN(3) == 0 {
		wr.Flags = 0
		_ = s.c.QP().PostSend(wr) // fails when the queue is full
		return
	}
	if s.own-s.owned.Load() >= int64(s.places) {
		return
	}
	wr.WRID, wr.Flags = uint64(s.own+1), ibverbs.SendSignaled
	err := s.c.QP().PostSend(wr)
	refused := new(ibverbs.PostError)
	if err == nil || errors.As(err, &refused) && refused.Posted == 1 { // with siw's ENOTCONN
		s.own++
	}
}

// end ends the connection, in one way or in two at the same time.
func (s *callsSide) end() {
	t, c := s.w.t, s.c
	time.Sleep(time.Duration(s.w.draw(8000)) * time.Microsecond)
	defer func() { _ = c.Disconnect() }() // in case a Shutdown has given up
	var both sync.WaitGroup
	defer both.Wait()
	for range 1 + s.w.draw(2) {
		both.Go(func() {
			switch s.w.draw(7) {
			case 0:
				ctx, cancel := s.w.brief()
				defer cancel()
				_ = c.Shutdown(ctx)
			case 1:
				_ = c.Disconnect()
			case 2:
				_ = c.QP().Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState)
			case 3:
				bad := s.remote
				bad.RKey ^= 0x5500
				ctx, cancel := s.w.brief()
				defer cancel()
				_ = c.Write(ctx, bad, testkit.Must(s.mr.SGE(patternAt, 8))(t))
			case 4:
				if !onKernel() { // on the kernel work would be lost without completions
					testkit.OK(t, c.QP().Close())
				}
			case 5:
				ctx, cancel := s.w.brief()
				defer cancel()
				_ = c.QP().Drain(ctx)
			default:
				testkit.OK(t, c.Close())
			}
		})
	}
}

func (w *callsWorld) run() {
	t := w.t
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	vctx, addr := device(t)
	w.vctx = vctx
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	var sides []*callsSide
	for range 1 + w.draw(3) {
		a, b := &callsSide{w: w}, &callsSide{w: w}
		sides = append(sides, a, b)
		accepted := make(chan error, 1)
		go func() {
			req, err := l.Accept(ctx)
			if err == nil {
				b.c, err = req.Accept(ctx, b.config())
			}
			accepted <- err
		}()
		a.c = testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), a.config()))(t)
		testkit.OK(t, <-accepted)
		testkit.OK(t, a.remote.UnmarshalBinary(a.c.PrivateData()))
		testkit.OK(t, b.remote.UnmarshalBinary(b.c.PrivateData()))
		for _, s := range []*callsSide{a, b} {
			for k := range 2 + w.draw(callersMost-1) {
				w.all.Go(func() { s.call(k) })
			}
			w.all.Go(s.end)
		}
	}
	testkit.OK(t, l.Close())
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		w.all.Wait()
	}()
	select {
	case <-returned:
	case <-ctx.Done():
		stacks := make([]byte, 1<<20)
		var state bytes.Buffer
		_ = w.vctx.WriteState(&state)
		t.Fatalf("calls have not returned after %v:\n%s\n%s", patience, &state, stacks[:runtime.Stack(stacks, true)])
	}
	for _, s := range sides {
		testkit.OK(t, s.c.Close())
		testkit.OK(t, s.mr.Close())
	}
}
