package engine

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// extended are the options of an engine with RFC 7306.
func extended(o Options) Options {
	o.Extensions = true
	return o
}

// imm sends an Immediate Data message of the peer.
func (r *raw) imm(solicited bool, data uint64) ddp.Header {
	r.t.Helper()
	h := rdmap.ImmediateHeader(solicited, r.sendMSN)
	r.send(h, rdmap.AppendImmediate(nil, data))
	r.sendMSN++
	return h
}

// TestImmediateOnTheWire: a Write with immediate data is a Write, whatever it is made
// of, and an Immediate Data message next to it; an empty Send with immediate data is
// the latter alone. The four bytes of the verbs come first. All complete in the
// order in which they were posted.
//
//rfc:7306 EXT-6.3-04 Exactly 8 octets of immediate data sent
//rfc:7306 EXT-6.3-06 Immediates issued in order
func TestImmediateOnTheWire(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			story(t, extended(fr.opts), framingParams(fr.crc, fr.markers), func(s *side, r *raw) {
				src := s.reg(5000, provider.AccessLocalWrite|provider.AccessRemoteRead)
				pattern(src.b, 1)
				sse := provider.SendSolicited | provider.SendSignaled
				s.send(
					provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWriteWithImm, Flags: provider.SendSignaled, Imm: 0x01020304, RKey: 9, RemoteAddr: 70, SGList: []provider.SGE{src.sge(0, 20)}},
					provider.SendWR{WRID: 2, Opcode: provider.WRRDMAWriteWithImm, Flags: sse, Imm: 2, RKey: 9, SGList: []provider.SGE{src.sge(0, 4000), src.sge(4000, 1000)}},
					provider.SendWR{WRID: 3, Opcode: provider.WRRDMAWriteWithImm, Imm: 3, RKey: 9, Flags: provider.SendInline, Inline: src.b[:5]},
					provider.SendWR{WRID: 4, Opcode: provider.WRRDMAWriteWithImm, Imm: 4},
					provider.SendWR{WRID: 5, Opcode: provider.WRSendWithImm, Imm: 5, SGList: []provider.SGE{{LKey: 1}}},
					provider.SendWR{WRID: 6, Opcode: provider.WRSend, SGList: []provider.SGE{src.sge(0, 3)}},
					provider.SendWR{WRID: 7, Opcode: provider.WRSendWithImm, Imm: 0xfffefdfc, Flags: sse | provider.SendInline},
				)
				msn := uint32(0)
				wantImm := func(what, octets string, solicited bool) {
					t.Helper()
					msn++
					if got := r.want(what, rdmap.ImmediateHeader(solicited, msn)); fmt.Sprintf("%x", got) != octets {
						t.Errorf("%s: % x", what, got)
					}
				}
				wantWrite := func(what string, to uint64, want []byte) {
					t.Helper()
					var got []byte
					for last := false; !last; {
						h, payload := r.next(what)
						if h != rdmap.WriteHeader(h.STag, to+uint64(len(got)), h.Last) {
							t.Fatalf("%s: %+v after %d bytes", what, h, len(got))
						}
						got, last = append(got, payload...), h.Last
					}
					testkit.EqualBytes(t, what, got, want)
				}
				wantWrite("a short Write", 70, src.b[:20])
				wantImm("what goes with it", "0102030400000000", false)
				wantWrite("a long Write", 0, src.b)
				wantImm("what goes with it", "0000000200000000", true)
				wantWrite("an inline Write", 0, src.b[:5])
				wantImm("what goes with it", "0000000300000000", false)
				wantWrite("a Write of nothing", 0, nil)
				wantImm("what goes with it", "0000000400000000", false)
				wantImm("immediate data alone", "0000000500000000", false)
				msn++
				r.want("a Send", rdmap.SendHeader(rdmap.OpSend, 0, msn, 0, true))
				wantImm("with a solicited event", "fffefdfc00000000", true)
				s.wantWC("the first", provider.WC{WRID: 1, Opcode: provider.WCRDMAWrite})
				s.wantWC("the second", provider.WC{WRID: 2, Opcode: provider.WCRDMAWrite})
				s.wantWC("the last", provider.WC{WRID: 7, Opcode: provider.WCSend})
				s.noWC("and no others")
			})
		})
	}
}

