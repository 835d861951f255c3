package rdmap

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// fpdu is one line of a testdata file.
type fpdu struct {
	stream string
	ulpdu  []byte
}

func readFPDUs(t testing.TB, name string) []fpdu {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	var fpdus []fpdu
	for line := range strings.Lines(string(text)) {
		f := strings.Fields(line)
		if len(f) != 3 {
			t.Fatalf("%s: %q is not stream, offset and FPDU", name, line)
		}
		b := testkit.Unhex(t, f[2])
		n := int(binary.BigEndian.Uint16(b))
		if len(b) != 2+n+(-(2+n)&3)+4 {
			t.Fatalf("%s: FPDU of %d octets with ULPDU_Length %d", name, len(b), n)
		}
		fpdus = append(fpdus, fpdu{f[0], b[2 : 2+n]})
	}
	return fpdus
}

// A whole rping between two processes over siw, in both directions. Each side's receiver accepts
// what the other sent, Read Responses answer the Reads on the wire, and every header equals the one
// that this package would have sent.
//
//rfc:5040 RDMAP-4.1-01 First RsvdULP octet is the control field RV/Rsv/Opcode
//rfc:5040 RDMAP-4.2-01 RDMA header for ReadReq and Terminate only
//rfc:5040 RDMAP-4.4-02 Sink STag copied uninterpreted into the Read Response
//rfc:5040 RDMAP-4.4-03 Sink TO copied into the first Response segment
func TestRpingOverSIW(t *testing.T) {
	type side struct {
		*stream
		kinds map[Kind]int      // what it received
		msn   map[uint32]uint32 // by QN, of the last message it received
	}
	newSide := func() *side {
		return &side{stream: newStream(t, 1, 1), kinds: map[Kind]int{}, msn: map[uint32]uint32{}}
	}
	server, client := newSide(), newSide()
	for i, f := range readFPDUs(t, "rping-siw-6.1.192.txt") {
		to, from := server, client
		if strings.HasPrefix(f.stream, "7174>") {
			to, from = client, server
		}
		h, payload, err := ddp.Parse(f.ulpdu)
		if err != nil {
			t.Fatalf("FPDU %d: %v", i, err)
		}
		a, err := to.begin("rping", h, len(payload))
		if err != nil {
			t.Fatalf("FPDU %d, %+v: %v", i, h, err)
		}
		to.kinds[a.Kind]++
		var mine ddp.Header
		switch a.Kind {
		case PlaceSend:
			to.msn[h.QN]++
			mine = SendHeader(a.Opcode, 0, to.msn[h.QN], 0, true)
		case PlaceWrite:
			mine = WriteHeader(a.STag, a.TO, true)
		case TakeReadRequest:
			to.msn[h.QN]++
			mine = ReadRequestHeader(to.msn[h.QN])
			req, err := ParseReadRequest(payload)
			if err != nil {
				t.Fatalf("FPDU %d: %v", i, err)
			}
			if !bytes.Equal(req.AppendTo(nil), payload) {
				t.Errorf("FPDU %d: %x written back as %x", i, payload, req.AppendTo(nil))
			}
			to.in.Push(InboundRead{ReadRequest: req, MSN: h.MSN})
			from.out.Push(OutstandingRead{SinkSTag: req.SinkSTag, SinkTO: req.SinkTO, Size: req.Size, Cookie: uint64(h.MSN)})
		case PlaceReadResponse:
			req := from.in.Front()
			if req == nil || a.Read.Cookie != uint64(req.MSN) || len(payload) != int(req.Size) {
				t.Fatalf("FPDU %d answers %+v, the responder holds %+v", i, a.Read, req)
			}
			mine = ReadResponseHeader(req.SinkSTag, req.SinkTO, true)
			from.in.Pop()
		default:
			t.Fatalf("FPDU %d: %+v", i, a)
		}
		if mine != h {
			t.Errorf("FPDU %d: this package would have sent %+v, siw sent %+v", i, mine, h)
		}
		to.r.Commit(&a)
	}
	for _, tt := range []struct {
		name string
		side *side
		kind Kind
		want int
	}{
		{"server", server, PlaceSend, 10},
		{"server", server, PlaceReadResponse, 5},
		{"client", client, PlaceSend, 10},
		{"client", client, TakeReadRequest, 5},
		{"client", client, PlaceWrite, 5},
	} {
		if got := tt.side.kinds[tt.kind]; got != tt.want {
			t.Errorf("%s: %d times %v, want %d", tt.name, got, tt.kind, tt.want)
		}
	}
}
