package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// responder returns the parameters of a QP that was connected to.
func responder(crc bool) mpa.Params {
	p := params(crc)
	p.WaitFirstFPDU = true
	return p
}

// TestResponderBadFirstFPDU: an FPDU that is not valid does not let a responder
// send, not even a Terminate. One that is valid for MPA does.
//
//rfc:5044 MPA-7.1.2-4-02 An invalid first FPDU does not release the responder
func TestResponderBadFirstFPDU(t *testing.T) {
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		fpdu := r.fpdu(rdmap.WriteHeader(0, 0, true), nil)
		fpdu[5] ^= 1
		r.write(fpdu)
		r.wantFIN("FIN and nothing else")
		s.wantTerm("the QP ends", false, 2, 0, 2)
	})
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		r.send(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true), nil)
		h := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
		r.wantTerminate("there is no receive", fault{1, 2, 2}, &h, 0, nil)
		s.wantTerm("the QP ends", false, 1, 2, 2)
	})
}

// TestResponderTakesRTR: an RTR indication lets the responder send and is not
// seen by the application, whichever kind it is.
//
//rfc:6581 MPA2-9.2-14 Zero-length Send RTR is not surfaced to the ULP as a receive
//rfc:6581 MPA2-9.2-15 Zero-length Write/Read RTR must not need a valid STag
//rfc:6581 MPA2-9.2-16 Read RTR counts against IRD and gets a zero-length response
func TestResponderTakesRTR(t *testing.T) {
	p := responder(true)
	p.PeerToPeer, p.RTR = true, mpa.RTRAll
	for _, kind := range []mpa.RTR{mpa.RTRSend, mpa.RTRWrite, mpa.RTRRead} {
		t.Run(kind.String(), func(t *testing.T) {
			story(t, Options{}, p, func(s *side, r *raw) {
				s.recv(provider.RecvWR{WRID: 100})
				s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend})
				r.wantIdle("nothing before the RTR indication")
				switch kind {
				case mpa.RTRSend:
					r.sendMsg(nil)
				case mpa.RTRWrite:
					r.send(rdmap.WriteHeader(1, 0, true), nil) // siw's has STag 1
				case mpa.RTRRead:
					r.readReq(rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, SourceSTag: 3})
					r.want("an empty response", rdmap.ReadResponseHeader(1, 2, true))
				}
				r.want("the Send goes out", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
				s.noWC("the receive is still there")
				r.sendMsg(nil)
				s.wantWC("it takes the first Send of the application", provider.WC{WRID: 100, Opcode: provider.WCRecv})
			})
		})
	}
}

// TestInitiatorSendsRTR: the RTR indication is the first FPDU.
//
//rfc:6581 MPA2-5-01 No later FPDU leaves the initiator before the RTR frame
//rfc:6581 MPA2-9.2-08 Initiator emits one negotiated RTR after an accept with A=1
func TestInitiatorSendsRTR(t *testing.T) {
	for _, kind := range []mpa.RTR{mpa.RTRSend, mpa.RTRWrite, mpa.RTRRead} {
		t.Run(kind.String(), func(t *testing.T) {
			p := params(true)
			p.PeerToPeer, p.RTR, p.ORD = true, kind, 0
			story(t, Options{}, p, func(s *side, r *raw) {
				msn := uint32(1)
				switch kind {
				case mpa.RTRSend:
					r.want("an empty Send", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
					msn = 2
				case mpa.RTRWrite:
					r.want("an empty Write", rdmap.WriteHeader(0, 0, true))
				case mpa.RTRRead:
					payload := r.want("an empty Read", rdmap.ReadRequestHeader(1))
					testkit.Equal(t, "the bytes of the Read",
						testkit.Must(rdmap.ParseReadRequest(payload))(t).Size, 0)
					r.send(rdmap.ReadResponseHeader(0, 0, true), nil)
				}
				s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled})
				r.want("then the application's", rdmap.SendHeader(rdmap.OpSend, 0, msn, 0, true))
				s.wantWC("and only that completes", provider.WC{WRID: 1, Opcode: provider.WCSend})
				s.noWC("and only that completes")
			})
		})
	}
}

