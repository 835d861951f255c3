package rdmap

import (
	"testing"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// FuzzReceiver feeds a receiver a stream of ULPDUs made from the input: an octet of length, then
// that many octets. The first bit of the length octet says whether the FPDU's CRC is good. Nothing
// panics, an uncommitted segment changes nothing, and committed segments obey the protocol.
func FuzzReceiver(f *testing.F) {
	var rping []byte
	for _, p := range readFPDUs(f, "rping-siw-6.1.192.txt") {
		if p.stream[0] == '7' {
			rping = appendFuzzed(rping, p.ulpdu)
		}
	}
	f.Add(rping)
	var mixed []byte
	for _, h := range []ddp.Header{
		SendHeader(OpSend, 0, 1, 0, false), WriteHeader(1, 2, false), SendHeader(OpSend, 0, 1, 4, true),
		WriteHeader(1, 9, true), ReadResponseHeader(1, 0, false), ReadResponseHeader(1, 4, true), ReadRequestHeader(1),
		TerminateHeader(), SendHeader(OpSend, 0, 2, 0, true),
	} {
		payload := make([]byte, 4)
		if h.QN == QNReadRequest {
			payload = make([]byte, ReadRequestLen)
		}
		mixed = appendFuzzed(mixed, append(h.AppendTo(nil), payload...))
	}
	f.Add(mixed)
	f.Add([]byte{0, 1, 2})

	f.Fuzz(func(t *testing.T, octets []byte) {
		in, out := NewInboundReads(2), NewOutstandingReads(2)
		out.Push(OutstandingRead{SinkSTag: 1, SinkTO: 0, Size: 8, Cookie: 1})
		out.Push(OutstandingRead{SinkSTag: 1, SinkTO: 8, Size: 8, Cookie: 2})
		r := NewReceiver(ReceiverConfig{Inbound: in, Outstanding: out})
		nextSend, sent := uint32(1), uint32(0)
		for len(octets) > 0 {
			n, crcGood := int(octets[0]>>1), octets[0]&1 == 0
			octets = octets[1:]
			ulpdu := octets[:min(n, len(octets))]
			octets = octets[len(ulpdu):]

			h, payload, err := ddp.Parse(ulpdu)
			if err != nil {
				continue
			}
			before, inLen, outLen := *r, in.Len(), out.Len()
			a, err := r.Begin(&h, len(payload))
			if *r != before || in.Len() != inLen || out.Len() != outLen {
				t.Fatal("Begin changed the receiver")
			}
			g, placed, write := r.BeginWrite(ulpdu)
			if want := err == nil && a.Kind == PlaceWrite && a.Len > 0; write != want || *r != before {
				t.Fatalf("% x is of a Write: %v; Begin: %+v, %v", ulpdu, write, a, err)
			}
			if write && (g.STag != a.STag || g.TO != a.TO || g.Last != a.Last || len(placed) != a.Len) {
				t.Fatalf("BeginWrite %+v with %d octets; Begin: %+v", g, len(placed), a)
			}
			inOne, op, wholeSend := r.WholeSend(ulpdu)
			if want := err == nil && a.Kind == PlaceSend && a.First && a.Last && !a.Opcode.Invalidates(); wholeSend != want || *r != before {
				t.Fatalf("% x is a whole Send: %v; Begin: %+v, %v", ulpdu, wholeSend, a, err)
			}
			if wholeSend && (op != a.Opcode || len(inOne) != a.Len) {
				t.Fatalf("a whole %v of %d octets; Begin: %+v", op, len(inOne), a)
			}
			cookie, at, part, mid := r.MidResponse(ulpdu)
			want := err == nil && a.Kind == PlaceReadResponse && a.Len > 0 && !a.Last
			if mid != want || *r != before {
				t.Fatalf("% x is in the middle of a response: %v; Begin: %+v, %v", ulpdu, mid, a, err)
			}
			if mid && (cookie != a.Read.Cookie || at != a.MO || len(part) != a.Len) {
				t.Fatalf("Read %d, %d octets at %d; Begin: %+v", cookie, len(part), at, a)
			}
			if err != nil {
				if wire(err) == "ok" || a != (Action{}) {
					t.Fatalf("%+v, %v", a, err)
				}
				continue
			}
			if !crcGood {
				continue
			}
			switch a.Kind {
			case PlaceSend:
				if a.MSN != nextSend || a.MO != sent || a.First != (sent == 0 && !before.send.Open()) {
					t.Fatalf("%+v, want message %d at %d", a, nextSend, sent)
				}
				sent += uint32(a.Len)
				if a.Last {
					nextSend, sent = nextSend+1, 0
				}
			case TakeReadRequest:
				if len(payload) != ReadRequestLen || inLen == in.Depth() {
					t.Fatalf("%+v with %d requests waiting", a, inLen)
				}
			case PlaceReadResponse:
				if uint64(a.MO)+uint64(a.Len) > uint64(a.Read.Size) || a.Last && a.MO+uint32(a.Len) != a.Read.Size {
					t.Fatalf("%+v leaves the sink or does not fill it", a)
				}
			}
			r.Commit(&a)
			if a.Kind == TakeReadRequest && !in.Push(InboundRead{MSN: a.MSN}) {
				t.Fatal("a Read Request passed for which there is no place")
			}
			if popped := out.Len() != outLen; popped != (a.Kind == PlaceReadResponse && a.Last) {
				t.Fatalf("%+v: %d Reads outstanding of %d", a, out.Len(), outLen)
			}
			if after := before; wholeSend {
				if after.CommitSend(op); *r != after {
					t.Fatal("CommitSend and Commit leave different receivers")
				}
			}
			if after := before; mid {
				if after.CommitMidResponse(len(part)); *r != after {
					t.Fatal("CommitMidResponse and Commit leave different receivers")
				}
			}
			if after := before; write {
				if after.CommitWrite(g, len(placed)); *r != after {
					t.Fatal("CommitWrite and Commit leave different receivers")
				}
			}
			if a.Kind == Drop && *r != before {
				t.Fatal("a dropped segment changed the receiver")
			}
		}
	})
}

// appendFuzzed appends a ULPDU with a good CRC in FuzzReceiver's input format.
func appendFuzzed(b, ulpdu []byte) []byte {
	return append(append(b, byte(len(ulpdu)<<1)), ulpdu...)
}
