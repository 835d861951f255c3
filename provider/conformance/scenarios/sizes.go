package scenarios

import (
	"fmt"
	"strings"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// sizeClasses are message sizes around what fits one FPDU. The MSS of lo allows FPDUs of
// almost 64 KiB.
var sizeClasses = []struct {
	name   string
	octets int
}{
	{"zero", 0},
	{"one-octet", 1},
	{"one-fpdu", 60000},
	{"two-fpdus", 70001},
	{"one-mib", 1 << 20},
}

// sizes are the three data transfers in each size class.
func sizes() []*conformance.Scenario {
	var out []*conformance.Scenario
	for _, c := range sizeClasses {
		n := c.octets
		out = append(out,
			&conformance.Scenario{
				Slug: "send/" + c.name, Level: conformance.Must,
				Title: fmt.Sprintf("a Send of %s arrives whole in the receive that was posted first", octets(n)),
				Requirements: pick(n,
					"RDMAP-5.3-01 RDMAP-5.3-02 RDMAP-5.3-06 DDP-4.1-02 DDP-5.4-03 DDP-4.1-09 DDP-4.1-12",
					"RDMAP-5.3-08 DDP-5.2-08"),
				Verbs: func(r *conformance.VerbsRun) { sendOf(r, n) },
				Wire:  func(w *conformance.WireRun) { carried(w, wire.ToResponder, rdmap.OpSend, n) },
			},
			&conformance.Scenario{
				Slug: "write/" + c.name, Level: conformance.Must,
				Title: fmt.Sprintf("an RDMA Write of %s lands where it was sent, and the "+
					"responder's program does not notice", octets(n)),
				Requirements: pick(n,
					"RDMAP-5.1-01 RDMAP-5.1-02 DDP-4.1-01 DDP-5.2-06 RDMAP-5.5-12-01 RDMAP-5.5-17-01",
					"RDMAP-5.1-06 DDP-5.2-08 DDP-5.2-09"),
				Verbs: func(r *conformance.VerbsRun) { writeOf(r, n) },
				Wire:  func(w *conformance.WireRun) { carried(w, wire.ToResponder, rdmap.OpWrite, n) },
			},
			&conformance.Scenario{
				Slug: "read/" + c.name, Level: conformance.Must,
				Title: fmt.Sprintf("an RDMA Read brings %s, and the responder's program "+
					"does not notice", octets(n)),
				Requirements: pick(n,
					"RDMAP-5.2-01 RDMAP-5.2.1-01 RDMAP-5.2.1-03 RDMAP-5.2.1-07 RDMAP-5.5-19-01",
					"RDMAP-5.2.1-09 RDMAP-5.2.1-10"),
				Verbs: func(r *conformance.VerbsRun) { readOf(r, n) },
				Wire:  func(w *conformance.WireRun) { carried(w, wire.ToInitiator, rdmap.OpReadResponse, n) },
			})
	}
	return out
}

// pick returns the requirement ids for messages with octets, or without.
func pick(n int, some, none string) []string {
	if n == 0 {
		return strings.Fields(none)
	}
	return strings.Fields(some)
}

func sendOf(r *conformance.VerbsRun, n int) {
	var dst *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffer", max(n, 1), local)
		s.PostRecv(recv(7, dst))
	}})
	src := i.Buffer("the source", max(n, 1), local).Fill(r.Seed)
	wr := send(1, src)
	if n == 0 {
		wr.SGList = nil
	}
	i.PostSend(wr)
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "the Send completes")
	got := p.RecvWCs(1)
	p.WantWC(got, 0, 7, ibverbs.WCSuccess, "the receive completes")
	if len(got) == 1 {
		conformance.Equal(r.T, int(got[0].ByteLen), n, "the receive's length is the message's")
		conformance.Equal(r.T, got[0].Opcode, ibverbs.WCRecv, "its opcode is that of a receive")
		conformance.Equal(r.T, got[0].QPN, p.QP.QPN(), "it names the QP")
	}
	if n == 0 {
		dst.Untouched("an empty Send places nothing")
	} else {
		dst.Holds(src.Data, "the receive buffer holds the message")
	}
	end(i, p)
}

func writeOf(r *conformance.VerbsRun, n int) {
	i, p := r.Connect(nil, nil)
	dst := p.Buffer("the sink", max(n, 1), remoteWrite|remoteRead)
	src := i.Buffer("the source", max(n, 1), local).Fill(r.Seed)
	wr := write(1, src, dst)
	if n == 0 {
		wr.SGList = nil
	}
	i.PostSend(wr)
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "the Write completes")
	// A Write's completion says only that TCP has it. A Read after it is answered with
	// what the Write placed (RFC 5040 section 5.5).
	back := i.Buffer("the copy that is read back", max(n, 1), remoteWrite)
	i.PostSend(read(2, back, dst))
	i.WantWC(i.SendWCs(1), 0, 2, ibverbs.WCSuccess, "a Read after the Write completes")
	back.Holds(dst.Data, "the Read brings what the Write placed")
	if n == 0 {
		dst.Untouched("an empty Write places nothing")
	} else {
		dst.Holds(src.Data, "the sink holds what was written")
	}
	p.NoWC(p.Conn.RecvCQ(), 0, "no completion at the responder")
	end(i, p)
}

func readOf(r *conformance.VerbsRun, n int) {
	i, p := r.Connect(nil, nil)
	src := p.Buffer("the source", max(n, 1), remoteRead).Fill(r.Seed)
	dst := i.Buffer("the sink", max(n, 1), remoteWrite)
	wr := read(1, dst, src)
	if n == 0 {
		wr.SGList = nil
	}
	i.PostSend(wr)
	got := i.SendWCs(1)
	i.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Read completes")
	if n == 0 {
		dst.Untouched("an empty Read places nothing")
	} else {
		dst.Holds(src.Data, "the sink holds what was read")
	}
	p.NoWC(p.Conn.RecvCQ(), 0, "no completion at the responder")
	end(i, p)
}

// carried checks that the connection carried n octets with an opcode in one
// direction, whole, and every frame of it legal.
func carried(w *conformance.WireRun, dir wire.Direction, op rdmap.Opcode, n int) {
	conn := only(w)
	total, last := 0, 0
	for _, f := range conn.FPDUs(dir) {
		if f.Opcode() == op {
			total += len(f.Payload)
			if f.Header.Last {
				last++
			}
		}
	}
	conformance.Equal(w.T, total, n, fmt.Sprintf("the wire carries %s with opcode %q", octets(n), op))
	conformance.Equal(w.T, last, 1, "in one message")
	legal(w)
}

// only returns the one connection that a run has.
func only(w *conformance.WireRun) *wire.Conn {
	w.Require(len(w.Trace.Conns) == 1, "the run has one connection on the wire", "%d", len(w.Trace.Conns))
	return w.Trace.Conns[0]
}

// legal checks that our decoder finds nothing wrong on the wire.
func legal(w *conformance.WireRun) {
	for _, c := range w.Trace.Conns {
		for k := range c.Frames {
			f := &c.Frames[k]
			if f.Err != nil || f.Header.Reserved != 0 {
				w.Check(false, "every frame on the wire is legal", "frame %d: %s: reserved bits %#x, %v", k+1, f, f.Header.Reserved, f.Err)
				return
			}
		}
	}
	w.Check(true, "every frame on the wire is legal")
}
