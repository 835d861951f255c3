package scenarios

import (
	"bytes"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
)

// queueProducts are about receives that name more than there is, and queue pairs that come and go
// beside one with traffic.
func queueProducts() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "product/receive-beyond-region", Level: conformance.Observed,
			Title: "a receive that reaches beyond its region takes a message that does not, whole, or " +
				"fails without a trace",
			Timeout: 30 * time.Second, Concurrent: true,
			Verbs: receiveBeyondRegion, Wire: oneTerminate,
		},
		{
			Slug: "product/qps-under-reads", Level: conformance.Must, Timeout: 30 * time.Second,
			Title: "queue pairs that come and go by the hundred have numbers of their own, and Reads " +
				"beside them bring their octets",
			Verbs: qpsUnderReads, Concurrent: true, Wire: oneTerminate,
		},
	}
}

// A longReceive has an entry that is longer than its region, by excess octets.
type longReceive struct {
	excess int
	list   int // 0: one entry. 1, 2: two, of which this one is too long
	fits   int // octets of a message that lies within the regions
}

func (c longReceive) String() string {
	list := []string{"one entry", "the first of two entries", "the second of two entries"}[c.list]
	return fmt.Sprintf("%s too long by %d octets, a message of %d", list, c.excess, c.fits)
}

// receiveBeyondRegion posts receives that are longer than their regions. ibv_post_recv(3) says
// nothing about them. Whatever happens, a message is delivered whole or not at all.
func receiveBeyondRegion(r *conformance.VerbsRun) {
	const (
		whole  = "what is delivered is whole"
		within = "no octet beyond the message is written"
		ends   = "a receive that fails ends the connection"
	)
	g := newGround(r)
	src := g.ours.Buffer("the source", regionSize, local).Fill(r.Seed)
	long, good := g.theirs.Buffer("a receive buffer", transferSize, local),
		g.theirs.Buffer("another receive buffer", transferSize, local)
	for list := range 3 {
		outcome := ""
		for _, excess := range []int{1, 4096, 1 << 20} {
			for _, n := range []int{0, 1, transferSize / 2, transferSize} {
				g.cases++
				c := longReceive{excess, list, n}
				lists := []memoryList{{long}, {long, good}, {good, long}}[list]
				lists.blank()
				i, p := g.connected()
				sges := lists.sges(transferSize)
				for k, b := range lists {
					if b == long {
						sges[k].Length += uint32(excess)
					}
				}
				if list == 1 { // the message ends in the first entry, at its region's end at most
					sges[1].Length = transferSize
				}
				if err := p.QP.PostRecv(ibverbs.RecvWR{WRID: 7, SGList: sges}); err != nil {
					outcome += " refused"
					continue
				}
				wr := send(1, src)
				wr.SGList = []ibverbs.SGE{src.SGE(0, n)}
				i.PostSend(wr)
				wc := g.completion(p.Conn.RecvCQ(), 2*time.Second)
				if succeeded(wc) {
					outcome += " delivered"
					all := lists.data(transferSize)
					g.keeps(int(wc.ByteLen) == n && bytes.Equal(all[:n], src.Data[:n]), whole, c,
						"%d octets, or others", wc.ByteLen)
					g.keeps(len(bytes.Trim(all[n:], "\x5a")) == 0, within, c, "one is")
					g.completion(i.Conn.SendCQ(), 2*time.Second)
					continue
				}
				outcome += " fails"
				ended := g.ends()
				g.keeps(wc != nil && ended, ends, c, "%s", status(wc))
				g.keeps(!ended || lists.isBlank(), whole, c, "it fails, and octets have changed")
				g.part()
			}
		}
		r.Observe("receive-beyond-region."+[]string{"only", "first", "second"}[list], "%s", outcome[1:])
	}
	g.part()
	g.report()
}

// turns is a case of qpsUnderReads.
type turns int

func (k turns) String() string { return fmt.Sprintf("turn %d", int(k)) }

func qpsUnderReads(r *conformance.VerbsRun) {
	const count, open, depth, size = 600, 8, 4, 4096
	const (
		made  = "a queue pair can be made"
		own   = "no two that are open have the same number"
		right = "each Read brings its octets"
	)
	g := newGround(r)
	src := g.theirs.Buffer("the source", size, everyRight).Fill(r.Seed)
	sinks := g.ours.Buffer("the sinks", depth*size, everyRight)
	i, p := g.connected()
	cq, err := r.Responder.Context.CreateCQ(16, nil)
	r.NoError(err, "a CQ can be made")
	closing(r, "the CQ", cq)
	init := &ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: littleRoom}
	post := func(k int) {
		wr := read(uint64(k), sinks, src)
		wr.SGList = []ibverbs.SGE{sinks.SGE(k%depth*size, size)}
		i.PostSend(wr)
	}
	for k := range depth {
		post(k)
	}
	var ring [open]*ibverbs.QP
	numbers := map[uint32]bool{p.QP.QPN(): true}
	if r.Initiator.Context == r.Responder.Context {
		numbers[i.QP.QPN()] = true
	}
	drop := func(qp *ibverbs.QP) {
		if qp != nil {
			delete(numbers, qp.QPN())
			r.Require(qp.Close() == nil, "a queue pair can be closed")
		}
	}
	for k := range count {
		g.cases++
		drop(ring[k%open])
		ring[k%open] = nil
		qp, err := g.ppd.CreateQP(init)
		if g.keeps(err == nil, made, turns(k), "%v", err); err != nil {
			break
		}
		ring[k%open] = qp
		g.keeps(!numbers[qp.QPN()], own, turns(k), "%#x", qp.QPN())
		numbers[qp.QPN()] = true
		if k%open == open-1 {
			wc := g.completion(i.Conn.SendCQ(), 2*time.Second)
			if !succeeded(wc) {
				g.keeps(false, right, turns(k), "%s", status(wc))
				break
			}
			sink := sinks.Data[int(wc.WRID)%depth*size:][:size]
			g.keeps(bytes.Equal(sink, src.Data), right, turns(k), "they differ from octet %d on",
				firstDifference(sink, src.Data))
			clear(sink)
			post(int(wc.WRID) + depth)
		}
	}
	for _, qp := range ring {
		drop(qp)
	}
	for range depth {
		wc := g.completion(i.Conn.SendCQ(), 2*time.Second)
		g.keeps(succeeded(wc), right, turns(count), "%s", status(wc))
	}
	end(i, p)
	g.part()
	g.report()
}