// conversation is bytes that a peer may send, and what must have become of them.
type conversation struct {
	octets []byte
	check  func(s *side, r *raw)
}

// converse prepares messages of every kind for a QP that has read 300 bytes.
func converse(s *side, r *raw) conversation {
	dst := s.reg(400, everything)
	recv := s.reg(400, provider.AccessLocalWrite)
	sink := s.reg(300, provider.AccessLocalWrite)
	data := make([]byte, 400)
	pattern(data, 1)
	s.recv(provider.RecvWR{WRID: 10, SGList: []provider.SGE{recv.sge(0, 100), recv.sge(150, 100)}}, provider.RecvWR{WRID: 11})
	s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
		SGList: []provider.SGE{sink.sge(0, 100), sink.sge(150, 150)}, RemoteAddr: 9, RKey: 8})
	q := testkit.Must(rdmap.ParseReadRequest(r.want("the Read Request", rdmap.ReadRequestHeader(1))))(s.t)

	var o []byte
	add := func(h ddp.Header, payload []byte) { o = append(o, r.fpdu(h, payload)...) }
	add(rdmap.WriteHeader(dst.m.STag(), dst.to(100), false), data[100:151])
	add(rdmap.SendHeader(rdmap.OpSendSE, 0, 1, 0, false), data[:130])  // untagged between tagged
	add(rdmap.WriteHeader(dst.m.STag(), dst.to(3), true), data[3:100]) // falling TO
	add(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, false), data[:99])
	add(rdmap.SendHeader(rdmap.OpSendSE, 0, 1, 130, false), nil)
	add(rdmap.SendHeader(rdmap.OpSendSE, 0, 1, 130, true), data[130:200])
	add(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO+99, true), data[99:250])
	ask := rdmap.ReadRequest{SinkSTag: 5, SinkTO: 6, Size: 10, SourceSTag: dst.m.STag(), SourceTO: dst.to(95)}
	add(rdmap.ReadRequestHeader(1), ask.AppendTo(nil))
	add(rdmap.SendHeader(rdmap.OpSend, 0, 2, 0, true), nil)
	return conversation{octets: o, check: func(s *side, r *raw) {
		s.t.Helper()
		var order []uint64
		for range 3 {
			wc := s.poll()
			if wc.Status != provider.WCSuccess {
				s.t.Fatalf("completion %+v", wc)
			}
			order = append(order, wc.WRID)
		}
		testkit.Equal(s.t, "the order of completions", fmt.Sprint(order),
			fmt.Sprint([]uint64{10, 1, 11}))
		got := r.want("the response", rdmap.ReadResponseHeader(5, 6, true))
		testkit.EqualBytes(s.t, "the response", got, data[95:105])
		for _, c := range []struct {
			m          *region
			off, n, at int
		}{{dst, 3, 148, 3}, {recv, 0, 100, 0}, {recv, 150, 100, 100}, {sink, 0, 100, 0}, {sink, 150, 150, 100}} {
			testkit.EqualBytes(s.t, fmt.Sprintf("bytes %d to %d", c.off, c.off+c.n),
				c.m.b[c.off:c.off+c.n], data[c.at:c.at+c.n])
		}
		dst.untouched(3, 151)
		recv.untouched(0, 250)
		between := append(recv.b[100:150:150], sink.b[100:150]...)
		testkit.Equal(s.t, "the bytes between two SGEs are as before", isFresh(between), true)
	}}
}

