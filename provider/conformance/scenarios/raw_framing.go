package scenarios

import (
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rawFraming is about FPDUs: their length field, pad, CRC, and where TCP cuts them.
func rawFraming() []*conformance.Scenario {
	out := faults(crcFaults())
	for _, n := range []int{0, 1, 13, 17} {
		out = append(out, rawFault{
			slug:         fmt.Sprintf("mpa/ulpdu-length-%d", n),
			title:        fmt.Sprintf("a ULPDU of %s, too short for the header of a Send, is refused", octets(n)),
			requirements: []string{"MPA-4.1-08", "DDP-4.4-01"}, hello: true,
			needs: conformance.NeedsAccept,
			want:  []string{"2/0/0x03", "1/2/0x01", "0/2/0x06", "0/2/0xff"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.send(1, 0)
				return rawpeer.FPDU{NoDDP: true, Payload: f.Header.AppendTo(nil)[:n]}
			}),
		}.scenario())
	}
	off := rawStory("mpa/crc-off", "a wrong CRC is not looked at when neither side asked for CRCs", []string{"MPA-4.1-07", "MPA-7.1.1-08", "MPA-7.1.1-10"}, crcOff)
	off.Options = []string{"crc=off"}
	either := rawStory("mpa/crc-asked-by-responder", "CRCs are used when only the reply asks for them", []string{"MPA-7.1.1-09", "MPA-4.4-04", "MPA-4.4-07"}, crcByResponder)
	either.RawRole, either.Options = conformance.RoleResponder, []string{"crc=off"}
	either.Needs = conformance.NeedsConnect
	pieces := rawStory("mpa/one-octet-at-a-time", "FPDUs that come one octet at a time are understood", []string{"MPA-5.1-03", "MPA-5.2-01", "MPA-A.4-01"}, octetByOctet)
	pieces.Unwitnessed = "tshark does not put FPDUs together whose length field is cut"
	anywhere := rawStory("mpa/split-anywhere", "an FPDU may be split between TCP segments at any octet", []string{"MPA-5.1-03", "MPA-5.2-01"}, splitAnywhere)
	anywhere.Unwitnessed = pieces.Unwitnessed
	return append(out, off, either, pieces, anywhere,
		responderStory("mpa/crc-wrong-response", "a Read Response with a wrong CRC is refused, and the Read fails", []string{"MPA-4.4-14", "MPA-8-2-01"}, crcWrongResponse),
		needing(conformance.NeedsAccept, rawStory("mpa/crc-wrong-first",
			"a wrong CRC in the first FPDU does not release the responder: it has to stay silent",
			[]string{"MPA-7.1.2-4-02", "RDMAP-6.2.1-04"}, crcWrongFirst)),
		rawStory("mpa/responder-waits", "a responder sends nothing before the initiator's first FPDU, though its program has posted", []string{"MPA-7.1.2-4-01"}, responderWaits),
		rawStory("mpa/pad-not-zero", "pad octets are not looked at, beyond what the CRC says", []string{"MPA-4.1-05"}, padNotZero),
		rawStory("mpa/many-in-one-segment", "many FPDUs may come at once", []string{"MPA-5.1-02", "MPA-4.3-13"}, manyAtOnceFPDUs),
		rawStory("mpa/longest-ulpdu", "an FPDU as long as its length field can say is taken", []string{"MPA-4.1-08"}, longestULPDU),
		rawStory("mpa/cut-then-fin", "an FPDU that the end of the connection cuts off is not delivered", []string{"MPA-8-1-01", "MPA-6-02", "MPA-3-08"},
			func(r *conformance.RawRun) { cutOff(r, (*rawpeer.Peer).CloseWrite) }),
		rawStory("mpa/cut-then-reset", "an FPDU that a reset cuts off is not delivered", []string{"MPA-8-1-01", "MPA-6-02"},
			func(r *conformance.RawRun) { cutOff(r, (*rawpeer.Peer).Reset) }),
		rawStory("mpa/reset", "a reset ends the connection, and what is posted is flushed",
			[]string{"MPA-8-1-01", "DDP-6.2.2-02", "DDP-7-01"}, resetIdle),
	)
}

// wrongCRC flips one bit of an FPDU's CRC.
func wrongCRC(f rawpeer.FPDU) rawpeer.FPDU {
	octets := f.Octets(true)
	n := len(octets) - mpa.CRCLen
	sum := mpa.CRC(0, octets[:n]) ^ 1<<17
	f.CRC = &sum
	return f
}

