package rdmacm_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestLostCompletions: after the end of a connection the program goes on posting without polling,
// so the send CQ is full. A call whose completion finds no room fails, as does a Drain, and the
// places of such calls come back.
func TestLostCompletions(t *testing.T) {
	const places = 2
	a, _ := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: places}}, nil)
	ctx := timeout(t)
	testkit.OK(t, a.Do(ctx, empty))
	testkit.OK(t, a.QP().Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState))
	for name, call := range map[string]func() error{
		"Do":    func() error { return a.Do(ctx, empty) },
		"Drain": func() error { return a.QP().Drain(ctx) },
	} {
		for range 2 * places { // more than there are places that could be lost
			for range a.SendCQ().CQE() {
				testkit.OK(t, a.QP().PostSend(empty))
			}
			if err := call(); !errors.Is(err, syscall.EOVERFLOW) {
				t.Errorf("%s with a full CQ: %v", name, err)
			}
		}
	}
	if err := a.Do(ctx, empty); !errors.Is(err, ibverbs.ErrFlushed) {
		t.Errorf("Do with room in the CQ: %v", err)
	}
}

// TestLostBeforeUnsignalled: the completion of a call is lost while later unsignalled work is under
// way. Nothing reports the end of that work, but the call still fails.
func TestLostBeforeUnsignalled(t *testing.T) {
	w := newLossWorld(t)
	lost := make(chan error)
	go func() { lost <- w.a.Do(w.ctx, empty) }()
	w.until(func() bool { return w.stats().Lost > 0 })
	testkit.OK(t, w.a.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMARead,
		SGList: []ibverbs.SGE{w.here}, RemoteAddr: w.there.Addr, RKey: w.there.RKey}))
	<-w.slow.asked
	testkit.OK(t, w.poll())
	w.until(func() bool { return w.stats().Waiting == 0 })
	time.Sleep(20 * time.Millisecond) // usually the call sleeps by then
	close(w.slow.answer)
	if err := <-lost; !errors.Is(err, syscall.EOVERFLOW) {
		t.Errorf("the call whose completion is lost: %v", err)
	}
	testkit.OK(t, w.a.Do(w.ctx, empty))
}

// TestLostAndClosed: the completions of a closed QP may find no room. As without a loss, closing
// the Conn ends the waiting calls.
func TestLostAndClosed(t *testing.T) {
	w := newLossWorld(t)
	defer close(w.slow.answer)
	testkit.OK(t, w.a.QP().PostSend(own(2))) // its completion is lost
	w.until(func() bool { return w.stats().Lost > 0 })
	read := make(chan error)
	go func() { read <- w.a.Read(w.ctx, w.here, w.there) }()
	<-w.slow.asked
	testkit.OK(t, w.a.QP().Close())
	testkit.OK(t, w.poll())
	select {
	case err := <-read:
		t.Errorf("Read, and the Conn is open: %v", err)
	case <-time.After(50 * time.Millisecond):
		testkit.OK(t, w.a.Close())
		if err := <-read; !errors.Is(err, os.ErrClosed) {
			t.Errorf("Read: %v", err)
		}
	}
}

// TestLostBesideOneThatWaits: a call whose completions are lost has the places that another call
// waits for. The other call polls last, and does not keep the first from finding the loss.
func TestLostBesideOneThatWaits(t *testing.T) {
	w := newLossWorld(t)
	lost, waits := make(chan error), make(chan error)
	all := slices.Repeat([]ibverbs.SendWR{empty}, lossPlaces)
	go func() { lost <- w.a.Do(w.ctx, all[1:]...) }() // the call that polls has one place
	w.until(func() bool { return w.stats().Lost == lossPlaces-1 })
	time.Sleep(20 * time.Millisecond) // usually it waits by then
	go func() { waits <- w.a.Do(w.ctx, all...) }()
	time.Sleep(20 * time.Millisecond)
	testkit.OK(t, w.poll())
	if err := <-lost; !errors.Is(err, syscall.EOVERFLOW) {
		t.Errorf("the call whose completions are lost: %v", err)
	}
	testkit.OK(t, <-waits)
}

// lossWorld is a connection whose send CQ is full of the program's own completions, which are not
// polled before the test says so. The peer has a slow region.
type lossWorld struct {
	t     *testing.T
	ctx   context.Context
	a     *rdmacm.Conn
	slow  *slowObject
	there ibverbs.RemoteRegion
	here  ibverbs.SGE
	first chan error
	goOn  chan struct{}
}

const lossPlaces = 4 // of the send queue

var empty = ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}

// own returns signalled work of the program.
func own(wrid uint64) ibverbs.SendWR {
	return ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, WRID: wrid}
}

func newLossWorld(t *testing.T) *lossWorld {
	t.Helper()
	w := &lossWorld{t: t, ctx: timeout(t), first: make(chan error), goOn: make(chan struct{}),
		slow: &slowObject{asked: make(chan struct{}), answer: make(chan struct{})}}
	polled := make(chan struct{})
	a, b := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: lossPlaces},
		OnSend: func(wc *ibverbs.WC) {
			if wc.WRID == 1 {
				close(polled)
				<-w.goOn
			}
		}}, nil)
	w.a = a
	object := testkit.Must(b.PD().RegObject(w.slow, 8, ibverbs.AccessRemoteRead))(t)
	t.Cleanup(func() { testkit.OK(t, object.Close()) })
	w.there = testkit.Must(object.Remote(0, 8))(t)
	here, _ := memory(t, a, 8)
	w.here = sge(t, here, 0, 8)

	testkit.OK(t, a.QP().PostSend(own(1)))
	go func() { w.first <- a.Do(w.ctx, empty) }()
	<-polled
	for w.stats().Waiting < a.SendCQ().CQE() {
		if err := a.QP().PostSend(own(2)); err != nil && !errors.Is(err, syscall.ENOMEM) {
			t.Fatal(err)
		}
	}
	return w
}

// poll lets the polling call go on.
func (w *lossWorld) poll() error {
	close(w.goOn)
	return <-w.first
}

func (w *lossWorld) stats() ibverbs.CQStats {
	w.t.Helper()
	return testkit.Must(w.a.SendCQ().Stats())(w.t)
}

// until waits for a condition.
func (w *lossWorld) until(holds func() bool) {
	w.t.Helper()
	for !holds() {
		testkit.OK(w.t, w.ctx.Err())
		time.Sleep(time.Millisecond)
	}
}

// slowObject returns no bytes until answer is closed.
type slowObject struct{ asked, answer chan struct{} }

func (o *slowObject) ReadAt(b []byte, _ int64) (int, error) {
	close(o.asked)
	<-o.answer
	return len(b), nil
}
