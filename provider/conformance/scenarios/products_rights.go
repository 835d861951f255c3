package scenarios

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
)

// rightsProducts combine the rights of the source, the rights of the sink, the operation, and which
// entry of a list of one or two has these rights.
func rightsProducts() []*conformance.Scenario {
	const limit = 30 * time.Second
	product := func(op, title string, requirements []string,
		ops ...ibverbs.WROpcode) *conformance.Scenario {
		return &conformance.Scenario{
			Slug: "product/rights-" + op, Level: conformance.Must, Title: title,
			Requirements: requirements, Timeout: limit,
			Verbs: func(r *conformance.VerbsRun) { rightsProduct(r, ops) }, Wire: oneTerminate,
			Concurrent: true,
		}
	}
	atomics := product("atomic", "an atomic operation changes a word exactly if the word's region "+
		"has the right for it and the result's may be written",
		[]string{"EXT-8.2-02"}, ibverbs.WRAtomicFetchAdd, ibverbs.WRAtomicCmpAndSwp)
	atomics.Options = []string{"extensions=on"}
	return []*conformance.Scenario{
		product("send", "a Send moves exactly if every region of the receive may be written by its "+
			"owner, whatever the rights of its source",
			nil, ibverbs.WRSend),
		product("write", "a Write moves exactly if the region that it names may be written by the "+
			"peer, whatever the rights of its source",
			[]string{"DDP-7.1t2-01"}, ibverbs.WRRDMAWrite),
		product("read", "a Read moves exactly if the region that it names may be read by the peer, "+
			"and every region of its sink may be written by its owner",
			[]string{"RDMAP-7.2-12"}, ibverbs.WRRDMARead),
		atomics,
	}
}

// rights is a set of rights, as a case names it.
type rights ibverbs.Access

func (a rights) String() string {
	var names []string
	for _, bit := range []struct {
		right ibverbs.Access
		name  string
	}{
		{ibverbs.AccessLocalWrite, "local write"}, {ibverbs.AccessRemoteWrite, "remote write"},
		{ibverbs.AccessRemoteRead, "remote read"},
		{ibverbs.AccessRemoteAtomic, "atomics"},
	} {
		if ibverbs.Access(a)&bit.right != 0 {
			names = append(names, bit.name)
		}
	}
	if len(names) == 0 {
		return "no right"
	}
	return strings.Join(names, ", ")
}

func (a rights) has(right ibverbs.Access) bool { return ibverbs.Access(a)&right != 0 }

// regionRights are all that a region can be registered with: remote writing and atomics need the
// right of local writing.
func regionRights(atomics bool) []rights {
	out := []rights{0, rights(ibverbs.AccessRemoteRead)}
	for _, also := range []ibverbs.Access{0, ibverbs.AccessRemoteRead, ibverbs.AccessRemoteWrite,
		ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite} {
		out = append(out, rights(local|also))
		if atomics {
			out = append(out, rights(local|also|ibverbs.AccessRemoteAtomic))
		}
	}
	return out
}

// transfer is one case: the rights of the initiator's region and of the responder's region.
type transfer struct {
	op           ibverbs.WROpcode
	ours, theirs rights
	list         int // 0: one entry. 1, 2: two, of which this one has the rights, and the other all
}

func (c transfer) String() string {
	list := []string{"", ", first of two", ", second of two"}[c.list]
	return fmt.Sprintf("%s, initiator's %s, responder's %s%s", c.op, c.ours, c.theirs, list)
}

// fault returns what forbids the transfer, "" if nothing does, and whose memory that is.
//
//	Send   the receive's regions: ibv_reg_mr(3), IBV_ACCESS_LOCAL_WRITE
//	Write  the region named: RFC 5041 section 7.1, tagged check 2
//	Read   the region named: RFC 5040 section 7.2; the sink's regions: ibv_reg_mr(3)
//	atomic the region named: RFC 7306 section 8.2; the sink's regions: ibv_reg_mr(3)
//
// A side needs no right to read its own memory.
func (c transfer) fault() (rule string, atInitiator bool) {
	const sink = "that has no right of local writing is not written by its owner"
	switch {
	case c.op == ibverbs.WRSend && !c.theirs.has(ibverbs.AccessLocalWrite):
		return "a receive " + sink, false
	case c.op == ibverbs.WRRDMAWrite && !c.theirs.has(ibverbs.AccessRemoteWrite):
		return "a region without the right of remote writing is not written by the peer", false
	case c.op == ibverbs.WRSend, c.op == ibverbs.WRRDMAWrite:
		return "", false
	case !c.ours.has(ibverbs.AccessLocalWrite): // found before anything is sent
		return "a sink " + sink, true
	case c.op == ibverbs.WRRDMARead && !c.theirs.has(ibverbs.AccessRemoteRead):
		return "a region without the right of remote reading is not read by the peer", false
	case c.op != ibverbs.WRRDMARead && !c.theirs.has(ibverbs.AccessRemoteAtomic):
		return "a region without the right of atomic operations is not changed by the peer", false
	}
	return "", false
}

