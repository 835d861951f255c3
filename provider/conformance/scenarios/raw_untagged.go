package scenarios

import (
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rawUntagged are Sends with something wrong in DDP's untagged header, and Sends that are
// only cut into segments in an unusual way.
func rawUntagged() []*conformance.Scenario {
	out := faults(untaggedFaults())
	for _, version := range []uint8{0, 2, 3} {
		out = append(out, rawFault{
			slug:         fmt.Sprintf("ddp/untagged-version-%d", version),
			title:        fmt.Sprintf("an untagged segment of DDP version %d is refused", version),
			requirements: []string{"DDP-4.1-14"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/2/0x06"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.send(1, rawPart)
				f.Header.Version = version
				return f
			}),
		}.scenario())
	}
	for _, qn := range []uint32{1, 2, 3, 7} {
		out = append(out, rawFault{
			slug:         fmt.Sprintf("ddp/send-queue-%d", qn),
			title:        fmt.Sprintf("a Send to queue %d is refused: Sends go to queue 0", qn),
			requirements: []string{"DDP-7.1u1-01", "RDMAP-4.1-11"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/2/0x01"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.send(1, rawPart)
				f.Header.QN = qn
				return f
			}),
		}.scenario())
	}
	return append(out,
		rawStory("ddp/send-no-receive", "a Send for which no receive is posted is refused", []string{"DDP-7.1u2-01", "RDMAP-5.3-02"}, sendNoReceive),
		rawStory("ddp/send-tiny-segments", "a Send in segments of one octet each arrives whole", []string{"DDP-4.1-04", "DDP-5.2-04"}, sendTinySegments),
		rawStory("ddp/send-empty-segments", "a Send with empty segments at its start and in its midst arrives whole",
			[]string{"DDP-5.2-10", "DDP-4.4-02", "RDMAP-5.3-03"}, sendEmptySegments),
		rawStory("ddp/interleaved", "a Write between the segments of a Send is placed, and the Send arrives whole", []string{"DDP-5.3-07"}, interleaved),
		rawStory("ddp/reserved-bits", "bits that are reserved, and an Invalidate STag where none belongs, are not looked at",
			[]string{"DDP-4.1-10", "RDMAP-4.1-08", "RDMAP-4.1-10"}, reservedBits),
		rawStory("ddp/send-zero-length", "a Send without payload takes a receive", []string{"RDMAP-5.3-08", "DDP-5.2-08"}, sendZeroLength),
	)
}

func untaggedFaults() []rawFault {
	return []rawFault{
		{
			slug: "ddp/send-msn-0", title: "a first Send with MSN 0 is refused: MSNs begin at 1",
			requirements: []string{"DDP-7.1u5-01", "DDP-4.3-05"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/2/0x03", "1/2/0x02"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.send(0, rawPart) }),
		},
		{
			slug: "ddp/send-msn-skipped", title: "a Send that skips an MSN is refused, though a receive is posted for it",
			requirements: []string{"DDP-4.3-06"},
			want:         []string{"1/2/0x03", "1/2/0x02"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.send(2, rawPart) }),
		},
		{
			slug: "ddp/send-msn-5", title: "a Send with an MSN beyond the receives that are posted is refused",
			requirements: []string{"DDP-7.1u5-01"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/2/0x03", "1/2/0x02"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.send(5, rawPart) }),
		},
		{
			slug: "ddp/send-mo-not-zero", title: "a first segment whose MO is not 0 is refused",
			requirements: []string{"DDP-4.3-10"},
			needs:        conformance.NeedsReceive,
			want:         []string{"1/2/0x04"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return sendAt(st, 8) }),
		},
		{
			slug: "ddp/send-mo-beyond-receive", title: "a segment whose MO is beyond the receive is refused",
			requirements: []string{"DDP-7.1u3-01"},
			needs:        conformance.NeedsReceive,
			want:         []string{"1/2/0x04", "1/2/0x05"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return sendAt(st, 4096) }),
		},
		{
			slug: "ddp/send-mo-wrap", title: "a segment whose MO and length pass 2^32 is refused",
			requirements: []string{"DDP-7.1u-01"},
			needs:        conformance.NeedsReceive,
			want:         []string{"1/2/0x04", "1/2/0x05"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return sendAt(st, 1<<32-8) }),
		},
		{
			slug: "ddp/send-too-long", title: "a Send one octet longer than the receive is refused",
			requirements: []string{"DDP-7.1u4-01"},
			want:         []string{"1/2/0x05"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.send(1, rawRecvSize+1) }),
		},
		{
			slug: "ddp/send-too-long-second", title: "a Send whose second segment passes the receive's end is refused",
			requirements: []string{"DDP-7.1u4-01", "DDP-7.1-06"},
			want:         []string{"1/2/0x05"}, sent: true,
			fpdus: func(st *rawStage) []rawpeer.FPDU { return cut(st.send(1, rawRecvSize+1), rawRecvSize) },
		},
		{
			slug:         "ddp/send-second-mo-gap",
			title:        "a second segment that leaves a gap after the first is refused",
			requirements: []string{"DDP-5.2-05"},
			want:         []string{"1/2/0x04"}, sent: true,
			fpdus: func(st *rawStage) []rawpeer.FPDU {
				return secondSegment(st, func(f *rawpeer.FPDU) { f.Header.MO += 4 })
			},
		},
		{
			slug: "ddp/send-second-mo-again", title: "a second segment at the first one's MO is refused",
			requirements: []string{"DDP-5.2-05"},
			want:         []string{"1/2/0x04"}, sent: true,
			fpdus: func(st *rawStage) []rawpeer.FPDU { return secondSegment(st, func(f *rawpeer.FPDU) { f.Header.MO = 0 }) },
		},
		{
			slug: "ddp/send-second-msn", title: "a second segment with another MSN than the first is refused",
			requirements: []string{"DDP-4.3-08"},
			want:         []string{"1/2/0x03", "1/2/0x02", "1/2/0x04"}, sent: true,
			fpdus: func(st *rawStage) []rawpeer.FPDU {
				return secondSegment(st, func(f *rawpeer.FPDU) { f.Header.MSN = 2 })
			},
		},
		{
			slug: "rdmap/send-second-opcode", title: "a second segment with another opcode than the first is refused",
			requirements: []string{"RDMAP-7.2-03"},
			want:         []string{"0/2/0x06"}, sent: true,
			fpdus: func(st *rawStage) []rawpeer.FPDU {
				return secondSegment(st, func(f *rawpeer.FPDU) {
					*f = control(*f, func(c *rdmap.Control) { c.Opcode = rdmap.OpSendSE })
				})
			},
		},
	}
}

