package engine

import (
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestAtomicBlame: the operation that the peer's Terminate is about fails with the
// status that InfiniBand gives, the others are flushed.
func TestAtomicBlame(t *testing.T) {
	for name, c := range map[string]struct {
		peer   Options
		off    int
		access provider.Access
		want   provider.WCStatus
	}{
		"misaligned":  {extended(Options{}), 4, atomicRights, provider.WCRemInvReqErr},
		"outside":     {extended(Options{}), 64, atomicRights, provider.WCRemAccessErr},
		"no right":    {extended(Options{}), 8, provider.AccessLocalWrite | provider.AccessRemoteWrite, provider.WCRemAccessErr},
		"not enabled": {Options{}, 8, atomicRights, provider.WCRemInvReqErr},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := memnet.New(nil)
				c.peer.Network = network
				a, b := newSide(t, Options{Network: network, Extensions: true}, sideOptions{}), newSide(t, c.peer, sideOptions{})
				ca, cb := connectTransport(t, network, memAddr)
				a.start(ca, params(true), nil)
				b.start(cb, responder(true), nil)
				m, w := b.words(8, c.access|provider.AccessRemoteRead)
				sink := a.reg(64, provider.AccessLocalWrite)
				read := provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(0, 8)}, RemoteAddr: m.base, RKey: m.stag}
				a.send(read)
				a.wantWC("a Read before it", provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: 8})
				add := provider.SendWR{WRID: 2, Opcode: provider.WRAtomicFetchAdd, CompareAdd: 1, SGList: []provider.SGE{sink.sge(8, 8)}, RemoteAddr: m.base + uint64(c.off), RKey: m.stag}
				read.WRID = 3
				a.send(add, read)
				a.wantWC("the operation", provider.WC{WRID: 2, Status: c.want})
				a.wantWC("what is after it", provider.WC{WRID: 3, Status: provider.WCWRFlushErr})
				for _, word := range w {
					if word != 0 {
						t.Errorf("memory is %v", w)
					}
				}
			})
		})
	}
}

// TestBlameCountsMaskedAtomics: masked atomic operations take their numbers and their
// turns among Reads, so that a Terminate about one finds the work that it is about.
//
//rfc:5040 RDMAP-5.4-04 Terminate delivered to RDMAP and to the ULP
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
func TestBlameCountsMaskedAtomics(t *testing.T) {
	catastrophe := &iwarp.Error{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteOperation, Code: iwarp.RDMAPCatastrophicStream}
	const nothing = 9 // MSN of no request, as who fills in the header of something else has it
	for name, c := range map[string]struct {
		answered int // of the operations, before
		err      *iwarp.Error
		msn      uint32
		read     bool // the Terminate has the Read Request
		blamed   uint64
		want     provider.WCStatus
	}{
		"the second of two Reads of the same memory":    {0, rdmap.ErrReadAccess, 4, true, 4, provider.WCRemAccessErr},
		"the first of them":                             {0, rdmap.ErrReadAccess, 3, true, 3, provider.WCRemAccessErr},
		"the first, with the operations answered":       {2, rdmap.ErrReadAccess, 3, true, 3, provider.WCRemAccessErr},
		"an operation by its number":                    {0, rdmap.ErrAtomicAlignment, 2, false, 2, provider.WCRemInvReqErr},
		"the oldest, which is an operation":             {0, catastrophe, nothing, false, 1, provider.WCRemOpErr},
		"the oldest that is left, an operation as well": {1, catastrophe, nothing, false, 2, provider.WCRemOpErr},
		"the oldest that is left, a Read":               {2, catastrophe, nothing, false, 3, provider.WCRemOpErr},
	} {
		t.Run(name, func(t *testing.T) {
			p := params(true)
			p.ORD = 4
			story(t, extended(Options{}), p, func(s *side, r *raw) {
				sink := s.reg(64, provider.AccessLocalWrite)
				wrs := make([]provider.SendWR, 4)
				for i, op := range []provider.WROpcode{provider.WRMaskedAtomicFetchAdd, provider.WRMaskedAtomicCmpAndSwp, provider.WRRDMARead, provider.WRRDMARead} {
					wrs[i] = provider.SendWR{WRID: uint64(i + 1), Opcode: op, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(8*i, 8)}, RemoteAddr: 64, RKey: 7}
				}
				s.send(wrs...)
				var ops [2]rdmap.AtomicRequest
				var reads [2]rdmap.ReadRequest
				for i := range ops {
					ops[i] = r.wantAtomic("an operation", uint32(i+1))
				}
				for i := range reads {
					reads[i] = r.wantReadRequest("a Read", uint32(i+3))
				}
				for i, wcop := range []provider.WCOpcode{provider.WCFetchAdd, provider.WCCompSwap}[:c.answered] {
					r.old(uint32(i+1), rdmap.AtomicResponse{ID: ops[i].ID})
					s.wantWC("an operation that was answered", provider.WC{WRID: uint64(i + 1), Opcode: wcop, ByteLen: 8})
				}
				h := rdmap.ReadRequestHeader(c.msn)
				var read *rdmap.ReadRequest
				if c.read {
					read = &reads[c.msn-3]
				}
				term := rdmap.NewTerminate(c.err, &h, h.Len()+rdmap.ReadRequestLen, read)
				r.send(rdmap.TerminateHeader(), term.AppendTo(nil))
				for id := uint64(c.answered + 1); id <= 4; id++ {
					want := provider.WC{WRID: id, Status: provider.WCWRFlushErr}
					if id == c.blamed {
						want.Status = c.want
					}
					s.wantWC("what was not answered", want)
				}
			})
		})
	}
}
