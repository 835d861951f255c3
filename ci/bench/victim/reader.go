package victim

import (
	"errors"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// readSize is the length of a Read: the whole region.
const readSize = 16 << 20

// drainSize is how much is read from a socket at a time. It is small, so that the victim's
// client gets the CPU soon if the two share one.
const drainSize = 64 << 10

// asker keeps as many Reads under way as the server grants.
type asker struct {
	l   *link
	msn uint32
}

// requests returns n Read Requests.
func (a *asker) requests(n int) []byte {
	var b []byte
	g := a.l.grant
	for range n {
		f := rawpeer.ReadRequest(a.msn, rdmap.ReadRequest{
			SinkSTag: 1, SinkTO: 0, Size: min(readSize, g.sourceSize),
			SourceSTag: g.sourceKey, SourceTO: g.source,
		})
		b = append(b, f.Octets(true)...)
		a.msn++
	}
	return b
}

var errTerminated = errors.New("the server sent a Terminate")

// read is the fast reader.
func (h *hostile) read(l *link) error {
	a := &asker{l, ddp.FirstMSN}
	if err := h.ask(a, l.ird); err != nil {
		return err
	}
	return h.drain(l, func(answered int) error { return h.ask(a, answered) })
}

// drain reads until the connection ends, and calls answered with the number of Reads that each
// piece completes.
func (h *hostile) drain(l *link, answered func(n int) error) error {
	var s skimmer
	s.skim(l.in)
	for buf := make([]byte, drainSize); ; {
		n, err := l.Read(buf)
		h.counts.received.Add(uint64(n))
		if err != nil {
			return err
		}
		reads := s.skim(buf[:n])
		if s.terminated {
			h.counts.termSeen.Add(1)
			return errTerminated
		}
		h.counts.reads.Add(uint64(reads))
		if err := answered(reads); err != nil {
			return err
		}
	}
}

// ask sends n Read Requests.
func (h *hostile) ask(a *asker, n int) error {
	if n == 0 {
		return nil
	}
	h.counts.requests.Add(uint64(n))
	return h.write(a.l, a.requests(n), n)
}

// skimmer reads the first bytes of each FPDU of a stream without Markers, and nothing else. Its
// zero value is at the beginning of an FPDU.
type skimmer struct {
	head       [headLen]byte
	have       int // bytes in head
	skip       int // bytes of the FPDU that are still to come
	terminated bool
}

// headLen is the number of bytes of an FPDU up to RDMAP's control field: ULPDU_Length, and one
// control byte each of DDP and RDMAP.
const headLen = mpa.HeaderLen + 2

// lastFlag is the L bit of DDP's control byte.
const lastFlag = 0x40

// skim reads the next bytes, and returns how many of the FPDUs whose headers they complete are the
// last of a Read Response.
func (s *skimmer) skim(b []byte) (answered int) {
	for len(b) > 0 {
		if s.skip > 0 {
			n := min(s.skip, len(b))
			s.skip -= n
			b = b[n:]
			continue
		}
		n := copy(s.head[s.have:], b)
		s.have += n
		b = b[n:]
		if s.have < headLen {
			return answered
		}
		s.have = 0
		_, fpduLen, _ := mpa.ParseHeader(s.head[:])
		s.skip = fpduLen - headLen
		switch rdmap.Opcode(s.head[3] & 0x0f) {
		case rdmap.OpReadResponse:
			if s.head[2]&lastFlag != 0 {
				answered++
			}
		case rdmap.OpTerminate:
			s.terminated = true
		}
	}
	return answered
}
