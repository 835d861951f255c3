package engine

import (
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// wind has the queues of an unused QP count from at on.
func (s *side) wind(at uint32) {
	q := s.qp
	q.sq.tail.Store(at)
	q.sq.head, q.sq.out = at, at
	q.sq.free.Store(at)
	q.rq.tail.Store(at)
	q.rq.head.Store(at)
}

// reset ends the side's connection and makes the QP ready for the next one.
func (s *side) reset() {
	s.t.Helper()
	for _, state := range []provider.QPState{provider.QPErr, provider.QPReset} {
		testkit.OK(s.t, s.qp.Modify(provider.QPAttr{State: state}, provider.QPAttrState))
	}
	synctest.Wait()
	var wc [16]provider.WC
	for {
		n := testkit.Must(s.cq.Poll(wc[:]))(s.t)
		if n == 0 {
			return
		}
	}
}

// reuse plays a scenario with a QP that has had connections before, for each of several ways in
// which these ended, and with queues that count across 2^32 or not.
func reuse(t *testing.T, script func(s *side, r *raw, sink *region)) {
	const places = 8
	before := map[string]func(s *side, r *raw, sink *region){
		"nothing was posted": func(*side, *raw, *region) {},
		"all was reported": func(s *side, r *raw, _ *region) {
			for i := range 3 {
				s.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRSend, Flags: provider.SendSignaled})
				s.wantWC("a Send", provider.WC{WRID: uint64(i), Opcode: provider.WCSend})
			}
		},
		"unsignalled work was over": func(s *side, r *raw, _ *region) {
			for range 3 {
				s.send(provider.SendWR{Opcode: provider.WRSend})
			}
		},
		"a Read had no answer, and Sends after it were out": func(s *side, r *raw, sink *region) {
			s.send(
				provider.SendWR{Opcode: provider.WRRDMARead, Flags: signaled,
					SGList: []provider.SGE{sink.sge(0, 8)}},
				provider.SendWR{Opcode: provider.WRSend, Flags: signaled},
				provider.SendWR{Opcode: provider.WRSend},
			)
		},
		"the queue was full of what was not sent": func(s *side, r *raw, sink *region) {
			wrs := []provider.SendWR{{Opcode: provider.WRRDMARead, SGList: []provider.SGE{sink.sge(0, 8)}}}
			for range places - 1 {
				wrs = append(wrs, provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendFence})
			}
			s.send(wrs...)
		},
		"work was posted in ERR": func(s *side, r *raw, _ *region) {
			testkit.OK(s.t, s.qp.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
			s.send(provider.SendWR{Opcode: provider.WRSend}, provider.SendWR{Opcode: provider.WRSend})
		},
		"a Send had failed": func(s *side, r *raw, _ *region) {
			s.send(
				provider.SendWR{Opcode: provider.WRSend},
				provider.SendWR{Opcode: provider.WRSend,
					SGList: []provider.SGE{{Length: 1, LKey: 1}}},
			)
		},
	}
	for name, use := range before {
		for _, at := range []uint32{0, ^uint32(0) - 1, ^uint32(0) - 4} {
			t.Run(fmt.Sprintf("%s, from %#x", name, at), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					network := memnet.New(nil)
					s := newSide(t, Options{Network: network}, sideOptions{
						cap: provider.QPCap{MaxSendWR: places, MaxRecvWR: places, MaxSendSGE: 2,
							MaxRecvSGE: 2},
					})
					s.wind(at)
					sink := s.reg(64, provider.AccessLocalWrite)
					for range 3 { // so that the ring is gone round in the end
						r := s.connectRaw(network)
						use(s, r, sink)
						synctest.Wait()
						s.reset()
						if err := s.qp.Cause(); err != nil {
							t.Errorf("after RESET the cause is %v", err)
						}
						if q := &s.qp.sq; q.head != q.tail.Load() || q.out != q.head || q.free.Load() != q.head {
							t.Errorf("after RESET the send queue is at head %#x, out %#x, free "+
								"%#x, tail %#x",
								q.head, q.out, q.free.Load(), q.tail.Load())
						}
					}
					r := s.connectRaw(network)
					script(s, r, sink)
				})
			})
		}
	}
}

// answerRead answers the Read Request that comes next.
func (r *raw) answerRead(what string, n int) {
	r.t.Helper()
	_, payload := r.next(what)
	q := testkit.Must(rdmap.ParseReadRequest(payload))(r.t)
	r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true), make([]byte, n))
}