// TestEverySegmentation: the stream may be cut anywhere: byte by byte, and in
// two at every place.
//
//rfc:5044 MPA-5.1-03 Receiver works when alignment is lost
//rfc:5044 MPA-A.4-01 Receiver does not depend on FPDU alignment
//rfc:5041 DDP-5.3-03 Sink copes with tagged segments in non-rising TO order
//rfc:5041 DDP-5.3-07 Interleaving of an untagged and a tagged message is legal
//rfc:5041 DDP-5.2-10 Zero-length segment with L=0 does not confuse reassembly
func TestEverySegmentation(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			p := framingParams(fr.crc, fr.markers)
			story(t, fr.opts, p, func(s *side, r *raw) {
				c := converse(s, r)
				for i := range c.octets {
					r.write(c.octets[i : i+1])
					time.Sleep(time.Millisecond)
				}
				c.check(s, r)
			})
			step := 1
			if testkit.Race {
				step = 23 // all of them are tried without the detector
			}
			for at := 1; ; at += step {
				end := false
				story(t, fr.opts, p, func(s *side, r *raw) {
					c := converse(s, r)
					if end = at >= len(c.octets); end {
						return
					}
					r.write(c.octets[:at])
					time.Sleep(time.Millisecond)
					r.write(c.octets[at:])
					c.check(s, r)
				})
				if end {
					break
				}
			}
		})
	}
}

// TestReceivedTerminate: a Terminate is never answered, in the RFC's layout or
// siw's; the work it speaks of fails with its reason, all else is flushed.
//
//rfc:5040 RDMAP-5.4-04 Terminate delivered to RDMAP and to the ULP
//rfc:5040 RDMAP-6.2.1-02 After Terminate outstanding WRs complete in error
//rfc:5040 RDMAP-5.4-07 Peer may stop sending after TERM
func TestReceivedTerminate(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		sink := s.reg(10, provider.AccessLocalWrite)
		for i := range 2 {
			s.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMARead, SGList: []provider.SGE{sink.sge(0, 10)}, RemoteAddr: uint64(100 * i), RKey: 7})
		}
		s.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled})
		s.recv(provider.RecvWR{WRID: 3})
		r.want("a Read Request", rdmap.ReadRequestHeader(1))
		h := rdmap.ReadRequestHeader(2)
		q := testkit.Must(rdmap.ParseReadRequest(r.want("another", h)))(t)
		r.want("a Send", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		term := rdmap.NewTerminate(rdmap.ErrReadAccess, &h, h.Len()+rdmap.ReadRequestLen, &q)
		r.send(rdmap.TerminateHeader(), term.AppendTo(nil))
		s.wantTerm("the QP ends", true, 0, 1, 2)
		s.wantWC("the other Read", provider.WC{WRID: 0, Status: provider.WCWRFlushErr})
		s.wantWC("the Read that was refused", provider.WC{WRID: 1, Status: provider.WCRemAccessErr})
		s.wantWC("the Send, which was never reported", provider.WC{WRID: 2, Status: provider.WCWRFlushErr})
		s.wantWC("the receive", provider.WC{WRID: 3, Status: provider.WCWRFlushErr})
		r.wantFIN("no answer")
	})
	story(t, Options{}, params(true), func(s *side, r *raw) { // the second of three Reads of the same memory
		sink := s.reg(10, provider.AccessLocalWrite)
		var h ddp.Header
		var q rdmap.ReadRequest
		for i := range 3 {
			s.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMARead, SGList: []provider.SGE{sink.sge(0, 10-i)}, RemoteAddr: 100, RKey: 7})
			if next := r.wantReadRequest("a Read Request", uint32(i+1)); i == 1 {
				h, q = rdmap.ReadRequestHeader(2), next
			}
		}
		term := rdmap.NewTerminate(rdmap.ErrReadBaseBounds, &h, h.Len()+rdmap.ReadRequestLen, &q)
		r.send(rdmap.TerminateHeader(), term.AppendTo(nil))
		s.wantTerm("the QP ends", true, 0, 1, 1)
		s.wantWC("the Read before it", provider.WC{WRID: 0, Status: provider.WCWRFlushErr})
		s.wantWC("the Read that was refused", provider.WC{WRID: 1, Status: provider.WCRemAccessErr})
		s.wantWC("the Read after it", provider.WC{WRID: 2, Status: provider.WCWRFlushErr})
	})
	story(t, Options{}, params(true), func(s *side, r *raw) {
		s.send(provider.SendWR{Opcode: provider.WRSend})
		r.want("a Send", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		r.send(rdmap.TerminateHeader(), []byte{0x21, 0x02, 0x03, 0x00}) // siw, no receive posted, cut short
		s.wantTerm("the QP ends", true, 1, 2, 2)
		r.wantFIN("no answer")
	})
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		r.send(rdmap.TerminateHeader(), []byte{0x20, 0x06, 0x00, 0x00})
		s.wantTerm("during start-up it is about IRD", true, 2, 0, 6)
		r.wantFIN("no answer")
	})
}

