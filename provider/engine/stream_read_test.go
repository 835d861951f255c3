package engine

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// wantReadRequest waits for the Read Request with this MSN.
func (r *raw) wantReadRequest(what string, msn uint32) rdmap.ReadRequest {
	r.t.Helper()
	return testkit.Must(rdmap.ParseReadRequest(r.want(what, rdmap.ReadRequestHeader(msn))))(r.t)
}

// answer responds to a Read Request.
func (r *raw) answer(q rdmap.ReadRequest) {
	r.t.Helper()
	r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true), make([]byte, q.Size))
}

// TestORD: no more Reads are outstanding than the ORD allows; the others wait
// for the responses, and what was posted after them waits, too.
//
//rfc:5040 RDMAP-6.1-03 Outbound read limit (ORD) provided as negotiated
//rfc:5040 RDMAP-6.1-04 Outstanding outbound reads never above ORD
//rfc:5040 RDMAP-5.2.1-04 ReadReqs passed in ULP order
//rfc:5040 RDMAP-5.5-18-01 Sends may complete before earlier ReadReqs are answered
func TestORD(t *testing.T) {
	p := params(true)
	p.ORD = 3
	story(t, Options{}, p, func(s *side, r *raw) {
		sink := s.reg(10, provider.AccessLocalWrite)
		for i := range 7 {
			s.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(i, 1)}, RKey: 1})
		}
		s.send(provider.SendWR{WRID: 7, Opcode: provider.WRSend, Flags: provider.SendSignaled})
		var asked []rdmap.ReadRequest
		for i := range 3 {
			asked = append(asked, r.wantReadRequest("as many as the ORD", uint32(i+1)))
		}
		r.wantIdle("and no more")
		s.noWC("nothing completes yet")
		for i := range 4 {
			r.answer(asked[i])
			asked = append(asked, r.wantReadRequest("one for each response", uint32(i+4)))
			s.wantWC("the oldest completes", provider.WC{WRID: uint64(i), Opcode: provider.WCRDMARead, ByteLen: 1})
		}
		r.want("the Send follows the last Read Request", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		s.noWC("but completes after the Reads")
		for i := 4; i < 7; i++ {
			r.answer(asked[i])
			s.wantWC("the oldest completes", provider.WC{WRID: uint64(i), Opcode: provider.WCRDMARead, ByteLen: 1})
		}
		s.wantWC("and the Send at last", provider.WC{WRID: 7, Opcode: provider.WCSend})
	})
}

// TestFence: a fenced work request waits for all earlier Reads, and goes out where there are none.
//
//rfc:5040 RDMAP-5.5-02 Fence holds later Send/Write until reads are done
func TestFence(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		sink := s.reg(10, provider.AccessLocalWrite)
		read := provider.SendWR{Opcode: provider.WRRDMARead, SGList: []provider.SGE{sink.sge(0, 1)}, RKey: 1}
		fenced := read
		fenced.Flags = provider.SendFence
		s.send(fenced, read, provider.SendWR{Opcode: provider.WRSend},
			provider.SendWR{WRID: 3, Opcode: provider.WRRDMAWrite, Flags: provider.SendFence | provider.SendSignaled, RKey: 9},
			read, fenced)
		a := r.wantReadRequest("a Read", 1)
		b := r.wantReadRequest("a Read", 2)
		r.want("a Send that does not wait", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		r.wantIdle("the fenced Write waits")
		r.answer(a)
		r.wantIdle("for both Reads")
		r.answer(b)
		r.want("and goes out then", rdmap.WriteHeader(9, 0, true))
		s.wantWC("and completes", provider.WC{WRID: 3, Opcode: provider.WCRDMAWrite})
		c := r.wantReadRequest("a Read", 3)
		r.wantIdle("the fenced Read waits")
		r.answer(c)
		r.wantReadRequest("and goes out then", 4)
	})
}

