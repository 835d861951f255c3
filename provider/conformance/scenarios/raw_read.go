package scenarios

import (
	"math"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rawReads are the peer's Read Requests to the provider.
func rawReads() []*conformance.Scenario {
	return append(faults(readFaults()),
		rawStory("rdmap/read-whole", "a Read Request is answered with the octets asked for, to the STag and TO that it names",
			[]string{"RDMAP-4.4-02", "RDMAP-4.4-03", "RDMAP-4.4-05", "RDMAP-5.2.1-07", "RDMAP-5.2.2-01"}, readWhole),
		rawStory("rdmap/read-zero-length", "a Read Request for nothing is answered with nothing, whatever its source",
			[]string{"RDMAP-5.2.1-09", "RDMAP-5.2.1-10"}, readZeroLength),
		rawStory("rdmap/read-in-order", "Read Requests are answered in the order in which they came",
			[]string{"RDMAP-4.4-04", "RDMAP-5.2.1-05", "RDMAP-5.2.2-04", "RDMAP-5.5-20-01"}, readInOrder),
		rawStory("rdmap/read-beyond-ird", "more Read Requests at once than were agreed end the connection",
			[]string{"RDMAP-6.1-05", "SEC-6.4.3.3-02"}, readBeyondIRD),
		rawStory("rdmap/read-deregistered", "a Read of a region that was deregistered is refused", []string{"RDMAP-7.2-07", "DDP-8.3-2-01"}, readDeregistered),
	)
}

// withRead changes the Read Request header in an FPDU.
func withRead(f rawpeer.FPDU, change func(*rdmap.ReadRequest)) rawpeer.FPDU {
	req, err := rdmap.ParseReadRequest(f.Payload)
	if err != nil {
		panic("scenarios: " + err.Error())
	}
	change(&req)
	f.Payload = req.AppendTo(nil)
	return f
}

func readFaults() []rawFault {
	return []rawFault{
		{
			slug: "rdmap/read-unknown-stag", title: "a Read of an STag that names nothing is refused",
			requirements: []string{"RDMAP-7.2-07", "RDMAP-5.2.1-08"},
			needs:        conformance.NeedsAccept,
			want:         []string{"0/1/0x00"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				return withRead(st.read(1, st.source, 0, rawPart), func(q *rdmap.ReadRequest) { q.SourceSTag = st.unknown() })
			}),
		},
		{
			slug: "rdmap/read-wrong-key", title: "a Read of an STag of which only the key octet is wrong is refused",
			requirements: []string{"RDMAP-7.2-07"},
			want:         []string{"0/1/0x00"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				return withRead(st.read(1, st.source, 0, rawPart), func(q *rdmap.ReadRequest) { q.SourceSTag ^= 1 })
			}),
		},
		{
			slug: "rdmap/read-before-start", title: "a Read that begins one octet before its region is refused",
			requirements: []string{"RDMAP-7.2-09"},
			want:         []string{"0/1/0x01"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.read(1, st.source, -1, rawPart) }),
		},
		{
			slug: "rdmap/read-beyond-end", title: "a Read that ends one octet beyond its region is refused",
			requirements: []string{"RDMAP-7.2-10"},
			want:         []string{"0/1/0x01"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.read(1, st.source, 1, rawSize) }),
		},
		{
			slug: "rdmap/read-wrap", title: "a Read whose TO and size pass 2^64 is refused",
			requirements: []string{"RDMAP-7.2-11"},
			want:         []string{"0/1/0x04", "0/1/0x01"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				return withRead(st.read(1, st.source, 0, rawPart), func(q *rdmap.ReadRequest) { q.SourceTO = math.MaxUint64 - rawPart/2 })
			}),
		},
		{
			slug: "rdmap/read-4-gib", title: "a Read of 2^32-1 octets of a small region is refused",
			requirements: []string{"RDMAP-7.2-10"},
			want:         []string{"0/1/0x01"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				return withRead(st.read(1, st.source, 0, rawPart), func(q *rdmap.ReadRequest) { q.Size = math.MaxUint32 })
			}),
		},
		{
			// This shows whether siw checks the remote read right (rdmap/read-no-right).
			slug: "rdmap/read-no-right", title: "a Read of a region that the peer may only write is refused",
			requirements: []string{"RDMAP-7.2-12", "DDP-8.3.1-5-01", "SEC-6.3.5-01"},
			want:         []string{"0/1/0x02"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.read(1, st.window, 0, rawPart) }),
		},
		{
			slug: "rdmap/read-private", title: "a Read of a region that is only for this side is refused",
			requirements: []string{"RDMAP-7.2-12"},
			want:         []string{"0/1/0x02"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.read(1, st.private, 0, rawPart) }),
		},
		{
			slug: "rdmap/read-other-pd", title: "a Read of a region of another protection domain is refused",
			requirements: []string{"RDMAP-7.2-08", "DDP-8.3.1-1-01", "SEC-6.1.1-02"},
			want:         []string{"0/1/0x03"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.read(1, st.foreign, 0, rawPart) }),
		},
		{
			slug: "rdmap/read-msn-0", title: "a first Read Request with MSN 0 is refused: MSNs begin at 1 in every queue",
			requirements: []string{"DDP-4.3-05", "DDP-4.3-09"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/2/0x03", "1/2/0x02"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.read(0, st.source, 0, rawPart) }),
		},
		{
			slug: "rdmap/read-msn-skipped", title: "a Read Request that skips an MSN is refused",
			requirements: []string{"DDP-4.3-06"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/2/0x03", "1/2/0x02"},
			fpdus:        one(func(st *rawStage) rawpeer.FPDU { return st.read(2, st.source, 0, rawPart) }),
		},
		{
			slug: "rdmap/read-queue-0", title: "a Read Request to the queue of Sends is refused",
			requirements: []string{"RDMAP-5.2.1-01", "RDMAP-4.1-11"},
			needs:        conformance.NeedsReceive,
			want:         []string{"1/2/0x01", "0/2/0x06"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.read(1, st.source, 0, rawPart)
				f.Header.QN = rdmap.QNSend
				return f
			}),
		},
		{
			slug: "rdmap/read-mo-not-zero", title: "a Read Request whose MO is not 0 is refused",
			requirements: []string{"RDMAP-5.2.1-11", "DDP-4.3-10"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/2/0x04"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.read(1, st.source, 0, rawPart)
				f.Header.MO = 8
				return f
			}),
		},
		{
			slug: "rdmap/read-not-last", title: "a Read Request that is not one whole segment is refused",
			requirements: []string{"RDMAP-5.2.1-11"},
			want:         []string{"1/2/0x05", "0/2/0xff", "0/2/0x06"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.read(1, st.source, 0, rawPart)
				f.Header.Last = false
				return f
			}),
		},
		{
			slug: "rdmap/read-too-long", title: "a Read Request with payload after its header is refused",
			requirements: []string{"RDMAP-4.2-02", "RDMAP-4.4-01"},
			needs:        conformance.NeedsAccept,
			want:         []string{"1/2/0x05", "0/2/0xff"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.read(1, st.source, 0, rawPart)
				f.Payload = append(f.Payload, st.payload(4)...)
				return f
			}),
		},
		{
			slug: "rdmap/read-too-short", title: "a Read Request whose header is cut short is refused",
			requirements: []string{"RDMAP-4.4-01"},
			needs:        conformance.NeedsAccept,
			want:         []string{"0/2/0xff", "2/0/0x03", "1/2/0x05"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.read(1, st.source, 0, rawPart)
				f.Payload = f.Payload[:len(f.Payload)-4]
				return f
			}),
		},
	}
}