// TestImmediateStaysWithItsWrite: a response that waits does not come between them.
func TestImmediateStaysWithItsWrite(t *testing.T) {
	storyOn(t, memnet.Options{Window: 2000}, extended(Options{}), params(true), sideOptions{}, func(s *side, r *raw) {
		src := s.reg(100000, provider.AccessRemoteRead)
		for i := range 4 {
			r.readReq(rdmap.ReadRequest{SinkSTag: uint32(i), Size: 10000, SourceSTag: src.m.STag(), SourceTO: src.to(0)})
			s.send(provider.SendWR{Opcode: provider.WRRDMAWriteWithImm, Imm: uint32(i), RKey: 9, SGList: []provider.SGE{src.sge(0, 10000)}})
		}
		for reads, imms := 0, 0; reads < 4 || imms < 4; {
			h, _ := r.next("a segment")
			if !h.Last {
				continue
			}
			switch rdmap.ParseControl(h.ULPCtl).Opcode {
			case rdmap.OpReadResponse:
				reads++
			case rdmap.OpWrite:
				imms++
				r.want("next to its Write", rdmap.ImmediateHeader(false, uint32(imms)))
			default:
				t.Fatalf("%+v", h)
			}
		}
	})
}

// TestImmediateReceived: each message takes one receive, in order with the Sends.
// After a Write it is what ibverbs calls RECV_RDMA_WITH_IMM, with the length of the
// Write, which is in place by then.
//
//rfc:7306 EXT-6.3-02 Immediate consumes one receive buffer
//rfc:7306 EXT-6.3-03 Immediates delivered in order with Sends
//rfc:7306 EXT-6.4-01 Immediate: same ordering and completion rules as Send
//rfc:7306 EXT-7-01 Immediate completes only after the Write before it
func TestImmediateReceived(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			story(t, extended(fr.opts), framingParams(fr.crc, fr.markers), func(s *side, r *raw) {
				dst := s.reg(20000, provider.AccessLocalWrite|provider.AccessRemoteWrite)
				for i := range 8 {
					s.recv(provider.RecvWR{WRID: uint64(i), SGList: []provider.SGE{dst.sge(i, 1)}})
				}
				payload := make([]byte, 20000)
				pattern(payload, 3)
				write := func(from, to int, last bool) {
					r.send(rdmap.WriteHeader(dst.m.STag(), dst.to(from), last), payload[from:to])
				}
				with := provider.WCWithImm
				r.imm(false, 0x0102030499999999)
				s.wantWC("immediate data alone", provider.WC{WRID: 0, Opcode: provider.WCRecv, Flags: with, Imm: 0x01020304})
				write(100, 200, true)
				r.imm(true, 7<<32)
				s.wantWC("after a Write",
					provider.WC{WRID: 1, Opcode: provider.WCRecvRDMAWithImm, Flags: with, Imm: 7,
						ByteLen: 100})
				testkit.EqualBytes(t, "the Write", dst.b[100:200], payload[100:200])
				for at := 200; at < 20000; at += 900 {
					write(at, min(at+900, 20000), at+900 >= 20000)
				}
				r.imm(false, 8<<32)
				s.wantWC("after a long Write",
					provider.WC{WRID: 2, Opcode: provider.WCRecvRDMAWithImm, Flags: with, Imm: 8,
						ByteLen: 19800})
				testkit.EqualBytes(t, "the long Write", dst.b[200:], payload[200:])
				// All at once, as one read of the socket brings it.
				var octets []byte
				add := func(h ddp.Header, p []byte) { octets = append(octets, r.fpdu(h, p)...) }
				add(rdmap.WriteHeader(dst.m.STag(), dst.to(100), true), payload[100:110])
				add(rdmap.WriteHeader(dst.m.STag(), dst.to(110), true), payload[110:130])
				add(rdmap.ImmediateHeader(false, 4), rdmap.AppendImmediate(nil, 9<<32))
				add(rdmap.SendHeader(rdmap.OpSend, 0, 5, 0, true), []byte{0x33})
				add(rdmap.ImmediateHeader(true, 6), rdmap.AppendImmediate(nil, 10<<32))
				r.write(octets)
				s.wantWC("after two Writes",
					provider.WC{WRID: 3, Opcode: provider.WCRecvRDMAWithImm, Flags: with, Imm: 9,
						ByteLen: 20})
				s.wantWC("a Send in between", provider.WC{WRID: 4, Opcode: provider.WCRecv, ByteLen: 1})
				s.wantWC("after the Send",
					provider.WC{WRID: 5, Opcode: provider.WCRecv, Flags: with, Imm: 10})
				if dst.b[4] != 0x33 || dst.b[3] != 0xa5 || dst.b[5] != 0xa5 {
					t.Errorf("the receives hold % x", dst.b[:8])
				}
				s.noWC("nothing else")
			})
		})
	}
}

