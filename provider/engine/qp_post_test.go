package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestPostSendRefusals: an impossible work request is refused, and those before it in the list are
// posted nevertheless.
//
//rfc:5041 DDP-5.2-02 ULP message shorter than 2^32
func TestPostSendRefusals(t *testing.T) {
	sges := func(n int, length uint32) []provider.SGE {
		l := make([]provider.SGE, n)
		for i := range l {
			l[i].Length = length
		}
		return l
	}
	for what, c := range map[string]struct {
		wr   provider.SendWR
		want error
	}{
		"4 GiB":                  {provider.SendWR{Opcode: provider.WRSend, SGList: sges(2, 1<<31)}, syscall.EINVAL},
		"long inline":            {provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, Inline: make([]byte, 65)}, syscall.EINVAL},
		"inline and SGEs":        {provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, SGList: sges(1, 1)}, syscall.EINVAL},
		"inline without flag":    {provider.SendWR{Opcode: provider.WRSend, Inline: []byte{1}}, syscall.EINVAL},
		"bind of nothing":        {provider.SendWR{Opcode: provider.WRBindMW}, syscall.EINVAL},
		"invalidation with SGEs": {provider.SendWR{Opcode: provider.WRLocalInv, SGList: sges(1, 1)}, syscall.EINVAL},
		"an opcode of our own":   {provider.SendWR{Opcode: opRegMR}, syscall.EINVAL},
		"Read without any depth": {provider.SendWR{Opcode: provider.WRRDMARead}, syscall.EINVAL},
	} {
		t.Run(what, func(t *testing.T) {
			p := params(true)
			p.ORD = 0
			story(t, Options{}, p, func(s *side, r *raw) {
				n, err := s.qp.PostSend([]provider.SendWR{{Opcode: provider.WRSend}, c.wr, {Opcode: provider.WRSend}})
				testkit.Equal(t, "posted", n, 1)
				wantErr(t, err, c.want)
				r.want("the one before", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
				r.wantIdle("and nothing after")
			})
		})
	}
}

func TestPostRecvRefusals(t *testing.T) {
	s := newSide(t, Options{Network: memnet.New(nil)}, sideOptions{cap: provider.QPCap{MaxSendWR: 1, MaxRecvWR: 2, MaxRecvSGE: 1}})
	n, err := s.qp.PostRecv([]provider.RecvWR{{}, {SGList: make([]provider.SGE, 2)}})
	testkit.Equal(t, "posted", n, 1)
	wantErr(t, err, syscall.EINVAL)
	n, err = s.qp.PostRecv(make([]provider.RecvWR, 2))
	testkit.Equal(t, "posted", n, 1)
	wantErr(t, err, syscall.ENOMEM)
}

// TestFullQueue: a full send queue refuses. Unsignalled work requests leave it when a later
// one is reported, or when they are over and their places are needed: otherwise a queue that
// is full of them would stay full forever.
func TestFullQueue(t *testing.T) {
	storyOn(t, memnet.Options{}, Options{}, params(true), sideOptions{cap: provider.QPCap{MaxSendWR: 4, MaxRecvWR: 1}}, func(s *side, r *raw) {
		unsignalled := provider.SendWR{Opcode: provider.WRSend}
		for range 10 {
			s.send(unsignalled, unsignalled, unsignalled)
			s.noWC("unsignalled")
			s.send(provider.SendWR{WRID: 9, Opcode: provider.WRSend, Flags: provider.SendSignaled})
			s.wantWC("the signalled one makes room", provider.WC{WRID: 9, Opcode: provider.WCSend})
			for range 4 {
				r.next("a Send")
			}
		}
		for range 10 {
			s.send(unsignalled, unsignalled, unsignalled)
			for range 3 {
				r.next("a Send")
			}
		}
		s.send(unsignalled, unsignalled, unsignalled, unsignalled)
		s.noWC("all of them are unsignalled")

		read := provider.SendWR{Opcode: provider.WRRDMARead, RKey: 1}
		s.send(unsignalled, read, unsignalled, unsignalled)
		for range 5 {
			r.next("a Send")
		}
		q := r.wantReadRequest("the Read", 1)
		for range 2 {
			r.next("a Send")
		}
		n, err := s.qp.PostSend([]provider.SendWR{unsignalled, unsignalled})
		testkit.Equal(t, "posted, when only the Send before the Read is over", n, 1)
		wantErr(t, err, syscall.ENOMEM)
		r.next("a Send")
		r.answer(q)
		s.noWC("all of them are unsignalled")
		s.send(unsignalled, unsignalled, unsignalled, unsignalled)
	})
}