// TestTerminateSurvives: the peer gets the Terminate though it had sent much
// more, and the connection is reset only if the peer's FIN does not come.
//
//rfc:5040 RDMAP-6.2.1-03 Graceful LLP close after Terminate so it arrives
//rfc:5040 RDMAP-7-01 Errored stream carries no more data
func TestTerminateSurvives(t *testing.T) {
	for _, closes := range []bool{true, false} {
		t.Run(fmt.Sprintf("peer closes %v", closes), func(t *testing.T) {
			resets := new(resetTap)
			storyOn(t, memnet.Options{Tap: resets}, Options{CloseTimeout: 3 * time.Second}, params(true), sideOptions{}, func(s *side, r *raw) {
				s.recv(provider.RecvWR{WRID: 100})
				h := rdmap.SendHeader(rdmap.OpSend, 0, 7, 0, true)
				r.send(h, nil)
				s.wantTerm("the QP ends", false, 1, 2, 3)
				for range 100 {
					r.write(make([]byte, 4096))
				}
				r.wantTerminate("all that came after is dropped", fault{1, 2, 3}, &h, 0, nil)
				r.wantFIN("and FIN")
				if closes {
					testkit.OK(t, r.c.CloseWrite())
				}
				time.Sleep(2 * time.Second)
				testkit.Equal(t, "reset though there was time left", resets.Load(), false)
				time.Sleep(2 * time.Second)
				testkit.Equal(t, "reset in the end", resets.Load(), !closes)
			})
		})
	}
}

// resetTap sees whether a connection is reset.
type resetTap struct{ atomic.Bool }

func (r *resetTap) Tap(rec transport.TapRecord) {
	if rec.Event == transport.TapReset {
		r.Store(true)
	}
}

// TestTerminateBehindFPDU: a Terminate waits for the FPDU that is partly out,
// and passes those that are not.
//
//rfc:5040 RDMAP-7.1-02 Terminate at the earliest opportunity
//rfc:5040 RDMAP-5.4-05 Nothing sent after Terminate
func TestTerminateBehindFPDU(t *testing.T) {
	storyOn(t, memnet.Options{Window: 1000}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		src := s.reg(20000, provider.AccessLocalWrite)
		pattern(src.b, 3)
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, 20000)}, RemoteAddr: 1000, RKey: 5})
		time.Sleep(time.Millisecond)
		bad := rdmap.WriteHeader(1, 0, true)
		r.send(bad, []byte{1})
		s.wantWC("the Write is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
		h, payload := r.next("the FPDU that was partly out")
		if h != rdmap.WriteHeader(5, 1000, false) || !bytes.Equal(payload, src.b[:len(payload)]) {
			t.Fatalf("%+v and %d bytes", h, len(payload))
		}
		r.wantTerminate("then the Terminate", fault{1, 1, 0}, &bad, 1, nil)
		r.wantFIN("then FIN")
	})
}

