package wiretest

import (
	"encoding/hex"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// An Example is a ULPDU in hexadecimal, and its line in the ladder.
type Example struct {
	Hex   string
	Story string // its line in wire's ladder, with CRCs on
}

// Octets returns the ULPDU.
func (e Example) Octets() []byte {
	b, err := hex.DecodeString(strings.Join(strings.Fields(e.Hex), ""))
	if err != nil {
		panic("wiretest: " + err.Error())
	}
	return b
}

// Extensions are the messages of RFC 7306, put together by hand from the figures of
// its appendix A.
func Extensions() []Example {
	return []Example{
		{`41 48 00000000 00000000 00000001 00000000 0102030405060708`,
			"Immediate Data L QN 0 MSN 1 data 0x0102030405060708 CRC ok"},
		{`41 49 00000000 00000000 00000002 00000000 00000000000000ff`,
			"Immediate Data with SE L QN 0 MSN 2 data 0x00000000000000ff CRC ok"},
		{`41 4a 00000000 00000001 00000001 00000000
			00000000 a1a2a3a4 11223344 8877665544332211
			0102030405060708 8000000080000000 0000000000000000 ffffffffffffffff`,
			"Atomic Request L QN 1 MSN 1 FetchAdd id 0xa1a2a3a4 STag 0x11223344 TO 0x8877665544332211 add 0x0102030405060708 mask 0x8000000080000000 CRC ok"},
		{`41 4a 00000000 00000001 00000002 00000000
			00000002 00000007 11223344 0000000000000010
			5152535455565758 00ffffffffffffff c1c2c3c4c5c6c7c8 ff00ff00ff00ff00`,
			"Atomic Request L QN 1 MSN 2 CmpSwap id 0x7 STag 0x11223344 TO 0x10 swap 0x5152535455565758 mask 0x00ffffffffffffff compare 0xc1c2c3c4c5c6c7c8 mask 0xff00ff00ff00ff00 CRC ok"},
	}
}

// AtomicResponses answer the Atomic Requests among them.
func AtomicResponses() []Example {
	return []Example{
		{`41 4b 00000000 00000003 00000001 00000000 a1a2a3a4 f1f2f3f4f5f6f7f8`,
			"Atomic Response L QN 3 MSN 1 id 0xa1a2a3a4 original 0xf1f2f3f4f5f6f7f8 CRC ok"},
		{`41 4b 00000000 00000003 00000002 00000000 00000007 0000000000000001`,
			"Atomic Response L QN 3 MSN 2 id 0x7 original 0x0000000000000001 CRC ok"},
	}
}

// Extended is a connection with one of each.
func (c *Capture) Extended() *Session {
	s := c.Begin(true)
	for _, e := range Extensions() {
		s.ULPDU(wire.ToResponder, e.Octets())
	}
	for _, e := range AtomicResponses() {
		s.ULPDU(wire.ToInitiator, e.Octets())
	}
	return s
}

// RDMACFrame is a start-up frame of the RDMA Consortium's version (RFC 5044 appendix
// C.2.4).
func RDMACFrame(kind mpa.Kind) mpa.Frame { return mpa.Frame{Kind: kind, Markers: true, CRC: true} }