// TestReadBehindImmediate: its response comes after the completion of the Immediate
// Data before it.
//
//rfc:7306 EXT-7-02 Read Response only after an earlier Immediate completed
func TestReadBehindImmediate(t *testing.T) {
	story(t, extended(Options{}), params(true), func(s *side, r *raw) {
		src := s.reg(8, provider.AccessRemoteRead)
		s.recv(provider.RecvWR{WRID: 1})
		read := rdmap.ReadRequest{SinkSTag: 1, Size: 8, SourceSTag: src.m.STag(), SourceTO: src.to(0)}
		r.write(append(r.fpdu(rdmap.ImmediateHeader(false, 1), make([]byte, 8)), r.fpdu(rdmap.ReadRequestHeader(1), read.AppendTo(nil))...))
		r.want("the response", rdmap.ReadResponseHeader(1, 0, true))
		s.wantWC("it was there before", provider.WC{WRID: 1, Opcode: provider.WCRecv, Flags: provider.WCWithImm})
	})
}

// TestImmediateBehindRTR: an RTR indication is no Write of the program.
func TestImmediateBehindRTR(t *testing.T) {
	p := responder(true)
	p.PeerToPeer, p.RTR = true, mpa.RTRWrite
	story(t, extended(Options{}), p, func(s *side, r *raw) {
		s.recv(provider.RecvWR{WRID: 1}, provider.RecvWR{WRID: 2})
		r.send(rdmap.WriteHeader(0, 0, true), nil)
		r.imm(false, 0)
		s.wantWC("after the RTR indication",
			provider.WC{WRID: 1, Opcode: provider.WCRecv, Flags: provider.WCWithImm})
		r.send(rdmap.WriteHeader(0, 0, true), nil)
		r.imm(false, 0)
		s.wantWC("after a Write of nothing",
			provider.WC{WRID: 2, Opcode: provider.WCRecvRDMAWithImm, Flags: provider.WCWithImm})
	})
}

// TestImmediateSolicited: only Immediate Data with SE is a solicited event.
func TestImmediateSolicited(t *testing.T) {
	storyOn(t, memnet.Options{}, extended(Options{}), params(true), sideOptions{events: true}, func(s *side, r *raw) {
		s.recv(provider.RecvWR{WRID: 1}, provider.RecvWR{WRID: 2})
		testkit.OK(t, s.cq.ReqNotify(true))
		event := func() bool {
			time.Sleep(time.Second)
			synctest.Wait()
			c, _ := s.ch.pop()
			return c == s.cq
		}
		r.imm(false, 0)
		testkit.Equal(t, "an event for one that is not solicited", event(), false)
		r.imm(true, 0)
		testkit.Equal(t, "an event for a solicited one", event(), true)
		for i := range 2 {
			s.wantWC("both are there", provider.WC{WRID: uint64(i + 1), Opcode: provider.WCRecv, Flags: provider.WCWithImm})
		}
	})
}

// TestBadImmediate: a fault in it ends the stream, with its DDP header in the Terminate, and
// completes no receive.
//
//rfc:7306 EXT-6.3-05 Receiver checks for exactly 8 octets of immediate data
//rfc:7306 EXT-6.3-02 Immediate consumes one receive buffer
//rfc:7306 EXT-8.1-2-01 Inbound extension error: DDP header, RDMA header zero
//rfc:7306 EXT-8.2-01 DDP fields, opcode and version validated
func TestBadImmediate(t *testing.T) {
	for _, n := range []int{0, 4, 7, 9, 16} {
		t.Run(fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			story(t, extended(Options{}), params(true), func(s *side, r *raw) {
				s.recv(provider.RecvWR{WRID: 1})
				h := rdmap.ImmediateHeader(false, 1)
				r.send(h, make([]byte, n))
				r.wantTerminate("another length", fault{0, 2, 0xff}, &h, n, nil)
				s.wantTerm("the QP ends", false, 0, 2, 0xff)
				s.wantWC("the receive is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
			})
		})
	}
}

