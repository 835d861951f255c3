package scenarios

import (
	"bytes"
	"fmt"
	"math"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
)

// RFC 5041 section 7.2 has no code for an STag whose buffer does not grant the right. Stacks
// take the code for an invalid STag, the code for an STag of another stream, or RDMAP's own.
var noRight = []string{"1/1/0x00", "1/1/0x02", "0/1/0x02"}

// rawTagged are RDMA Writes to what the peer may not write to, and Writes in
// which only the cut into segments is unusual.
func rawTagged() []*conformance.Scenario {
	out := faults(taggedFaults())
	for _, version := range []uint8{0, 2, 3} {
		out = append(out, rawFault{
			slug:         fmt.Sprintf("ddp/tagged-version-%d", version),
			title:        fmt.Sprintf("a tagged segment of DDP version %d is refused", version),
			requirements: []string{"DDP-4.1-13"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/1/0x04"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.write(st.window, 0, rawPart)
				f.Header.Version = version
				return f
			}),
		}.scenario())
	}
	return append(out,
		rawStory("ddp/write-zero-length", "a Write without payload is not refused, whatever its STag and TO", []string{"DDP-5.2-09", "RDMAP-5.1-06"}, writeZeroLength),
		rawStory("ddp/write-falling-offsets", "a Write whose segments come in falling order of TO is placed", []string{"DDP-5.3-03", "DDP-5.2-04"}, writeFalling),
		rawStory("ddp/write-tiny-segments", "a Write in segments of one octet each is placed", []string{"DDP-5.2-06", "DDP-5.2-04"}, writeTiny),
		rawStory("ddp/write-at-both-ends", "Writes of the first and of the last octet of a region are placed", []string{"DDP-4.2-08", "RDMAP-5.1-03"}, writeEnds),
		rawStory("ddp/write-deregistered", "a Write to a region that was deregistered is refused", []string{"DDP-8.3-2-01", "DDP-8.3.1-6-01"}, writeDeregistered),
		rawStory("ddp/drop-after-error", "what follows a refused segment is dropped without a word", []string{"DDP-7.1-03", "MPA-8-02"}, dropAfterError),
		rawStory("ddp/write-empty-first-segment", "a Write whose first segment is empty and not the last is placed", []string{"DDP-5.2-10"}, writeEmptyFirst),
	)
}

func taggedFaults() []rawFault {
	return []rawFault{
		{
			slug: "ddp/write-unknown-stag", title: "a Write to an STag that names nothing is refused",
			requirements: []string{"DDP-7.1t1-01", "DDP-8.3-5-01"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/1/0x00"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.write(st.window, 0, rawPart)
				f.Header.STag = st.unknown()
				return f
			}),
		},
		{
			slug: "ddp/write-wrong-key", title: "a Write to an STag of which only the key octet is wrong is refused",
			requirements: []string{"DDP-7.1t1-01"},
			want:         []string{"1/1/0x00"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.write(st.window, 0, rawPart)
				f.Header.STag ^= 1
				return f
			}),
		},
		{
			slug: "ddp/write-before-start", title: "a Write that begins one octet before its region is refused",
			requirements: []string{"DDP-7.1t3-01", "DDP-8.3.1-3-01"},
			want:         []string{"1/1/0x01"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.write(st.window, -1, rawPart) }),
		},
		{
			slug: "ddp/write-beyond-end", title: "a Write that ends one octet beyond its region is refused",
			requirements: []string{"DDP-7.1t4-01", "DDP-8.3.1-3-01"},
			want:         []string{"1/1/0x01"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.write(st.window, rawSize-rawPart+1, rawPart) }),
		},
		{
			slug: "ddp/write-wrap", title: "a Write whose TO and length pass 2^64 is refused",
			requirements: []string{"DDP-7.1t5-01"},
			want:         []string{"1/1/0x03", "1/1/0x01"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.write(st.window, 0, rawPart)
				f.Header.TO = math.MaxUint64 - rawPart/2
				return f
			}),
		},
		{
			slug: "ddp/write-read-only", title: "a Write to a region that the peer may only read is refused",
			requirements: []string{"DDP-7.1t2-01", "DDP-8.3.1-5-01"},
			want:         noRight,
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.write(st.source, 0, rawPart) }),
		},
		{
			slug: "ddp/write-no-right", title: "a Write to a region that is only for this side is refused",
			requirements: []string{"DDP-7.1t2-01"},
			want:         noRight,
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.write(st.private, 0, rawPart) }),
		},
		{
			slug: "ddp/write-other-pd", title: "a Write to a region of another protection domain is refused",
			requirements: []string{"DDP-8.2-01", "DDP-8.3.1-1-01"},
			want:         []string{"1/1/0x02"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.write(st.foreign, 0, rawPart) }),
		},
		{
			slug: "ddp/write-second-beyond-end", title: "a Write whose second segment passes the region's end is refused",
			requirements: []string{"DDP-7.1-06", "DDP-7.1t4-01"},
			want:         []string{"1/1/0x01"}, wrote: true,
			fpdus: func(st *rawStage) []rawpeer.FPDU {
				return cut(st.write(st.window, rawSize-rawPart, rawPart+1), rawPart)
			},
		},
		{
			slug: "ddp/write-second-stag", title: "a Write whose second segment names another STag than the first is refused",
			requirements: []string{"DDP-4.2-06", "DDP-4.2-07"}, level: conformance.Should,
			want: []string{"1/1/0x00", "1/1/0x02"}, wrote: true,
			fpdus: func(st *rawStage) []rawpeer.FPDU {
				fpdus := cut(st.write(st.window, 0, 2*rawPart), rawPart)
				fpdus[1].Header.STag = st.foreign.MR.RKey()
				fpdus[1].Header.TO = st.foreign.MR.Addr()
				return fpdus
			},
		},
		{
			slug: "rdmap/write-untagged", title: "a Write in an untagged segment is refused",
			requirements: []string{"DDP-4.1-03", "RDMAP-4.1-03"},
			needs:        conformance.NeedsReceive,
			want:         []string{"0/2/0x06"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.send(1, rawPart)
				f.Header.ULPCtl = st.write(st.window, 0, 0).Header.ULPCtl
				return f
			}),
		},
		{
			slug: "rdmap/send-tagged", title: "a Send in a tagged segment is refused",
			requirements: []string{"DDP-4.1-03", "RDMAP-4.1-03"},
			want:         []string{"0/2/0x06"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.write(st.window, 0, rawPart)
				f.Header.ULPCtl = st.send(1, 0).Header.ULPCtl
				return f
			}),
		},
	}
}