// response collects the segments of a Read Response to the sink of rawStage.read, and
// checks each.
func response(r *conformance.RawRun, what string) []byte {
	var octets []byte
	for {
		seg := r.WantFPDU(what, rdmap.OpReadResponse)
		h := &seg.Header
		r.Require(h.Tagged && h.STag == rawSinkSTag && h.TO == rawSinkTO+uint64(len(octets)),
			"the response goes on in the sink that the request named", "T %v, STag %#x, TO %#x", h.Tagged, h.STag, h.TO)
		octets = append(octets, seg.Payload...)
		if h.Last {
			return octets
		}
	}
}

func readWhole(r *conformance.RawRun) {
	st := stage(r, nil)
	r.SendFPDU(st.read(1, st.source, 0, rawSize))
	got := response(r, "the Read Request is answered")
	r.Check(string(got) == string(st.source.Data), "with the octets of the source", "%d octets, not the same", len(got))
	st.alive("a Send after it is delivered", 1, 1)
	st.leave()
	st.untouched()
}

func readZeroLength(r *conformance.RawRun) {
	st := stage(r, nil)
	r.SendFPDU(withRead(st.read(1, st.source, 0, 0), func(q *rdmap.ReadRequest) { q.SourceSTag, q.SourceTO = st.unknown(), math.MaxUint64 }))
	got := response(r, "the Read Request is answered")
	r.Check(len(got) == 0, "with nothing", "%d octets", len(got))
	st.alive("a Send after it is delivered", 1, 1)
	st.leave()
	st.untouched()
}

func readInOrder(r *conformance.RawRun) {
	st := stage(r, nil)
	var requests []rawpeer.FPDU
	for k := range 4 {
		requests = append(requests, st.read(uint32(k+1), st.source, 3*k, 10*(4-k)))
	}
	r.SendFPDU(requests...)
	for k := range 4 {
		got := response(r, "each Read Request is answered")
		r.Check(string(got) == string(st.source.Data[3*k:3*k+10*(4-k)]), "with its own octets, in the order of the requests", "number %d: %d octets", k+1, len(got))
	}
	st.leave()
	st.untouched()
}

// readBeyondIRD asks for more than the sockets can hold before it reads any of it, so that
// the requests really are outstanding.
func readBeyondIRD(r *conformance.RawRun) {
	const size, count, ird = 1 << 20, 24, 2
	st := stage(r, &conformance.RawConnect{ORD: ird})
	large := st.side.Buffer("the large source", size, remoteRead)
	var requests []rawpeer.FPDU
	for k := range count {
		requests = append(requests, st.read(uint32(k+1), large, 0, size))
	}
	r.SendFPDU(requests...)
	r.WantTerminateAmid("the Terminate says that the peer asked for too much", rdmap.OpReadResponse,
		"1/2/0x02", "0/2/0x07", "0/2/0xff")
	r.WantEnd("the connection ends after the Terminate")
	r.WantOver()
	st.untouched()
}

func readDeregistered(r *conformance.RawRun) {
	st := stage(r, nil)
	gone := st.side.Buffer("the region that goes", rawSize, remoteRead)
	f := st.read(1, gone, 0, rawPart)
	r.NoError(gone.MR.Close(), "the region can be deregistered while the connection is there")
	r.SendFPDU(f)
	r.WantRefused("the Terminate names the fault", "0/1/0x00")
	st.flushed(len(st.recv))
	st.untouched()
}
