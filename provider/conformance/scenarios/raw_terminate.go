package scenarios

import (
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rawTerminates are Terminates that the peer sends. Whatever they contain, the provider
// does not answer them, and the connection ends.
func rawTerminates() []*conformance.Scenario {
	cases := []struct {
		slug, title  string
		requirements []string
		fpdu         func(*rawStage) rawpeer.FPDU
	}{
		{
			"rdmap/terminated", "a Terminate ends the connection, flushes what is posted and is not answered",
			[]string{"RDMAP-5.4-04", "RDMAP-6.2.1-02", "DDP-6.2.2-02"},
			func(st *rawStage) rawpeer.FPDU { return rawpeer.TerminateMessage(complaint(st)) },
		},
		{
			"rdmap/terminated-siw-layout", "a Terminate in siw's layout does the same",
			[]string{"RDMAP-4.8-14"},
			func(st *rawStage) rawpeer.FPDU {
				t := complaint(st)
				f := rawpeer.TerminateMessage(t)
				f.Payload = t.AppendSIW(nil)
				return f
			},
		},
		{
			"rdmap/terminated-unknown-code", "a Terminate of an undefined layer, type and code does the same",
			[]string{"RDMAP-4.8-14", "RDMAP-4.8-05"},
			func(*rawStage) rawpeer.FPDU {
				return rawpeer.TerminateMessage(rdmap.Terminate{Layer: 9, EType: 9, Code: 0x99, Reserved: 0x1fff})
			},
		},
		{
			"rdmap/terminated-cut", "a Terminate that announces headers and has none does the same",
			[]string{"RDMAP-4.8-15"},
			func(st *rawStage) rawpeer.FPDU {
				f := rawpeer.TerminateMessage(complaint(st))
				f.Payload = f.Payload[:rdmap.TerminateControlLen]
				return f
			},
		},
	}
	var out []*conformance.Scenario
	for _, c := range cases {
		out = append(out, needing(conformance.NeedsAccept, rawStory(c.slug, c.title, c.requirements,
			func(r *conformance.RawRun) { peerTerminates(r, c.fpdu) })))
	}
	return append(out,
		needing(conformance.NeedsAccept, rawStory("rdmap/terminated-control-cut",
			"a Terminate that is shorter than its control field ends the connection",
			[]string{"RDMAP-4.8-15"}, peerTerminatesShort)),
		needing(conformance.NeedsAccept, rawStory("rdmap/terminated-then-more",
			"what follows a Terminate is not looked at", []string{"RDMAP-5.4-05", "DDP-7.1-03"},
			terminatedThenMore)),
		needing(conformance.NeedsReceive, rawStory("rdmap/terminate-queue-0",
			"a Terminate to the queue of Sends is refused, or ends the connection without a word",
			[]string{"RDMAP-5.4-01", "RDMAP-4.1-11"}, terminateOnSendQueue)),
	)
}

// complaint is a Terminate about a Write that the provider never made.
func complaint(st *rawStage) rdmap.Terminate {
	h := rdmap.WriteHeader(st.unknown(), rawSinkTO, true)
	return rdmap.Terminate{
		Layer: iwarp.LayerDDP, EType: iwarp.DDPTaggedBuffer, Code: iwarp.DDPTaggedInvalidSTag,
		M: true, D: true, SegmentLength: ddp.TaggedHeaderLen + rawPart, DDP: h,
	}
}

func peerTerminates(r *conformance.RawRun, fpdu func(*rawStage) rawpeer.FPDU) {
	st := stage(r, nil)
	r.SendFPDU(fpdu(st))
	r.WantEnd("the connection ends, without an answer")
	r.WantOver()
	st.flushed(len(st.recv))
	st.untouched()
	if r.HasProgram() {
		r.Log("the program's view: %v", st.side.QP.Cause())
	}
}

func terminateOnSendQueue(r *conformance.RawRun) {
	st := stage(r, nil)
	f := rawpeer.TerminateMessage(complaint(st))
	f.Header.QN = rdmap.QNSend
	r.SendFPDU(f)
	r.WantTerminateOrEnd("what comes before the end is at most a Terminate", conformance.Answers, "1/2/0x01", "0/2/0x06")
	r.WantOver()
	st.flushed(len(st.recv))
	st.untouched()
}

// peerTerminatesShort leaves open whether so short a Terminate counts as one, or is a
// fault to report like any other.
func peerTerminatesShort(r *conformance.RawRun) {
	st := stage(r, nil)
	f := rawpeer.TerminateMessage(complaint(st))
	f.Payload = f.Payload[:rdmap.TerminateControlLen-2]
	r.SendFPDU(f)
	r.WantTerminateOrEnd("what comes before the end is at most a Terminate", conformance.Answers, "0/2/0xff", "2/0/0x03", "1/2/0x05")
	r.WantOver()
	st.flushed(len(st.recv))
	st.untouched()
}

func terminatedThenMore(r *conformance.RawRun) {
	st := stage(r, nil)
	r.SendFPDU(rawpeer.TerminateMessage(complaint(st)), st.send(1, rawPart), st.write(st.window, 0, rawPart), st.read(1, st.source, 0, rawPart))
	r.WantEnd("the connection ends, without an answer")
	r.WantOver()
	st.flushed(len(st.recv))
	st.untouched()
}

// rawInvalidates are Sends with Invalidate of an STag that the peer may not invalidate.
// RFC 5040 figure 9 has the code for it, 9, under two error types, and does not say when
// to use which. It has another code for an STag that belongs to another stream.
func rawInvalidates() []*conformance.Scenario {
	cannot := []string{"0/2/0x09", "0/1/0x09"}
	fault := func(slug, title, requirement string, stag func(*rawStage) uint32, also ...string) *conformance.Scenario {
		return rawStory(slug, title, []string{requirement}, func(r *conformance.RawRun) { invalidate(r, stag, append(also, cannot...)) })
	}
	return []*conformance.Scenario{
		// This shows whether siw's connection stays open.
		fault("rdmap/invalidate-unknown", "a Send with Invalidate of an STag that names nothing is refused", "RDMAP-7.2-05",
			(*rawStage).unknown),
		fault("rdmap/invalidate-wrong-key", "a Send with Invalidate of an STag of which only the key octet is wrong is refused", "RDMAP-7.2-05",
			func(st *rawStage) uint32 {
				gift := st.side.Buffer("a region that could be invalidated", rawSize, remoteWrite|ibverbs.AccessRemoteInvalidate)
				return gift.MR.RKey() ^ 1
			}),
		fault("rdmap/invalidate-other-pd", "a Send with Invalidate of another protection domain's STag is refused", "RDMAP-7.2-06",
			func(st *rawStage) uint32 { return st.foreign.MR.RKey() }, "0/1/0x03"),
		fault("rdmap/invalidate-no-right", "a Send with Invalidate of an STag that the peer was given no control over is refused", "RDMAP-8.1.1-7-01",
			func(st *rawStage) uint32 { return st.private.MR.RKey() }),
		rawStory("rdmap/invalidate", "a Send with Invalidate is delivered, and what it names can't be written to any more",
			[]string{"RDMAP-5.3-10", "RDMAP-5.3-12"}, invalidateGood),
	}
}

// invalidation is a Send with Invalidate.
func invalidation(st *rawStage, stag uint32) rawpeer.FPDU {
	return rawpeer.FPDU{Header: rdmap.SendHeader(rdmap.OpSendInvalidate, stag, 1, 0, true), Payload: st.payload(rawPart)}
}

// invalidate plays a Send with Invalidate that has to be refused. What it
// carries may be placed: the STag is judged on delivery.
func invalidate(r *conformance.RawRun, stag func(*rawStage) uint32, cannot []string) {
	st := stage(r, nil)
	st.sent = true
	r.SendFPDU(invalidation(st, stag(st)))
	got := st.side.RecvWCs(1)
	if len(got) == 1 {
		r.Check(got[0].WRID == 1 && got[0].Status != ibverbs.WCSuccess, "the receive completes with an error", "WR %d with %s", got[0].WRID, got[0].Status)
	}
	r.WantRefused("the Terminate names the fault", cannot...)
	st.flushed(1)
	st.untouched()
}

func invalidateGood(r *conformance.RawRun) {
	st := stage(r, nil)
	gift := st.side.Buffer("the region to invalidate", rawSize, remoteWrite|ibverbs.AccessRemoteInvalidate)
	// In two segments: with the first alone the STag is still good.
	halves := cut(invalidation(st, gift.MR.RKey()), rawPart/2)
	r.SendFPDU(halves[0], st.write(gift, 0, rawPart), halves[1])
	st.side.WantWC(st.side.RecvWCs(1), 0, 1, ibverbs.WCSuccess, "the Send is delivered")
	gift.Holds(st.payload(rawPart), "a Write between its segments is still placed")
	st.sent = true
	r.SendFPDU(st.write(gift, rawPart, rawPart))
	r.WantRefused("the Terminate says that a Write after it names nothing", "1/1/0x00")
	gift.UntouchedFrom(rawPart, "and it places nothing")
	st.flushed(1)
	st.untouched()
}