func writeZeroLength(r *conformance.RawRun) {
	st := stage(r, nil)
	f := st.write(st.window, 0, 0)
	f.Header.STag, f.Header.TO = st.unknown(), math.MaxUint64
	r.SendFPDU(f, st.write(st.foreign, 0, 0), st.write(st.private, -1, 0))
	st.alive("a Send after it is delivered", 1, 1)
	st.leave()
	st.untouched()
}

// placed checks, with a Send after it, that a Write of n octets is in the
// window from its start, and ends the connection.
func placed(st *rawStage, n int) {
	st.alive("a Send after it is delivered", 1, 1)
	st.window.Holds(st.payload(n), "the Write is in the window")
	st.wrote = true
	st.leave()
	st.untouched()
}

func writeFalling(r *conformance.RawRun) {
	st := stage(r, nil)
	st.wrote = true // if the provider accepts it
	halves := cut(st.write(st.window, 0, 2*rawPart), rawPart)
	halves[0], halves[1] = halves[1], halves[0]
	halves[0].Header.Last, halves[1].Header.Last = false, true
	r.SendFPDU(halves...)
	placed(st, 2*rawPart)
}

func writeTiny(r *conformance.RawRun) {
	st := stage(r, nil)
	whole := st.write(st.window, 0, rawSize)
	var fpdus []rawpeer.FPDU
	for len(whole.Payload) > 1 {
		two := cut(whole, 1)
		fpdus, whole = append(fpdus, two[0]), two[1]
	}
	r.SendMany(append(fpdus, whole))
	placed(st, rawSize)
}

func writeEmptyFirst(r *conformance.RawRun) {
	st := stage(r, nil)
	r.SendFPDU(cut(st.write(st.window, 0, rawPart), 0)...)
	placed(st, rawPart)
}

func writeEnds(r *conformance.RawRun) {
	st := stage(r, nil)
	st.wrote = true
	first, last := st.write(st.window, 0, 1), st.write(st.window, rawSize-1, 1)
	r.SendFPDU(first, last)
	st.alive("a Send after them is delivered", 1, 1)
	st.window.HoldsAt(0, first.Payload, "both octets are in the window")
	st.window.HoldsAt(rawSize-1, last.Payload, "both octets are in the window")
	st.window.HoldsAt(1, bytes.Repeat([]byte{0x5a}, rawSize-2), "and nothing beside them")
	st.leave()
	st.untouched()
}

func writeDeregistered(r *conformance.RawRun) {
	st := stage(r, nil)
	gone := st.side.Buffer("the region that goes", rawSize, remoteWrite)
	f := st.write(gone, 0, rawPart)
	r.NoError(gone.MR.Close(), "the region can be deregistered while the connection is there")
	r.SendFPDU(f)
	r.WantRefused("the Terminate names the fault", "1/1/0x00")
	st.flushed(len(st.recv))
	gone.Untouched("nothing is placed where the region was")
	st.untouched()
}

// dropAfterError puts the fault and what is right after it into one TCP segment, so that
// all of it has arrived before the provider answers.
func dropAfterError(r *conformance.RawRun) {
	st := stage(r, nil)
	bad := st.write(st.window, 0, rawPart)
	bad.Header.STag = st.unknown()
	r.SendFPDU(bad, st.write(st.window, 0, rawPart), st.send(1, rawPart), st.read(1, st.source, 0, rawPart))
	r.WantRefused("the Terminate names the first fault", "1/1/0x00")
	for _, wc := range st.side.RecvWCs(len(st.recv)) {
		r.Check(wc.Status != ibverbs.WCSuccess, "the Send after it is not delivered",
			"WR %d completed with %s", wc.WRID, wc.Status)
	}
	st.untouched()
}
