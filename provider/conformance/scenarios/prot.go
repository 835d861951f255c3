package scenarios

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// protection is about accesses to memory that a peer, or the program itself, has no right
// to: no octet moves, the connection ends, and both sides get an error.
func protection() []*conformance.Scenario {
	var out []*conformance.Scenario
	for which, name := range []string{"write", "read"} {
		op := []ibverbs.WROpcode{ibverbs.WRRDMAWrite, ibverbs.WRRDMARead}[which]
		for _, c := range []struct {
			slug, title string
			reqs        string    // for the Write and the Read
			reasons     [2]string // in the Terminate, for the Write and the Read
			spoil       func(*protectionCase)
		}{
			{"bad-key", "with a key that names nothing", "DDP-7.1t1-01 RDMAP-7.2-07", [2]string{"1/1/0x00", "0/1/0x00"}, func(c *protectionCase) { c.wr.RKey ^= 0x5a5a5a00 }},
			{"wrong-key-octet", "with the last octet of the key wrong", "DDP-7.1t1-01 RDMAP-7.2-07", [2]string{"1/1/0x00", "0/1/0x00"}, func(c *protectionCase) { c.wr.RKey ^= 1 }},
			{"beyond-end", "one octet beyond the region's end", "DDP-7.1t4-01 RDMAP-7.2-10", [2]string{"1/1/0x01", "0/1/0x01"}, func(c *protectionCase) { c.wr.RemoteAddr++ }},
			{"before-start", "one octet before the region's start", "DDP-7.1t3-01 RDMAP-7.2-09", [2]string{"1/1/0x01", "0/1/0x01"}, func(c *protectionCase) { c.wr.RemoteAddr-- }},
			{"no-right", "of a region without the right for it", "DDP-7.1t2-01 RDMAP-7.2-12", [2]string{"1/1/0x00 1/1/0x02 0/1/0x02", "0/1/0x02"}, func(c *protectionCase) { c.access = local }},
			{"other-pd", "of a region of another protection domain", "DDP-7.1t1-01 RDMAP-7.2-08", [2]string{"1/1/0x02", "0/1/0x03"}, func(c *protectionCase) { c.otherPD = true }},
			{"closed-region", "of a region that was deregistered", "DDP-7.1t1-01 RDMAP-7.2-07", [2]string{"1/1/0x00", "0/1/0x00"}, func(c *protectionCase) { c.closed = true }},
		} {
			out = append(out, &conformance.Scenario{
				Slug: "protection/" + name + "-" + c.slug, Level: conformance.Must,
				Title:        fmt.Sprintf("an RDMA %s %s moves nothing and ends the connection with a Terminate", name, c.title),
				Requirements: strings.Fields(c.reqs)[which : which+1],
				Verbs:        func(r *conformance.VerbsRun) { refused(r, op, c.spoil) },
				Wire:         terminated(strings.Fields(c.reasons[which])...),
			})
		}
	}
	return append(out,
		&conformance.Scenario{
			Slug: "protection/local-bad-key", Level: conformance.Must,
			Title: "a Send whose lkey names nothing completes with an error, and nothing of it arrives",
			Verbs: func(r *conformance.VerbsRun) { badLocal(r, func(s *ibverbs.SGE) { s.LKey ^= 0x5a5a5a00 }) },
		},
		&conformance.Scenario{
			Slug: "protection/local-beyond-end", Level: conformance.Must,
			Title: "a Send that reaches beyond its region completes with an error, and nothing of it arrives",
			Verbs: func(r *conformance.VerbsRun) { badLocal(r, func(s *ibverbs.SGE) { s.Length++ }) },
		},
		&conformance.Scenario{
			Slug: "protection/local-fault-last", Level: conformance.Must, Concurrent: true,
			Title: "what was posted before a Send with an lkey that names nothing arrives, also if it is " +
				"long, and then the connection ends",
			Verbs: func(r *conformance.VerbsRun) {
				faultLast(r, func(i *conformance.Side, list []ibverbs.SendWR) {
					bad := send(9, i.Buffer("the source of the bad Send", 64, local))
					bad.SGList[0].LKey ^= 0x5a5a5a00
					i.PostSend(append(list, bad)...)
				})
			},
		},
		&conformance.Scenario{
			Slug: "protection/write-flushes", Level: conformance.Must,
			Title:        "a receive that waits is flushed at the side that a bad Write reaches",
			Requirements: []string{"DDP-7.1-04"},
			Verbs:        func(r *conformance.VerbsRun) { flushes(r, ibverbs.WRRDMAWrite) }, Wire: terminated("1/1/0x00"),
		},
		&conformance.Scenario{
			Slug: "protection/read-flushes", Level: conformance.Must,
			Title: "a receive that waits is flushed at the side that a bad Read reaches",
			Verbs: func(r *conformance.VerbsRun) { flushes(r, ibverbs.WRRDMARead) }, Wire: terminated("0/1/0x00"),
		},
		&conformance.Scenario{
			Slug: "protection/receive-too-small", Level: conformance.Must,
			Title:        "a Send larger than the receive ends the connection: the receive completes with a length error",
			Requirements: []string{"DDP-7.1u4-01"},
			Verbs:        receiveTooSmall, Wire: terminated("1/2/0x05"),
		},
		&conformance.Scenario{
			Slug: "protection/no-receive", Level: conformance.Must,
			Title:        "a Send for which no receive is posted ends the connection: iWARP does not retry",
			Requirements: []string{"DDP-7.1u2-01"},
			Verbs:        noReceive, Wire: terminated("1/2/0x02"),
		},
	)
}

