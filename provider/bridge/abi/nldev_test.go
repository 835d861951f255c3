package abi_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestNetlinkBytes decodes a request as libibverbs sends it for a device's file. It is written out
// by hand from linux/netlink.h: 16 bytes of header, and two attributes that begin at multiples of
// four.
func TestNetlinkBytes(t *testing.T) {
	if !bytes.Equal(abi.Append(nil, &abi.PostResp{BadWR: 1}), []byte{1, 0, 0, 0}) {
		t.Skip("the bytes are those of a little-endian machine")
	}
	want := []byte{
		// Length, NLDEV_GET_CHARDEV, flags, seq, pid.
		36, 0, 0, 0, 15, 20, 1, 0, 7, 0, 0, 0, 9, 0, 0, 0,
		8, 0, 1, 0, 0, 0, 0, 0, // dev_index 0
		11, 0, 69, 0, 'u', 'v', 'e', 'r', 'b', 's', 0, 0, // chardev_type "uverbs", padded
	}
	m := abi.NLMessage{Type: abi.NLType(abi.NLGetChardev), Flags: 1, Seq: 7, PID: 9,
		Attrs: []abi.NLAttribute{
			abi.NLU32(abi.NLDevIndex, 0), abi.NLString(abi.NLChardevType, "uverbs"),
		}}
	if got := abi.AppendNL(nil, &m); !bytes.Equal(got, want) {
		t.Errorf("encoded:\n%x, want\n%x", got, want)
	}
	got, _, rest, err := abi.DecodeNL(append(want, want...))
	if err != nil || len(rest) != len(want) || abi.FormatNL(&got) != abi.FormatNL(&m) {
		t.Errorf("decoded %s, %d bytes left, %v", abi.FormatNL(&got), len(rest), err)
	}
	if s := abi.FormatNL(&m); s != "get_chardev {flags=0x1, dev_index=00000000, "+
		"chardev_type=75766572627300}" {
		t.Errorf("printed: %s", s)
	}
}

// FuzzDecodeNL: encoding what was decoded and decoding it again gives the same result, and no input
// causes a panic.
func FuzzDecodeNL(f *testing.F) {
	f.Add(abi.AppendNL(nil, &abi.NLMessage{Type: abi.NLType(abi.NLGet),
		Attrs: []abi.NLAttribute{abi.NLU32(abi.NLDevIndex, 0)}}))
	f.Add(abi.AppendNL(nil, &abi.NLMessage{Type: abi.NLMsgDone}))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, _, rest, err := abi.DecodeNL(b)
		if err != nil {
			if !errors.Is(err, abi.ErrNetlink) {
				t.Errorf("error %v", err)
			}
			return
		}
		if len(rest) >= len(b) {
			t.Errorf("%d of %d bytes are left", len(rest), len(b))
		}
		again, _, _, err := abi.DecodeNL(abi.AppendNL(nil, &m))
		if err != nil || abi.FormatNL(&again) != abi.FormatNL(&m) {
			t.Errorf("%s became %s: %v", abi.FormatNL(&m), abi.FormatNL(&again), err)
		}
	})
}
