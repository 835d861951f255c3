package fuzz

import (
	"encoding/binary"
	"path"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A segment is one FPDU of the stream, as its length fields divide it.
type segment struct {
	h        ddp.Header
	op       rdmap.Opcode
	payload  []byte
	read     *rdmap.ReadRequest
	short    bool // no room for a header
	crcWrong bool
	end      int // where the next begins
	pad      int
}

// stream is a sequence as a receiver sees it.
type stream struct {
	request  []byte
	crc      bool // the Request has C
	reads    int
	cuts     []int
	segments []*segment
	cut      bool // the stream ends inside of an FPDU
}

// read decodes a sequence.
func (s *Sequence) read() *stream {
	out := &stream{request: s.Request, reads: s.Reads, cuts: s.Cuts}
	f, _, err := mpa.ParseFrame(s.Request, mpa.KindRequest)
	out.crc = err == nil && f.CRC
	bytes := s.stream(canonical())
	for at := 0; at < len(bytes); {
		n, length, ok := mpa.ParseHeader(bytes[at:])
		if !ok || at+length > len(bytes) {
			out.cut = true
			break
		}
		b := bytes[at : at+length]
		at += length
		seg := &segment{end: at, pad: mpa.PadLen(n)}
		body := b[:length-mpa.CRCLen]
		seg.crcWrong = mpa.CRC(0, body) != binary.LittleEndian.Uint32(b[len(body):])
		h, payload, err := ddp.Parse(b[mpa.HeaderLen : mpa.HeaderLen+n])
		seg.h, seg.payload, seg.short = h, payload, err != nil
		seg.op = rdmap.ParseControl(h.ULPCtl).Opcode
		if !h.Tagged && seg.op == rdmap.OpReadRequest {
			if r, err := rdmap.ParseReadRequest(payload); err == nil {
				seg.read = &r
			}
		}
		out.segments = append(out.segments, seg)
	}
	return out
}

// Explain returns the note that explains each difference between the engine and siw; "" for one
// that nothing explains.
func Explain(s *Sequence, differences []Difference) []string {
	stream := s.read()
	out := make([]string, len(differences))
	for i, d := range differences {
		for _, r := range rules {
			if matches(r.key, d.Key) && matches(r.a, d.A) && matches(r.b, d.B) &&
				(r.when == nil || r.when(stream)) {
				out[i] = r.note
				break
			}
		}
	}
	return out
}

// matches reports whether a text matches a pattern of a rule.
func matches(pattern, text string) bool {
	ok, err := path.Match(pattern, text)
	return pattern == "" || err == nil && ok
}
