package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

const atomicRights = provider.AccessLocalWrite | provider.AccessRemoteAtomic

// words registers n words of zero, aligned.
func (s *side) words(n int, access provider.Access) (*memory.Region, []uint64) {
	s.t.Helper()
	w := make([]uint64, n)
	m := testkit.Must(s.pd.RegMR(unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 8*n), access))(s.t).(*memory.Region)
	s.t.Cleanup(func() { m.Close() })
	return m, w
}

// atomicReq sends an Atomic Request of the peer.
func (r *raw) atomicReq(q rdmap.AtomicRequest) ddp.Header {
	r.t.Helper()
	h := rdmap.AtomicRequestHeader(r.readMSN)
	r.send(h, q.AppendTo(nil))
	r.readMSN++
	return h
}

// wantAtomic waits for the Atomic Request with this MSN.
func (r *raw) wantAtomic(what string, msn uint32) rdmap.AtomicRequest {
	r.t.Helper()
	return testkit.Must(rdmap.ParseAtomicRequest(r.want(what, rdmap.AtomicRequestHeader(msn))))(r.t)
}

// wantOld waits for the Atomic Response with this MSN.
func (r *raw) wantOld(what string, msn uint32, want rdmap.AtomicResponse) {
	r.t.Helper()
	if got := testkit.Must(rdmap.ParseAtomicResponse(r.want(what,
		rdmap.AtomicResponseHeader(msn))))(r.t); got != want {
		r.t.Fatalf("%s: %+v, want %+v", what, got, want)
	}
}

func (r *raw) old(msn uint32, p rdmap.AtomicResponse) ddp.Header {
	r.t.Helper()
	h := rdmap.AtomicResponseHeader(msn)
	r.send(h, p.AppendTo(nil))
	return h
}

// TestAtomicRequester: requests carry what was posted, with the masks that plain
// operations have; the old value comes to the sink as the CPU has numbers, and the
// completion with it, not before.
//
//rfc:7306 EXT-5.1.1-05 Operation in target endianness, wire big-endian
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
//rfc:7306 EXT-5.2.1-05 Unused compare fields: data zero, masks ones; ignored
//rfc:7306 EXT-5.2.1-08 Atomic requests sent in ULP order
//rfc:7306 EXT-5.2.2-05 Atomic response delivered to ULP
//rfc:7306 EXT-5.4-1-01 Requester assumes nothing before the atomic response
//rfc:7306 EXT-5.4-7-01 Atomic not complete before its response is delivered
func TestAtomicRequester(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			p := framingParams(fr.crc, fr.markers)
			p.ORD = 8
			story(t, extended(fr.opts), p, func(s *side, r *raw) {
				sink := s.reg(64, provider.AccessLocalWrite)
				wr := func(id uint64, op provider.WROpcode, sges ...provider.SGE) provider.SendWR {
					return provider.SendWR{
						WRID: id, Opcode: op, Flags: provider.SendSignaled, SGList: sges, RemoteAddr: 0x1122334455667788, RKey: 0x99aabbcc,
						CompareAdd: 0x0102030405060708, Swap: 0x1112131415161718, CompareAddMask: 0x2122232425262728, SwapMask: 0x3132333435363738,
					}
				}
				s.send(
					wr(1, provider.WRAtomicFetchAdd, sink.sge(0, 8)),
					wr(2, provider.WRAtomicCmpAndSwp, sink.sge(9, 3), sink.sge(20, 5)), // in pieces, not aligned
					wr(3, provider.WRMaskedAtomicFetchAdd, sink.sge(30, 16)),           // more room than needed
					wr(4, provider.WRMaskedAtomicCmpAndSwp, sink.sge(48, 8)),
				)
				const ones = ^uint64(0)
				for i, want := range []rdmap.AtomicRequest{
					rdmap.FetchAdd(0, 0x99aabbcc, 0x1122334455667788, 0x0102030405060708, 0),
					rdmap.CmpSwap(0, 0x99aabbcc, 0x1122334455667788, 0x0102030405060708, 0x1112131415161718, ones, ones),
					rdmap.FetchAdd(0, 0x99aabbcc, 0x1122334455667788, 0x0102030405060708, 0x2122232425262728),
					rdmap.CmpSwap(0, 0x99aabbcc, 0x1122334455667788, 0x0102030405060708, 0x1112131415161718, 0x2122232425262728, 0x3132333435363738),
				} {
					got := r.wantAtomic("a request", uint32(i+1))
					want.ID = got.ID // it is ours to choose
					testkit.Equal(t, fmt.Sprint("request ", i), got, want)
					s.noWC("nothing before the response")
					r.old(uint32(i+1), rdmap.AtomicResponse{ID: got.ID, Original: 0xa0a1a2a3a4a5a6a0 + uint64(i)})
					op := provider.WCFetchAdd
					if got.Op == rdmap.AtomicCmpSwap {
						op = provider.WCCompSwap
					}
					s.wantWC("with the response", provider.WC{WRID: uint64(i + 1), Opcode: op, ByteLen: 8})
				}
				var old [8]byte
				for i, at := range []int{0, -1, 30, 48} {
					got := append(bytes.Clone(sink.b[9:12]), sink.b[20:25]...)
					if at >= 0 {
						got = sink.b[at : at+8]
					}
					binary.NativeEndian.PutUint64(old[:], 0xa0a1a2a3a4a5a6a0+uint64(i))
					testkit.EqualBytes(t, fmt.Sprint("old value ", i), got, old[:])
				}
				for _, at := range []int{8, 12, 19, 25, 29, 38, 47, 56} {
					testkit.Equal(t, "a byte beside the sinks", sink.b[at], 0xa5)
				}
			})
		})
	}
}

