package scenarios

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rawMessages are messages with something wrong in RDMAP's control field.
func rawMessages() []*conformance.Scenario {
	var out []*conformance.Scenario
	for _, version := range []uint8{0, 2, 3} {
		out = append(out, wrongControl("version", "RDMAP version", int(version), "RDMAP-7.2-04", "0/2/0x05", func(c *rdmap.Control) { c.Version = version })...)
	}
	for op := rdmap.Opcode(8); op <= 15; op++ {
		out = append(out, wrongControl("opcode", "the reserved opcode", int(op), "RDMAP-4.1-12", "0/2/0x06", func(c *rdmap.Control) { c.Opcode = op })[0])
	}
	return append(out,
		rawFault{
			slug: "rdmap/opcode-8-tagged", title: "a tagged segment of a reserved opcode is refused",
			requirements: []string{"RDMAP-4.1-12", "RDMAP-7.2-02"},
			want:         []string{"0/2/0x06"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				return control(st.write(st.window, 0, rawPart), func(c *rdmap.Control) { c.Opcode = 8 })
			}),
		}.scenario(),
		needing(conformance.NeedsReceive, rawStory("rdmap/terminate-layout",
			"a Terminate is laid out as RFC 5040 says, with length and header of the segment at fault",
			[]string{"RDMAP-4.8-01", "RDMAP-4.8-03", "RDMAP-4.8-06", "RDMAP-4.8-08",
				"RDMAP-7.1-2-01", "DDP-7.1-02"}, terminateLayout)),
		rawStory("rdmap/terminate-read-layout", "a Terminate about a Read Request carries its header too",
			[]string{"RDMAP-4.8-10", "RDMAP-7.1-3-01"}, terminateReadLayout),
		needing(conformance.NeedsReceive, rawStory("rdmap/terminate-version-layout",
			"a Terminate about RDMAP's version carries the header of the segment",
			[]string{"RDMAP-4.8-03"}, terminateVersionLayout)),
		needing(conformance.NeedsReceive, rawStory("rdmap/two-errors",
			"of two faults the first is reported, in one Terminate",
			[]string{"RDMAP-7.1-4-01", "RDMAP-5.4-06"}, twoErrors)),
		rawStory("rdmap/local-fault", "a Send whose lkey names nothing ends the stream with a Terminate in its place",
			[]string{"RDMAP-7.1-1-01"}, localFault),
	)
}

// wrongControl makes scenarios with a wrong RDMAP control field, each in a Send or a Write.
func wrongControl(name, words string, value int, requirement, code string, change func(*rdmap.Control)) []*conformance.Scenario {
	fault := rawFault{requirements: []string{requirement, "RDMAP-7.2-02"}, want: []string{code}}
	send, write := fault, fault
	send.slug = fmt.Sprintf("rdmap/%s-%d", name, value)
	send.title = fmt.Sprintf("an untagged segment with %s %d is refused", words, value)
	send.fpdus = one(func(st *rawStage) rawpeer.FPDU { return control(st.send(1, rawPart), change) })
	send.needs = conformance.NeedsReceive
	write.slug = fmt.Sprintf("rdmap/write-%s-%d", name, value)
	write.title = fmt.Sprintf("a Write with %s %d is refused", words, value)
	write.fpdus = one(func(st *rawStage) rawpeer.FPDU { return control(st.write(st.window, 0, rawPart), change) })
	return []*conformance.Scenario{send.scenario(), write.scenario()}
}

// described checks how a Terminate describes the segment at fault.
func described(r *conformance.RawRun, t *rdmap.ReceivedTerminate, f rawpeer.FPDU) {
	if t == nil {
		return // reported already
	}
	r.Check(t.Layout != rdmap.LayoutSIW, "the control field has the layout of RFC 5040 figure 8", "its octets are % x", t.Raw)
	r.Check(t.M && t.D, "M and D are set: length and header of the segment are there", "M %v, D %v", t.M, t.D)
	if !t.HaveDDP {
		r.Check(false, "the header of the segment is there")
		return
	}
	length := f.Header.Len() + len(f.Payload)
	r.Check(int(t.SegmentLength) == length, "the length is that of the segment, its header included", "%d, not %d", t.SegmentLength, length)
	r.Check(t.DDP == f.Header, "the header is that of the segment at fault", "%+v", t.DDP)
}

func terminateLayout(r *conformance.RawRun) {
	st := stage(r, nil)
	f := sendAt(st, 8)
	f.Header.Reserved = 5 // the Terminate has to show it, too
	r.SendFPDU(f)
	t := r.WantRefused("the Terminate names the fault", "1/2/0x04")
	described(r, t, f)
	if t != nil {
		r.Check(!t.R, "R is not set: there is no Read Request")
		r.Check(t.Reserved == 0 || t.Layout == rdmap.LayoutSIW, "the reserved bits are zero", "%#x", t.Reserved)
	}
	st.untouched()
}

func terminateReadLayout(r *conformance.RawRun) {
	st := stage(r, nil)
	f := st.read(1, st.source, 0, rawSize+1)
	r.SendFPDU(f)
	t := r.WantRefused("the Terminate names the fault", "0/1/0x01")
	described(r, t, f)
	if t != nil {
		want, err := rdmap.ParseReadRequest(f.Payload)
		r.NoError(err, "the script's Read Request can be read")
		r.Check(t.R && t.HaveRead, "R is set, and the Read Request's header is there")
		r.Check(t.Read == want, "it is the Read Request at fault, of which nothing was done", "%+v", t.Read)
	}
	st.untouched()
}

func terminateVersionLayout(r *conformance.RawRun) {
	st := stage(r, nil)
	f := control(st.send(1, rawPart), func(c *rdmap.Control) { c.Version = 2 })
	r.SendFPDU(f)
	described(r, r.WantRefused("the Terminate names the fault", "0/2/0x05"), f)
	st.untouched()
}

func twoErrors(r *conformance.RawRun) {
	st := stage(r, nil)
	first, second := sendAt(st, 8), st.write(st.window, 0, rawPart)
	second.Header.STag = st.unknown()
	r.SendFPDU(first, second)
	r.WantRefused("the Terminate names the first fault", "1/2/0x04")
	st.untouched()
}

// localFault observes what siw sends when its own work request is wrong. That is the last
// row of the table of Terminates, for which RFC 5040 figure 9 leaves the code open.
func localFault(r *conformance.RawRun) {
	st := stage(r, nil)
	st.alive("the connection works", 1, 1)
	wr := send(9, st.private)
	wr.SGList[0].LKey = st.unknown()
	st.side.PostSend(wr)
	t := r.WantTerminate("the Terminate names a fault that is not the peer's", "0/0/0x00",
		"0/0/0xff", "0/0/0x07", "0/2/0x07", "0/2/0xff")
	if t != nil {
		r.Check(!t.HaveDDP && !t.HaveRead, "it shows no header")
	}
	r.WantEnd("the connection ends after the Terminate")
	got := st.side.SendWCs(1)
	if len(got) == 1 {
		r.Check(got[0].WRID == 9 && got[0].Status != ibverbs.WCSuccess, "the Send completes with an error", "WR %d with %s", got[0].WRID, got[0].Status)
	}
	r.WantOver()
	st.untouched()
}
