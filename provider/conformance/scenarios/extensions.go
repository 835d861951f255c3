package scenarios

import (
	"errors"
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
)

// extensions are about RFC 7306: Immediate Data and atomic operations. Both ends support
// them, or only one does.
func extensions() []*conformance.Scenario {
	both := []string{"extensions=on"}
	out := []*conformance.Scenario{
		{
			Slug: "ext/send-immediate", Level: conformance.Must, Options: both,
			Title:        "Immediate Data alone completes a receive, in its turn among the Sends",
			Requirements: []string{"EXT-4.1-02", "EXT-4.1-04", "EXT-6.3-01", "EXT-6.3-03", "EXT-6.3-04"},
			Verbs:        sendImmediate, Wire: legal,
		},
		{
			Slug: "ext/write-immediate", Level: conformance.Must, Options: both,
			Title:        "Immediate Data after a Write completes a receive when all of the Write is placed",
			Requirements: []string{"EXT-6.3-06", "EXT-6.4-01", "EXT-7-01"},
			Verbs:        writeImmediate, Wire: legal,
		},
		{
			Slug: "ext/fetch-add", Level: conformance.Must, Options: both,
			Title:        "FetchAdd adds to the peer's word and returns what was there, both in host order",
			Requirements: []string{"EXT-5.1.1-03", "EXT-5.2-01", "EXT-5.2.1-01", "EXT-5.2.2-01", "EXT-5.2.2-02"},
			Verbs:        fetchAdd, Wire: legal,
		},
		{
			Slug: "ext/compare-and-swap", Level: conformance.Must, Options: both,
			Title:        "CmpSwap swaps the peer's word if it is the one to compare with, and returns what was there",
			Requirements: []string{"EXT-5.1.2-01", "EXT-5.1.2-02"},
			Verbs:        compareAndSwap, Wire: legal,
		},
		{
			Slug: "ext/masked", Level: conformance.Must, Options: both,
			Title:        "masked operations add to fields of a word, and compare and swap bits of it",
			Requirements: []string{"EXT-5.1.1-04", "EXT-5.1.2-03", "EXT-5.2.1-05"},
			Verbs:        masked, Wire: legal,
		},
	}
	out = append(out, badAtomics()...)
	for _, off := range []struct {
		name string
		wr   func(*conformance.Side, *conformance.Buffer) ibverbs.SendWR
	}{
		{"immediate", func(*conformance.Side, *conformance.Buffer) ibverbs.SendWR { return immediate(1, 0x01020304) }},
		{"atomic", func(s *conformance.Side, target *conformance.Buffer) ibverbs.SendWR {
			return atomic(1, ibverbs.WRAtomicFetchAdd, s.Buffer("the sink", 8, local), target, 0)
		}},
	} {
		out = append(out, &conformance.Scenario{
			Slug: "ext/" + off.name + "-off", Level: conformance.Must, Options: both, ResponderOptions: []string{"extensions=off"},
			Title:        fmt.Sprintf("a peer without RFC 7306 ends the connection at its first message (%s)", off.name),
			Requirements: []string{"EXT-4.1-05", "EXT-8.2-01", "RDMAP-4.1-12"},
			Verbs:        func(r *conformance.VerbsRun) { extensionOff(r, off.wr) }, Wire: terminated("0/2/0x06"),
		})
	}
	return out
}

// needsExtensions ends the run if a side's device reports that it lacks RFC 7306.
func needsExtensions(r *conformance.VerbsRun, sides ...*conformance.Endpoint) {
	for _, ep := range sides {
		attr, err := ep.Context.Query()
		r.NoError(err, "the device can be queried")
		if attr.AtomicCap == provider.AtomicNone {
			r.Unsupported("%s has none of RFC 7306", ep.Name)
		}
	}
}

// immediate is a signalled Immediate Data message alone.
func immediate(wrid uint64, data uint32) ibverbs.SendWR {
	return ibverbs.SendWR{WRID: wrid, Opcode: ibverbs.WRSendWithImm, Flags: ibverbs.SendSignaled, Imm: data}
}