func crcFaults() []rawFault {
	want := []string{"2/0/0x02"}
	return []rawFault{
		{
			slug: "mpa/crc-wrong-send", title: "a Send with a wrong CRC is refused, and none of it is placed",
			requirements: []string{"MPA-4.4-13", "MPA-4.4-14", "MPA-8-2-01", "MPA-3-06",
				"MPA-8-03"}, want: want, hello: true,
			needs: conformance.NeedsAccept,
			fpdus: one(func(st *rawStage) rawpeer.FPDU { return wrongCRC(st.send(1, rawPart)) }),
		},
		{
			slug: "mpa/crc-wrong-write", title: "a Write with a wrong CRC is refused, and none of it is placed",
			requirements: []string{"MPA-4.4-13", "MPA-4.4-14", "MPA-6-01"}, want: want, hello: true,
			fpdus: one(func(st *rawStage) rawpeer.FPDU { return wrongCRC(st.write(st.window, 0, rawPart)) }),
		},
		{
			slug: "mpa/crc-wrong-read", title: "a Read Request with a wrong CRC is refused, and not answered",
			requirements: []string{"MPA-4.4-14", "MPA-6-01"}, want: want, hello: true,
			needs: conformance.NeedsAccept,
			fpdus: one(func(st *rawStage) rawpeer.FPDU { return wrongCRC(st.read(1, st.source, 0, rawPart)) }),
		},
		{
			slug: "mpa/crc-zero", title: "a CRC of zero is no way to leave it out once CRCs were asked for",
			requirements: []string{"MPA-4.4-07", "MPA-7.1.1-09"}, want: want, hello: true,
			needs: conformance.NeedsAccept,
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.send(1, rawPart)
				f.CRC = new(uint32)
				return f
			}),
		},
		{
			slug: "mpa/crc-wrong-payload", title: "a Write of which one bit of the payload was changed on the way is refused, and none of it is placed",
			requirements: []string{"MPA-4.4-11", "MPA-4.4-13"}, want: want, hello: true,
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				f := st.write(st.window, 0, rawPart)
				sum := mpa.CRC(0, f.Octets(true)[:mpa.HeaderLen+f.Header.Len()+rawPart])
				f.Payload[3] ^= 0x40
				f.CRC = &sum
				return f
			}),
		},
		{
			slug: "mpa/drop-after-crc-error", title: "what follows an FPDU with a wrong CRC is not delivered",
			requirements: []string{"MPA-8-02", "DDP-3-06"}, want: want, hello: true,
			needs: conformance.NeedsAccept,
			fpdus: func(st *rawStage) []rawpeer.FPDU {
				return []rawpeer.FPDU{wrongCRC(st.write(st.window, 0, 0)), st.send(1, rawPart), st.write(st.window, 0, rawPart)}
			},
		},
	}
}

func crcOff(r *conformance.RawRun) {
	st := stage(r, &conformance.RawConnect{NoCRC: true})
	r.Require(!r.Peer.CRC, "neither side asks for CRCs")
	r.SendFPDU(wrongCRC(st.send(1, rawPart)), wrongCRC(st.read(1, st.source, 0, rawSize)))
	st.side.WantWC(st.side.RecvWCs(1), 0, 1, ibverbs.WCSuccess, "the Send is delivered")
	got := response(r, "the Read Request is answered")
	r.Check(string(got) == string(st.source.Data), "with the octets of the source")
	st.sent = true
	st.leave()
	st.untouched()
}

// crcByResponder makes a provider that does not ask for CRCs connect to a peer that does.
func crcByResponder(r *conformance.RawRun) {
	f := r.WantDial("the provider connects", nil)
	r.Answer(f, rawpeer.Reply(true, 4, 4, nil))
	r.WantConnected("the provider takes the reply")
	r.Peer.CRC = true
	src := r.Side.Buffer("the source", rawPart, local)
	r.Side.PostSend(send(1, src))
	r.WantFPDU("the Send comes, with a CRC", rdmap.OpSend)
	f2 := rawpeer.WriteMessage(0, 0, nil)
	r.SendFPDU(wrongCRC(f2))
	r.WantRefused("a wrong CRC is refused", "2/0/0x02")
}

func crcWrongFirst(r *conformance.RawRun) {
	st := stage(r, nil)
	r.SendFPDU(wrongCRC(st.send(1, rawPart)))
	r.WantEnd("the connection ends, without a Terminate")
	r.WantOver()
	st.flushed(len(st.recv))
	st.untouched()
}

func crcWrongResponse(r *conformance.RawRun) {
	st := asking(r)
	r.SendFPDU(wrongCRC(st.answer(rawSize)))
	r.WantRefused("the Terminate names the fault", "2/0/0x02")
	st.failed(1)
	st.sink.Untouched("nothing is placed in the sink")
}