// TestIRD: as many Read Requests as were granted wait for their responses; one
// more is one too many.
//
//rfc:5040 RDMAP-5.2.2-02 Source keeps enough QN1 buffers for negotiated IRD
//rfc:5040 RDMAP-6.1-02 Inbound read limit (IRD) provided as negotiated
//rfc:5040 RDMAP-6.1-05 Inbound reads above IRD are refused
//rfc:5042 SEC-6.4.3.3-02 Cap outstanding reads; overrun ends only that stream
func TestIRD(t *testing.T) {
	storyOn(t, memnet.Options{Window: 100}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		const size = 1 << 20 // more than a batch: a response that is laid out does not count any more
		src := s.reg(size, provider.AccessRemoteRead)
		ask := func(i int) ddp.Header {
			return r.readReq(rdmap.ReadRequest{SinkSTag: uint32(i), Size: size, SourceSTag: src.m.STag(), SourceTO: src.to(0)})
		}
		for i := range 4 {
			ask(i)
		}
		time.Sleep(time.Millisecond)
		testkit.Equal(t, "requests that wait", s.qp.stream.Load().inbound.Len(), 4)
		h := ask(4)
		s.wantTerm("the fifth", false, 1, 2, 2)
		r.next("the segment under way")
		r.wantTerminate("no buffer for the request", fault{1, 2, 2}, &h, rdmap.ReadRequestLen, nil)
	})
	// Answered in time, there may be any number.
	story(t, Options{}, params(true), func(s *side, r *raw) {
		src := s.reg(4000, provider.AccessRemoteRead)
		for i := range 100 {
			r.readReq(rdmap.ReadRequest{SinkSTag: uint32(i), Size: 4, SourceSTag: src.m.STag(), SourceTO: src.to(i)})
			if i >= 3 {
				r.want("responses in order", rdmap.ReadResponseHeader(uint32(i-3), 0, true))
			}
		}
	})
}

// TestResponses: a response carries the bytes asked for in segments with rising
// TO, and an empty Read is answered whatever it names.
//
//rfc:5040 RDMAP-4.4-02 Sink STag copied uninterpreted into the Read Response
//rfc:5040 RDMAP-4.4-03 Sink TO copied into the first Response segment
//rfc:5040 RDMAP-5.2.1-09 Zero size: STag/TO not validated
//rfc:5040 RDMAP-5.2.1-10 Zero size: zero-length Response sent
//rfc:5042 SEC-6.3.5-02 Zero-length read allowed on write-only or invalid STag
func TestResponses(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			story(t, fr.opts, framingParams(fr.crc, fr.markers), func(s *side, r *raw) {
				src := s.reg(10000, provider.AccessRemoteRead)
				pattern(src.b, 1)
				r.readReq(rdmap.ReadRequest{SinkSTag: 77, SinkTO: ^uint64(0) - 9999, Size: 10000,
					SourceSTag: src.m.STag(), SourceTO: src.to(0)})
				r.readReq(rdmap.ReadRequest{SinkSTag: 78, SinkTO: 79, SourceSTag: 1, SourceTO: ^uint64(0)})
				var got []byte
				for last := false; !last; {
					h, payload := r.next("a segment")
					if h != rdmap.ReadResponseHeader(77, ^uint64(0)-9999+uint64(len(got)), h.Last) {
						t.Fatalf("header %+v after %d bytes", h, len(got))
					}
					got = append(got, payload...)
					last = h.Last
				}
				testkit.EqualBytes(t, "the response", got, src.b)
				r.want("the empty response", rdmap.ReadResponseHeader(78, 79, true))
			})
		})
	}
}

// TestSourceGoes: the source of a Read is deregistered while it is being
// answered. The Terminate says how far the response had come.
//
//rfc:5040 RDMAP-4.8-11 Partly processed ReadReq: header updated to progress
//rfc:5041 DDP-7.1-06 Each segment is validated, not only the first
func TestSourceGoes(t *testing.T) {
	for _, fr := range framings {
		for _, mss := range []int{600, 1448, 8948, 32564} {
			for _, window := range []int{2000, 400_000} {
				t.Run(fmt.Sprintf("%s, MSS %d, window %d", fr.name, mss, window), func(t *testing.T) {
					storyOn(t, memnet.Options{Window: window, MSS: mss}, fr.opts,
						framingParams(fr.crc, fr.markers), sideOptions{}, sourceGoes)
				})
			}
		}
	}
}