// TestAtomicTarget: operations are performed in order with all else, the wire's
// numbers being the CPU's; responses repeat the identifiers and have the value that was there.
// The program sees no completion.
//
//rfc:7306 EXT-5-02 FetchAdd and CmpSwap both implemented if any
//rfc:7306 EXT-5.1.1-05 Operation in target endianness, wire big-endian
//rfc:7306 EXT-5.1.1-06 Original value returned
//rfc:7306 EXT-5.2.1-07 Valid atomic request not delivered to ULP
//rfc:7306 EXT-5.2.1-09 Atomic requests processed in order
//rfc:7306 EXT-5.2.1-10 Valid atomic request gets a valid response
//rfc:7306 EXT-5.2.1-11 Atomic request identifier echoed
//rfc:7306 EXT-5.2.2-01 Atomic response untagged, QN 3, MSN from 1
//rfc:7306 EXT-5.2.2-07 Atomic responses in request order
//rfc:7306 EXT-5.4-3-01 Atomic request not started before delivery
//rfc:7306 EXT-5.4-8-01 Ordering of several atomics
//rfc:7306 EXT-5.2.1-03 Codes FetchAdd 0, CmpSwap 2; all listed codes implemented
func TestAtomicTarget(t *testing.T) {
	for _, fr := range framings {
		t.Run(fr.name, func(t *testing.T) {
			story(t, extended(fr.opts), framingParams(fr.crc, fr.markers), func(s *side, r *raw) {
				m, w := s.words(3, atomicRights|provider.AccessRemoteWrite|provider.AccessRemoteRead)
				s.recv(provider.RecvWR{WRID: 1})
				to := m.Addr() + 8
				const ones = ^uint64(0)
				junk := rdmap.FetchAdd(0xdeadbeef, m.STag(), to, 5, 0)
				junk.Reserved, junk.Compare, junk.CompareMask = 0xfffffff, 1, 2 // ignored
				w[1] = 0x0102030405060708
				r.atomicReq(junk)
				r.wantOld("FetchAdd", 1, rdmap.AtomicResponse{ID: 0xdeadbeef, Original: 0x0102030405060708})
				r.atomicReq(rdmap.CmpSwap(7, m.STag(), to, 1, 2, ones, ones))
				r.wantOld("CmpSwap of something else", 2, rdmap.AtomicResponse{ID: 7, Original: 0x010203040506070d})
				r.atomicReq(rdmap.CmpSwap(8, m.STag(), to, 0x010203040506070d, 2, ones, ones))
				r.wantOld("CmpSwap", 3, rdmap.AtomicResponse{ID: 8, Original: 0x010203040506070d})
				if atomic.LoadUint64(&w[1]) != 2 || w[0] != 0 || w[2] != 0 {
					t.Errorf("memory is %#x", w)
				}

				// A Write, two operations and a Read in one piece: each sees the ones before.
				var octet [8]byte
				binary.NativeEndian.PutUint64(octet[:], 0x8000000080000000)
				h := rdmap.AtomicRequestHeader(r.readMSN)
				one := rdmap.FetchAdd(10, m.STag(), to, 0x8000000080000001, 0x8000000080000000)
				h2 := rdmap.AtomicRequestHeader(r.readMSN + 1)
				two := rdmap.CmpSwap(11, m.STag(), to, 0, 0xffff, 0xff00, 0x0ff0)
				read := rdmap.ReadRequest{SinkSTag: 77, Size: 8, SourceSTag: m.STag(), SourceTO: to}
				r.write(bytes.Join([][]byte{
					r.fpdu(rdmap.WriteHeader(m.STag(), to, true), octet[:]),
					r.fpdu(h, one.AppendTo(nil)), r.fpdu(h2, two.AppendTo(nil)),
					r.fpdu(rdmap.ReadRequestHeader(r.readMSN+2), read.AppendTo(nil)),
				}, nil))
				r.readMSN += 3
				r.wantOld("masked FetchAdd", 4, rdmap.AtomicResponse{ID: 10, Original: 0x8000000080000000})
				r.wantOld("masked CmpSwap", 5, rdmap.AtomicResponse{ID: 11, Original: 1})
				binary.NativeEndian.PutUint64(octet[:], 0x0ff1)
				testkit.EqualBytes(t, "what was read",
					r.want("the Read's response", rdmap.ReadResponseHeader(77, 0, true)), octet[:])
				s.noWC("the program sees nothing")
			})
		})
	}
}

