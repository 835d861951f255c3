package wire_test

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// The fields of RFC 7306's messages are shown by name.
//
//rfc:7306 EXT-4.1-02 Opcodes 8 Imm, 9 ImmSE, 10 AtomicReq, 11 AtomicResp
//rfc:7306 EXT-5.2.1-01 Atomic request header of 52 octets, AOpcode layout
//rfc:7306 EXT-5.2.2-02 Atomic response header of 12 octets, as in the figure
func TestExtensions(t *testing.T) {
	c := newCapture()
	c.Extended()
	conn := testkit.Must(c.Trace(0))(t).Conns[0]
	lines := story(conn)[2:]
	examples := append(wiretest.Extensions(), wiretest.AtomicResponses()...)
	for i, e := range examples {
		arrow := "--> "
		if i >= len(wiretest.Extensions()) {
			arrow = "<-- "
		}
		if i >= len(lines) || lines[i] != arrow+e.Story {
			t.Errorf("line %d:\n got %v\nwant %s", i, lines[min(i, len(lines)-1)], arrow+e.Story)
		}
	}
	messages := conn.Messages(wire.ToResponder)
	for i, want := range []string{
		"immediate-data crc=ok last=true QN=0 MSN=1 MO=0 data=0x0102030405060708",
		"immediate-data-with-se crc=ok last=true QN=0 MSN=2 MO=0 data=0x00000000000000ff",
		"atomic-request crc=ok last=true QN=1 MSN=1 MO=0 operation=FetchAdd target=r1+0 data=0x102030405060708 mask=0x8000000080000000",
		"atomic-request crc=ok last=true QN=1 MSN=2 MO=0 operation=CmpSwap target=r1+8613303245920329215 data=0x5152535455565758 mask=0xffffffffffffff compare=0xc1c2c3c4c5c6c7c8 compare-mask=0xff00ff00ff00ff00",
	} {
		if got := messages[i+1].String(); got != want {
			t.Errorf("message %d:\n got %s\nwant %s", i, got, want)
		}
	}
}

// A payload that can't be such a message is reported, and compared without what may differ.
func TestExtensionsTooShort(t *testing.T) {
	for i, e := range append(wiretest.Extensions(), wiretest.AtomicResponses()...) {
		c := newCapture()
		s := c.Begin(true)
		ulpdu := e.Octets()
		s.ULPDU(wire.ToResponder, ulpdu[:len(ulpdu)-1])
		conn := testkit.Must(c.Trace(0))(t).Conns[0]
		if f := conn.FPDUs(wire.ToResponder)[0]; f.Err == nil || f.Immediate != nil || f.Atomic != nil || f.Original != nil {
			t.Errorf("example %d: %+v", i, f)
		}
	}
	var first string
	for _, stag := range []byte{1, 2} {
		c := newCapture()
		s := c.Begin(true)
		ulpdu := wiretest.Extensions()[2].Octets()
		ulpdu[18+8] = stag
		s.ULPDU(wire.ToResponder, ulpdu[:len(ulpdu)-1])
		got := testkit.Must(c.Trace(0))(t).Conns[0].Messages(wire.ToResponder)[1].String()
		if first == "" {
			first = got
		} else if got != first {
			t.Errorf("an STag shows:\n%s\n%s", first, got)
		}
	}
}

// A connection whose Reply is of revision 0 has version 0, and Markers in both
// directions whatever its Request says; with version 1 everything in it is wrong.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
//rfc:5044 RDMAC-C.2.5-01 Permissive initiator on Rev0 Reply: V=0, markers, CRC
func TestVersionZero(t *testing.T) {
	old := func(h ddp.Header) ddp.Header { rdmap.SetRDMAC(&h); return h }
	for _, request := range []mpa.Frame{wiretest.RDMACFrame(mpa.KindRequest), {Kind: mpa.KindRequest, Revision: 1, CRC: true}} {
		c := newCapture()
		marked := request
		marked.Markers = true
		s := c.Open(wiretest.Client, wiretest.Server).StartAs(request, marked, wiretest.RDMACFrame(mpa.KindReply))
		s.FPDU(wire.ToResponder, old(rdmap.WriteHeader(0x100, 8, true)), octets(5))
		s.FPDU(wire.ToInitiator, old(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)), octets(600))
		s.FPDU(wire.ToResponder, rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true), nil)
		conn := testkit.Must(c.Trace(0))(t).Conns[0]
		if !conn.RDMAC() || !conn.CRC() {
			t.Errorf("%+v: RDMAC %v, CRC %v", request, conn.RDMAC(), conn.CRC())
		}
		want(t, conn, story(conn)[0], "<-- MPA Reply Frame rev 0 M C",
			"--> RDMA Write L STag 0x00000100 TO 0x8 length 5 CRC ok",
			"<-- Send L QN 0 MSN 1 MO 0 length 600 CRC ok",
			"--> Send L QN 0 MSN 1 MO 0 length 0 CRC ok  !! "+ddp.ErrUntaggedVersion.Error())
		if got := conn.Messages(wire.ToInitiator)[1].String(); got != "send DV=0 RV=0 crc=ok last=true QN=0 MSN=1 MO=0 offsets=in order length=600 octets="+got[len(got)-8:] {
			t.Errorf("told as %s", got)
		}
	}
	// siw answers revision 0 in kind, without Markers, and speaks version 1.
	c := newCapture()
	request, reply := wiretest.RDMACFrame(mpa.KindRequest), wiretest.RDMACFrame(mpa.KindReply)
	request.Markers, reply.Markers = false, false
	s := c.Open(wiretest.Client, wiretest.Server).Start(request, reply)
	s.SendMessage(wire.ToResponder, 1, nil)
	if conn := testkit.Must(c.Trace(0))(t).Conns[0]; conn.RDMAC() ||
		lastLine(conn) != "--> Send L QN 0 MSN 1 MO 0 length 0 CRC ok" {
		t.Errorf("RDMAC %v: %s", conn.RDMAC(), lastLine(conn))
	}
}