// atomic is a signalled atomic operation on word k of a buffer.
func atomic(wrid uint64, op ibverbs.WROpcode, into, target *conformance.Buffer, k int) ibverbs.SendWR {
	return ibverbs.SendWR{
		WRID: wrid, Opcode: op, Flags: ibverbs.SendSignaled, SGList: into.All(),
		RemoteAddr: target.MR.Addr() + uint64(8*k), RKey: target.MR.RKey(),
	}
}

func sendImmediate(r *conformance.VerbsRun) {
	needsExtensions(r, r.Initiator, r.Responder)
	var in *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		in = s.Buffer("the receive buffers", 3*64, local)
		for k := range 3 {
			s.PostRecv(ibverbs.RecvWR{WRID: uint64(k), SGList: []ibverbs.SGE{in.SGE(64*k, 64)}})
		}
	}})
	src := i.Buffer("the source", 64, local).Fill(r.Seed)
	i.PostSend(send(1, src), immediate(2, 0xfffefdfc), send(3, src))
	for k, wc := range p.RecvWCs(3) {
		with := wc.Flags&ibverbs.WCWithImm != 0
		r.Check(wc.WRID == uint64(k) && wc.Opcode == ibverbs.WCRecv && with == (k == 1), "the messages take the receives in order", "receive %d, %s, flags %#x", wc.WRID, wc.Opcode, wc.Flags)
		if k == 1 {
			conformance.Equal(r.T, wc.Imm, 0xfffefdfc, "the second brings the immediate data")
			conformance.Equal(r.T, wc.ByteLen, 0, "and nothing else")
		}
	}
	in.HoldsAt(0, src.Data, "the first Send is in its buffer")
	in.HoldsAt(128, src.Data, "and so is the second")
	wcs := i.SendWCs(3)
	for k := range wcs {
		i.WantWC(wcs, k, uint64(k+1), ibverbs.WCSuccess, "all complete in order")
	}
	end(i, p)
}

func writeImmediate(r *conformance.VerbsRun) {
	needsExtensions(r, r.Initiator, r.Responder)
	const size = 5000 // a few segments
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		s.PostRecv(ibverbs.RecvWR{WRID: 7}, ibverbs.RecvWR{WRID: 8})
	}})
	window := p.Buffer("the window", size, remoteWrite)
	src := i.Buffer("the source", size, local).Fill(r.Seed)
	wr := write(1, src, window)
	wr.Opcode, wr.Imm = ibverbs.WRRDMAWriteWithImm, 0x01020304
	none := ibverbs.SendWR{WRID: 2, Opcode: ibverbs.WRRDMAWriteWithImm, Flags: ibverbs.SendSignaled, Imm: 5}
	i.PostSend(wr, none)
	got := p.RecvWCs(2)
	window.Holds(src.Data, "all of the Write is there when its immediate data is")
	for k, want := range []struct{ octets, imm uint32 }{{size, 0x01020304}, {0, 5}} {
		wc := got[k]
		r.Check(wc.WRID == uint64(7+k) && wc.Status == ibverbs.WCSuccess && wc.Opcode == ibverbs.WCRecvRDMAWithImm && wc.Flags&ibverbs.WCWithImm != 0,
			"each Write takes a receive", "WR %d, %s, %s, flags %#x", wc.WRID, wc.Status, wc.Opcode, wc.Flags)
		r.Check(wc.ByteLen == want.octets && wc.Imm == want.imm,
			"which has its length and immediate data", "%d octets, %#x", wc.ByteLen, wc.Imm)
	}
	wcs := i.SendWCs(2)
	i.WantWC(wcs, 0, 1, ibverbs.WCSuccess, "the Write completes")
	i.WantWC(wcs, 1, 2, ibverbs.WCSuccess, "and so does the one of nothing")
	end(i, p)
}

// atomicStage is a connection with words at the responder.
type atomicStage struct {
	i, p   *conformance.Side
	words  *conformance.Buffer
	sink   *conformance.Buffer
	posted uint64
}