// TestReusedSendAfterRead: on a QP that was connected before, a Send that is posted after a Read
// completes when it is out, and not together with the Read.
func TestReusedSendAfterRead(t *testing.T) {
	reuse(t, func(s *side, r *raw, sink *region) {
		const size = 100
		o := &store{b: make([]byte, size), gate: make(chan struct{})}
		m := s.object(o, size, 0)
		s.send(
			provider.SendWR{
				WRID: 1, Opcode: provider.WRRDMARead, Flags: signaled,
				SGList: []provider.SGE{sink.sge(0, 8)},
			},
			provider.SendWR{
				WRID: 2, Opcode: provider.WRSend, Flags: signaled,
				SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.STag()}},
			},
		)
		r.answerRead("the Read Request", 8)
		s.wantWC("the Read", provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: 8})
		s.noWC("the Send is not out")
		o.gate <- struct{}{}
		got := r.want("the Send, with the first MSN", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		testkit.EqualBytes(s.t, "the Send", got, o.b)
		s.wantWC("the Send", provider.WC{WRID: 2, Opcode: provider.WCSend})
	})
}

// TestReusedSendFails: on such a QP a Send that can't be sent completes in error.
func TestReusedSendFails(t *testing.T) {
	reuse(t, func(s *side, r *raw, sink *region) {
		s.send(
			provider.SendWR{
				WRID: 1, Opcode: provider.WRRDMARead, Flags: signaled,
				SGList: []provider.SGE{sink.sge(0, 8)},
			},
			provider.SendWR{
				WRID: 2, Opcode: provider.WRSend, Flags: signaled | provider.SendFence,
				SGList: []provider.SGE{{Length: 1, LKey: 1}},
			},
		)
		r.answerRead("the Read Request", 8)
		s.wantWC("the Read", provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: 8})
		s.wantWC("the Send", provider.WC{WRID: 2, Status: provider.WCLocProtErr})
	})
}

// TestReusedReceive: a receive that was posted before RESET is gone, and so is one that the QP
// has taken from its SRQ.
func TestReusedReceive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		s := newSide(t, Options{Network: network}, sideOptions{})
		s.recv(provider.RecvWR{WRID: 7})
		testkit.OK(t, s.qp.Modify(provider.QPAttr{State: provider.QPReset}, provider.QPAttrState))
		s.recv(provider.RecvWR{WRID: 8})
		r := s.connectRaw(network)
		testkit.WantErr(t, "connected twice", s.qp.start(nil, params(true), nil), syscall.EINVAL)
		r.sendMsg(nil)
		s.wantWC("the receive that is posted", provider.WC{WRID: 8, Opcode: provider.WCRecv})

		q := testkit.Must(s.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 4,
			MaxSGE: 1}}))(t)
		defer func() { testkit.OK(t, q.Close()) }()
		qp := testkit.Must(newQP(s.pd, provider.QPInitAttr{
			SendCQ: s.cq, RecvCQ: s.cq, SRQ: q, Cap: provider.QPCap{MaxSendWR: 1},
		}))(t)
		defer func() { testkit.OK(t, qp.Close()) }()
		// As if the flush of the connection before came after RESET.
		qp.shared.held = true
		testkit.OK(t, qp.Modify(provider.QPAttr{State: provider.QPReset}, provider.QPAttrState))
		if qp.shared.held {
			t.Error("a receive of the connection before is held for the next one")
		}
	})
}

// TestLateFlush: a goroutine that has moved a QP to ERR may flush it late, when it is connected
// anew. It must not flush what was posted since.
func TestLateFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		s := newSide(t, Options{Network: network}, sideOptions{})
		s.connectRaw(network)
		s.reset()
		r := s.connectRaw(network)
		sink := s.reg(8, provider.AccessLocalWrite)
		s.recv(provider.RecvWR{WRID: 3})
		s.send(provider.SendWR{
			WRID: 1, Opcode: provider.WRRDMARead, Flags: signaled,
			SGList: []provider.SGE{sink.sge(0, 8)},
		})
		s.qp.flushAll(provider.WCSuccess)
		s.noWC("after a late flush")
		r.answerRead("the Read Request", 8)
		s.wantWC("the Read", provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: 8})
	})
}

// TestErrorMeetsConnect: a goroutine that has found a QP without a stream moves it to ERR. If
// the QP has a stream by then, that is ended.
func TestErrorMeetsConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		s := newSide(t, Options{Network: network}, sideOptions{})
		r := s.connectRaw(network)
		m := s.reg(8, provider.AccessLocalWrite|provider.AccessRemoteWrite)
		s.qp.enterError(nil, &ending{cause: errModified})
		r.send(rdmap.WriteHeader(m.m.STag(), m.m.Addr(), true), make([]byte, 8))
		r.wantFIN("the stream has ended")
		testkit.WantErr(t, "the end", s.wantDown("the stream"), errModified)
		m.untouched(0, 0)
	})
}
