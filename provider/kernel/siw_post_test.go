//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
)

// Posting before the connection is refused and leaves nothing in the queue. libsiw alone would
// queue the request, which blocks the queue.
func testPostsBeforeConnection(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	a.resolve(l.LocalAddr())
	a.createQP()
	wr := provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 5)}}
	n, err := a.qp.PostSend([]provider.SendWR{wr})
	if n != 0 {
		t.Errorf("before the connection: %d posted", n)
	}
	wantErrno(t, "before the connection", err, syscall.EINVAL)
	if err := a.id.Connect(depth); err != nil {
		t.Fatal(err)
	}
	p.id = p.want("at the listener", provider.CMConnectRequest).ID
	p.createQP()
	p.recv(provider.RecvWR{WRID: 10, SGList: []provider.SGE{p.sge(0, 5)}})
	q := p.qp.(*qp)
	q.sq.Reset()
	q.sq.Add(1, uint32(provider.WRSend), uint32(provider.SendSignaled))
	if n, err := q.c.PostSend(q.sq); n != 1 || err != syscall.ENOTCONN {
		t.Errorf("before the connection, posted to libsiw: %d, %v", n, err)
	}
	if err := p.id.Accept(depth); err != nil {
		t.Fatal(err)
	}
	a.want("after Connect", provider.CMEstablished)
	p.want("after Accept", provider.CMEstablished)
	a.send(wr)
	a.poll(1)
	if wc := p.poll(1)[0]; wc.Status != provider.WCSuccess {
		t.Errorf("receive: %+v", wc)
	}
	p.send(provider.SendWR{WRID: 2, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled})
	p.idle("after a request that libsiw was given too early")
	closeAll(t, a.qp, a.id, p.qp, p.id, l)
}

// Work that is posted once the end is known completes as flushed, after earlier work.
func testPostsAfterConnection(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(t *testing.T, a, p *side)
	}{
		{"the peer disconnects", func(t *testing.T, a, p *side) {
			if err := p.id.Disconnect(); err != nil {
				t.Fatal(err)
			}
			a.want("after Disconnect", provider.CMDisconnected)
		}},
		{"we disconnect", func(t *testing.T, a, p *side) {
			if err := a.id.Disconnect(); err != nil {
				t.Fatal(err)
			}
		}},
		{"we move the QP to the error state", func(t *testing.T, a, p *side) {
			if err := a.qp.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, p := connected(t)
			sge := []provider.SGE{a.sge(0, 5)}
			a.recv(provider.RecvWR{WRID: 1, SGList: sge}, provider.RecvWR{WRID: 2, SGList: sge})
			c.end(t, a, p)
			a.recv(provider.RecvWR{WRID: 3, SGList: sge})
			a.send(
				provider.SendWR{WRID: 4, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: sge},
				provider.SendWR{WRID: 5, Opcode: provider.WRRDMAWrite, SGList: sge, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()},
				provider.SendWR{WRID: 6, Opcode: provider.WRRDMARead, SGList: sge, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()},
			)
			for i, wc := range a.poll(6) {
				if wc.WRID != uint64(i+1) || !errors.Is(wc.Err(), provider.ErrFlushed) || wc.QPN != a.qp.QPN() {
					t.Errorf("completion %d: %+v", i+1, wc)
				}
			}
			a.idle("after all have been flushed")

			// The queue has no more places than before, and refuses the same requests.
			bad := provider.SendWR{Opcode: provider.WRSendWithImm + 100}
			n, err := a.qp.PostSend([]provider.SendWR{{WRID: 7, Opcode: provider.WRSend}, bad})
			if n != 1 {
				t.Errorf("%d posted before one that is refused", n)
			}
			wantErrno(t, "an opcode that verbs have not", err, syscall.EINVAL)
			a.poll(1)
			most := a.qp.(*qp).init.Cap
			n, err = a.qp.PostSend(make([]provider.SendWR, most.MaxSendWR+1))
			if n != most.MaxSendWR {
				t.Errorf("%d posted to a queue of %d", n, most.MaxSendWR)
			}
			wantErrno(t, "a full send queue", err, syscall.ENOMEM)
			n, err = a.qp.PostRecv(make([]provider.RecvWR, most.MaxRecvWR+1))
			if n != most.MaxRecvWR {
				t.Errorf("%d posted to a queue of %d", n, most.MaxRecvWR)
			}
			wantErrno(t, "a full receive queue", err, syscall.ENOMEM)
			a.poll(most.MaxSendWR + most.MaxRecvWR)
			a.send(provider.SendWR{})
			a.poll(1)
		})
	}
}