const atomicRights = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteAtomic

func stageAtomics(r *conformance.VerbsRun, access ibverbs.Access) *atomicStage {
	needsExtensions(r, r.Initiator, r.Responder)
	st := &atomicStage{}
	st.i, st.p = r.Connect(nil, nil)
	st.words = st.p.Buffer("the words", 32, access)
	st.sink = st.i.Buffer("the sink", 8, local)
	st.set(1, 0x0102030405060708)
	return st
}

// set is the responder's own write to a word.
func (st *atomicStage) set(k int, value uint64) {
	st.p.NoError(st.words.MR.Store(8*k, value), "the responder can set a word")
}

// do makes the initiator change word 1, and checks its old and its new value.
func (st *atomicStage) do(what string, change func(*ibverbs.SendWR), before, after uint64) {
	st.posted++
	wr := atomic(st.posted, ibverbs.WRAtomicFetchAdd, st.sink, st.words, 1)
	change(&wr)
	st.i.PostSend(wr)
	st.i.WantWC(st.i.SendWCs(1), 0, st.posted, ibverbs.WCSuccess, what+" completes")
	old, err := st.sink.MR.Load(0)
	st.i.NoError(err, "the sink can be read")
	now, err := st.words.MR.Load(8)
	st.i.NoError(err, "the word can be read")
	st.i.Check(old == before, what+" returns what was there", "%#x, not %#x", old, before)
	st.i.Check(now == after, what+" leaves what it should", "%#x, not %#x", now, after)
}

// done checks that the neighbouring words are unchanged, and ends the connection.
func (st *atomicStage) done() {
	for _, k := range []int{0, 2, 3} {
		v, err := st.words.MR.Load(8 * k)
		st.p.NoError(err, "a word can be read")
		st.p.Check(v == 0x5a5a5a5a5a5a5a5a, "the words beside it are left alone", "word %d is %#x", k, v)
	}
	end(st.i, st.p)
}

func fetchAdd(r *conformance.VerbsRun) {
	st := stageAtomics(r, atomicRights)
	st.do("adding 5", func(wr *ibverbs.SendWR) { wr.CompareAdd = 5 }, 0x0102030405060708, 0x010203040506070d)
	st.do("adding nothing", func(*ibverbs.SendWR) {}, 0x010203040506070d, 0x010203040506070d)
	st.do("adding up to 2^64", func(wr *ibverbs.SendWR) { wr.CompareAdd = 1 + ^uint64(0x010203040506070d) }, 0x010203040506070d, 0)
	st.done()
}

func compareAndSwap(r *conformance.VerbsRun) {
	st := stageAtomics(r, atomicRights)
	swap := func(compare, swap uint64) func(*ibverbs.SendWR) {
		return func(wr *ibverbs.SendWR) {
			wr.Opcode, wr.CompareAdd, wr.Swap = ibverbs.WRAtomicCmpAndSwp, compare, swap
		}
	}
	st.do("comparing with something else", swap(0x0807060504030201, 9), 0x0102030405060708, 0x0102030405060708)
	st.do("comparing with what is there", swap(0x0102030405060708, 9), 0x0102030405060708, 9)
	st.done()
}

func masked(r *conformance.VerbsRun) {
	st := stageAtomics(r, atomicRights)
	st.set(1, 0x00ff_00ff_00ff_00ff)
	st.do("adding 1 to each of four fields", func(wr *ibverbs.SendWR) {
		wr.Opcode, wr.CompareAdd, wr.CompareAddMask = ibverbs.WRMaskedAtomicFetchAdd, 0xff01_0001_0001_0001, 0x8000_8000_8000_8000
	}, 0x00ff_00ff_00ff_00ff, 0x0000_0100_0100_0100)
	swap := func(compare uint64) func(*ibverbs.SendWR) {
		return func(wr *ibverbs.SendWR) {
			wr.Opcode, wr.CompareAdd, wr.CompareAddMask = ibverbs.WRMaskedAtomicCmpAndSwp, compare, 0xffff
			wr.Swap, wr.SwapMask = 0xaaaa_bbbb_cccc_dddd, 0x0000_ffff_0000_00ff
		}
	}
	st.do("comparing bits that differ", swap(0x0101), 0x0000_0100_0100_0100, 0x0000_0100_0100_0100)
	st.do("comparing bits that don't", swap(0x7777_7777_7777_0100), 0x0000_0100_0100_0100, 0x0000_bbbb_0100_01dd)
	st.done()
}