const (
	transferSize = 64               // octets of each entry
	regionSize   = 2 * transferSize // room for both entries of a list
)

// rightsProduct tries all transfers of some operations.
func rightsProduct(r *conformance.VerbsRun, ops []ibverbs.WROpcode) {
	atomics := ops[0] == ibverbs.WRAtomicFetchAdd
	if atomics {
		needsExtensions(r, r.Initiator, r.Responder)
	}
	attr, err := r.Initiator.Context.Query()
	r.NoError(err, "the device can be queried")
	g := newGround(r)
	sets := regionRights(atomics)
	ours, theirs := regionsWith(g.ours, sets), regionsWith(g.theirs, sets)
	full, theirFull := g.ours.Buffer("a region with all rights", regionSize, everyRight),
		g.theirs.Buffer("a region with all rights", regionSize, everyRight)
	turn := 0
	for _, op := range ops {
		for _, c := range transfers(op, sets, &turn) {
			if c.list > 0 && op == ibverbs.WRRDMARead && attr.MaxSGERd < 2 {
				continue
			}
			lists := [2]memoryList{{ours[c.ours]}, {theirs[c.theirs]}}
			switch c.list {
			case 1:
				lists[0], lists[1] = append(lists[0], full), append(lists[1], theirFull)
			case 2:
				lists[0], lists[1] = append(memoryList{full}, lists[0]...), append(memoryList{theirFull},
					lists[1]...)
			}
			if op != ibverbs.WRSend { // one key names the peer's memory
				lists[1] = memoryList{theirs[c.theirs]}
			}
			g.try(c, lists[0], lists[1])
		}
	}
	g.part()
	g.report()
}

func regionsWith(s *conformance.Side, sets []rights) map[rights]*conformance.Buffer {
	out := make(map[rights]*conformance.Buffer)
	for _, set := range sets {
		out[set] = s.Buffer("a region with "+set.String(), regionSize, ibverbs.Access(set))
	}
	return out
}

// transfers are the cases of an operation: all allowed ones, and those of the forbidden ones that
// differ in what forbids them.
func transfers(op ibverbs.WROpcode, sets []rights, turn *int) []transfer {
	lists := 3
	if (transfer{op: op}).isAtomic() {
		lists = 1
	}
	var out []transfer
	seen := make(map[transfer]bool)
	for _, a := range sets {
		for _, b := range sets {
			for list := range lists {
				c := transfer{op, a, b, list}
				rule, atInitiator := c.fault()
				if rule != "" {
					key := c // leaves out the side whose rights don't matter
					if atInitiator {
						key.theirs = 0
					} else {
						key.ours = 0
					}
					if seen[key] {
						continue
					}
					seen[key] = true
					*turn++
					d, other := c, sets[*turn%len(sets)]
					if atInitiator {
						d.theirs = other
					} else {
						d.ours = other
					}
					if found, _ := d.fault(); found == rule {
						c = d
					}
				}
				out = append(out, c)
			}
		}
	}
	return out
}

func (c transfer) isAtomic() bool {
	return c.op == ibverbs.WRAtomicFetchAdd || c.op == ibverbs.WRAtomicCmpAndSwp
}

// work returns the operation of a case between ours and theirs, with n octets of each entry.
func (c transfer) work(ours, theirs memoryList, n int) ibverbs.SendWR {
	wr := ibverbs.SendWR{WRID: 1, Opcode: c.op, Flags: ibverbs.SendSignaled, SGList: ours.sges(n)}
	if c.op != ibverbs.WRSend {
		wr.RemoteAddr, wr.RKey = theirs[0].MR.Addr(), theirs[0].MR.RKey()
	}
	return wr
}