// sourceGoes is a story of TestSourceGoes. The program uses its memory again after Close.
func sourceGoes(s *side, r *raw) {
	const size = 2 << 20
	src := s.reg(size, provider.AccessRemoteRead)
	pattern(src.b, 1)
	sent := bytes.Clone(src.b)
	q := rdmap.ReadRequest{SinkSTag: 7, SinkTO: ^uint64(0) - 1000, Size: size,
		SourceSTag: src.m.STag(), SourceTO: src.to(0)}
	r.readReq(q)
	time.Sleep(time.Millisecond)
	testkit.OK(s.t, src.m.Close())
	clear(src.b)
	done := 0
	for {
		h, payload := r.next("segments that were laid out before")
		if !h.Tagged {
			h := rdmap.ReadRequestHeader(1)
			left := q.Advance(uint32(done))
			want := rdmap.NewTerminate(rdmap.ErrReadInvalidSTag, &h, h.Len()+rdmap.ReadRequestLen, &left)
			testkit.EqualBytes(s.t, fmt.Sprintf("the Terminate after %d bytes", done), payload,
				want.AppendTo(nil))
			break
		}
		if !bytes.Equal(payload, sent[done:done+len(payload)]) {
			s.t.Fatalf("the %d bytes at %d are not what the region had", len(payload), done)
		}
		done += len(payload)
	}
	s.wantTerm("the QP ends", false, 0, 1, 0)
	s.wantEvent("the event", provider.EventQPReqErr)
}

// TestBadSource: a work request whose SGEs are wrong fails at its turn: what was
// posted before it is sent, what was posted after it is flushed.
//
//rfc:5040 RDMAP-7.1-1-01 Local error: Terminate without headers
func TestBadSource(t *testing.T) {
	for _, op := range []provider.WROpcode{provider.WRSend, provider.WRRDMAWrite, provider.WRRDMARead} {
		for what, sge := range map[string]func(s *side, m *region) provider.SGE{
			"unknown key": func(s *side, m *region) provider.SGE { e := m.sge(0, 1); e.LKey++; return e },
			"no right to write, of a Read": func(s *side, m *region) provider.SGE {
				if op == provider.WRRDMARead {
					m = s.reg(1, 0)
				}
				return m.sge(0, 11)
			},
		} {
			t.Run(fmt.Sprintf("%v, %s", op, what), func(t *testing.T) {
				story(t, Options{}, params(true), func(s *side, r *raw) {
					bad := sge(s, s.reg(10, provider.AccessLocalWrite))
					s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled},
						provider.SendWR{WRID: 2, Opcode: op, SGList: []provider.SGE{bad}},
						provider.SendWR{WRID: 3, Opcode: provider.WRSend})
					r.want("what was posted before", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
					r.wantTerminate("then a Terminate", fault{iwarp.LayerRDMAP, 0, 0xff}, nil, 0, nil)
					r.wantFIN("and FIN")
					s.wantWC("the good one", provider.WC{WRID: 1, Opcode: provider.WCSend})
					s.wantWC("the bad one", provider.WC{WRID: 2, Status: provider.WCLocProtErr})
					s.wantWC("the one after", provider.WC{WRID: 3, Status: provider.WCWRFlushErr})
					s.noWC("that is all")
					for _, want := range []provider.AsyncEventType{provider.EventSQDrained, provider.EventQPFatal} {
						s.wantEvent("the events", want)
					}
				})
			})
		}
	}
}

// alien is a region of n bytes of another PD of the same device.
func alien(s *side, n int) *region {
	s.t.Helper()
	other := testkit.Must(s.dev.AllocPD())(s.t).(*pd)
	s.t.Cleanup(func() { testkit.OK(s.t, other.Close()) })
	return (&side{t: s.t, pd: other}).reg(n, everything)
}

// TestSourceGoesMidMessage: a region that is deregistered while a message from
// it is under way ends the message at an FPDU's end.
//
//rfc:5040 RDMAP-6.1-01 Only RDMA messages on the stream in RDMA mode
func TestSourceGoesMidMessage(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			storyOn(t, memnet.Options{Window: 3000, Cut: true, Seed: 7}, fr.opts, framingParams(fr.crc, fr.markers), sideOptions{}, func(s *side, r *raw) {
				src := s.reg(1<<20, 0)
				pattern(src.b, 1)
				want := bytes.Clone(src.b)
				s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, 1<<20)}, RKey: 5})
				time.Sleep(time.Millisecond)
				testkit.OK(t, src.m.Close())
				clear(src.b) // the memory is the application's again
				for done := 0; ; {
					h, payload := r.next("what was laid out before")
					if !h.Tagged {
						break
					}
					if !bytes.Equal(payload, want[done:done+len(payload)]) {
						t.Fatalf("bytes differ after %d", done)
					}
					done += len(payload)
				}
				s.wantTerm("the QP ends", false, 0, 0, 0xff)
				s.wantWC("the Write", provider.WC{WRID: 1, Status: provider.WCLocProtErr})
			})
		})
	}
}
