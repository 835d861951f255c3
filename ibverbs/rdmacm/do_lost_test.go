package rdmacm_test

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestLostCompletions: after the end of a connection the program goes on posting, and nobody polls,
// so that the send CQ is full. A call whose completion finds no room fails, as does a Drain, and
// the places of such calls come back.
func TestLostCompletions(t *testing.T) {
	if onKernel() {
		t.Skip("its CQs don't count what they lose")
	}
	const places = 2
	a, _ := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: places}}, nil)
	ctx := timeout(t)
	empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
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

// TestLostBeforeUnsignalled: the completion of a call is lost while unsignalled work that was posted
// after it is under way. Nothing reports the end of that, and the call fails all the same.
func TestLostBeforeUnsignalled(t *testing.T) {
	if onKernel() {
		t.Skip("its CQs don't count what they lose")
	}
	polled, goOn := make(chan struct{}), make(chan struct{})
	a, b := pair(t, &rdmacm.ConnConfig{OnSend: func(wc *ibverbs.WC) {
		if wc.WRID == 1 { // nobody polls until goOn is closed
			close(polled)
			<-goOn
		}
	}}, nil)
	ctx := timeout(t)
	slow := &slowObject{asked: make(chan struct{}), answer: make(chan struct{})}
	object := testkit.Must(b.PD().RegObject(slow, 8, ibverbs.AccessRemoteRead))(t)
	t.Cleanup(func() { testkit.OK(t, object.Close()) })
	there := testkit.Must(object.Remote(0, 8))(t)
	here, _ := memory(t, a, 8)

	empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
	own := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled, WRID: 1}
	testkit.OK(t, a.QP().PostSend(own))
	first, lost := make(chan error), make(chan error)
	go func() { first <- a.Do(ctx, empty) }()
	<-polled
	own.WRID = 2
	stats := func() ibverbs.CQStats { return testkit.Must(a.SendCQ().Stats())(t) }
	for stats().Waiting < a.SendCQ().CQE() {
		if err := a.QP().PostSend(own); err != nil && !errors.Is(err, syscall.ENOMEM) {
			t.Fatal(err)
		}
	}
	go func() { lost <- a.Do(ctx, empty) }()
	for stats().Lost == 0 {
		testkit.OK(t, ctx.Err())
		time.Sleep(time.Millisecond)
	}
	testkit.OK(t, a.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMARead,
		SGList: []ibverbs.SGE{sge(t, here, 0, 8)}, RemoteAddr: there.Addr, RKey: there.RKey}))
	<-slow.asked
	close(goOn)
	testkit.OK(t, <-first)
	for stats().Waiting > 0 {
		testkit.OK(t, ctx.Err())
		time.Sleep(time.Millisecond)
	}
	time.Sleep(20 * time.Millisecond) // most often the call sleeps then
	close(slow.answer)
	if err := <-lost; !errors.Is(err, syscall.EOVERFLOW) {
		t.Errorf("the call whose completion is lost: %v", err)
	}
	testkit.OK(t, a.Do(ctx, empty))
}

// slowObject has no octets until answer is closed.
type slowObject struct{ asked, answer chan struct{} }

func (o *slowObject) ReadAt(b []byte, _ int64) (int, error) {
	close(o.asked)
	<-o.answer
	return len(b), nil
}