// badAtomics are operations that the responder has to refuse.
func badAtomics() []*conformance.Scenario {
	var out []*conformance.Scenario
	for _, bad := range []struct {
		slug, title string
		requirement string
		reason      string
		access      ibverbs.Access
		spoil       func(*ibverbs.SendWR)
	}{
		{"ext/atomic-no-right", "an atomic operation on a region without the right to it ends the connection", "EXT-8.2-03", "0/1/0x02",
			remoteWrite | ibverbs.AccessRemoteRead, func(*ibverbs.SendWR) {}},
		{"ext/atomic-out-of-bounds", "an atomic operation on a word that is not all in its region ends the connection", "EXT-8.2-03", "0/1/0x01",
			atomicRights, func(wr *ibverbs.SendWR) { wr.RemoteAddr += 32 }},
		{"ext/atomic-unaligned", "an atomic operation on a word that is not aligned ends the connection", "EXT-8.2-04", "0/2/0x07",
			atomicRights, func(wr *ibverbs.SendWR) { wr.RemoteAddr += 4 }},
	} {
		out = append(out, &conformance.Scenario{
			Slug: bad.slug, Level: conformance.Must, Options: []string{"extensions=on"},
			Title: bad.title, Requirements: []string{bad.requirement},
			Verbs: func(r *conformance.VerbsRun) { badAtomic(r, bad.access, bad.spoil) }, Wire: terminated(bad.reason),
		})
	}
	return out
}

func badAtomic(r *conformance.VerbsRun, access ibverbs.Access, spoil func(*ibverbs.SendWR)) {
	st := stageAtomics(r, access)
	wr := atomic(1, ibverbs.WRAtomicFetchAdd, st.sink, st.words, 0)
	wr.CompareAdd = 1
	spoil(&wr)
	st.i.PostSend(wr)
	got := st.i.SendWCs(1)
	if len(got) == 1 {
		st.i.Check(slices.Contains([]ibverbs.WCStatus{ibverbs.WCRemAccessErr, ibverbs.WCRemOpErr, ibverbs.WCRemInvReqErr}, got[0].Status), "the operation fails because of the peer", "%s", got[0].Status)
	}
	st.i.WaitEnd()
	st.p.WaitEnd()
	st.sink.Untouched("nothing comes back")
	v, err := st.words.MR.Load(0)
	st.p.NoError(err, "the word can be read")
	st.p.Check(v == 0x5a5a5a5a5a5a5a5a, "the word is as it was", "%#x", v)
}

// extensionOff posts an operation of RFC 7306 to a peer that has none.
func extensionOff(r *conformance.VerbsRun, wr func(*conformance.Side, *conformance.Buffer) ibverbs.SendWR) {
	needsExtensions(r, r.Initiator)
	var in *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		in = s.Buffer("the receive buffer", 64, local)
		s.PostRecv(recv(7, in))
	}})
	target := p.Buffer("the target", 64, remoteWrite|ibverbs.AccessRemoteRead)
	i.PostSend(wr(i, target))
	i.WaitEnd()
	p.WaitEnd()
	var told *ibverbs.TerminateError
	r.Check(errors.As(i.Conn.QP().Cause(), &told) && told.Remote, "the initiator learns why", "%v",
		i.Conn.QP().Cause())
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCWRFlushErr, "the receive is flushed")
	in.Untouched("nothing is placed in the receive buffer")
	target.Untouched("nor in the target")
}
