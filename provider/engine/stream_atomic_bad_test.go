package engine

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestBadAtomicRequests: each ends the stream with a Terminate that has the DDP
// header and no other, changes no memory, and raises the event that InfiniBand has.
//
//rfc:7306 EXT-5.1.1-01 FetchAdd target 64-bit aligned, else error
//rfc:7306 EXT-5.1.1-02 Misaligned FetchAdd leaves memory unchanged
//rfc:7306 EXT-5.1.2-04 Misaligned CmpSwap: memory unchanged, error, Terminate
//rfc:7306 EXT-5.2.1-04 Unsupported AOpcode surfaces an error
//rfc:7306 EXT-8.1-2-01 Inbound extension error: DDP header, RDMA header zero
//rfc:7306 EXT-8.2-02 Alignment error code is 0/2/0x07
//rfc:7306 EXT-8.2-03 Atomic target STag/TO/rights validated as for ReadReq
//rfc:7306 EXT-8.2-04 8-octet range check TO..TO+7, no wrap, for atomics
func TestBadAtomicRequests(t *testing.T) {
	type target struct{ m, readable, foreign, closed *mr }
	bad := func(name string, f fault, event provider.AsyncEventType, off Options, request func(x target) rdmap.AtomicRequest) {
		t.Run(name, func(t *testing.T) {
			story(t, off, params(true), func(s *side, r *raw) {
				m, w := s.words(4, atomicRights)
				readable, v := s.words(4, provider.AccessLocalWrite|provider.AccessRemoteRead|provider.AccessRemoteWrite)
				other := testkit.Must(s.dev.AllocPD())(t).(*pd)
				theirs := make([]uint64, 4)
				octets := unsafe.Slice((*byte)(unsafe.Pointer(&theirs[0])), 32)
				foreign := testkit.Must(other.RegMR(octets, atomicRights))(t).(*mr)
				closed, _ := s.words(4, atomicRights)
				testkit.OK(t, closed.Close())
				h := r.atomicReq(request(target{m, readable, foreign, closed}))
				r.wantTerminate("refused", f, &h, rdmap.AtomicRequestLen, nil)
				s.wantTerm("the QP ends", false, uint8(f.layer), uint8(f.etype), uint8(f.code))
				if event != 0 {
					s.wantEvent("the event", event)
				}
				for _, words := range [][]uint64{w, v, theirs} {
					for _, word := range words {
						if word != 0 {
							t.Errorf("memory was changed: %#x", words)
						}
					}
				}
				if !isStill(m) || !isStill(foreign) {
					t.Error("memory counts as written by a peer")
				}
				testkit.OK(t, foreign.Close())
				testkit.OK(t, other.Close())
			})
		})
	}
	on := extended(Options{})
	add := func(m *mr, off int) rdmap.AtomicRequest {
		return rdmap.FetchAdd(1, m.stag, m.base+uint64(off), ^uint64(0), 0)
	}
	for off := 1; off < 8; off++ {
		bad(fmt.Sprintf("FetchAdd %d octets off", off), fault{0, 2, 7}, provider.EventQPReqErr, on, func(x target) rdmap.AtomicRequest { return add(x.m, off) })
		bad(fmt.Sprintf("CmpSwap %d octets off", off), fault{0, 2, 7}, provider.EventQPReqErr, on, func(x target) rdmap.AtomicRequest {
			return rdmap.CmpSwap(1, x.m.stag, x.m.base+uint64(off), 0, 1, ^uint64(0), ^uint64(0))
		})
	}
	bad("half of it after the region", fault{0, 1, 1}, provider.EventQPAccessErr, on,
		func(x target) rdmap.AtomicRequest { return add(x.m, 28) })
	bad("before the region", fault{0, 1, 1}, provider.EventQPAccessErr, on, func(x target) rdmap.AtomicRequest { return add(x.m, -8) })
	bad("over the end of the numbers", fault{0, 1, 4}, provider.EventQPAccessErr, on, func(x target) rdmap.AtomicRequest {
		return rdmap.FetchAdd(1, x.m.stag, ^uint64(7), 1, 0)
	})
	bad("no right", fault{0, 1, 2}, provider.EventQPAccessErr, on, func(x target) rdmap.AtomicRequest { return add(x.readable, 0) })
	bad("another PD", fault{0, 1, 3}, provider.EventQPAccessErr, on, func(x target) rdmap.AtomicRequest { return add(x.foreign, 0) })
	bad("a closed region", fault{0, 1, 0}, 0, on, func(x target) rdmap.AtomicRequest { return add(x.closed, 0) })
	for _, op := range []rdmap.AtomicOp{1, 3, 15} {
		bad(op.String(), fault{0, 2, 6}, provider.EventQPReqErr, on, func(x target) rdmap.AtomicRequest {
			q := add(x.m, 0)
			q.Op = op
			return q
		})
	}
	bad("off", fault{0, 2, 6}, 0, Options{}, func(x target) rdmap.AtomicRequest { return add(x.m, 0) })
}

