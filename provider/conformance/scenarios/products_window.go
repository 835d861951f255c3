package scenarios

import (
	"bytes"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
)

// windowProducts combine the type of a window, its rights, the rights of its region, and the
// operation. They also change windows at any time while the peer reads through them.
func windowProducts() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "product/window-rights", Level: conformance.Must, Options: []string{"extensions=on"},
			Title: "a window is bound exactly if its region has the rights for that, and lets the " +
				"peer do exactly what it was bound for",
			Requirements: []string{"DDP-7.1t2-01", "DDP-8.3-2-01"}, Timeout: 30 * time.Second,
			Concurrent: true,
			Verbs:      windowRights, Wire: oneTerminate,
		},
		{
			Slug: "product/window-under-reads", Level: conformance.Must,
			Title: "Reads through a window that is bound anew, invalidated or freed meanwhile " +
				"bring the octets it was bound to, or fail",
			Requirements: []string{"DDP-8.3-2-01"}, Timeout: 30 * time.Second, Concurrent: true,
			Verbs: windowUnderReads, Wire: oneTerminate,
		},
	}
}

// A windowCase is an operation through a window.
type windowCase struct {
	typ    ibverbs.MWType
	region rights
	binds  bool // the region has the right to bind windows
	window rights
	op     ibverbs.WROpcode
}

func (c windowCase) String() string {
	may := "that must not have windows"
	if c.binds {
		may = "that may have windows"
	}
	return fmt.Sprintf("%s through a window of %s with %s, of a region %s with %s", c.op, c.typ,
		c.window, may, c.region)
}

// mayBind reports whether the region has the rights that ibv_bind_mw(3) asks for:
// IBV_ACCESS_MW_BIND, and IBV_ACCESS_LOCAL_WRITE if the window is to let the peer write or do
// atomic operations.
func (c windowCase) mayBind() bool {
	return c.binds && (!c.window.has(ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteAtomic) ||
		c.region.has(ibverbs.AccessLocalWrite))
}

// mayUse reports whether the window's own rights allow the operation. Its region's rights don't
// matter (RFC 5041 section 7.1, tagged check 2; RFC 5040 section 7.2; RFC 7306 section 8.2).
func (c windowCase) mayUse() bool {
	switch c.op {
	case ibverbs.WRRDMAWrite:
		return c.window.has(ibverbs.AccessRemoteWrite)
	case ibverbs.WRRDMARead:
		return c.window.has(ibverbs.AccessRemoteRead)
	}
	return c.window.has(ibverbs.AccessRemoteAtomic)
}

// windowCases are all combinations, with two exceptions. A bind that is refused is tried once for
// each window. Each region that must not have windows is tried once.
func windowCases(atomics bool) []windowCase {
	ops := []ibverbs.WROpcode{ibverbs.WRRDMAWrite, ibverbs.WRRDMARead}
	windows := []rights{rights(ibverbs.AccessRemoteWrite), rights(ibverbs.AccessRemoteRead),
		rights(windowBoth)}
	if atomics {
		ops = append(ops, ibverbs.WRAtomicFetchAdd)
		windows = append(windows, rights(ibverbs.AccessRemoteAtomic),
			rights(windowBoth|ibverbs.AccessRemoteAtomic))
	}
	var out []windowCase
	for _, typ := range []ibverbs.MWType{ibverbs.MWType1, ibverbs.MWType2} {
		for _, binds := range []bool{true, false} {
			for _, region := range []rights{0, rights(ibverbs.AccessRemoteRead), rights(local),
				rights(everyRight)} {
				for n, window := range windows {
					for k, op := range ops {
						c := windowCase{typ, region, binds, window, op}
						if c.mayBind() || k == 0 && (binds || n == 0) {
							out = append(out, c)
						}
					}
				}
			}
		}
	}
	return out
}

