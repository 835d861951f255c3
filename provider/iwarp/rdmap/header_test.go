package rdmap

import (
	"bytes"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// The segments of RFC 5040 appendix A, figures 11 to 16, from DDP control on.
//
//rfc:5040 RDMAP-4.1-02 RsvdULP octets 2-5 are the Invalidate STag
//rfc:5040 RDMAP-4.1-05 STag/TO or QN present per table
//rfc:5040 RDMAP-4.1-06 RV=1 for IETF
//rfc:5040 RDMAP-4.1-07 Rsv bits zero on send
//rfc:5040 RDMAP-4.1-09 Invalidate STag zero where the opcode has none
//rfc:5040 RDMAP-5.1-01 Write uses Tagged model
//rfc:5040 RDMAP-5.2.1-01 ReadReq untagged on QN 1
//rfc:5040 RDMAP-5.2.2-01 Response uses Tagged model
//rfc:5040 RDMAP-5.3-01 Send untagged
//rfc:5040 RDMAP-5.3-06 Send on QN 0
//rfc:5040 RDMAP-5.3-09 SendInv carries an STag
//rfc:5040 RDMAP-5.4-01 Terminate untagged on QN 2
//rfc:5040 RDMAP-5.4-02 Terminate MSN 1, MO 0, L=1
func TestSegmentsOfAppendixA(t *testing.T) {
	const stag, to = 0x11223344, 0x8877665544332211
	for _, tt := range []struct {
		name string
		h    ddp.Header
		hex  string
	}{
		{"figure 11, RDMA Write", WriteHeader(stag, to, true), "c140 11223344 8877665544332211"},
		{"figure 11, not last", WriteHeader(stag, to, false), "8140 11223344 8877665544332211"},
		{"figure 12, RDMA Read Request", ReadRequestHeader(7), "4141 00000000 00000001 00000007 00000000"},
		{"figure 13, RDMA Read Response", ReadResponseHeader(stag, to, true), "c142 11223344 8877665544332211"},
		{"figure 13, not last", ReadResponseHeader(stag, to, false), "8142 11223344 8877665544332211"},
		{"figure 14, Send", SendHeader(OpSend, 0, 5, 1482, true), "4143 00000000 00000000 00000005 000005ca"},
		{"figure 14, Send has no STag", SendHeader(OpSend, stag, 5, 0, false), "0143 00000000 00000000 00000005 00000000"},
		{"figure 14, Send with SE", SendHeader(OpSendSE, stag, 6, 0, true), "4145 00000000 00000000 00000006 00000000"},
		{"figure 15, Send with Invalidate", SendHeader(OpSendInvalidate, stag, 7, 0, true), "4144 11223344 00000000 00000007 00000000"},
		{"figure 15, Send with SE and Invalidate", SendHeader(OpSendSEInvalidate, stag, 8, 0, false), "0146 11223344 00000000 00000008 00000000"},
		{"figure 16, Terminate", TerminateHeader(), "4147 00000000 00000002 00000001 00000000"},
	} {
		want := testkit.Unhex(t, tt.hex)
		if got := tt.h.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", tt.name, got, want)
		}
	}
}

// TestHeadPut: a Head puts the same header before a segment as the other functions return.
//
//rfc:5040 RDMAP-5.1-01 Write uses Tagged model
//rfc:5040 RDMAP-5.3-01 Send untagged
//rfc:5040 RDMAP-5.3-06 Send on QN 0
//rfc:5040 RDMAP-5.3-09 SendInv carries an STag
func TestHeadPut(t *testing.T) {
	const stag, to, msn, offset = 0x11223344, 0x8877665544332211, 0xfffefdfc, 0x81020304
	for _, last := range []bool{false, true} {
		heads := map[Head]ddp.Header{
			WriteHead(stag, to):        WriteHeader(stag, to+offset, last),
			ReadResponseHead(stag, to): ReadResponseHeader(stag, to+offset, last),
		}
		for op := OpSend; op <= OpSendSEInvalidate; op++ {
			key := uint32(0)
			if op.Invalidates() {
				key = stag
			}
			heads[SendHead(op, key, msn)] = SendHeader(op, key, msn, offset, last)
		}
		for head, h := range heads {
			got := bytes.Repeat([]byte{0xa5}, ddp.MaxHeaderLen)
			head.Put(got, offset, last)
			if want := h.AppendTo(nil); !bytes.Equal(got[:head.Len()], want) || head.Header(offset, last) != h {
				t.Errorf("%x and %+v, want %x and %+v", got[:head.Len()], head.Header(offset, last), want, h)
			}
		}
	}
}

func TestHeadersAllocateNothing(t *testing.T) {
	buf := make([]byte, 0, 128)
	req := ReadRequest{SinkSTag: 1, Size: 10}
	n := testing.AllocsPerRun(100, func() {
		for _, h := range [...]ddp.Header{
			WriteHeader(1, 2, true), ReadResponseHeader(1, 2, false), SendHeader(OpSendInvalidate, 1, 2, 3, true), TerminateHeader(),
		} {
			buf = h.AppendTo(buf[:0])
		}
		h := ReadRequestHeader(3)
		buf = req.AppendTo(h.AppendTo(buf[:0]))
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
