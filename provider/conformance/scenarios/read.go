package scenarios

import (
	"fmt"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// reads are about RDMA Reads beyond their size: how many are outstanding.
func reads() []*conformance.Scenario {
	var out []*conformance.Scenario
	for _, depth := range []int{1, 3, 4} {
		out = append(out, &conformance.Scenario{
			Slug: fmt.Sprintf("read/depth-%d", depth), Level: conformance.Must,
			Title:        fmt.Sprintf("of twelve RDMA Reads posted at once, no more than the %d agreed are outstanding, and all complete in order", depth),
			Requirements: []string{"RDMAP-5.2.1-04", "RDMAP-5.2.2-04", "RDMAP-5.5-20-01"},
			Verbs:        func(r *conformance.VerbsRun) { readDepth(r, depth) },
			Wire:         func(w *conformance.WireRun) { outstanding(w, depth) },
		})
	}
	return append(out, &conformance.Scenario{
		Slug: "read/both-ways", Level: conformance.Must,
		Title: "both sides read from each other at the same time",
		Verbs: readBothWays, Wire: legal, Concurrent: true,
	}, &conformance.Scenario{
		Slug: "read/short-across-pages", Level: conformance.Must,
		Title:        "RDMA Reads of a few octets bring the right ones also where a page of the source ends among them",
		Requirements: []string{"RDMAP-5.2-01"},
		Verbs:        readShortAcrossPages, Wire: legal,
	})
}

func readDepth(r *conformance.VerbsRun, depth int) {
	const count, size = 12, 30_000
	cfg := &conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{InitiatorDepth: depth, ResponderResources: depth}}
	i, p := r.Connect(cfg, &conformance.SideConfig{ConnConfig: cfg.ConnConfig})
	src := p.Buffer("the source", count*size, remoteRead).Fill(r.Seed)
	dst := i.Buffer("the sink", count*size, remoteWrite)
	wrs := make([]ibverbs.SendWR, count)
	for k := range wrs {
		wrs[k] = read(uint64(k), dst, src)
		wrs[k].SGList = []ibverbs.SGE{dst.SGE(k*size, size)}
		wrs[k].RemoteAddr += uint64(k * size)
	}
	i.PostSend(wrs...)
	got := i.SendWCs(count)
	for k := range got {
		i.WantWC(got, k, uint64(k), ibverbs.WCSuccess, fmt.Sprintf("Read %d completes in its turn", k+1))
	}
	dst.Holds(src.Data, "every Read brought its own octets")
	end(i, p)
}

// outstanding checks how many Read Requests were open at once, in the order of the packets.
func outstanding(w *conformance.WireRun, depth int) {
	conn := only(w)
	open, most := 0, 0
	for k := range conn.Frames {
		f := &conn.Frames[k]
		switch {
		case f.Kind != wire.KindFPDU:
		case f.Opcode() == rdmap.OpReadRequest && f.Dir == wire.ToResponder:
			open++
			most = max(most, open)
		case f.Opcode() == rdmap.OpReadResponse && f.Dir == wire.ToInitiator && f.Header.Last:
			open--
		}
	}
	w.Check(most <= depth, "no more Reads are outstanding than agreed", "%d were", most)
	w.Check(open == 0, "every Read Request has its response", "%d have none", open)
	legal(w)
}

func readBothWays(r *conformance.VerbsRun) {
	const size = 200_000
	i, p := r.Connect(nil, nil)
	isrc := i.Buffer("the initiator's source", size, remoteRead).Fill(r.Seed)
	psrc := p.Buffer("the responder's source", size, remoteRead).Fill(r.Seed + 1)
	idst := i.Buffer("the initiator's sink", size, remoteWrite)
	pdst := p.Buffer("the responder's sink", size, remoteWrite)
	// The responder may not send before the initiator has (RFC 5044 section
	// 7.1.2), so the initiator reads first.
	i.PostSend(read(1, idst, psrc))
	p.PostSend(read(2, pdst, isrc))
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "the initiator's Read completes")
	p.WantWC(p.SendWCs(1), 0, 2, ibverbs.WCSuccess, "the responder's Read completes")
	idst.Holds(psrc.Data, "the initiator has what the responder had")
	pdst.Holds(isrc.Data, "the responder has what the initiator had")
	end(i, p)
}

// shortAcrossPages are Reads of n octets, of which the first before are at the end of a page. siw
// answers Reads of up to 32 octets with other octets, unless the page's end is in their middle.
var shortAcrossPages = []struct{ n, before int }{
	{19, 13}, {32, 31}, {2, 1}, {32, 16}, {19, 19}, {33, 13}, {64, 13},
}

// shortAcross returns the text of the check of one of them.
func shortAcross(n, before int) string {
	return fmt.Sprintf("a Read of %d octets, %d of them before the page's end, brings the right ones", n, before)
}

func readShortAcrossPages(r *conformance.VerbsRun) {
	const page = 4096
	i, p := r.Connect(nil, nil)
	// Pages are those of the memory, whatever address the region has for the peer.
	src := p.Buffer("the source", 2*page, remoteRead).Fill(r.Seed)
	end1 := page - int(uintptr(unsafe.Pointer(&src.Data[0]))%page)
	for k, c := range shortAcrossPages {
		dst := i.Buffer("the sink", c.n, remoteWrite)
		from := end1 - c.before
		wr := read(uint64(k), dst, src)
		wr.RemoteAddr += uint64(from)
		i.PostSend(wr)
		i.WantWC(i.SendWCs(1), 0, uint64(k), ibverbs.WCSuccess, "the Read completes")
		dst.Holds(src.Data[from:from+c.n], shortAcross(c.n, c.before))
	}
	end(i, p)
}