// TestPeerCloses: the peer's FIN ends the connection, also where it cuts an FPDU
// off, and its reset does.
//
//rfc:5044 MPA-3-08 Indicate FIN/close to DDP
//rfc:5044 MPA-8-1-01 Detect TCP close/lost/RST/FIN/timeouts (code 1)
//rfc:5041 DDP-6.2.2-01 Fatal errors of LLP or header indicated to ULP
func TestPeerCloses(t *testing.T) {
	for _, c := range []struct {
		what string
		do   func(r *raw)
		want error
		fin  bool
	}{
		{"FIN", func(r *raw) { testkit.OK(r.t, r.c.CloseWrite()) }, io.EOF, true},
		{"FIN inside an FPDU", func(r *raw) {
			r.write(r.fpdu(sendSeg(1, 0, true), nil)[:7])
			testkit.OK(r.t, r.c.CloseWrite())
		}, io.ErrUnexpectedEOF, true},
		{"reset", func(r *raw) { testkit.OK(r.t, r.c.Abort()) }, syscall.ECONNRESET, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			story(t, Options{}, params(true), func(s *side, r *raw) {
				s.recv(provider.RecvWR{WRID: 1})
				c.do(r)
				if err := s.wantDown(c.what); !errors.Is(err, c.want) || !errors.Is(s.qp.Cause(), c.want) {
					t.Errorf("ended with %v, cause %v, want %v", err, s.qp.Cause(), c.want)
				}
				s.wantWC("the receive is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
				if c.fin {
					r.wantFIN("the QP closes its side, too")
				}
			})
		})
	}
}

// TestBadReceive: a receive that names memory it may not write is our fault, and
// the Terminate says so.
//
//rfc:5041 DDP-7.2-02 Type 0 code 0 for local catastrophic
//rfc:5040 RDMAP-4.8-09 No DDP header for Local Catastrophic
func TestBadReceive(t *testing.T) {
	for _, access := range []provider.Access{provider.AccessRemoteRead, provider.AccessLocalWrite} {
		story(t, Options{}, params(true), func(s *side, r *raw) {
			m := s.reg(10, access)
			s.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{m.sge(0, 10)}}, provider.RecvWR{WRID: 2})
			if access == provider.AccessLocalWrite {
				testkit.OK(t, m.m.Close()) // it is checked when bytes come for it
			}
			r.sendMsg([]byte("hello"))
			r.wantTerminate("a local catastrophe", fault{iwarp.LayerDDP, 0, 0}, nil, 0, nil)
			s.wantWC("the receive", provider.WC{WRID: 1, Status: provider.WCLocProtErr})
			s.wantWC("the next one", provider.WC{WRID: 2, Status: provider.WCWRFlushErr})
			s.wantEvent("the event", provider.EventQPAccessErr)
			m.untouched(0, 0)
		})
	}
}

// TestInvalidate: a Send with Invalidate ends the remote use of a region that
// allows it, when all of the Send has come, and the completion says which.
//
//rfc:5040 RDMAP-5.3-10 SendInv: invalidated on delivery, before ULP sees it
//rfc:5040 RDMAP-5.3-11 SendInv: ULP told which STag
//rfc:5040 RDMAP-5.3-12 SendInv is not applied on placement, only on delivery
func TestInvalidate(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		m := s.reg(10, everything|provider.AccessRemoteInvalidate)
		s.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{m.sge(0, 4)}})
		r.send(rdmap.SendHeader(rdmap.OpSendInvalidate, m.m.STag(), 1, 0, false), []byte{1, 2})
		r.send(rdmap.WriteHeader(m.m.STag(), m.to(8), true), []byte{8, 9})
		r.send(rdmap.SendHeader(rdmap.OpSendInvalidate, m.m.STag(), 1, 2, true), []byte{3, 4})
		s.wantWC("the receive", provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: 4,
			Flags: provider.WCWithInv, InvalidatedRKey: m.m.STag()})
		testkit.EqualBytes(t, "the region", m.b, []byte{1, 2, 3, 4, 0xa5, 0xa5, 0xa5, 0xa5, 8, 9})
		h := rdmap.WriteHeader(m.m.STag(), m.to(0), true)
		r.send(h, []byte{1})
		r.wantTerminate("the STag is gone", fault{1, 1, 0}, &h, 1, nil)
	})
}

