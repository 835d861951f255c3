package scenarios

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rawLater are faults in the header of a message that follows a right one in the same TCP segment.
// A receiver may have a shorter path for such a message, and other scenarios have their faults in
// the first FPDU.
func rawLater() []*conformance.Scenario {
	story := func(slug, title string, requirements []string,
		play func(*conformance.RawRun)) *conformance.Scenario {
		return rawStory("ddp/"+slug, title, requirements, play)
	}
	return []*conformance.Scenario{
		story("later-send", "a wrong header of a second Send is refused, whichever field is wrong",
			[]string{"DDP-7.1-06", "DDP-7.1u1-01", "DDP-7.1u5-01", "DDP-7.1u3-01", "DDP-4.1-14",
				"RDMAP-7.2-04"}, laterSend),
		story("later-write", "a wrong header of a second Write is refused, whichever field is wrong",
			[]string{"DDP-7.1-06", "DDP-4.1-13", "RDMAP-7.2-04", "DDP-7.1t1-01", "DDP-7.1t3-01",
				"DDP-7.1t4-01"}, laterWrite),
	}
}

// headerFault is a header with one field wrong, and the Terminates that are right for it.
type headerFault struct {
	what  string
	want  []string
	spoil func(*rawpeer.FPDU)
}

// versionFaults are wrong versions of DDP, for which the Terminate is dv, and of RDMAP.
func versionFaults(dv string) []headerFault {
	var out []headerFault
	for _, v := range []uint8{0, 2, 3} {
		out = append(out,
			headerFault{fmt.Sprint("DDP version ", v), []string{dv}, func(f *rawpeer.FPDU) { f.Header.Version = v }},
			headerFault{fmt.Sprint("RDMAP version ", v), []string{"0/2/0x05"}, func(f *rawpeer.FPDU) {
				*f = control(*f, func(c *rdmap.Control) { c.Version = v })
			}})
	}
	return out
}

// laterFault connects, sends a right message and a wrong one in one write, and checks that the
// second is refused. spoil is what is wrong with it.
func laterFault(r *conformance.RawRun, c headerFault, right func(*rawStage) rawpeer.FPDU,
	wrong func(*rawStage) rawpeer.FPDU) *rawStage {
	st := stage(r, nil)
	st.sent, st.wrote = true, true
	f := wrong(st)
	c.spoil(&f)
	r.SendFPDU(right(st), f)
	r.WantRefused(c.what+" is refused", c.want...)
	return st
}

func laterSend(r *conformance.RawRun) {
	field := func(what, code string, spoil func(*rawpeer.FPDU)) headerFault {
		return headerFault{what, []string{code}, spoil}
	}
	queue := func(qn uint32) headerFault {
		return field(fmt.Sprintf("queue %#x", qn), "1/2/0x01", func(f *rawpeer.FPDU) { f.Header.QN = qn })
	}
	offset := func(mo uint32) headerFault {
		return field(fmt.Sprintf("message offset %#x", mo), "1/2/0x04",
			func(f *rawpeer.FPDU) { f.Header.MO = mo })
	}
	number := func(msn uint32) headerFault {
		c := field(fmt.Sprintf("message number %#x", msn), "1/2/0x03",
			func(f *rawpeer.FPDU) { f.Header.MSN = msn })
		c.want = append(c.want, "1/2/0x02") // there is no buffer for it
		return c
	}
	for _, c := range append(versionFaults("1/2/0x06"),
		// Octets and halves of the fields, for receivers that compare only some of them.
		queue(1), queue(0x100), queue(0x1_0000), queue(0x100_0000), queue(0x8000_0000),
		offset(1), offset(0x100), offset(0x1_0000), offset(0x8000_0000),
		number(1), number(3), number(0x102), number(0x1_0002), number(0x8000_0002),
	) {
		st := laterFault(r, c,
			func(st *rawStage) rawpeer.FPDU { return st.send(1, rawPart) },
			func(st *rawStage) rawpeer.FPDU { return st.send(2, rawPart) })
		got := st.side.RecvWCs(2)
		st.side.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Send in front of it is delivered")
		if len(got) == 2 {
			r.Check(got[1].Status != ibverbs.WCSuccess, "it is not delivered",
				"WR %d completed with success", got[1].WRID)
		}
		st.recv[0].HoldsAt(0, st.payload(rawPart), "the Send in front of it is in its receive buffer")
		st.recv[1].Untouched("nothing of it is placed")
		st.untouched()
	}
}

func laterWrite(r *conformance.RawRun) {
	at := func(what, code string, spoil func(*rawpeer.FPDU)) headerFault {
		return headerFault{what, []string{code}, spoil}
	}
	for _, c := range append(versionFaults("1/1/0x04"),
		at("another key octet", "1/1/0x00", func(f *rawpeer.FPDU) { f.Header.STag ^= 1 }),
		at("one octet beyond the end", "1/1/0x01",
			func(f *rawpeer.FPDU) { f.Header.TO += rawSize - 2*rawPart + 1 }),
		at("one octet in front of the start", "1/1/0x01",
			func(f *rawpeer.FPDU) { f.Header.TO -= rawPart + 1 }),
		at("4 GiB further on", "1/1/0x01", func(f *rawpeer.FPDU) { f.Header.TO += 1 << 32 }),
	) {
		st := laterFault(r, c,
			func(st *rawStage) rawpeer.FPDU { return st.write(st.window, 0, rawPart) },
			func(st *rawStage) rawpeer.FPDU { return st.write(st.window, rawPart, rawPart) })
		st.flushed(len(st.recv))
		st.window.HoldsAt(0, st.payload(rawPart), "the Write in front of it is placed")
		st.window.UntouchedFrom(rawPart, "nothing of it is placed")
		st.untouched()
	}
}