// TestAtomicAlignmentIsOfMemory: a region may begin anywhere in memory, whatever its
// addresses are.
//
//rfc:7306 EXT-5.1.1-01 FetchAdd target 64-bit aligned, else error
func TestAtomicAlignmentIsOfMemory(t *testing.T) {
	story(t, extended(Options{}), params(true), func(s *side, r *raw) {
		w := make([]uint64, 4)
		b := unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), 32)
		m := testkit.Must(s.pd.RegMR(b[3:], atomicRights|provider.AccessZeroBased))(t).(*memory.Region)
		defer m.Close()
		r.atomicReq(rdmap.FetchAdd(1, m.STag(), 5, 9, 0)) // 3 + 5 is aligned
		r.wantOld("aligned in memory", 1, rdmap.AtomicResponse{ID: 1})
		testkit.Equal(t, "the word", w[1], 9)
		h := r.atomicReq(rdmap.FetchAdd(1, m.STag(), 8, 9, 0))
		r.wantTerminate("aligned in its addresses only", fault{0, 2, 7}, &h, rdmap.AtomicRequestLen, nil)
	})
}

// TestAtomicsAndReadsShareORD: both wait for the same places, and both are what a
// fence waits for.
//
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
//rfc:7306 EXT-5.2.1-08 Atomic requests sent in ULP order
//rfc:7306 EXT-5.2.2-04 Requester has QN3 buffers for all outstanding atomics
func TestAtomicsAndReadsShareORD(t *testing.T) {
	p := params(true)
	p.ORD = 2
	story(t, extended(Options{}), p, func(s *side, r *raw) {
		sink := s.reg(64, provider.AccessLocalWrite)
		add := provider.SendWR{Opcode: provider.WRAtomicFetchAdd, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(0, 8)}}
		read := provider.SendWR{Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(0, 8)}}
		s.send(add, read, add, provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendFence | provider.SendSignaled})
		first := r.wantAtomic("the first", 1)
		second := r.wantReadRequest("the second", 2)
		r.wantIdle("as many as the ORD")
		r.old(1, rdmap.AtomicResponse{ID: first.ID})
		s.wantWC("the first", provider.WC{Opcode: provider.WCFetchAdd, ByteLen: 8})
		third := r.wantAtomic("the third", 3)
		r.answer(second)
		s.wantWC("the second", provider.WC{Opcode: provider.WCRDMARead, ByteLen: 8})
		r.wantIdle("the fence waits for the operation")
		r.old(2, rdmap.AtomicResponse{ID: third.ID})
		s.wantWC("the third", provider.WC{Opcode: provider.WCFetchAdd, ByteLen: 8})
		r.want("the Send", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		s.wantWC("the fenced one", provider.WC{Opcode: provider.WCSend})
	})
}