func windowRights(r *conformance.VerbsRun) {
	g := newGround(r)
	probe, err := g.ppd.AllocMW(ibverbs.MWType1)
	lacks(r, err, "memory window")
	r.Check(probe.Close() == nil, "a window that is not bound can be closed")
	atomics := true
	for _, ep := range []*conformance.Endpoint{r.Initiator, r.Responder} {
		attr, err := ep.Context.Query()
		r.NoError(err, "the device can be queried")
		atomics = atomics && attr.AtomicCap != provider.AtomicNone
	}
	ours := g.ours.Buffer("the initiator's region", windowLen, everyRight)
	regions := make(map[ibverbs.Access]*conformance.Buffer)
	for _, c := range windowCases(atomics) {
		g.cases++
		access := ibverbs.Access(c.region)
		if c.binds {
			access |= ibverbs.AccessMWBind
		}
		if regions[access] == nil {
			regions[access] = g.theirs.Buffer("the region of the window", 2*windowOff+windowLen, access)
		}
		regions[access].Fill(r.Seed + uint64(g.cases))
		ours.Fill(r.Seed - uint64(g.cases))
		g.tryWindow(c, regions[access], ours)
	}
	g.part()
	g.report()
}

// tryWindow tries one case with a window of its own.
func (g *ground) tryWindow(c windowCase, b, ours *conformance.Buffer) {
	const (
		refused = "a bind for which the region lacks a right fails and ends the connection"
		bound   = "a bind for which the region has the rights completes"
	)
	if g.connected(); !c.mayBind() || g.cases == 1 {
		g.settle()
	}
	mw, err := g.ppd.AllocMW(c.typ)
	g.r.NoError(err, "a window can be made")
	wc := g.bindTo(mw, b, windowOff, ibverbs.Access(c.window))
	switch {
	case !c.mayBind():
		failed := wc != nil && wc.Status == ibverbs.WCMWBindErr
		g.keeps(failed && g.ends(), refused, c, "%s", status(wc))
		g.part()
	case !succeeded(wc):
		g.keeps(false, bound, c, "%s", status(wc))
		g.part()
	default:
		g.keeps(true, bound, c, "")
		g.useWindow(c, mw.RKey(), b, ours)
	}
	if err := mw.Close(); err != nil {
		g.r.Check(false, "the window can be closed", "%s: %v", c, err)
	}
}

// useWindow makes the peer do the operation of a case.
func (g *ground) useWindow(c windowCase, key uint32, b, ours *conformance.Buffer) {
	const (
		used  = "what the window has the right for is done"
		kept  = "what the window has no right for fails and ends the connection"
		still = "it changes nothing"
	)
	before, mine := bytes.Clone(b.Data), bytes.Clone(ours.Data)
	wr := ibverbs.SendWR{
		WRID: 1, Opcode: c.op, Flags: ibverbs.SendSignaled, SGList: ours.All(),
		RemoteAddr: b.MR.Addr() + windowOff, RKey: key, CompareAdd: 1,
	}
	if c.op == ibverbs.WRAtomicFetchAdd {
		wr.SGList = []ibverbs.SGE{ours.SGE(0, 8)}
	}
	g.i.PostSend(wr)
	got := g.completion(g.i.Conn.SendCQ(), 2*time.Second)
	if !c.mayUse() {
		// A Write may be complete when TCP has it.
		ok := (c.op == ibverbs.WRRDMAWrite || got != nil && !succeeded(got)) && g.ends()
		g.keeps(ok, kept, c, "%s", status(got))
		g.keeps(!ok || bytes.Equal(b.Data, before) && bytes.Equal(ours.Data, mine), still, c,
			"octets have changed")
		g.part()
		return
	}
	if c.op == ibverbs.WRRDMAWrite && succeeded(got) { // a Send after it arrives when it is placed
		g.p.PostRecv(ibverbs.RecvWR{WRID: 7})
		g.i.PostSend(ibverbs.SendWR{WRID: 999, Opcode: ibverbs.WRSend})
		got = g.completion(g.p.Conn.RecvCQ(), 2*time.Second)
	}
	g.keeps(succeeded(got) && c.done(b, ours, before, mine), used, c, "%s, or other octets", status(got))
}