// TestInline: inline payload is copied when it is posted, and needs no region.
// The lists are the caller's again when a post returns.
func TestInline(t *testing.T) {
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		data := []byte("inline payload")
		m := s.reg(8, 0)
		copy(m.b, "gathered")
		wrs := []provider.SendWR{
			{WRID: 1, Opcode: provider.WRSendWithInv, Flags: provider.SendInline | provider.SendSolicited, Inline: data, InvalidateRKey: 77},
			{WRID: 2, Opcode: provider.WRRDMAWrite, Flags: provider.SendInline, Inline: data[:0], RKey: 5, RemoteAddr: 6},
			{WRID: 3, Opcode: provider.WRSend, SGList: []provider.SGE{m.sge(6, 2), {}, m.sge(0, 6)}},
		}
		s.send(wrs...)
		clear(data)
		clear(wrs[2].SGList)
		clear(wrs)
		r.send(rdmap.WriteHeader(0, 0, true), nil)
		got := r.want("the Send", rdmap.SendHeader(rdmap.OpSendSEInvalidate, 77, 1, 0, true))
		testkit.Equal(t, "the payload", string(got), "inline payload")
		r.want("the Write", rdmap.WriteHeader(5, 6, true))
		got = r.want("the other Send", rdmap.SendHeader(rdmap.OpSend, 0, 2, 0, true))
		testkit.Equal(t, "the payload", string(got), "edgather")
	})
}

// TestSegments: a long message is cut into segments of the MULPDU, each in an
// FPDU, whatever the socket takes at a time.
//
//rfc:5041 DDP-5.2-01 Segments no larger than MULPDU
//rfc:5041 DDP-5.2-03 All data is sent
//rfc:5041 DDP-5.2-05 Untagged MO = offset of first payload octet
//rfc:5041 DDP-5.2-06 Tagged TO = initial TO + offset
//rfc:5044 MPA-3-01 Exactly one ULPDU per FPDU
//rfc:5044 MPA-4.3-01 Every sender can generate markers when the receiver asks
//rfc:5044 MPA-3-02 Expose current MULPDU to DDP
//rfc:5044 MPA-3-03 DDP keeps each segment within MULPDU
//rfc:5044 MPA-4.5-06 Packing into a partly-full segment never yields MULPDU <128
//rfc:5041 DDP-4.1-06 L segment is posted last
//rfc:5041 DDP-4.2-02 RsvdULP taken from the ULP unchanged
//rfc:5041 DDP-4.2-03 RsvdULP identical in all segments of a message
//rfc:5041 DDP-4.3-02 RsvdULP same over the message
//rfc:5041 DDP-4.3-04 QN same for all segments and as given by ULP
//rfc:5041 DDP-5.2-07 ULP gives STag and initial TO
//rfc:5040 RDMAP-3.1-01 RDMAP runs only over DDP
//rfc:5040 RDMAP-5.1-05 One Write targets one Tagged Buffer
func TestSegments(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			storyOn(t, memnet.Options{Window: 777, MSS: 301, Cut: true, Seed: 5}, fr.opts, framingParams(fr.crc, fr.markers), sideOptions{}, func(s *side, r *raw) {
				const size = 20_000
				src := s.reg(size, 0)
				pattern(src.b, 9)
				sges := []provider.SGE{src.sge(0, 1), src.sge(1, 12_345), src.sge(12_346, size-12_346)}
				s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: sges},
					provider.SendWR{WRID: 2, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: sges, RKey: 3, RemoteAddr: ^uint64(0) - size + 1})
				mulpdu := mpa.MULPDU(301, fr.markers)
				var sent, written []byte
				for len(written) < size {
					h, payload := r.next("a segment")
					var want = rdmap.SendHeader(rdmap.OpSend, 0, 1, uint32(len(sent)), len(sent)+len(payload) == size)
					if len(sent) == size {
						want = rdmap.WriteHeader(3, ^uint64(0)-size+1+uint64(len(written)), len(written)+len(payload) == size)
						written = append(written, payload...)
					} else {
						sent = append(sent, payload...)
					}
					if h != want {
						t.Fatalf("header %+v, want %+v", h, want)
					}
					if n := h.Len() + len(payload); n > mulpdu || !h.Last && n < mulpdu {
						t.Fatalf("ULPDU of %d bytes, MULPDU %d", n, mulpdu)
					}
				}
				if !bytes.Equal(sent, src.b) || !bytes.Equal(written, src.b) {
					t.Error("bytes differ")
				}
				s.wantWC("the Send", provider.WC{WRID: 1, Opcode: provider.WCSend})
				s.wantWC("the Write", provider.WC{WRID: 2, Opcode: provider.WCRDMAWrite})
			})
		})
	}
}