// TestAtomicsAndReadsShareIRD: operations whose responses wait after a Read's take places, and the
// responses keep the order of the requests.
//
//rfc:7306 EXT-5.2.1-06 Atomic request consumes one QN1 buffer
//rfc:7306 EXT-5.2.2-03 Responder has QN1 buffers for reads plus atomics
//rfc:7306 EXT-5.2.2-07 Atomic responses in request order
//rfc:7306 EXT-5.4-8-01 Ordering of several atomics
func TestAtomicsAndReadsShareIRD(t *testing.T) {
	const size = 1 << 20
	story := func(extra bool) {
		storyOn(t, memnet.Options{Window: 100}, extended(Options{}), params(true), sideOptions{}, func(s *side, r *raw) {
			src := s.reg(size, provider.AccessRemoteRead)
			m, w := s.words(1, atomicRights)
			r.readReq(rdmap.ReadRequest{SinkSTag: 1, Size: size, SourceSTag: src.m.STag(), SourceTO: src.to(0)})
			for i := range 3 {
				r.atomicReq(rdmap.FetchAdd(uint32(i), m.STag(), m.Addr(), 1, 0))
			}
			synctest.Wait()
			if extra {
				h := r.atomicReq(rdmap.FetchAdd(9, m.STag(), m.Addr(), 1, 0))
				s.wantTerm("one too many", false, 1, 2, 2)
				r.next("the segment under way")
				r.wantTerminate("no buffer for the request", fault{1, 2, 2}, &h, rdmap.AtomicRequestLen, nil)
				testkit.Equal(t, "operations that were performed", w[0], 3)
				return
			}
			for last := false; !last; {
				h, _ := r.next("the Read's response")
				if rdmap.ParseControl(h.ULPCtl).Opcode != rdmap.OpReadResponse {
					t.Fatalf("%+v before its end", h)
				}
				last = h.Last
			}
			for i := range 3 {
				r.wantOld("in order", uint32(i+1), rdmap.AtomicResponse{ID: uint32(i), Original: uint64(i)})
			}
		})
	}
	story(false)
	story(true)
}