// protectionCase is an operation that would be legal, and the change that makes it
// illegal.
type protectionCase struct {
	wr      ibverbs.SendWR
	access  ibverbs.Access
	otherPD bool
	closed  bool
}

func refused(r *conformance.VerbsRun, op ibverbs.WROpcode, spoil func(*protectionCase)) {
	const size = 1000
	i, p := r.Connect(nil, nil)
	probe := protectionCase{access: remoteWrite | remoteRead}
	spoil(&probe)
	pd := p.PD
	if probe.otherPD {
		other, err := r.Responder.Context.AllocPD()
		r.NoError(err, "the responder can make another PD")
		r.Cleanup(func() { r.Check(other.Close() == nil, "the other PD can be closed") })
		pd = other
	}
	target := p.BufferIn(pd, "the target", size, probe.access).Fill(r.Seed)
	before := bytes.Clone(target.Data)
	ours := i.Buffer("the initiator's buffer", size, remoteWrite)
	c := protectionCase{wr: write(1, ours, target)}
	c.wr.Opcode = op
	spoil(&c)
	if c.closed {
		r.NoError(target.MR.Close(), "the region can be deregistered")
	}
	i.PostSend(c.wr)
	got := i.SendWCs(1)
	if op == ibverbs.WRRDMARead && len(got) == 1 {
		if !i.Check(got[0].Status != ibverbs.WCSuccess, "the Read fails") {
			end(i, p)
			return
		}
		conformance.Equal(r.T, got[0].Status, ibverbs.WCRemAccessErr, "it fails because of the peer's memory")
	}
	i.WaitEnd()
	p.WaitEnd()
	target.Holds(before, "the target is as it was")
	if op == ibverbs.WRRDMARead {
		ours.Untouched("nothing was read")
	}
}

// flushes is refused, with a receive posted at the side that refuses.
func flushes(r *conformance.VerbsRun, op ibverbs.WROpcode) {
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		s.PostRecv(recv(9, s.Buffer("the receive buffer", 8, local)))
	}})
	target := p.Buffer("the target", 8, remoteWrite|remoteRead)
	wr := write(1, i.Buffer("the initiator's buffer", 8, remoteWrite), target)
	wr.Opcode = op
	wr.RKey ^= 0x5a5a5a00
	i.PostSend(wr)
	i.WaitEnd()
	p.WaitEnd()
	p.WantWC(p.RecvWCs(1), 0, 9, ibverbs.WCWRFlushErr, "the receive is flushed")
}