// done reports whether the operation has changed what it should, and nothing else. before and mine
// are what the region and the initiator's buffer held before it.
func (c windowCase) done(b, ours *conformance.Buffer, before, mine []byte) bool {
	region, sink := bytes.Clone(before), bytes.Clone(mine)
	switch c.op {
	case ibverbs.WRRDMAWrite:
		copy(region[windowOff:], mine)
	case ibverbs.WRRDMARead:
		copy(sink, before[windowOff:][:windowLen])
	default:
		copy(sink, before[windowOff:][:8])
		word := b.Data[windowOff:][:8]
		if bytes.Equal(word, before[windowOff:][:8]) {
			return false
		}
		copy(region[windowOff:], word)
	}
	return bytes.Equal(b.Data, region) && bytes.Equal(ours.Data, sink)
}

// bindTo binds a window to windowLen octets of a region, and waits for it.
func (g *ground) bindTo(mw *ibverbs.MW, b *conformance.Buffer, off int,
	access ibverbs.Access) *ibverbs.WC {
	info, err := b.MR.BindInfo(off, windowLen, access)
	g.r.NoError(err, "the window lies in the region")
	if mw.Type() == ibverbs.MWType1 {
		err = g.p.QP.BindMW(mw, ibverbs.MWBind{WRID: 50, Flags: ibverbs.SendSignaled, Info: info})
	} else {
		err = g.p.QP.PostSend(ibverbs.SendWR{WRID: 50, Opcode: ibverbs.WRBindMW,
			Flags: ibverbs.SendSignaled, RKey: ibverbs.IncRKey(mw.RKey()), Bind: &info})
	}
	g.r.NoError(err, "the bind is posted")
	return g.completion(g.p.Conn.SendCQ(), 2*time.Second)
}

// A windowChange is what the owner does with a window that the peer reads through.
type windowChange struct {
	name string
	do   func(g *ground, mw *ibverbs.MW, other *conformance.Buffer) bool
	ends bool // Reads with the old key fail after the change
}

func windowChanges() []windowChange {
	unbind := func(g *ground, mw *ibverbs.MW) bool {
		if mw.Type() == ibverbs.MWType1 {
			if g.p.QP.BindMW(mw, ibverbs.MWBind{WRID: 51, Flags: ibverbs.SendSignaled}) != nil {
				return false
			}
		} else if g.p.QP.PostSend(ibverbs.SendWR{WRID: 51, Opcode: ibverbs.WRLocalInv,
			Flags: ibverbs.SendSignaled, InvalidateRKey: mw.RKey()}) != nil {
			return false
		}
		return g.changed(g.completion(g.p.Conn.SendCQ(), 2*time.Second))
	}
	return []windowChange{
		{"left as it is", func(*ground, *ibverbs.MW, *conformance.Buffer) bool { return true }, false},
		{"bound anew to another region", func(g *ground, mw *ibverbs.MW, other *conformance.Buffer) bool {
			if mw.Type() == ibverbs.MWType2 && !unbind(g, mw) { // a window of type 2 is bound only once
				return false
			}
			return g.changed(g.bindTo(mw, other, windowOff, windowBoth))
		}, true},
		{"invalidated", func(g *ground, mw *ibverbs.MW, _ *conformance.Buffer) bool {
			return unbind(g,
				mw)
		}, true},
		{"freed", func(_ *ground, mw *ibverbs.MW,
			_ *conformance.Buffer) bool {
			return mw.Close() == nil
		}, true},
	}
}

// changed reports whether work on a window was done, or flushed. It is flushed if a Read by the old
// key has ended the connection first; then the window can't be used either.
func (g *ground) changed(wc *ibverbs.WC) bool {
	return wc != nil && (wc.Status == ibverbs.WCSuccess || wc.Status == ibverbs.WCWRFlushErr)
}

// readsThrough is a case: the change is made after this number of Reads has completed.
type readsThrough struct {
	typ    ibverbs.MWType
	change string
	after  int
}

func (c readsThrough) String() string {
	return fmt.Sprintf("a window of %s %s after %d Reads", c.typ, c.change, c.after)
}

