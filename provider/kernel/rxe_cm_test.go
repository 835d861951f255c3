//go:build cgo && linux && !nokernel

package kernel

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// A request that is posted too early leaves nothing in the queue.
func testRxePostsBefore(t *testing.T) {
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
	// A receive may be posted before the connection.
	a.recv(provider.RecvWR{WRID: 5, SGList: []provider.SGE{a.sge(100, 5)}})
	if err := a.id.Connect(depth); err != nil {
		t.Fatal(err)
	}
	p.id = p.want("at the listener", provider.CMConnectRequest).ID
	p.createQP()
	// librxe queues it and then fails.
	q := p.qp.(*qp)
	q.sq.Reset()
	q.sq.Add(3, uint32(provider.WRSend), uint32(provider.SendSignaled))
	if n, err := q.c.PostSend(q.sq); n != 1 || err != syscall.EINVAL {
		t.Errorf("before the connection, posted to librxe: %d, %v", n, err)
	}
	p.recv(provider.RecvWR{WRID: 10, SGList: []provider.SGE{p.sge(0, 5)}})
	if err := p.id.Accept(depth); err != nil {
		t.Fatal(err)
	}
	a.want("after Connect", provider.CMEstablished)
	p.want("after Accept", provider.CMEstablished)
	a.send(wr)
	if wc := a.poll(1)[0]; wc.WRID != 1 || wc.Status != provider.WCSuccess {
		t.Errorf("send: %+v", wc)
	}
	if wc := p.poll(1)[0]; wc.WRID != 10 || wc.Status != provider.WCSuccess {
		t.Errorf("receive: %+v", wc)
	}
	// What librxe has queued is sent with the next request.
	a.recv(provider.RecvWR{WRID: 6})
	p.send(provider.SendWR{WRID: 4, Opcode: provider.WRSend, Flags: provider.SendSignaled})
	for i, wc := range p.poll(2) {
		if wc.WRID != uint64(3+i) || wc.Status != provider.WCSuccess {
			t.Errorf("after a request that librxe was given too early: %+v", wc)
		}
	}
	closeAll(t, a.qp, a.id, p.qp, p.id, l)
}

// Work that is posted after the end is known completes as flushed, whichever end closes the
// connection. librxe alone would leave receives in their queue.
func testRxePostsAfter(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(t *testing.T, a, p *side)
	}{
		{"the peer disconnects", func(t *testing.T, a, p *side) {
			if err := p.id.Disconnect(); err != nil {
				t.Fatal(err)
			}
			a.want("after Disconnect", provider.CMDisconnected)
			p.want("after Disconnect", provider.CMDisconnected)
		}},
		{"the peer's QP is closed", func(t *testing.T, a, p *side) {
			closeAll(t, p.qp, p.id)
			a.want("after Close", provider.CMDisconnected)
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
				provider.SendWR{WRID: 11, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: sge},
				provider.SendWR{WRID: 12, Opcode: provider.WRRDMAWrite, SGList: sge, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()},
				provider.SendWR{WRID: 13, Opcode: provider.WRRDMARead, SGList: sge, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()},
			)
			a.recv(provider.RecvWR{WRID: 4, SGList: sge})
			var sends, recvs []uint64
			for _, wc := range a.poll(7) {
				if !errors.Is(wc.Err(), provider.ErrFlushed) || wc.QPN != a.qp.QPN() {
					t.Errorf("%+v", wc)
				}
				if wc.WRID > 10 {
					sends = append(sends, wc.WRID)
				} else {
					recvs = append(recvs, wc.WRID)
				}
			}
			if !slices.Equal(sends, []uint64{11, 12, 13}) || !slices.Equal(recvs, []uint64{1, 2, 3, 4}) {
				t.Errorf("flushed: sends %d, receives %d", sends, recvs)
			}
			a.idle("after all have been flushed")
			if attr, _, err := a.qp.Query(); err != nil || attr.State != provider.QPErr {
				t.Errorf("the QP is in %s, %v", attr.State, err)
			}
		})
	}
}

// A message that finds no receive is retried as often as the connection was configured for.
func testRxeNotReady(t *testing.T) {
	wr := func(s *side) provider.SendWR {
		return provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{s.sge(0, 5)}}
	}
	a, p := connected(t)
	a.send(wr(a))
	a.idle("nothing posted at the peer")
	p.recv(provider.RecvWR{WRID: 2, SGList: []provider.SGE{p.sge(0, 5)}})
	if wc := a.poll(1)[0]; wc.Status != provider.WCSuccess {
		t.Errorf("send: %+v", wc)
	}
	if wc := p.poll(1)[0]; wc.WRID != 2 || wc.Status != provider.WCSuccess {
		t.Errorf("receive: %+v", wc)
	}

	// Each end sets it for the other.
	before := depth
	defer func() { depth = before }()
	depth.RNRRetryCount = -1
	a, _ = connected(t)
	a.send(wr(a))
	if wc := a.poll(1)[0]; wc.Status != provider.WCRNRRetryExcErr {
		t.Errorf("without a second try: %+v", wc)
	}
	if attr, _, err := a.qp.Query(); err != nil || attr.State != provider.QPErr || attr.RNRRetry != 0 || attr.RetryCnt != 7 {
		t.Errorf("the QP: %+v, %v", attr, err)
	}
}