// terminated checks that the responder sent a Terminate, one only, with one of
// the reasons given as layer/type/code, and nothing after it.
//
//rfc:5040 RDMAP-5.4-01 Terminate untagged on QN 2
func terminated(reasons ...string) func(*conformance.WireRun) {
	return func(w *conformance.WireRun) {
		conn := only(w)
		var by *wire.Frame
		for k := range conn.Frames {
			f := &conn.Frames[k]
			if f.Kind != wire.KindFPDU {
				continue
			}
			if by != nil && f.Dir == by.Dir {
				w.Check(false, "nothing follows a Terminate", "%s", f)
				return
			}
			if isFPDU(f, "Terminate") && by == nil {
				by = f
			}
		}
		if !w.Check(by != nil, "a Terminate says why the connection ends") {
			return
		}
		conformance.Equal(w.T, by.Dir, wire.ToInitiator, "it comes from the side that was asked")
		if t := by.Terminate; w.Check(t != nil, "it can be read", "%v", by.Err) {
			reason := fmt.Sprintf("%d/%d/0x%02x", t.Layer, t.EType, uint8(t.Code))
			w.Check(slices.Contains(reasons, reason), "it gives the reason", "it says %s, not %s", reason, strings.Join(reasons, " or "))
		}
	}
}

func badLocal(r *conformance.VerbsRun, spoil func(*ibverbs.SGE)) {
	var dst *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffer", 64, local)
		s.PostRecv(recv(7, dst))
	}})
	src := i.Buffer("the source", 64, local)
	wr := send(1, src)
	spoil(&wr.SGList[0])
	i.PostSend(wr)
	got := i.SendWCs(1)
	if len(got) == 1 {
		i.Check(got[0].Status != ibverbs.WCSuccess && got[0].Status != ibverbs.WCWRFlushErr, "the Send completes with an error of its own", "%s", got[0].Status)
		conformance.Equal(r.T, got[0].Status, ibverbs.WCLocProtErr, "the error is that memory is protected")
	}
	i.WaitEnd()
	p.WaitEnd()
	dst.Untouched("nothing arrived")
}

// faultLast posts good work, more than a socket takes, and after it what post adds. All of the good
// work arrives, in order, before the end.
func faultLast(r *conformance.VerbsRun, post func(i *conformance.Side, good []ibverbs.SendWR)) {
	const size = 1 << 22
	var in *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		in = s.Buffer("the receive buffer", 64, local)
		s.PostRecv(ibverbs.RecvWR{WRID: 1}, recv(2, in), ibverbs.RecvWR{WRID: 3})
	}})
	window := p.Buffer("the window", size, remoteWrite)
	long, short := i.Buffer("the long source", size, local).Fill(r.Seed),
		i.Buffer("the short source", 64, local).Fill(r.Seed+1)
	post(i, []ibverbs.SendWR{{WRID: 6, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled}, write(7,
		long, window), send(8, short)})
	got := p.RecvWCs(2)
	p.WantWC(got, 0, 1, ibverbs.WCSuccess, "the first Send arrives")
	p.WantWC(got, 1, 2, ibverbs.WCSuccess, "so does the one after the Write")
	window.Holds(long.Data, "the Write between them is in the window")
	in.Holds(short.Data, "the second Send is in its receive buffer")
	i.WaitEnd()
	p.WaitEnd()
	wcs := i.SendWCs(4)
	for k := range 3 {
		i.WantWC(wcs, k, uint64(6+k), ibverbs.WCSuccess, "what was posted before the fault completes "+
			"with success")
	}
	if len(wcs) == 4 {
		i.Check(wcs[3].Status != ibverbs.WCSuccess && wcs[3].Status != ibverbs.WCWRFlushErr,
			"what is at fault completes with an error of its own", "%s", wcs[3].Status)
	}
	p.WantWC(p.RecvWCs(1), 0, 3, ibverbs.WCWRFlushErr, "the receive that is left is flushed")
}

func receiveTooSmall(r *conformance.VerbsRun) {
	var dst *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffer", 63, local)
		s.PostRecv(recv(7, dst))
	}})
	src := i.Buffer("the source", 64, local).Fill(r.Seed)
	i.PostSend(send(1, src))
	i.Quietly(i.Conn.SendCQ(), 1) // done when TCP has it, or flushed
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCLocLenErr, "the receive completes with a length error")
	i.WaitEnd()
	p.WaitEnd()
}

func noReceive(r *conformance.VerbsRun) {
	i, p := r.Connect(nil, nil)
	src := i.Buffer("the source", 64, local).Fill(r.Seed)
	i.PostSend(send(1, src))
	i.Quietly(i.Conn.SendCQ(), 1)
	i.WaitEnd()
	p.WaitEnd()
}
