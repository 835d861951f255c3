package tshark

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// exhibit makes a capture, with the suite's own recorder, of n Sends to a port.
func exhibit(t *testing.T, port uint16, n int) conformance.Exhibit {
	t.Helper()
	tap := &capture.Tap{}
	c, err := tap.Start(port)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	tell := func(sent bool, event transport.TapEvent, octets []byte) {
		at = at.Add(time.Microsecond)
		tap.Tap(transport.TapRecord{
			Time: at, Conn: 1, Local: netip.MustParseAddrPort("127.0.0.1:40000"), Remote: netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), port),
			Dialed: true, Event: event, Sent: sent, Data: octets,
		})
	}
	tell(true, transport.TapOpen, nil)
	tell(true, transport.TapData, mpa.Frame{Revision: 1, CRC: true}.AppendTo(nil))
	tell(false, transport.TapData, mpa.Frame{Kind: mpa.KindReply, Revision: 1, CRC: true}.AppendTo(nil))
	framer := mpa.NewFramer(false, true)
	for i := range n {
		h := rdmap.SendHeader(rdmap.OpSend, 0, uint32(i+1), 0, true)
		fpdu, err := framer.AppendFPDU(nil, append(h.AppendTo(nil), octets(i)...))
		if err != nil {
			t.Fatal(err)
		}
		tell(true, transport.TapData, fpdu)
	}
	tell(true, transport.TapFIN, nil)
	file := filepath.Join(t.TempDir(), "run.pcapng")
	if err := c.Stop(file); err != nil {
		t.Fatal(err)
	}
	trace, err := wire.ReadFile(file, port)
	if err != nil {
		t.Fatal(err)
	}
	return conformance.Exhibit{File: file, Port: port, Ours: trace}
}

// Many captures at once are judged separately.
func TestManyExhibits(t *testing.T) {
	need(t)
	var exhibits []conformance.Exhibit
	for i := range 9 {
		exhibits = append(exhibits, exhibit(t, uint16(20000+i), i))
	}
	wrong := exhibit(t, 20100, 3)
	wrong.Ours.Conns[0].FPDUs(wire.ToResponder)[1].Header.MSN++
	exhibits = append(exhibits, wrong, exhibit(t, 20003, 5), exhibit(t, 20101, 1))
	got := Witness(context.Background(), exhibits)
	for i, w := range got {
		if i == 9 {
			if w.Agrees || !strings.Contains(w.Why, "Message sequence number") {
				t.Errorf("the exhibit that we read wrongly: %+v", w)
			}
			continue
		}
		if !w.Asked || !w.Agrees || w.Frames != exhibits[i].Ours.Count() {
			t.Errorf("exhibit %d: %+v, want %d frames", i, w, exhibits[i].Ours.Count())
		}
	}
}

// A file that tshark or we can't read is reported alone.
func TestOneBadExhibit(t *testing.T) {
	need(t)
	exhibits := []conformance.Exhibit{exhibit(t, 20000, 1), exhibit(t, 20001, 2), exhibit(t, 20002, 3), exhibit(t, 20003, 4)}
	if err := os.WriteFile(exhibits[2].File, []byte("this is no capture"), 0o644); err != nil {
		t.Fatal(err)
	}
	for i, w := range Witness(context.Background(), exhibits) {
		if w.Agrees == (i == 2) || (w.Why != "") != (i == 2) {
			t.Errorf("exhibit %d: %+v", i, w)
		}
	}
}

func TestBatches(t *testing.T) {
	at := func(ports ...uint16) []conformance.Exhibit {
		var out []conformance.Exhibit
		for _, p := range ports {
			out = append(out, conformance.Exhibit{Port: p})
		}
		return out
	}
	for _, tc := range []struct {
		exhibits []conformance.Exhibit
		n        int
		batches  int
	}{
		{at(), 2, 0}, {at(1), 2, 1}, {at(1, 2, 3, 4), 2, 2}, {at(1, 1, 1), 2, 3}, {at(0, 0, 1), 1, 3}, {at(1, 0, 2), 1, 2},
	} {
		got := batches(tc.exhibits, tc.n)
		if len(got) != tc.batches {
			t.Errorf("%v: batches %v, want %d", tc.exhibits, got, tc.batches)
		}
		var all []int
		for _, b := range got {
			seen := make(map[uint16]bool)
			for _, i := range b {
				p := tc.exhibits[i].Port
				if seen[p] || p == 0 && len(b) > 1 || seen[0] {
					t.Errorf("batch %v of %v has ports that can't be told apart", b, tc.exhibits)
				}
				seen[p] = true
			}
			all = append(all, b...)
		}
		slices.Sort(all)
		if len(slices.Compact(all)) != len(tc.exhibits) {
			t.Errorf("%v: batches %v", tc.exhibits, got)
		}
	}
}