// readsUnder is how many Reads are under way in windowUnderReads.
const readsUnder = 4

func windowUnderReads(r *conformance.VerbsRun) {
	const moments = 4
	g := newGround(r)
	probe, err := g.ppd.AllocMW(ibverbs.MWType1)
	lacks(r, err, "memory window")
	r.Check(probe.Close() == nil, "a window that is not bound can be closed")
	g.cap.MaxSendWR = 2 * readsUnder
	const access = everyRight | ibverbs.AccessMWBind
	first := g.theirs.Buffer("the window's region", 2*windowOff+windowLen, access).Fill(r.Seed)
	second := g.theirs.Buffer("another region", 2*windowOff+windowLen, access).Fill(r.Seed + 1)
	sinks := g.ours.Buffer("the sinks", readsUnder*windowLen, everyRight)
	for _, typ := range []ibverbs.MWType{ibverbs.MWType1, ibverbs.MWType2} {
		for _, change := range windowChanges() {
			for after := range moments {
				g.cases++
				c := readsThrough{typ, change.name, after}
				g.connected()
				g.settle()
				mw, err := g.ppd.AllocMW(typ)
				r.NoError(err, "a window can be made")
				r.Require(succeeded(g.bindTo(mw, first, windowOff, windowBoth)), "the window can be bound")
				memoryList{sinks}.blank()
				s := &windowReads{g, c, mw.RKey(), first, sinks}
				s.run(change, mw, second)
				g.part()
				if err := mw.Close(); err != nil {
					r.Check(false, "the window can be closed", "%s: %v", c, err)
				}
			}
		}
	}
	g.report()
}

// windowReads are the Reads of a case, with the key that the window had before the change.
type windowReads struct {
	*ground
	c             readsThrough
	key           uint32
	source, sinks *conformance.Buffer
}

// post posts Read k.
func (s *windowReads) post(k int) {
	s.i.PostSend(ibverbs.SendWR{
		WRID: uint64(k), Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled,
		SGList:     []ibverbs.SGE{s.sinks.SGE(k%readsUnder*windowLen, windowLen)},
		RemoteAddr: s.source.MR.Addr() + windowOff, RKey: s.key,
	})
}

// next waits for the next Read, and reports whether it succeeds.
func (s *windowReads) next() bool {
	const right = "a Read that completes with success brings the octets that the window was bound to"
	wc := s.completion(s.i.Conn.SendCQ(), 2*time.Second)
	if !succeeded(wc) {
		return false
	}
	at := int(wc.WRID) % readsUnder * windowLen
	sink, want := s.sinks.Data[at:][:windowLen], s.source.Data[windowOff:][:windowLen]
	s.keeps(bytes.Equal(sink, want), right, s.c, "they differ from octet %d on", firstDifference(sink, want))
	memoryList{s.sinks}.blankAt(at, windowLen)
	return true
}

func (s *windowReads) run(change windowChange, mw *ibverbs.MW, second *conformance.Buffer) {
	const (
		made   = "the change is made"
		late   = "a Read after the change fails, and ends the connection"
		all    = "Reads through a window that is left as it is complete"
		unread = "a Read that fails brings nothing"
	)
	for k := range readsUnder {
		s.post(k)
	}
	alive := true
	for k := 0; k < s.c.after && alive; k++ {
		if alive = s.next(); alive {
			s.post(k + readsUnder)
		}
	}
	s.keeps(change.do(s.ground, mw, second), made, s.c, "it is not")
	for k := 0; k < readsUnder && alive; k++ { // some may have been answered before the change
		alive = s.next()
	}
	if !change.ends {
		s.keeps(alive, all, s.c, "one fails")
		return
	}
	if alive {
		s.post(100)
		s.keeps(!s.next(), late, s.c, "it succeeds")
	}
	ended := s.ends()
	s.keeps(ended, late, s.c, "the connection is still there")
	s.keeps(!ended || memoryList{s.sinks}.isBlank(), unread, s.c, "a sink has changed")
}