// TestPeerClosesAndReadsNothing: the rest of an FPDU can't be sent after the peer's
// FIN. The connection is reset after CloseTimeout, and nobody spins until then:
// a goroutine that did would keep the bubble's time from going on.
func TestPeerClosesAndReadsNothing(t *testing.T) {
	resets := new(resetTap)
	storyOn(t, memnet.Options{Window: 100, Tap: resets}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		src := s.reg(1000, 0)
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, SGList: []provider.SGE{src.sge(0, 1000)}})
		testkit.OK(t, r.c.CloseWrite())
		testkit.WantErr(t, "the end", s.wantDown("FIN"), io.EOF)
		s.wantWC("the Send is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
		time.Sleep(2 * time.Second)
		testkit.Equal(t, "reset", resets.Load(), true)
	})
}

// besides connects one more QP of s's device and CQ, to a scripted peer. It is
// closed when the test ends.
func (s *side) besides(network *memnet.Network) (*qp, *raw) {
	s.t.Helper()
	return s.besidesAt(network, memAddr)
}

// besidesAt connects one more QP to a scripted peer with the address addr.
func (s *side) besidesAt(network *memnet.Network, addr string) (*qp, *raw) {
	s.t.Helper()
	q := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1}})
	r := newRaw(s.t, q, network, addr, params(true), func(error) {})
	s.t.Cleanup(func() { testkit.OK(s.t, q.Close()) })
	return q, r
}

// hostile plays a script with a QP that bad peers share a device and a CQ with.
func hostile(t *testing.T, script func(s *side, good *raw, network *memnet.Network)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		s := newSide(t, Options{Network: network, SendTimeout: -1}, sideOptions{cqe: 8192})
		script(s, s.connectRaw(network), network)
	})
}

// wantServed checks that the good peer's connection works, both ways.
func (s *side) wantServed(what string, good *raw) {
	s.t.Helper()
	msn := good.sendMSN
	s.recv(provider.RecvWR{WRID: 1})
	good.sendMsg(nil)
	s.wantWC(what, provider.WC{WRID: 1, Opcode: provider.WCRecv})
	s.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled})
	good.want(what, rdmap.SendHeader(rdmap.OpSend, 0, msn, 0, true))
	s.wantWC(what, provider.WC{WRID: 2, Opcode: provider.WCSend})
}

// TestPeersThatDoNotRead: a peer that takes nothing gets its own connection stuck.
// Others with the same CQ go on, the region that is being sent can be closed, and
// closing the QP flushes at once.
func TestPeersThatDoNotRead(t *testing.T) {
	hostile(t, func(s *side, good *raw, network *memnet.Network) {
		const n, wrs = 1 << 20, 4
		m := testkit.Must(s.pd.RegMR(make([]byte, n), provider.AccessLocalWrite))(t).(*memory.Region)
		var stuck []*qp
		for i := range 10 {
			q, _ := s.besides(network)
			for j := range wrs {
				testkit.Must(q.PostSend([]provider.SendWR{{WRID: uint64(10*i + j),
					Opcode: provider.WRSend, Flags: provider.SendSignaled,
					SGList: []provider.SGE{{Addr: m.Addr(), Length: n, LKey: m.STag()}}}}))(t)
			}
			stuck = append(stuck, q)
		}
		time.Sleep(time.Hour)
		s.wantServed("others are served", good)
		testkit.OK(t, m.Close())
		for _, q := range stuck {
			begin := time.Now()
			testkit.OK(t, q.Close())
			testkit.Equal(t, "how long Close took", time.Since(begin), 0)
		}
		for range len(stuck) * wrs {
			testkit.Equal(t, "the status", s.poll().Status, provider.WCWRFlushErr)
		}
		s.wantServed("others are served afterwards", good)
	})
}