func responderWaits(r *conformance.RawRun) {
	st := stage(r, nil)
	st.side.PostSend(send(9, st.private))
	r.WantSilence("nothing is sent while the initiator has said nothing", conformance.Soon)
	if r.Failed() {
		return
	}
	r.SendFPDU(st.write(st.window, 0, 0))
	r.WantFPDU("the Send comes after the initiator's first FPDU", rdmap.OpSend)
	st.side.WantWC(st.side.SendWCs(1), 0, 9, ibverbs.WCSuccess, "it completes")
	st.leave()
	st.untouched()
}

func padNotZero(r *conformance.RawRun) {
	st := stage(r, nil)
	s, w := st.send(1, rawPart+1), st.write(st.window, 0, rawPart+3)
	s.Pad, w.Pad = 0xff, 0xff
	r.SendFPDU(s, w, st.send(2, rawPart+1))
	st.wrote = true
	got := st.side.RecvWCs(2)
	st.side.WantWC(got, 0, 1, ibverbs.WCSuccess, "the Send is delivered")
	st.side.WantWC(got, 1, 2, ibverbs.WCSuccess, "so is the one after it")
	st.window.Holds(st.payload(rawPart+3), "the Write is placed")
	st.window.UntouchedFrom(rawPart+3, "the pad is not")
	st.recv[0].Holds(append(st.payload(rawPart+1), 0x5a), "nor is that of the Send")
	st.sent = true
	st.leave()
	st.untouched()
}

func octetByOctet(r *conformance.RawRun) {
	st := stage(r, nil)
	w, q, s := st.write(st.window, 0, rawPart), st.read(1, st.source, 0, rawPart), st.send(1, rawRecvSize)
	octets := append(w.Octets(true), append(q.Octets(true), s.Octets(true)...)...)
	if err := r.Peer.SendPieces(octets, 1, 200*time.Microsecond); err != nil {
		r.Log("the peer could not send all octets: %v", err)
	}
	got := response(r, "the Read Request is answered")
	r.Check(string(got) == string(st.source.Data[:rawPart]), "with the octets of the source")
	st.window.Holds(st.payload(rawPart), "the Write is in the window")
	st.wrote = true
	arrives(st, rawRecvSize)
}

// splitAnywhere sends FPDUs one after another, each split one octet further than the
// one before.
func splitAnywhere(r *conformance.RawRun) {
	probe := rawpeer.WriteMessage(0, 0, pattern(rawPart, 1))
	count := len(probe.Octets(true)) - 1
	st := stage(r, nil)
	for k := 1; k <= count; k++ {
		f := st.write(st.window, k, rawPart)
		octets := f.Octets(true)
		r.Send(octets[:k])
		time.Sleep(2 * time.Millisecond)
		r.Send(octets[k:])
	}
	st.wrote = true
	st.alive("a Send after them is delivered", 1, 1)
	for k := 1; k <= count; k++ {
		st.window.HoldsAt(k, st.payload(1), "each of the Writes is placed")
	}
	st.leave()
	st.untouched()
}

func manyAtOnceFPDUs(r *conformance.RawRun) {
	st := stage(r, nil)
	var fpdus []rawpeer.FPDU
	for k := range rawSize / 2 {
		fpdus = append(fpdus, rawpeer.WriteMessage(st.window.MR.RKey(), st.window.MR.Addr()+uint64(k), st.payload(rawSize)[k:k+1]))
	}
	r.SendFPDU(append(fpdus, st.send(1, rawPart))...)
	st.side.WantWC(st.side.RecvWCs(1), 0, 1, ibverbs.WCSuccess, "the Send at their end is delivered")
	st.window.Holds(st.payload(rawSize/2), "all Writes are placed")
	st.wrote, st.sent = true, true
	st.leave()
	st.untouched()
}

func longestULPDU(r *conformance.RawRun) {
	st := stage(r, nil)
	n := 0xffff - ddp.TaggedHeaderLen
	large := st.side.Buffer("the large window", n, remoteWrite)
	f := st.write(large, 0, n)
	r.SendFPDU(f)
	st.alive("a Send after it is delivered", 1, 1)
	large.Holds(f.Payload, "all of it is placed")
	st.leave()
	st.untouched()
}

func cutOff(r *conformance.RawRun, end func(*rawpeer.Peer) error) {
	st := stage(r, nil)
	f := st.send(1, rawRecvSize)
	octets := f.Octets(true)
	r.Send(octets[:len(octets)/2])
	time.Sleep(r.Scaled(5 * time.Millisecond))
	_ = end(r.Peer)
	st.side.WaitEnd()
	r.ObserveEvents()
	st.flushed(len(st.recv))
	st.sent = true // what has arrived may have been placed
	st.untouched()
}

func resetIdle(r *conformance.RawRun) {
	st := stage(r, nil)
	r.NoError(r.Peer.Reset(), "the peer can reset the connection")
	st.side.WaitEnd()
	r.ObserveEvents()
	st.flushed(len(st.recv))
	st.untouched()
}