// TestAtomicRightAndCap: the right is granted, and the capability reported, where there
// are atomic operations.
func TestAtomicRightAndCap(t *testing.T) {
	for _, on := range []bool{false, true} {
		s := newSide(t, Options{Extensions: on, Network: memnet.New(nil)}, sideOptions{})
		m, _ := s.words(1, atomicRights)
		a := testkit.Must(s.dev.Query())(t)
		testkit.Equal(t, "the right is granted", m.Access()&provider.AccessRemoteAtomic != 0, on)
		if got := a.AtomicCap == provider.AtomicHCA; got != on || !on && a.AtomicCap != provider.AtomicNone {
			t.Errorf("extensions %v: %v", on, a.AtomicCap)
		}
	}
}

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
	type target struct{ m, readable, foreign, closed *memory.Region }
	bad := func(name string, f fault, event provider.AsyncEventType, off Options,
		request func(x target) rdmap.AtomicRequest) {
		t.Run(name, func(t *testing.T) {
			story(t, off, params(true), func(s *side, r *raw) {
				m, w := s.words(4, atomicRights)
				readable, v := s.words(4, provider.AccessLocalWrite|provider.AccessRemoteRead|provider.AccessRemoteWrite)
				other := testkit.Must(s.dev.AllocPD())(t).(*pd)
				theirs := make([]uint64, 4)
				octets := unsafe.Slice((*byte)(unsafe.Pointer(&theirs[0])), 32)
				foreign := testkit.Must(other.RegMR(octets, atomicRights))(t).(*memory.Region)
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
						testkit.Equal(t, "a word that was not to be changed", word, 0)
					}
				}
				testkit.OK(t, foreign.Close())
				testkit.OK(t, other.Close())
			})
		})
	}
	on := extended(Options{})
	add := func(m *memory.Region, off int) rdmap.AtomicRequest {
		return rdmap.FetchAdd(1, m.STag(), m.Addr()+uint64(off), ^uint64(0), 0)
	}
	for off := 1; off < 8; off++ {
		bad(fmt.Sprintf("FetchAdd %d bytes off", off), fault{0, 2, 7}, provider.EventQPReqErr, on,
			func(x target) rdmap.AtomicRequest { return add(x.m, off) })
		name := fmt.Sprintf("CmpSwap %d bytes off", off)
		bad(name, fault{0, 2, 7}, provider.EventQPReqErr, on, func(x target) rdmap.AtomicRequest {
			return rdmap.CmpSwap(1, x.m.STag(), x.m.Addr()+uint64(off), 0, 1, ^uint64(0), ^uint64(0))
		})
	}
	bad("half of it after the region", fault{0, 1, 1}, provider.EventQPAccessErr, on,
		func(x target) rdmap.AtomicRequest { return add(x.m, 28) })
	bad("before the region", fault{0, 1, 1}, provider.EventQPAccessErr, on,
		func(x target) rdmap.AtomicRequest { return add(x.m, -8) })
	bad("over the end of the numbers", fault{0, 1, 4}, provider.EventQPAccessErr, on, func(x target) rdmap.AtomicRequest {
		return rdmap.FetchAdd(1, x.m.STag(), ^uint64(7), 1, 0)
	})
	bad("no right", fault{0, 1, 2}, provider.EventQPAccessErr, on,
		func(x target) rdmap.AtomicRequest { return add(x.readable, 0) })
	bad("another PD", fault{0, 1, 3}, provider.EventQPAccessErr, on,
		func(x target) rdmap.AtomicRequest { return add(x.foreign, 0) })
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
		"another identifier": {fault{0, 2, 0xff}, 1, func(id uint32) []byte {
			r := rdmap.AtomicResponse{ID: id + 1}
			return r.AppendTo(nil)
		}},
		"short":       {fault{0, 2, 0xff}, 1, func(uint32) []byte { return make([]byte, 11) }},
		"long":        {fault{1, 2, 5}, 1, func(uint32) []byte { return make([]byte, 32) }},
		"another MSN": {fault{1, 2, 3}, 2, func(uint32) []byte { return make([]byte, 12) }},
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
}

