package victim

import (
	"context"
	"time"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// The receive buffer of a slow link, how much a peer reads from it at a time, and how often.
const (
	slowBuffer = 4096
	slowBite   = 1024
	slowPause  = 20 * time.Millisecond
)

// slow keeps as many Reads under way as it may. Peers with an even index read the answers slowly,
// the others read nothing.
func (h *hostile) slow(ctx context.Context, l *link, index int) error {
	a := &asker{l, ddp.FirstMSN}
	if err := h.ask(a, l.ird); err != nil {
		return err
	}
	for buf := make([]byte, slowBite); ctx.Err() == nil; pause(ctx, slowPause) {
		if index%2 == 1 {
			continue
		}
		n, err := l.Read(buf)
		h.counts.received.Add(uint64(n))
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}
