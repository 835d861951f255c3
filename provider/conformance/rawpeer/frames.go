package rawpeer

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// An FPDU says what to send. The fields after Payload override values that follow from
// the others, so that wrong FPDUs can be sent.
type FPDU struct {
	Header  ddp.Header
	Payload []byte

	ULPDULength *uint16 // instead of the true length
	Pad         byte    // value of the pad octets
	CRC         *uint32 // instead of the right CRC, or of zero when CRCs are off
	NoDDP       bool    // Payload is the whole ULPDU
}

// Octets returns the FPDU as it goes on the wire.
func (f *FPDU) Octets(crc bool) []byte {
	ulpdu := f.Payload
	if !f.NoDDP {
		ulpdu = append(f.Header.AppendTo(nil), f.Payload...)
	}
	n := uint16(len(ulpdu))
	if f.ULPDULength != nil {
		n = *f.ULPDULength
	}
	b := append(mpa.AppendHeader(nil, n), ulpdu...)
	for range mpa.PadLen(len(ulpdu)) {
		b = append(b, f.Pad)
	}
	var sum uint32
	if crc {
		sum = mpa.CRC(0, b)
	}
	if f.CRC != nil {
		sum = *f.CRC
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}

// SendFPDU sends an FPDU.
func (p *Peer) SendFPDU(f FPDU) error { return p.Send(f.Octets(p.CRC)) }

// SendMessage returns the one segment of a Send.
func SendMessage(msn uint32, payload []byte) FPDU {
	return FPDU{Header: rdmap.SendHeader(rdmap.OpSend, 0, msn, 0, true), Payload: payload}
}

// WriteMessage returns the one segment of an RDMA Write.
func WriteMessage(stag uint32, to uint64, payload []byte) FPDU {
	return FPDU{Header: rdmap.WriteHeader(stag, to, true), Payload: payload}
}

// ReadRequest returns an RDMA Read Request.
func ReadRequest(msn uint32, r rdmap.ReadRequest) FPDU {
	return FPDU{Header: rdmap.ReadRequestHeader(msn), Payload: r.AppendTo(nil)}
}

// ReadResponse returns the one segment of an RDMA Read Response.
func ReadResponse(stag uint32, to uint64, payload []byte) FPDU {
	return FPDU{Header: rdmap.ReadResponseHeader(stag, to, true), Payload: payload}
}

// TerminateMessage returns a Terminate in the RFC's layout.
func TerminateMessage(t rdmap.Terminate) FPDU {
	return FPDU{Header: rdmap.TerminateHeader(), Payload: t.AppendTo(nil)}
}

// Request returns an enhanced MPA Request of revision 2, as siw sends it, with
// CRCs asked for or not. Change a field to make it another.
func Request(crc bool, ird, ord uint16, private []byte) mpa.Frame {
	return startup(mpa.KindRequest, crc, mpa.Enhanced{IRD: ird, ORD: ord}, private)
}

// Reply returns an enhanced MPA Reply of revision 2.
func Reply(crc bool, ird, ord uint16, private []byte) mpa.Frame {
	return startup(mpa.KindReply, crc, mpa.Enhanced{IRD: ird, ORD: ord}, private)
}

func startup(kind mpa.Kind, crc bool, e mpa.Enhanced, private []byte) mpa.Frame {
	return mpa.Frame{
		Kind: kind, CRC: crc, Enhanced: true, Revision: 2,
		PrivateData: append(e.AppendTo(nil), private...),
	}
}
