package scenarios

import (
	"context"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
)

// reuse connects one QP of the initiator's twice, with RESET in between.
func reuse(r *conformance.VerbsRun) {
	if r.Initiator.Fixed {
		r.Unsupported("a queue pair of %s stays in the error state (kernel-notes/siw-modify-qp.md)", r.Initiator.Name)
	}
	b := newBench(r)
	qp, err := b.pd.CreateQP(b.init(littleRoom))
	r.NoError(err, "a QP can be made")
	closing(r, "the QP", qp)
	ch, err := rdmacm.CreateEventChannel(r.Initiator.Context)
	r.NoError(err, "an event channel can be made")
	closing(r, "the event channel", ch)
	l := r.Listen(r.Responder)
	poll := func(cq *ibverbs.CQ, what string) ibverbs.WC {
		var wc [1]ibverbs.WC
		n := 0
		for until := time.Now().Add(r.Scaled(2 * time.Second)); n == 0 && time.Now().Before(until); {
			if n, err = cq.Poll(wc[:]); n == 0 {
				time.Sleep(time.Millisecond)
			}
			r.NoError(err, "the CQ can be polled")
		}
		r.Require(n == 1, what)
		return wc[0]
	}
	for _, first := range []bool{true, false} {
		id, conn := reconnect(r, ch, l, qp)
		r.NoError(qp.PostRecv(ibverbs.RecvWR{WRID: 1}), "the initiator can post a receive")
		r.NoError(qp.PostSend(ibverbs.SendWR{WRID: 2, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled}), "and a Send")
		wc := poll(b.cq, "the Send completes")
		r.Check(wc.WRID == 2 && wc.Status == ibverbs.WCSuccess, "with success", "WR %d with %s", wc.WRID, wc.Status)
		wc = poll(conn.RecvCQ(), "it arrives")
		r.Check(wc.WRID == 7 && wc.Status == ibverbs.WCSuccess, "in the receive", "WR %d with %s", wc.WRID, wc.Status)
		r.NoError(toState(qp, ibverbs.QPErr), "the QP can be moved to ERR")
		ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(2*time.Second))
		r.NoError(conn.Wait(ctx), "the responder learns that the connection has ended")
		cancel()
		r.NoError(conn.Close(), "its end can be closed")
		nextEvent(r, ch, rdmacm.Disconnected)
		r.NoError(id.Close(), "the id can be closed")
		if first {
			// RESET discards completions, so the flushed receive is polled before it.
			wc = poll(b.cq, "the receive is flushed")
			r.Check(wc.WRID == 1 && wc.Status == ibverbs.WCWRFlushErr, "as one that was posted to the first connection", "WR %d with %s", wc.WRID, wc.Status)
			r.NoError(toState(qp, ibverbs.QPReset), "the QP can be reset")
		}
	}
}

// nextEvent waits for an event of the connection manager's.
func nextEvent(r *conformance.VerbsRun, ch *rdmacm.EventChannel, want rdmacm.EventType) {
	ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(2*time.Second))
	defer cancel()
	ev, err := ch.GetEvent(ctx)
	r.NoError(err, "an event comes")
	r.Require(ev.Type == want, "it is "+want.String(), "%s: %v", ev.Type, ev.Err())
}

// reconnect connects a QP to a listener, which has a receive ready.
func reconnect(r *conformance.VerbsRun, ch *rdmacm.EventChannel, l *rdmacm.Listener, qp *ibverbs.QP) (*rdmacm.ID, *rdmacm.Conn) {
	id, err := ch.CreateID(nil)
	r.NoError(err, "an id can be made")
	r.Cleanup(func() { _ = id.Close() })
	r.NoError(id.ResolveAddr(netip.AddrPort{}, l.Addr(), r.Scaled(2*time.Second)), "the address can be resolved")
	nextEvent(r, ch, rdmacm.AddrResolved)
	r.NoError(id.ResolveRoute(r.Scaled(2*time.Second)), "the route can be resolved")
	nextEvent(r, ch, rdmacm.RouteResolved)
	r.NoError(id.Connect(&rdmacm.ConnParam{QP: qp, ResponderResources: 1, InitiatorDepth: 1}), "the QP can be connected")
	ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(2*time.Second))
	defer cancel()
	req, err := l.Accept(ctx)
	r.NoError(err, "the request arrives")
	conn, err := req.Accept(ctx, &rdmacm.ConnConfig{Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
		return c.QP().PostRecv(ibverbs.RecvWR{WRID: 7})
	}})
	r.NoError(err, "the responder's accept succeeds")
	r.Cleanup(func() { _ = conn.Close() })
	nextEvent(r, ch, rdmacm.Established)
	return id, conn
}