// try tries one case.
func (g *ground) try(c transfer, ours, theirs memoryList) {
	g.cases++
	rule, atInitiator := c.fault()
	n := transferSize
	if c.isAtomic() {
		n = 8
	}
	source, sink := ours, theirs
	if c.isAtomic() || c.op == ibverbs.WRRDMARead {
		source, sink = theirs, ours
	}
	i, p := g.connected()
	sink.blank()
	for k, b := range source {
		b.Fill(g.r.Seed + uint64(g.cases+1000*k))
	}
	before := source.data(regionSize)
	if c.op == ibverbs.WRSend {
		p.PostRecv(ibverbs.RecvWR{WRID: 7, SGList: theirs.sges(n)})
	}
	wr := c.work(ours, theirs, n)
	wr.CompareAdd = binary.NativeEndian.Uint64(before) // equals the word, so that it swaps
	wr.Swap = ^wr.CompareAdd
	i.PostSend(wr)
	if rule == "" {
		g.allowed(c, source, sink, before, n)
		return
	}
	g.refused(c, rule, atInitiator, source, sink, before)
}

// allowed checks a case that nothing forbids.
func (g *ground) allowed(c transfer, source, sink memoryList, before []byte, n int) {
	const (
		done  = "what is allowed completes with success"
		moved = "what is allowed moves its octets, and no others"
	)
	i, p := g.i, g.p
	wc := g.completion(i.Conn.SendCQ(), 2*time.Second)
	g.keeps(succeeded(wc), done, c, "%s", status(wc))
	arrived := succeeded(wc)
	if c.op == ibverbs.WRRDMAWrite && arrived { // a Send after it arrives when it is placed
		p.PostRecv(ibverbs.RecvWR{WRID: 7})
		i.PostSend(ibverbs.SendWR{WRID: 999, Opcode: ibverbs.WRSend})
	}
	if (c.op == ibverbs.WRRDMAWrite || c.op == ibverbs.WRSend) && arrived {
		rwc := g.completion(p.Conn.RecvCQ(), 2*time.Second)
		g.keeps(succeeded(rwc), done, c, "the receive: %s", status(rwc))
		arrived = succeeded(rwc)
	}
	if !arrived {
		g.part()
		return
	}
	all, want := sink.data(regionSize), bytes.Repeat([]byte{0x5a}, regionSize*len(sink))
	octets := c.octets(before, n)
	for k := range sink {
		part := octets
		if len(sink) > 1 {
			part = octets[k*n : (k+1)*n]
		}
		copy(want[k*regionSize:], part)
	}
	g.keeps(bytes.Equal(all, want), moved, c, "they differ from octet %d on", firstDifference(all,
		want))
	if c.isAtomic() {
		g.keeps(!bytes.Equal(source.data(n), before[:n]), moved, c, "the word is as it was")
	}
}

// octets are the octets that a case moves from its source, whose regions hold before: n of each
// entry of a list, or as many of the one region that the peer names.
func (c transfer) octets(before []byte, n int) []byte {
	switch {
	case c.list == 0:
		return before[:n]
	case len(before) == regionSize:
		return before[:2*n]
	}
	return slices.Concat(before[:n], before[regionSize:regionSize+n])
}

// refused checks a case that a rule forbids.
func (g *ground) refused(c transfer, rule string, atInitiator bool, source, sink memoryList,
	before []byte) {
	const (
		ends  = "the connection ends at what is not allowed"
		fails = "what is not allowed does not complete with success"
	)
	defer g.part()
	i, p := g.i, g.p
	// A Write or Send may succeed when TCP has it; only an answer shows more.
	wc := g.completion(i.Conn.SendCQ(), 2*time.Second)
	answered := c.op != ibverbs.WRSend && c.op != ibverbs.WRRDMAWrite
	if answered || atInitiator {
		g.keeps(wc != nil && !succeeded(wc), rule, c, "the initiator: %s", status(wc))
	}
	if answered && succeeded(wc) {
		return // nothing ends
	}
	if !g.ends() {
		g.keeps(false, ends, c, "it is still there")
		return
	}
	g.keeps(true, ends, c, "")
	if c.op == ibverbs.WRSend {
		rwc := g.completion(p.Conn.RecvCQ(), 500*time.Millisecond)
		g.keeps(rwc != nil && !succeeded(rwc), fails, c, "the receive: %s", status(rwc))
	}
	if c.list > 0 && len(sink) > 1 { // part may have come for the other entry, which may be written
		sink = sink[c.list-1 : c.list]
	}
	g.keeps(sink.isBlank() && bytes.Equal(before, source.data(regionSize)), rule, c,
		"octets have changed")
}

// firstDifference returns the index of the first octet in which a and b, of equal length, differ.
func firstDifference(a, b []byte) int {
	for k := range a {
		if a[k] != b[k] {
			return k
		}
	}
	return len(a)
}
