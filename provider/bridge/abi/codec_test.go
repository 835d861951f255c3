package abi_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestDecodeShort: nothing is decoded from a message that is cut short, unless the kernel takes the
// missing bytes for zeros.
func TestDecodeShort(t *testing.T) {
	whole := abi.Append(nil, &abi.Listen{ID: 7, Backlog: 9})
	for n := range whole {
		m := abi.Listen{ID: 1, Backlog: 2}
		if _, err := abi.Decode(whole[:n], &m); !errors.Is(err, abi.ErrShort) || m != (abi.Listen{ID: 1, Backlog: 2}) {
			t.Errorf("%d of %d bytes: %+v, error %v", n, len(whole), m, err)
		}
	}
	var m abi.Listen
	if rest, err := abi.DecodePadded(whole[:5], &m); err != nil || m.ID != 7 || len(rest) != 0 {
		t.Errorf("the first word, padded: %+v, rest %d, error %v", m, len(rest), err)
	}
	rest, err := abi.Decode(append(whole, "driver"...), &m)
	if err != nil || string(rest) != "driver" || m.Backlog != 9 {
		t.Errorf("with what a driver adds: %+v, rest %q, error %v", m, rest, err)
	}
}

// TestFormat: messages are formatted as strace would.
func TestFormat(t *testing.T) {
	c := abi.Connect{ID: 3}
	c.ConnParam.QPNum, c.ConnParam.PrivateDataLen = 2, 2
	copy(c.ConnParam.PrivateData[:], "hi")
	got := abi.Format(&c)
	for _, want := range []string{"conn_param.qp_num=2, ", "conn_param.private_data=6869, ", ", id=3, ", "ece.vendor_id=0"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s has no %s", got, want)
		}
	}
	if got, want := abi.Format(abi.RegMR{Start: 0x1000, Length: 16, PDHandle: 5}),
		"{response=0x0, start=0x1000, length=0x10, hca_va=0x0, pd_handle=5, access_flags=0}"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

var littleEndian = abi.Append(nil, &abi.AllocPDResp{PDHandle: 1})[0] == 1

// TestSockaddr compares addresses with bytes written by hand from struct sockaddr_in and
// sockaddr_in6 on a little-endian machine.
func TestSockaddr(t *testing.T) {
	for addr, octets := range map[string]string{
		"192.0.2.1:7471":       "02001d2fc0000201",
		"[2001:db8::5]:80":     "0a00005000000000" + "20010db8000000000000000000000005",
		"[fe80::1%3]:65535":    "0a00ffff00000000" + "fe800000000000000000000000000001" + "03000000",
		"[::ffff:192.0.2.1]:1": "0a00000100000000" + "00000000000000000000ffffc0000201",
		"0.0.0.0:0":            "0200",
		"[::]:0":               "0a00",
	} {
		ap := netip.MustParseAddrPort(addr)
		var a abi.Sockaddr
		var s abi.SockaddrStorage
		size := abi.SizeofSockaddrIn6
		if ap.Addr().Is4() {
			size = abi.SizeofSockaddrIn
		}
		if n, m := a.Set(ap), s.Set(ap); n != size || m != size {
			t.Errorf("%s: %d and %d bytes, want %d", addr, n, m, size)
		}
		if want := testkit.Must(hex.DecodeString(octets))(t); littleEndian &&
			(!bytes.HasPrefix(a[:], want) || !bytes.Equal(a[:], s[:len(a)]) || bytes.ContainsFunc(a[len(want):], func(r rune) bool { return r != 0 })) {
			t.Errorf("%s: % x, want % x", addr, a, want)
		}
		for _, back := range []func() (netip.AddrPort, error){a.AddrPort, s.AddrPort} {
			if got, err := back(); err != nil || got != ap {
				t.Errorf("%s: %s, error %v", addr, got, err)
			}
		}
	}
	var a abi.Sockaddr
	if got, err := a.AddrPort(); err != nil || got.IsValid() || a.Set(netip.AddrPort{}) != 0 {
		t.Errorf("AF_UNSPEC: %s, error %v", got, err)
	}
	a[0], a[1] = abi.FamilyIB, abi.FamilyIB
	if _, err := a.AddrPort(); err == nil {
		t.Error("a family that is not IP has no error")
	}
}

// FuzzDecode: whatever the bytes are, decoding uses as many as the layout has, and encoding the
// result and decoding it again gives the same result.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("octets"))
	f.Add(bytes.Repeat([]byte{0xff, 1}, 200))
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, layout := range layouts {
			m, again := reflect.New(reflect.TypeOf(layout)), reflect.New(reflect.TypeOf(layout))
			rest, err := abi.Decode(b, m.Interface())
			if short := len(b) < abi.Size(layout); short != (err != nil) {
				t.Fatalf("%s: %d bytes: %v", name, len(b), err)
			} else if short {
				testkit.Must(abi.DecodePadded(b, m.Interface()))(t)
			} else if len(rest) != len(b)-abi.Size(layout) {
				t.Fatalf("%s: %d bytes of %d are left", name, len(rest), len(b))
			}
			testkit.Must(abi.Decode(abi.Append(nil, m.Interface()), again.Interface()))(t)
			if !reflect.DeepEqual(m.Interface(), again.Interface()) {
				t.Fatalf("%s: %s, and then %s", name, abi.Format(m.Interface()), abi.Format(again.Interface()))
			}
		}
	})
}

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
