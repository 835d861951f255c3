package rawpeer_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// messages has one FPDU of each kind that a script can make, with payload
// lengths that need every number of pad octets.
func messages() map[string]rawpeer.FPDU {
	return map[string]rawpeer.FPDU{
		"Send":          rawpeer.SendMessage(7, []byte("four")),
		"Send, 1 pad":   rawpeer.SendMessage(7, []byte("1")),
		"Write":         rawpeer.WriteMessage(0x11223344, 1<<40, []byte("octets")),
		"Write, empty":  rawpeer.WriteMessage(1, 0, nil),
		"Read Request":  rawpeer.ReadRequest(3, rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}),
		"Read Response": rawpeer.ReadResponse(1, 2, []byte("response")),
		"Terminate":     rawpeer.TerminateMessage(rdmap.Terminate{Layer: iwarp.LayerDDP, EType: iwarp.DDPTaggedBuffer, Code: iwarp.DDPTaggedBaseBounds}),
	}
}

func TestOctetsAreAnFPDU(t *testing.T) {
	for name, f := range messages() {
		for _, crc := range []bool{true, false} {
			receiver := mpa.NewReceiver(false, true)
			octets := f.Octets(crc)
			span, need, err := receiver.Next(octets, nil)
			if !crc {
				if tail := octets[len(octets)-mpa.CRCLen:]; !bytes.Equal(tail, make([]byte, mpa.CRCLen)) {
					t.Errorf("%s without CRC: the CRC field is % x", name, tail)
				}
				continue
			}
			if err != nil || need != 0 || span.Len != len(octets) {
				t.Errorf("%s: %d octets of %d, %d missing, %v", name, span.Len, len(octets), need, err)
				continue
			}
			header, payload, err := ddp.Parse(span.ULPDU)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if diff := cmp.Diff(f.Header, header); diff != "" {
				t.Errorf("%s: header (-sent +read):\n%s", name, diff)
			}
			if !bytes.Equal(payload, f.Payload) {
				t.Errorf("%s: payload % x, not % x", name, payload, f.Payload)
			}
		}
	}
}

// TestOverridesChangeOneThing overrides a field at a time, and compares what
// differs from the octets without.
func TestOverridesChangeOneThing(t *testing.T) {
	base := rawpeer.SendMessage(1, []byte("1234567")) // one pad octet
	plain := base.Octets(true)
	crcAt := len(plain) - mpa.CRCLen

	length := base
	length.ULPDULength = ptr(uint16(9))
	if got := length.Octets(true); len(got) != len(plain) || got[1] != 9 || !bytes.Equal(got[2:crcAt], plain[2:crcAt]) {
		t.Errorf("ULPDULength: % x", got)
	} else if mpa.CheckCRC(mpa.CRC(0, got[:crcAt]), got[crcAt:]) != nil {
		t.Error("ULPDULength: the CRC is not that of what is sent")
	}

	pad := base
	pad.Pad = 0xff
	if got := pad.Octets(true); got[crcAt-1] != 0xff || !bytes.Equal(got[:crcAt-1], plain[:crcAt-1]) {
		t.Errorf("Pad: % x", got)
	} else if mpa.CheckCRC(mpa.CRC(0, got[:crcAt]), got[crcAt:]) != nil {
		t.Error("Pad: the CRC does not cover it")
	}

	crc := base
	crc.CRC = ptr(uint32(0x04030201))
	for _, on := range []bool{true, false} {
		if got := crc.Octets(on); !bytes.Equal(got[crcAt:], []byte{1, 2, 3, 4}) || !bytes.Equal(got[:crcAt], plain[:crcAt]) {
			t.Errorf("CRC: % x", got)
		}
	}

	bare := rawpeer.FPDU{NoDDP: true, Payload: []byte{0xaa}, Header: base.Header}
	if got := bare.Octets(false); !bytes.Equal(got, []byte{0, 1, 0xaa, 0, 0, 0, 0, 0}) {
		t.Errorf("NoDDP: % x", got)
	}
}

func ptr[T any](v T) *T { return &v }

func TestStartupFrames(t *testing.T) {
	private := []byte("private")
	for kind, f := range map[mpa.Kind]mpa.Frame{
		mpa.KindRequest: rawpeer.Request(true, 3, 5, private),
		mpa.KindReply:   rawpeer.Reply(true, 3, 5, private),
	} {
		octets := f.AppendTo(nil)
		got, n, err := mpa.ParseFrame(octets, kind)
		if err != nil || n != len(octets) {
			t.Errorf("%s: %d of %d octets: %v", kind, n, len(octets), err)
			continue
		}
		e, ulp, err := got.SplitPrivateData()
		if err != nil || e != (mpa.Enhanced{IRD: 3, ORD: 5}) || !bytes.Equal(ulp, private) {
			t.Errorf("%s: %+v, %q, %v", kind, e, ulp, err)
		}
		if got.Revision != 2 || !got.CRC || got.Markers || got.Reject {
			t.Errorf("%s: %+v", kind, got)
		}
	}
}