// TestAtomicsRefusedAtPost: what can't be posted.
//
//rfc:7306 EXT-1.1-01 Use of extensions agreed at ULP level
//rfc:7306 EXT-8.1-1-01 Local creation error: TERM in place, headers zero
func TestAtomicsRefusedAtPost(t *testing.T) {
	for _, op := range []provider.WROpcode{
		provider.WRAtomicCmpAndSwp, provider.WRAtomicFetchAdd,
		provider.WRMaskedAtomicCmpAndSwp, provider.WRMaskedAtomicFetchAdd,
	} {
		story(t, Options{}, params(true), func(s *side, r *raw) {
			s.wantRefused("off", provider.SendWR{Opcode: op}, errors.ErrUnsupported, "engine.Options.Extensions")
		})
		story(t, extended(Options{}), params(true), func(s *side, r *raw) {
			m := s.reg(64, provider.AccessLocalWrite)
			s.wantRefused("no sink", provider.SendWR{Opcode: op}, syscall.EINVAL, "8 bytes")
			s.wantRefused("a small sink", provider.SendWR{Opcode: op, SGList: []provider.SGE{m.sge(0, 4), m.sge(8, 3)}},
				syscall.EINVAL, "8 bytes")
			s.wantRefused("inline", provider.SendWR{Opcode: op, Flags: provider.SendInline, Inline: m.b[:8]},
				syscall.EINVAL, "inline")
			s.wantRefused("too many SGEs", provider.SendWR{Opcode: op, SGList: make([]provider.SGE, 5)},
				syscall.EINVAL, "SGEs")
			readonly := s.reg(8, 0)
			s.send(provider.SendWR{WRID: 1, Opcode: op, SGList: []provider.SGE{readonly.sge(0, 8)}})
			r.wantTerminate("a sink that may not be written", fault{iwarp.LayerRDMAP, 0, 0xff}, nil, 0, nil)
			s.wantWC("a sink that may not be written", provider.WC{WRID: 1, Status: provider.WCLocProtErr})
		})
		p := params(true)
		p.ORD = 0
		story(t, extended(Options{}), p, func(s *side, r *raw) {
			m := s.reg(8, provider.AccessLocalWrite)
			s.wantRefused("ORD 0", provider.SendWR{Opcode: op, SGList: []provider.SGE{m.sge(0, 8)}},
				syscall.EINVAL, "ORD 0")
		})
	}
}