// TestSegmentsFollowMSS: when the MSS changes, as it does with the MTU of the path, later messages
// have segments of the new MULPDU.
//
//rfc:5044 MPA-3-02 Expose current MULPDU to DDP
//rfc:5044 MPA-4.5-03 MULPDU follows EMSS when MTU/options change
func TestSegmentsFollowMSS(t *testing.T) {
	x, y := tcpPair(t, Options{}, true, sideOptions{cap: provider.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	defer y.qp.Close()
	st, path, src := x.qp.stream.Load(), x.replaceConn(), x.reg(20_000, 0)
	// first is the length of the first ULPDU of a Write.
	first := func() (n int) {
		x.send(provider.SendWR{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
			SGList: []provider.SGE{src.sge(0, 20_000)}})
		x.spin(1)
		st.alone(func() {
			n = int(binary.BigEndian.Uint16(path.out))
			path.out = path.out[:0]
		})
		return n
	}
	for _, mss := range []int{1448, 536, 9000} {
		st.alone(func() { path.keep, path.mss = true, mss })
		got, want := 0, mpa.MULPDU(mss, false)
		for range mssBatches + 1 {
			if got = first(); got == want {
				break
			}
		}
		testkit.Equal(t, fmt.Sprintf("bytes of the first segment with MSS %d", mss), got, want)
	}
}

// TestLongBatches: a socket that has taken everything for a while gets 1 MiB at a time (with CRC,
// what the cache keeps), until it doesn't take all of it. The rest of the FPDU that is partly out
// is kept, and sent later.
func TestLongBatches(t *testing.T) {
	const size, window = 6 << 20, 7 << 18 // a turn and half a batch
	for _, crc := range []bool{false, true} {
		t.Run("CRC "+strconv.FormatBool(crc), func(t *testing.T) {
			storyOn(t, memnet.Options{Window: window, MSS: 65_000}, Options{}, params(crc), sideOptions{}, func(s *side, r *raw) {
				src := s.reg(size, 0)
				pattern(src.b, 3)
				write := func(n int) {
					s.send(provider.SendWR{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{src.sge(0, n)}})
				}
				limit := func() (octets, left uint64) {
					tx := &s.qp.stream.Load().tx
					s.qp.stream.Load().tx.mu.Lock()
					defer s.qp.stream.Load().tx.mu.Unlock()
					return tx.batch.Limit(), tx.b.Left()
				}
				const fpdu = 65_000
				for range policy.WholeBatches {
					write(100)
					r.next("a short Write")
					s.wantWC("it", provider.WC{Opcode: provider.WCRDMAWrite})
				}
				write(size)
				synctest.Wait() // for the turns after the first
				if got, left := limit(); got != policy.BatchOctets || left == 0 || left > fpdu {
					t.Errorf("%d bytes of the batch are left, want 1 to %d; the next may have "+
						"%d, want %d",
						left, fpdu, got, policy.BatchOctets)
				}
				r.wantMessage("the long Write", src.b)
				s.wantWC("all of it", provider.WC{Opcode: provider.WCRDMAWrite})
				for range policy.WholeBatches {
					write(100)
					r.next("a short Write")
					s.wantWC("it", provider.WC{Opcode: provider.WCRDMAWrite})
				}
				testkit.Equal(t, "bytes of batches", s.qp.stream.Load().tx.batch.Limit(),
					policy.BatchMost)
			})
		})
	}
}

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
						testkit.OK(t, s.qp.Cause())
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
		testkit.Equal(t, "a receive is held for the next connection", qp.shared.held, false)
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