// TestReadsOfOnePeer: a peer that takes no responses fills its own queue of Reads, and one Read
// more ends its own connection. Others have their whole queues.
//
//rfc:5040 RDMAP-8.1.2-7-01 Read queue resources not shared between distrusting streams
//rfc:5042 SEC-6.4.3.3-01 IRRQ not shared by distrusting streams
//rfc:5042 SEC-A-03 Servers share no IRRQ between ULPs that distrust
func TestReadsOfOnePeer(t *testing.T) {
	hostile(t, func(s *side, good *raw, network *memnet.Network) {
		const size, ird = 1 << 20, 4 // of params
		src := s.reg(size, provider.AccessRemoteRead)
		read := func(r *raw, reads, n int) {
			for range reads {
				r.readReq(rdmap.ReadRequest{Size: uint32(n), SourceSTag: src.m.STag(), SourceTO: src.to(0)})
			}
			time.Sleep(time.Second)
		}
		q, bad := s.besides(network)
		read(bad, ird, size)
		testkit.Equal(t, "requests of the peer that wait", q.stream.Load().inbound.Len(), ird)
		read(good, ird, 4)
		for range ird {
			good.want("a response", rdmap.ReadResponseHeader(0, 0, true))
		}
		read(bad, 1, size)
		terminated(t, q.Cause(), false, 1, 2, 2)
		s.wantServed("others are served", good)
		read(good, 1, 4)
		good.want("a response", rdmap.ReadResponseHeader(0, 0, true))
	})
}

// TestFloods: messages without bytes are cheap to send. They reach nothing, and
// do not keep others from being served; those that need a receive or a place among
// the Reads end the connection when there is none.
//
//rfc:5040 RDMAP-5.1-06 Zero-length Write allowed, not STag-checked
//rfc:5041 DDP-5.2-09 STag/TO not checked for zero-length tagged message
//rfc:5042 SEC-6.4.4-01 Non-optimal paths (errors, OOO, tiny frames) bounded in cost
func TestFloods(t *testing.T) {
	for _, tc := range []struct {
		name string
		msg  func(r *raw) []byte
		ends bool
	}{
		{"Writes to nowhere", func(r *raw) []byte { return r.fpdu(rdmap.WriteHeader(0xdead, 0, true), nil) }, false},
		{"Sends without an end", func(r *raw) []byte {
			return r.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, false), nil)
		}, false},
		{"Sends", func(r *raw) []byte {
			r.sendMSN++
			return r.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, r.sendMSN-1, 0, true), nil)
		}, true},
		{"Reads of nothing", func(r *raw) []byte {
			r.readMSN++
			return r.fpdu(rdmap.ReadRequestHeader(r.readMSN-1), (&rdmap.ReadRequest{}).AppendTo(nil))
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			hostile(t, func(s *side, good *raw, network *memnet.Network) {
				q, bad := s.besides(network)
				testkit.Must(q.PostRecv([]provider.RecvWR{{WRID: 50}}))(t)
				for i := range 20 {
					var flood []byte
					for range 1000 {
						flood = append(flood, tc.msg(bad)...)
					}
					for len(flood) > 0 {
						n, err := bad.c.Writev([][]byte{flood})
						if flood = flood[n:]; err != nil {
							break
						}
						synctest.Wait()
					}
					if i%5 == 0 && !tc.ends {
						s.wantServed(fmt.Sprintf("others are served after %d000 messages", i+1), good)
					}
				}
				time.Sleep(time.Hour)
				testkit.Equal(t, "the connection has ended", q.getState() == provider.QPErr,
					tc.ends)
				for n := 0; ; { // of the flooded QP
					var wc [16]provider.WC
					if n = testkit.Must(s.cq.Poll(wc[:]))(t); n == 0 {
						break
					}
				}
				s.wantServed("others are served in the end", good)
			})
		})
	}
}
