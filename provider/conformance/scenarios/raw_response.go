package scenarios

import (
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// RFC 5040 section 5.2.2 lets the sink check STag, TO and length of a response
// against the request, and names no codes: the tagged segment is what is wrong.
var notTheAnswer = []string{"1/1/0x00", "1/1/0x01", "0/2/0x06", "0/2/0xff"}

// A wrongResponse answers a Read of rawSize octets with something else. The sink
// has more room than the Read asks for.
type wrongResponse struct {
	slug, title  string
	requirements []string
	level        conformance.Level
	fpdus        func(st *responseStage) []rawpeer.FPDU
	want         []string
}

// responseStage is a provider that has posted a Read to the raw peer.
type responseStage struct {
	r     *conformance.RawRun
	side  *conformance.Side
	sink  *conformance.Buffer
	other *conformance.Buffer // the peer may write here
	req   rdmap.ReadRequest
}

// rawResponses are answers to the provider's own Reads.
func rawResponses() []*conformance.Scenario {
	var out []*conformance.Scenario
	for _, w := range wrongResponses() {
		out = append(out, &conformance.Scenario{
			Slug: w.slug, Title: w.title, Requirements: w.requirements, Level: w.level, RawRole: conformance.RoleResponder, Raw: w.play,
			Needs: conformance.NeedsConnect,
		})
	}
	return append(out,
		responderStory("rdmap/response-unasked",
			"a Read Response without a Read is refused, and places nothing",
			[]string{"RDMAP-5.2.2-06"}, responseUnasked),
		responderStory("rdmap/response-crossed", "answers in another order than the Read Requests are refused", []string{"RDMAP-5.2.2-04", "RDMAP-5.5-20-01"}, responseCrossed),
		responderStory("rdmap/response-tiny-segments", "a Read Response in segments of one octet each completes the Read", []string{"DDP-5.2-04", "RDMAP-5.5-01"}, responseTiny),
		responderStory("rdmap/response-never", "a Read that is not answered is flushed when the connection ends", []string{"DDP-6.2.2-02", "RDMAP-5.5-19-01"}, responseNever),
	)
}

// responderStory makes a scenario that play plays, with the peer as responder.
func responderStory(slug, title string, requirements []string, play func(*conformance.RawRun)) *conformance.Scenario {
	s := rawStory(slug, title, requirements, play)
	s.RawRole = conformance.RoleResponder
	return needing(conformance.NeedsConnect, s)
}

// asking connects, makes the program post a Read of rawSize octets as WR 1, and waits
// for its request.
func asking(r *conformance.RawRun) *responseStage {
	r.Connect(nil)
	st := &responseStage{r: r, side: r.Side}
	st.sink = st.side.Buffer("the sink", 2*rawSize, remoteWrite)
	st.other = st.side.Buffer("another region", 2*rawSize, remoteWrite)
	st.side.PostSend(ibverbs.SendWR{
		WRID: 1, Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{st.sink.SGE(0, rawSize)},
		RemoteAddr: rawSinkTO, RKey: rawSinkSTag,
	})
	st.req = wantRead(r, 1)
	conformance.Equal(r.T, st.req.Size, rawSize, "it asks for what was posted")
	r.Check(st.req.SourceSTag == rawSinkSTag && st.req.SourceTO == rawSinkTO, "from where was posted", "STag %#x, TO %#x", st.req.SourceSTag, st.req.SourceTO)
	return st
}

// wantRead waits for the provider's Read Request with an MSN and checks its
// form.
func wantRead(r *conformance.RawRun, msn uint32) rdmap.ReadRequest {
	seg := r.WantFPDU("the Read Request comes", rdmap.OpReadRequest)
	h := &seg.Header
	r.Check(!h.Tagged && h.Last && h.QN == rdmap.QNReadRequest && h.MSN == msn && h.MO == 0,
		"it is one untagged segment of queue 1, with the MSN whose turn it is", "T %v, L %v, QN %d, MSN %d, MO %d", h.Tagged, h.Last, h.QN, h.MSN, h.MO)
	req, err := rdmap.ParseReadRequest(seg.Payload)
	r.NoError(err, "its header can be read")
	return req
}

func (st *responseStage) answer(n int) rawpeer.FPDU {
	return rawpeer.ReadResponse(st.req.SinkSTag, st.req.SinkTO, pattern(n, 3))
}

func wrongResponses() []wrongResponse {
	change := func(n int, change func(*responseStage, *rawpeer.FPDU)) func(*responseStage) []rawpeer.FPDU {
		return func(st *responseStage) []rawpeer.FPDU {
			f := st.answer(n)
			change(st, &f)
			return []rawpeer.FPDU{f}
		}
	}
	second := func(change func(*responseStage, *rawpeer.FPDU)) func(*responseStage) []rawpeer.FPDU {
		return func(st *responseStage) []rawpeer.FPDU {
			fpdus := cut(st.answer(rawSize), rawPart)
			change(st, &fpdus[1])
			return fpdus
		}
	}
	req := []string{"RDMAP-5.2.2-05"}
	return []wrongResponse{
		{
			slug: "rdmap/response-other-stag", title: "a Read Response to another STag than that of the Read is refused, though the peer may write there",
			level: conformance.Should, requirements: req, want: notTheAnswer,
			fpdus: change(rawSize, func(st *responseStage, f *rawpeer.FPDU) {
				f.Header.STag, f.Header.TO = st.other.MR.RKey(), st.other.MR.Addr()
			}),
		},
		{
			slug: "rdmap/response-other-to", title: "a Read Response to another TO than that of the Read is refused, though it is in the region",
			level: conformance.Should, requirements: req, want: notTheAnswer,
			fpdus: change(rawSize, func(_ *responseStage, f *rawpeer.FPDU) { f.Header.TO += 8 }),
		},
		{
			slug: "rdmap/response-too-long", title: "a Read Response of one octet more than was asked for is refused, though the region has room",
			level: conformance.Should, requirements: req, want: notTheAnswer,
			fpdus: change(rawSize+1, func(*responseStage, *rawpeer.FPDU) {}),
		},
		{
			slug: "rdmap/response-too-short", title: "a Read Response of one octet less than was asked for is refused",
			level: conformance.Should, requirements: req, want: notTheAnswer,
			fpdus: change(rawSize-1, func(*responseStage, *rawpeer.FPDU) {}),
		},
		{
			slug: "rdmap/response-empty", title: "a Read Response without octets to a Read of some is refused",
			level: conformance.Should, requirements: req, want: notTheAnswer,
			fpdus: change(0, func(*responseStage, *rawpeer.FPDU) {}),
		},
		{
			slug:  "rdmap/response-last-missing",
			title: "a Read Response that goes on after the octets asked for is refused",
			level: conformance.Should, requirements: req, want: notTheAnswer,
			fpdus: func(st *responseStage) []rawpeer.FPDU { return cut(st.answer(rawSize+rawPart), rawSize) },
		},
		{
			slug: "rdmap/response-second-stag", title: "a Read Response whose second segment names another STag is refused",
			level: conformance.Must, requirements: []string{"RDMAP-5.2.2-07", "DDP-4.2-06"}, want: notTheAnswer,
			fpdus: second(func(st *responseStage, f *rawpeer.FPDU) {
				f.Header.STag, f.Header.TO = st.other.MR.RKey(), st.other.MR.Addr()
			}),
		},
		{
			slug: "rdmap/response-second-to", title: "a Read Response whose second segment leaves a gap is refused",
			level: conformance.Should, requirements: req, want: notTheAnswer,
			fpdus: second(func(_ *responseStage, f *rawpeer.FPDU) { f.Header.TO += 4 }),
		},
		{
			slug: "rdmap/response-second-opcode", title: "a Read Response that goes on as a Write is refused",
			level: conformance.Must, requirements: []string{"RDMAP-7.2-03"}, want: notTheAnswer,
			fpdus: second(func(_ *responseStage, f *rawpeer.FPDU) {
				*f = control(*f, func(c *rdmap.Control) { c.Opcode = rdmap.OpWrite })
			}),
		},
	}
}

func (w wrongResponse) play(r *conformance.RawRun) {
	st := asking(r)
	r.SendFPDU(w.fpdus(st)...)
	r.WantRefused("the Terminate names the fault", w.want...)
	st.failed(1)
}

// failed checks that none of n Reads completes with success, and that no octet outside of
// the requested ones is placed.
func (st *responseStage) failed(n int) {
	for _, wc := range st.side.SendWCs(n) {
		st.r.Check(wc.Status != ibverbs.WCSuccess, "the Read does not complete with success", "WR %d did", wc.WRID)
	}
	st.other.Untouched("nothing is placed in another region than the sink")
	st.sink.UntouchedFrom(rawSize, "nothing is placed after the octets that were asked for")
}

func responseUnasked(r *conformance.RawRun) {
	r.Connect(nil)
	sink := r.Side.Buffer("the region that is named", rawSize, remoteWrite)
	r.SendFPDU(rawpeer.ReadResponse(sink.MR.RKey(), sink.MR.Addr(), pattern(rawPart, 3)))
	// Local catastrophic errors have no code of their own.
	r.WantRefused("the Terminate names the fault", "0/2/0x06", "0/2/0xff", "1/0/0x00", "1/1/0x00")
	sink.Untouched("nothing is placed")
}

func responseCrossed(r *conformance.RawRun) {
	st := asking(r)
	st.side.PostSend(ibverbs.SendWR{
		WRID: 2, Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{st.other.SGE(0, rawSize)},
		RemoteAddr: rawSinkTO, RKey: rawSinkSTag,
	})
	req := wantRead(r, 2)
	r.SendFPDU(rawpeer.ReadResponse(req.SinkSTag, req.SinkTO, pattern(rawSize, 3)), st.answer(rawSize))
	r.WantRefused("the Terminate names the fault", notTheAnswer...)
	st.failed(2)
}

func responseTiny(r *conformance.RawRun) {
	st := asking(r)
	whole := st.answer(rawSize)
	var fpdus []rawpeer.FPDU
	for len(whole.Payload) > 1 {
		two := cut(whole, 1)
		fpdus, whole = append(fpdus, two[0]), two[1]
	}
	r.SendMany(append(fpdus, whole))
	st.side.WantWC(st.side.SendWCs(1), 0, 1, ibverbs.WCSuccess, "the Read completes")
	st.sink.Holds(pattern(rawSize, 3), "the sink holds what was sent")
	r.WantClose()
	st.other.Untouched("nothing is placed elsewhere")
}

func responseNever(r *conformance.RawRun) {
	st := asking(r)
	r.WantClose()
	st.side.WantWC(st.side.SendWCs(1), 0, 1, ibverbs.WCWRFlushErr, "the Read is flushed")
	st.sink.Untouched("nothing is placed")
}
