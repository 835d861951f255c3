package victim

import (
	"runtime"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
)

// The length of a Write, and the part of its FPDU that comes one byte at a time. At each of these
// bytes the server must keep or copy the bytes before it.
const (
	dribbleSize = 32 << 10
	dribbleTail = 4 << 10
)

// dribble sends an FPDU one byte at a time.
func (h *hostile) dribble(l *link) error {
	f := rawpeer.WriteMessage(l.grant.sinkKey, l.place, make([]byte, dribbleSize))
	fpdu := f.Octets(true)
	for {
		if err := h.write(l, fpdu[:len(fpdu)-dribbleTail], 0); err != nil {
			return err
		}
		for rest := fpdu[len(fpdu)-dribbleTail:]; len(rest) > 0; rest = rest[1:] {
			if err := h.write(l, rest[:1], 0); err != nil {
				return err
			}
			runtime.Gosched() // the bytes of all peers take turns
		}
		h.counts.fpdus.Add(1)
	}
}
