package bridge

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestLateEvents: an event that is being raised while its object is destroyed is not sent
// afterwards, because the program would follow a pointer to freed memory.
func TestLateEvents(t *testing.T) {
	e := newEnd(t, nil)
	ch := e.channel()
	defer e.prog.close(ch)
	srq := e.createSRQ(abi.CreateSRQ{PDHandle: e.pd, MaxWR: 1, MaxSGE: 1, UserHandle: 11})
	cq := e.createCQ(1, ch, 22)
	q := e.createQP(abi.CreateQP{PDHandle: e.pd, SendCQHandle: cq.handle, RecvCQHandle: cq.handle,
		MaxSendWR: 1, MaxRecvWR: 1, QPType: typeRC, UserHandle: 33})
	h := &e.prog.File(e.fd).(*uverbsFile).handles
	s, err := lookup[*sharedQueue](h, srq.handle)
	if err != nil {
		t.Fatal(err)
	}
	c, err := lookup[*completionQueue](h, cq.handle)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := lookup[*queuePair](h, q.handle)
	if err != nil {
		t.Fatal(err)
	}
	late := func() {
		s.ring.low()
		c.file.raise(ibverbs.EventCQErr, c.user, &c.asyncFired)
		c.ring.Notify()
		qp.file.raise(ibverbs.EventSQDrained, qp.user, &qp.asyncFired)
	}

	// Earlier events are withdrawn and not reported.
	late()
	var gone abi.DestroyResp
	var goneCQ abi.DestroyCQResp
	e.must(abi.UverbsDestroyQP, &abi.DestroyQP{QPHandle: q.handle}, nil, &gone, nil)
	if gone.EventsReported != 0 {
		t.Errorf("%d events of the QP reported, and none was read", gone.EventsReported)
	}
	e.must(abi.UverbsDestroySRQ, &abi.DestroySRQ{SRQHandle: srq.handle}, nil, &gone, nil)
	if gone.EventsReported != 0 {
		t.Errorf("%d events of the SRQ reported, and none was read", gone.EventsReported)
	}
	e.must(abi.UverbsDestroyCQ, &abi.DestroyCQ{CQHandle: cq.handle}, nil, &goneCQ, nil)
	if goneCQ != (abi.DestroyCQResp{}) {
		t.Errorf("events of the CQ reported: %s, and none was read", abi.Format(&goneCQ))
	}
	late()
	if !quiet(e.async) {
		t.Errorf("an event after the destruction: %s", abi.Format(e.asyncEvent()))
	}
	if !quiet(ch) {
		t.Error("a completion event after the destruction")
	}
}