// A goroutine that waits on the completion channel gets one event for a late post.
func testLateEvent(t *testing.T) {
	a, p := connected(t)
	if err := p.id.Disconnect(); err != nil {
		t.Fatal(err)
	}
	a.want("after Disconnect", provider.CMDisconnected)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	type result struct {
		cq  provider.CQ
		err error
	}
	got := make(chan result)
	for round := range 3 {
		if err := a.cq.ReqNotify(round == 1); err != nil {
			t.Fatal(err)
		}
		go func() {
			cq, err := a.ch.Next(ctx)
			got <- result{cq, err}
		}()
		if round > 0 { // in the first round most likely the event is there first
			time.Sleep(20 * time.Millisecond)
		}
		a.recv(provider.RecvWR{WRID: 1}, provider.RecvWR{WRID: 2})
		if r := <-got; r.cq != a.cq || r.err != nil {
			t.Fatalf("round %d: %v, %v", round, r.cq, r.err)
		}
		a.poll(2)
	}
	a.recv(provider.RecvWR{WRID: 1})
	short, stop := context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if cq, err := a.ch.Next(short); err != context.DeadlineExceeded {
		t.Errorf("an event without having been armed: %v, %v", cq, err)
	}
	// An event that no call fetches is dropped with its CQ.
	if err := a.cq.ReqNotify(false); err != nil {
		t.Fatal(err)
	}
	a.recv(provider.RecvWR{WRID: 1})
	if err := a.qp.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.cq.Close(); err != nil {
		t.Fatal(err)
	}
	short, stop = context.WithTimeout(ctx, 50*time.Millisecond)
	defer stop()
	if cq, err := a.ch.Next(short); err != context.DeadlineExceeded {
		t.Errorf("an event of a closed CQ: %v, %v", cq, err)
	}
}

// If siw has ended a connection because of an inbound Read, it leaves the receives in the queue
// until the QP is moved to the error state.
func testFlushAfterReadFault(t *testing.T) {
	a, p := connected(t)
	p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(0, 5)}}, provider.RecvWR{WRID: 2})
	a.send(provider.SendWR{
		WRID: 3, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 5)},
		RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey() ^ 0x00ff0000,
	})
	if wc := a.poll(1)[0]; wc.WRID != 3 || wc.Status == provider.WCSuccess {
		t.Errorf("a Read with an unknown STag: %+v", wc)
	}
	p.want("after a Read with an unknown STag", provider.CMDisconnected)
	p.recv(provider.RecvWR{WRID: 3})
	for i, wc := range p.poll(3) {
		if wc.WRID != uint64(i+1) || !errors.Is(wc.Err(), provider.ErrFlushed) {
			t.Errorf("receive %d: %+v", i+1, wc)
		}
	}
}

// Requests that siw would leave at the head of its queue forever never get there.
func testStuck(t *testing.T) {
	a, p := connected(t)
	fill(p.buf[:100], 3)
	sge := []provider.SGE{a.sge(1000, 100)}
	for _, c := range []struct {
		name string
		wr   provider.SendWR
	}{
		{"an inline Read", provider.SendWR{Opcode: provider.WRRDMARead, Flags: provider.SendInline, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()}},
		{"an inline Send with Invalidate", provider.SendWR{Opcode: provider.WRSendWithInv, Flags: provider.SendInline, Inline: []byte("x"), InvalidateRKey: 1}},
	} {
		n, err := a.qp.PostSend([]provider.SendWR{c.wr})
		if n != 0 {
			t.Errorf("%s: %d posted", c.name, n)
		}
		wantErrno(t, c.name, err, syscall.EINVAL)
	}
	read := provider.SendWR{
		Opcode: provider.WRRDMARead, Flags: provider.SendSignaled | provider.SendFence,
		SGList: sge, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey(),
	}
	a.send(read, read)
	for _, wc := range a.poll(2) {
		if wc.Status != provider.WCSuccess || string(a.buf[1000:1100]) != string(p.buf[:100]) {
			t.Errorf("a fenced Read: %+v", wc)
		}
	}
}