// TestAtomicsAreAtomic: QPs of one device, with the CPU's own operations among them,
// count without a loss and hold a lock one at a time.
//
//rfc:7306 EXT-5-01 Atomic on one location not interleaved with another atomic
//rfc:7306 EXT-5.3-01 Atomicity across streams of the same RNIC
func TestAtomicsAreAtomic(t *testing.T) {
	const qps = 3
	rounds := 300
	if testkit.Race {
		rounds = 50
	}
	so := sideOptions{cap: provider.QPCap{MaxSendWR: 16, MaxSendSGE: 1, MaxRecvWR: 1}}
	network := testkit.Must(tcpNetwork(Options{}))(t)
	opts := Options{Extensions: true, Network: network}
	target := newSide(t, opts, so)
	m, w := target.words(3, atomicRights)
	var wg sync.WaitGroup
	var holders atomic.Int32
	for i := range qps {
		q := target.newQP(so)
		t.Cleanup(func() { testkit.OK(t, q.Close()) })
		x := newSide(t, opts, so)
		cx, cq := connectTransport(t, network, tcpAddr)
		x.start(cx, params(true))
		testkit.OK(t, q.start(cq, responder(true), func(error) {}))
		sink, old := x.words(1, provider.AccessLocalWrite)
		wr := provider.SendWR{Flags: provider.SendSignaled,
			SGList: []provider.SGE{{Addr: sink.Addr(), Length: 8, LKey: sink.STag()}}, RKey: m.STag()}
		do := func(op provider.WROpcode, word int, compareAdd, swap uint64) uint64 {
			wr.Opcode, wr.RemoteAddr, wr.CompareAdd, wr.Swap = op, m.Addr()+uint64(8*word), compareAdd, swap
			x.send(wr)
			x.poll() // which sleeps: there are more goroutines than CPUs
			return old[0]
		}
		wg.Go(func() {
			last := uint64(0)
			for range rounds {
				got := do(provider.WRAtomicFetchAdd, 0, 1, 0)
				if last != 0 && got <= last {
					t.Errorf("counted %d after %d", got, last)
				}
				last = got
				for do(provider.WRAtomicCmpAndSwp, 1, 0, uint64(i+1)) != 0 {
				}
				testkit.Equal(t, "holders of the lock", holders.Add(1), 1)
				holders.Add(-1)
				testkit.Equal(t, "whose the lock was",
					do(provider.WRAtomicCmpAndSwp, 1, uint64(i+1), 0), uint64(i+1))
				// Fields of their own of one word.
				wr.CompareAddMask = 0x8000800080008000
				do(provider.WRMaskedAtomicFetchAdd, 2, 1<<(16*i), 0)
			}
		})
	}
	stop := make(chan struct{})
	served := make(chan struct{})
	go func() { // the CPU's own, and the target's side of things
		defer close(served)
		var wc [1]provider.WC
		for i := 0; ; i++ {
			if _, err := target.cq.Poll(wc[:]); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
			if i < rounds {
				atomic.AddUint64(&w[0], 1)
			}
			select {
			case <-stop:
				if i >= rounds {
					return
				}
			default:
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-served
	testkit.Equal(t, "the count", atomic.LoadUint64(&w[0]), uint64((qps+1)*rounds))
	if got, want := atomic.LoadUint64(&w[2]), uint64(rounds)*0x0000_0001_0001_0001; got != want || w[1] != 0 {
		t.Errorf("fields %#x, want %#x; lock %d", got, want, w[1])
	}
}

// TestPerformAtomic: what several receive sides do at the same time, and the CPU, does
// not get lost.
//
//rfc:7306 EXT-5-01 Atomic on one location not interleaved with another atomic
//rfc:7306 EXT-5.3-01 Atomicity across streams of the same RNIC
func TestPerformAtomic(t *testing.T) {
	const goroutines = 4
	each := 200_000
	if testkit.Race { // which sees a plain access without a collision; ci/test runs all without it, too
		each = 20_000
	}
	var ready sync.WaitGroup
	ready.Add(goroutines)
	s := newSide(t, Options{Extensions: true, Network: memnet.New(nil)}, sideOptions{})
	m, w := s.words(1, atomicRights)
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			add := rdmap.FetchAdd(0, m.STag(), m.Addr(), 1, 0)
			masked := rdmap.FetchAdd(0, m.STag(), m.Addr(), 1<<32, 1<<63)
			ready.Done()
			ready.Wait()
			for range each {
				if i == 0 {
					atomic.AddUint64(&w[0], 1+1<<32)
					continue
				}
				for _, req := range []*rdmap.AtomicRequest{&add, &masked} {
					if _, err := ofPD(s.pd).Atomic(req); err != nil {
						t.Error(err)
						return
					}
				}
				swap := rdmap.CmpSwap(0, m.STag(), m.Addr(), 0, 99, 1<<63, 0) // changes nothing, whatever is there
				if _, err := ofPD(s.pd).Atomic(&swap); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	testkit.Equal(t, "the word", w[0], uint64(each*goroutines)*(1+1<<32))
}

// TestExtensionsAllocateNothing: neither side allocates anything for atomic operations, but at the
// first of a QP, and for immediate data.
func TestExtensionsAllocateNothing(t *testing.T) {
	a, b := tcpPair(t, Options{Extensions: true}, true, sideOptions{})
	m, _ := b.words(1, atomicRights|provider.AccessRemoteWrite)
	sink, _ := a.words(1, provider.AccessLocalWrite)
	sges := []provider.SGE{{Addr: sink.Addr(), Length: 8, LKey: sink.STag()}}
	recvs := make([]provider.RecvWR, 2)
	wrs := []provider.SendWR{
		{Opcode: provider.WRRDMAWriteWithImm, SGList: sges, RemoteAddr: m.Addr(), RKey: m.STag()},
		{Opcode: provider.WRSendWithImm},
		{Opcode: provider.WRAtomicFetchAdd, SGList: sges, RemoteAddr: m.Addr(), RKey: m.STag(), CompareAdd: 1},
		{Opcode: provider.WRMaskedAtomicCmpAndSwp, Flags: provider.SendSignaled, SGList: sges,
			RemoteAddr: m.Addr(), RKey: m.STag()},
	}
	wantNoAllocs(t, func() {
		b.recv(recvs...)
		a.send(wrs...)
		pollBoth(t, 3, a.cq, b.cq)
	})
}