// TestBadAtomicResponses end the stream, and touch no memory.
//
//rfc:7306 EXT-5.2.2-06 Invalid atomic response surfaces an error
//rfc:7306 EXT-8.1-2-01 Inbound extension error: DDP header, RDMA header zero
func TestBadAtomicResponses(t *testing.T) {
	for name, c := range map[string]struct {
		f   fault
		msn uint32
		bad func(id uint32) []byte
	}{
		"another identifier": {fault{0, 2, 0xff}, 1, func(id uint32) []byte { r := rdmap.AtomicResponse{ID: id + 1}; return r.AppendTo(nil) }},
		"short":              {fault{0, 2, 0xff}, 1, func(uint32) []byte { return make([]byte, 11) }},
		"long":               {fault{1, 2, 5}, 1, func(uint32) []byte { return make([]byte, 32) }},
		"another MSN":        {fault{1, 2, 3}, 2, func(uint32) []byte { return make([]byte, 12) }},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, extended(Options{}), params(true), func(s *side, r *raw) {
				sink := s.reg(8, provider.AccessLocalWrite)
				s.send(provider.SendWR{WRID: 1, Opcode: provider.WRAtomicFetchAdd, SGList: []provider.SGE{sink.sge(0, 8)}})
				q := r.wantAtomic("the request", 1)
				h, payload := rdmap.AtomicResponseHeader(c.msn), c.bad(q.ID)
				r.send(h, payload)
				r.wantTerminate("refused", c.f, &h, len(payload), nil)
				s.wantWC("the operation is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
				sink.untouched(0, 0)
			})
		})
	}
	story(t, extended(Options{}), params(true), func(s *side, r *raw) {
		h := r.old(1, rdmap.AtomicResponse{})
		r.wantTerminate("nobody asked", fault{0, 2, 6}, &h, rdmap.AtomicResponseLen, nil)
	})
	// The sink is closed while the operation is under way.
	story(t, extended(Options{}), params(true), func(s *side, r *raw) {
		sink := s.reg(8, provider.AccessLocalWrite)
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRAtomicFetchAdd, SGList: []provider.SGE{sink.sge(0, 8)}})
		q := r.wantAtomic("the request", 1)
		testkit.OK(t, sink.m.Close())
		r.old(1, rdmap.AtomicResponse{ID: q.ID})
		s.wantWC("it has nowhere to go", provider.WC{WRID: 1, Status: provider.WCLocProtErr})
		sink.untouched(0, 0)
	})
}

// TestAtomicsRefusedAtPost: what can't be posted.
//
//rfc:7306 EXT-1.1-01 Use of extensions agreed at ULP level
func TestAtomicsRefusedAtPost(t *testing.T) {
	for _, op := range []provider.WROpcode{
		provider.WRAtomicCmpAndSwp, provider.WRAtomicFetchAdd, provider.WRMaskedAtomicCmpAndSwp, provider.WRMaskedAtomicFetchAdd,
	} {
		refused := func(s *side, what string, wr provider.SendWR, errno error, words string) {
			t.Helper()
			wr.Opcode = op
			n, err := s.qp.PostSend([]provider.SendWR{wr})
			if n != 0 || !errors.Is(err, errno) || !strings.Contains(err.Error(), words) {
				t.Errorf("%v, %s: %d posted, %v", op, what, n, err)
			}
		}
		story(t, Options{}, params(true), func(s *side, r *raw) {
			refused(s, "off", provider.SendWR{}, errors.ErrUnsupported, "engine.Options.Extensions")
		})
		story(t, extended(Options{}), params(true), func(s *side, r *raw) {
			m := s.reg(64, provider.AccessLocalWrite)
			refused(s, "no sink", provider.SendWR{}, syscall.EINVAL, "8 octets")
			refused(s, "a small sink", provider.SendWR{SGList: []provider.SGE{m.sge(0, 4), m.sge(8, 3)}}, syscall.EINVAL, "8 octets")
			refused(s, "inline", provider.SendWR{Flags: provider.SendInline, Inline: m.b[:8]}, syscall.EINVAL, "inline")
			refused(s, "too many SGEs", provider.SendWR{SGList: make([]provider.SGE, 5)}, syscall.EINVAL, "SGEs")
			readonly := s.reg(8, 0)
			s.send(provider.SendWR{WRID: 1, Opcode: op, SGList: []provider.SGE{readonly.sge(0, 8)}})
			s.wantWC("a sink that may not be written", provider.WC{WRID: 1, Status: provider.WCLocProtErr})
		})
		p := params(true)
		p.ORD = 0
		story(t, extended(Options{}), p, func(s *side, r *raw) {
			m := s.reg(8, provider.AccessLocalWrite)
			refused(s, "ORD 0", provider.SendWR{SGList: []provider.SGE{m.sge(0, 8)}}, syscall.EINVAL, "ORD 0")
		})
	}
}