// The provider has to refuse or change these requests: siw alone never completes them, nor anything
// after them.
func testStuckWithoutHelp(t *testing.T) {
	for _, c := range []struct {
		name string
		add  func(b *ibv.SendBatch, a, p *side)
	}{
		{"a fenced Read", func(b *ibv.SendBatch, a, p *side) {
			b.Add(1, uint32(provider.WRRDMARead), uint32(provider.SendSignaled|provider.SendFence)).SetRDMA(p.mr.Addr(), p.mr.RKey())
			b.AddSGE(a.mr.Addr(), 8, a.mr.LKey())
		}},
		{"an inline Send with Invalidate", func(b *ibv.SendBatch, a, p *side) {
			b.Add(1, uint32(provider.WRSendWithInv), uint32(provider.SendSignaled|provider.SendInline)).SetRDMA(0, p.mr.RKey())
			b.SetInline([]byte("x"))
		}},
		{"an inline Read", func(b *ibv.SendBatch, a, p *side) {
			b.Add(1, uint32(provider.WRRDMARead), uint32(provider.SendSignaled|provider.SendInline)).SetRDMA(p.mr.Addr(), p.mr.RKey())
		}},
	} {
		a, p := connected(t)
		p.recv(provider.RecvWR{WRID: 10, SGList: []provider.SGE{p.sge(0, 8)}}, provider.RecvWR{WRID: 11, SGList: []provider.SGE{p.sge(0, 8)}})
		q := a.qp.(*qp)
		q.sq.Reset()
		c.add(q.sq, a, p)
		n, err := q.c.PostSend(q.sq)
		if n != 1 || err != syscall.EINVAL {
			t.Errorf("%s: posted %d, %v", c.name, n, err)
		}
		a.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 5)}})
		a.idle(c.name)
		p.idle(c.name)
	}
}

// A connection that allows no Reads refuses them, and continues.
func testNoReadDepth(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	a.resolve(l.LocalAddr())
	a.createQP()
	if err := a.id.Connect(provider.ConnParam{ResponderResources: 4}); err != nil {
		t.Fatal(err)
	}
	p.id = p.want("at the listener", provider.CMConnectRequest).ID
	p.createQP()
	p.recv(provider.RecvWR{WRID: 10, SGList: []provider.SGE{p.sge(0, 5)}})
	if err := p.id.Accept(provider.ConnParam{InitiatorDepth: 4}); err != nil {
		t.Fatal(err)
	}
	a.want("after Connect", provider.CMEstablished)
	p.want("after Accept", provider.CMEstablished)
	read := func(of *side) provider.SendWR {
		return provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, RemoteAddr: of.mr.Addr(), RKey: of.mr.RKey()}
	}
	send := provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 5)}}
	n, err := a.qp.PostSend([]provider.SendWR{send, read(p), send})
	if n != 1 {
		t.Errorf("%d posted before a Read that the connection does not allow", n)
	}
	wantErrno(t, "a Read with ORD 0", err, syscall.EINVAL)
	if wc := a.poll(1)[0]; wc.WRID != 2 || wc.Status != provider.WCSuccess {
		t.Errorf("the Send: %+v", wc)
	}
	p.poll(1)
	// If it were not refused, it would have blocked the queue. siw refuses it in the call, because
	// it is sending nothing then; the peer's Read comes later.
	q := a.qp.(*qp)
	q.sq.Reset()
	q.sq.Add(1, uint32(provider.WRRDMARead), uint32(provider.SendSignaled)).SetRDMA(p.mr.Addr(), p.mr.RKey())
	q.sq.AddSGE(a.mr.Addr(), 8, a.mr.LKey())
	if n, err := q.c.PostSend(q.sq); n != 1 || err != syscall.EINVAL {
		t.Errorf("a Read with ORD 0, posted to libsiw: %d, %v", n, err)
	}
	p.send(read(a)) // the other direction is allowed
	if wc := p.poll(1)[0]; wc.WRID != 1 || wc.Status != provider.WCSuccess {
		t.Errorf("a Read of the other side: %+v", wc)
	}
	if attr, _, err := a.qp.Query(); err != nil || attr.MaxRdAtomic != 0 || attr.MaxDestRdAtomic != 4 {
		t.Errorf("depths: %+v, %v", attr, err)
	}
	a.send(send)
	a.idle("after a Read with ORD 0")
	closeAll(t, a.qp, a.id, p.qp, p.id, l)
}