// sendAt is a Send that starts at an MO.
func sendAt(st *rawStage, mo uint32) rawpeer.FPDU {
	f := st.send(1, rawPart)
	f.Header.MO = mo
	return f
}

// secondSegment is a Send in two segments, of which change changes the second.
func secondSegment(st *rawStage, change func(*rawpeer.FPDU)) []rawpeer.FPDU {
	fpdus := cut(st.send(1, 2*rawPart), rawPart)
	change(&fpdus[1])
	return fpdus
}

func sendNoReceive(r *conformance.RawRun) {
	r.Connect(nil)
	r.SendFPDU(rawpeer.SendMessage(1, []byte("nobody waits")))
	r.WantRefused("the Terminate says that there is no buffer", "1/2/0x02")
}

func sendTinySegments(r *conformance.RawRun) {
	st := stage(r, nil)
	whole := st.send(1, rawRecvSize)
	var fpdus []rawpeer.FPDU
	for len(whole.Payload) > 1 {
		two := cut(whole, 1)
		fpdus, whole = append(fpdus, two[0]), two[1]
	}
	r.SendMany(append(fpdus, whole))
	arrives(st, rawRecvSize)
}

// arrives checks that the first receive completes with n octets, which are the
// seed's, and ends the connection.
func arrives(st *rawStage, n int) {
	got := st.side.RecvWCs(1)
	st.side.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Send is delivered")
	if len(got) == 1 {
		conformance.Equal(st.r.T, got[0].ByteLen, uint32(n), "the completion has its length")
	}
	st.recv[0].Holds(st.payload(n), "its octets are in the receive buffer")
	st.sent = true
	st.leave()
	st.untouched()
}

func sendEmptySegments(r *conformance.RawRun) {
	st := stage(r, nil)
	whole := st.send(1, rawPart)
	halves := cut(whole, rawPart/2)
	empty := cut(whole, 0)[0]
	middle := cut(halves[1], 0)[0]
	r.SendFPDU(empty, halves[0], middle, halves[1])
	arrives(st, rawPart)
}

func interleaved(r *conformance.RawRun) {
	st := stage(r, nil)
	halves := cut(st.send(1, 2*rawPart), rawPart)
	writes := cut(st.write(st.window, 0, 2*rawPart), rawPart)
	r.SendFPDU(halves[0], writes[0], halves[1], writes[1], st.send(2, rawPart))
	st.wrote = true
	got := st.side.RecvWCs(2)
	st.side.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Send around the Write is delivered")
	st.side.WantWC(got, 1, 2, ibverbs.WCSuccess, "so is the one after both")
	st.recv[0].Holds(st.payload(2*rawPart), "its octets are in the receive buffer")
	st.window.Holds(st.payload(2*rawPart), "the Write is in the window")
	st.sent = true
	st.leave()
	st.untouched()
}

func reservedBits(r *conformance.RawRun) {
	st := stage(r, nil)
	f := control(st.send(1, rawPart), func(c *rdmap.Control) { c.Reserved = 3 })
	f.Header.Reserved = 0xf
	f.Header.ULP32 = st.window.MR.RKey()
	r.SendFPDU(f)
	w := control(st.write(st.window, 0, rawPart), func(c *rdmap.Control) { c.Reserved = 3 })
	w.Header.Reserved = 0xf
	r.SendFPDU(w, st.send(2, rawPart))
	st.wrote = true
	got := st.side.RecvWCs(2)
	st.side.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Send is delivered")
	st.side.WantWC(got, 1, 2, ibverbs.WCSuccess, "so is one after the Write: its STag was not invalidated")
	st.window.Holds(st.payload(rawPart), "the Write is placed")
	st.sent = true
	st.leave()
	st.untouched()
}

func sendZeroLength(r *conformance.RawRun) {
	st := stage(r, nil)
	r.SendFPDU(st.send(1, 0))
	got := st.side.RecvWCs(1)
	st.side.WantWC(got, 0, 1, ibverbs.WCSuccess, "it completes the first receive")
	if len(got) == 1 {
		conformance.Equal(r.T, got[0].ByteLen, 0, "with no octets")
	}
	st.side.NoWC(st.side.Conn.RecvCQ(), 20*time.Millisecond, "and no other receive")
	st.untouched()
	st.alive("the Send after it takes the second", 2, 2)
	st.leave()
}