// Private data has the lengths of InfiniBand's messages: shorter data is padded, and longer data is
// refused with the limit's name.
func testRxePrivateData(t *testing.T) {
	padded := func(text string, n int) []byte { return append([]byte(text), make([]byte, n-len(text))...) }
	a, p := newSide(t), newSide(t)
	l := p.listen()
	for _, accept := range []bool{true, false} {
		a.resolve(l.LocalAddr())
		a.createQP()
		wantErrno(t, "57 bytes", a.id.Connect(provider.ConnParam{PrivateData: make([]byte, 57)}), syscall.EINVAL)
		if err := a.id.Connect(provider.ConnParam{PrivateData: []byte("question"), ResponderResources: 2, InitiatorDepth: 8}); err != nil {
			t.Fatal(err)
		}
		req := p.want("at the listener", provider.CMConnectRequest)
		if !bytes.Equal(req.Param.PrivateData, padded("question", ibPrivateRequest)) {
			t.Errorf("the request has %q", req.Param.PrivateData)
		}
		if req.Param.ResponderResources != 8 || req.Param.InitiatorDepth != 2 {
			t.Errorf("the request offers IRD %d, ORD %d", req.Param.ResponderResources, req.Param.InitiatorDepth)
		}
		if got := req.ID.RemoteAddr(); got.Addr() != siwAddr || req.ID.LocalAddr() != l.LocalAddr() || req.ID.DeviceName() != "rxe0" {
			t.Errorf("the new id: from %s, on %s of %q", got, req.ID.LocalAddr(), req.ID.DeviceName())
		}
		p.id = req.ID
		if accept {
			p.createQP()
			wantErrno(t, "197 bytes", p.id.Accept(provider.ConnParam{PrivateData: make([]byte, 197)}), syscall.EINVAL)
			if err := p.id.Accept(provider.ConnParam{PrivateData: []byte("answer"), ResponderResources: 8, InitiatorDepth: 2}); err != nil {
				t.Fatal(err)
			}
			if ev := a.want("after Connect", provider.CMEstablished); !bytes.Equal(ev.Param.PrivateData, padded("answer", ibPrivateReply)) {
				t.Errorf("the acceptance has %q", ev.Param.PrivateData)
			}
			p.want("after Accept", provider.CMEstablished)
			if attr, _, err := a.qp.Query(); err != nil || attr.MaxRdAtomic != 8 || attr.MaxDestRdAtomic != 2 {
				t.Errorf("the initiator has ORD %d, IRD %d, %v", attr.MaxRdAtomic, attr.MaxDestRdAtomic, err)
			}
			closeAll(t, p.qp)
		} else {
			wantErrno(t, "149 bytes", p.id.Reject(make([]byte, 149)), syscall.EINVAL)
			if err := p.id.Reject([]byte("go away")); err != nil {
				t.Fatal(err)
			}
			// 28 is InfiniBand's status of a rejection by the consumer.
			if ev := a.want("after Reject", provider.CMRejected); ev.Status != 28 || !bytes.Equal(ev.Param.PrivateData, padded("go away", ibPrivateReject)) {
				t.Errorf("the rejection has status %d and %q", ev.Status, ev.Param.PrivateData)
			}
		}
		closeAll(t, a.qp, a.id, p.id)
		if accept {
			continue
		}
		closeAll(t, l)
	}
}

// If nobody listens, the event has status 8: unknown service.
func testRxeRefused(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	addr := l.LocalAddr()
	closeAll(t, l)
	a.resolve(addr)
	a.createQP()
	a.recv(provider.RecvWR{WRID: 5, SGList: []provider.SGE{a.sge(0, 8)}})
	if err := a.id.Connect(depth); err != nil {
		t.Fatal(err)
	}
	if ev := a.want("a port where nobody listens", provider.CMRejected); ev.Status != 8 {
		t.Errorf("REJECTED with status %d", ev.Status)
	}
	if wc := a.poll(1)[0]; wc.WRID != 5 || wc.Status != provider.WCWRFlushErr {
		t.Errorf("the receive: %+v", wc)
	}
	closeAll(t, a.qp, a.id)
}

// A QP that fails keeps its connection: neither end gets an event until a program
// disconnects.
func testRxeFailure(t *testing.T) {
	a, p := connected(t)
	a.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
		SGList: []provider.SGE{a.sge(0, 8)}, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey() ^ 0x5a5a00})
	if wc := a.poll(1)[0]; wc.Status != provider.WCRemAccessErr {
		t.Fatalf("a Write with a wrong key: %+v", wc)
	}
	for _, s := range []*side{a, p} {
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		if ev, err := s.ec.Next(ctx); err != context.DeadlineExceeded {
			t.Errorf("after the failure: %s, %v", ev.Type, err)
		}
		cancel()
	}
	if err := a.id.Disconnect(); err != nil {
		t.Fatal(err)
	}
	p.want("after Disconnect", provider.CMDisconnected)
	a.want("after the answer to Disconnect", provider.CMDisconnected)
}

// Connect does not wait for the peer, and a running one can be abandoned without waiting.
func testRxeSilent(t *testing.T) {
	s := newSide(t)
	s.resolve(netip.AddrPortFrom(siwAddr.Next().Next(), 7471))
	s.createQP()
	if err := s.id.Connect(depth); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if ev, err := s.ec.Next(ctx); err != context.DeadlineExceeded {
		t.Errorf("%s, %v", ev.Type, err)
	}
	start := time.Now()
	closeAll(t, s.qp, s.id)
	if took := time.Since(start); took > patience {
		t.Errorf("giving up took %s", took)
	}
}