// TestImmediateToPeerWithout: it ends the connection at both, and says why.
//
//rfc:7306 EXT-1.1-01 Use of extensions agreed at ULP level
func TestImmediateToPeerWithout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		a, b := newSide(t, Options{Network: network, Extensions: true}, sideOptions{}), newSide(t, Options{Network: network}, sideOptions{})
		a.join(b, network, memAddr, params(true))
		b.recv(provider.RecvWR{WRID: 1})
		a.send(provider.SendWR{WRID: 2, Opcode: provider.WRSendWithImm}, provider.SendWR{WRID: 3, Opcode: provider.WRSendWithImm})
		b.wantTerm("the one without", false, 0, 2, 6)
		a.wantTerm("the one with", true, 0, 2, 6)
		b.wantWC("its receive is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
	})
}

// TestImmediateRefusedAtPost: what can't be posted says what to do instead.
//
//rfc:7306 EXT-1.1-01 Use of extensions agreed at ULP level
func TestImmediateRefusedAtPost(t *testing.T) {
	for _, on := range []bool{false, true} {
		story(t, Options{Extensions: on}, params(true), func(s *side, r *raw) {
			src := s.reg(8, 0)
			want := "engine.Options.Extensions"
			if on {
				want = "post the Send"
			}
			s.wantRefused("a Send with payload", provider.SendWR{Opcode: provider.WRSendWithImm,
				SGList: []provider.SGE{src.sge(0, 1)}}, errors.ErrUnsupported, want)
			s.wantRefused("inline", provider.SendWR{Opcode: provider.WRSendWithImm,
				Flags: provider.SendInline, Inline: src.b}, errors.ErrUnsupported, want)
			if !on {
				s.wantRefused("nothing", provider.SendWR{Opcode: provider.WRSendWithImm}, errors.ErrUnsupported, want)
				s.wantRefused("a Write", provider.SendWR{Opcode: provider.WRRDMAWriteWithImm},
					errors.ErrUnsupported, want)
				return
			}
			s.wantRefused("SGEs", provider.SendWR{Opcode: provider.WRRDMAWriteWithImm, SGList: make([]provider.SGE, 5)},
				syscall.EINVAL, "SGEs")
			s.wantRefused("flags", provider.SendWR{Opcode: provider.WRSendWithImm, Flags: 1 << 20},
				syscall.EINVAL, "flags")
			s.wantRefused("inline and SGE", provider.SendWR{Opcode: provider.WRRDMAWriteWithImm,
				Flags: provider.SendInline, SGList: make([]provider.SGE, 1)}, syscall.EINVAL, "inline")
			// Memory that is not there is found when it is used, as for any Write.
			s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWriteWithImm, SGList: []provider.SGE{{LKey: 1, Length: 1}}})
			s.wantWC("no such memory", provider.WC{WRID: 1, Status: provider.WCLocProtErr})
		})
	}
}

// TestImmediateTakesFromSRQ: one receive each, as from a queue of the QP's own.
//
//rfc:7306 EXT-6.3-02 Immediate consumes one receive buffer
func TestImmediateTakesFromSRQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		s := newSide(t, Options{Network: network, Extensions: true}, sideOptions{})
		r := testSRQ(t, s.pd, 4, 1)
		q := s.with(r)
		defer q.Close()
		peer := newRaw(t, q, network, memAddr, params(true), s.ended)
		r.post(t, nil, 7, 8)
		peer.imm(false, 5<<32)
		peer.send(rdmap.WriteHeader(0, 0, true), nil)
		peer.imm(true, 6<<32)
		for _, want := range []provider.WC{
			{WRID: 7, Opcode: provider.WCRecv, Flags: provider.WCWithImm, Imm: 5, QPN: q.qpn},
			{WRID: 8, Opcode: provider.WCRecvRDMAWithImm, Flags: provider.WCWithImm, Imm: 6, QPN: q.qpn},
		} {
			testkit.Equal(t, "the completion", s.poll(), want)
		}
		h := peer.imm(false, 1)
		peer.wantTerminate("the SRQ is empty", fault{1, 2, 2}, &h, rdmap.ImmediateLen, nil)
		if err := s.wantDown("the SRQ is empty"); err == nil {
			t.Error("no reason")
		}
	})
}
