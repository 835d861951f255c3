package frames

import (
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Format is how the FPDUs of a connection are laid out, and how TCP cuts them. The stream owns it,
// and the batch that is lent to the stream refers to it: both are guarded by the stream's tx.mu.
// SetEMSS changes EMSS and MULPDU, each FPDU with Markers changes framer, and nothing changes the
// other fields.
type Format struct {
	CRC, Markers bool
	rdmac        bool       // version 0 of DDP and RDMAP, only on streams with Markers
	EMSS         int        // bytes of a full TCP segment
	MULPDU       int        // bytes of the longest ULPDU whose FPDU fits into one
	framer       mpa.Framer // knows where the next Marker is
}

// NewFormat returns the Format of a connection. SetEMSS sets its EMSS.
func NewFormat(crc, markers, rdmac bool) Format {
	return Format{CRC: crc, Markers: markers, rdmac: rdmac, framer: mpa.NewFramer(markers, crc)}
}

// SetVersion gives h, a header of package rdmap, the connection's version of DDP and RDMAP. What
// the package sends has that version. So only a header that a Terminate quotes needs SetVersion.
func (f *Format) SetVersion(h *ddp.Header) {
	if f.rdmac {
		rdmap.SetRDMAC(h)
	}
}

// Terminate returns the FPDU of a Terminate, which is sent after the FPDUs of all batches. payload
// is what rdmap.Terminate.AppendTo makes.
func (f *Format) Terminate(payload []byte) []byte {
	h := rdmap.TerminateHeader()
	f.SetVersion(&h)
	fpdu, err := f.framer.AppendFPDU(nil, h.AppendTo(nil), payload)
	if err != nil {
		panic("frames: " + err.Error()) // a Terminate is short
	}
	return fpdu
}

// SetEMSS notes that TCP's segments have emss bytes, and calculates the MULPDU from that.
func (f *Format) SetEMSS(emss int) { f.EMSS, f.MULPDU = emss, mpa.MULPDU(emss, f.Markers) }

// CutsAnywhere reports whether TCP may cut anywhere, so that records need no limits. Without CRC no
// receiver fails at such a cut. Only a loopback has segments longer than the longest FPDU, and
// there is no RNIC that is faster if FPDUs begin a segment. As a record, each FPDU would be a
// packet of its own, which does not fill a buffer of TCP.
//
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
func (f *Format) CutsAnywhere() bool { return !f.CRC && f.EMSS > mpa.FPDULen(mpa.MaxULPDU) }
