package victim

import (
	"context"
	"io"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// flood makes a connection that ends with a reset: before its Request, after it, or
// after the Reply.
func (h *hostile) flood(ctx context.Context, turn int) error {
	if turn%3 == 0 {
		c, err := h.connect(ctx, socket{})
		if err != nil {
			return err
		}
		return c.Close()
	}
	if turn%3 == 1 {
		c, err := h.connect(ctx, socket{})
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		l := &link{TCPConn: c}
		return l.request()
	}
	l, err := h.open(ctx, socket{})
	if err != nil {
		return err
	}
	return l.Close()
}

// terminate makes a connection that ends with a Terminate, from us or from the server. The server
// sends one after a Write to a region that does not exist.
func (h *hostile) terminate(ctx context.Context, turn int) error {
	l, err := h.open(ctx, socket{})
	if err != nil {
		return err
	}
	defer l.until(ctx)()
	f := rawpeer.WriteMessage(^l.grant.sinkKey, 0, make([]byte, 64))
	if turn%2 == 1 {
		f = rawpeer.TerminateMessage(rdmap.Terminate{
			Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteOperation, Code: iwarp.RDMAPUnspecified,
		})
	}
	if err := h.write(l, f.Octets(true), 1); err != nil {
		return err
	}
	if turn%2 == 1 {
		h.counts.termSent.Add(1)
	}
	return h.toTheEnd(l)
}

// toTheEnd reads until the server ends the connection.
func (h *hostile) toTheEnd(l *link) error {
	_ = l.SetReadDeadline(time.Now().Add(patience))
	var s skimmer
	s.skim(l.in)
	for buf := make([]byte, 4096); ; {
		n, err := l.Read(buf)
		h.counts.received.Add(uint64(n))
		s.skim(buf[:n])
		if err == nil {
			continue
		}
		if s.terminated {
			h.counts.termSeen.Add(1)
		}
		if err == io.EOF {
			return nil
		}
		return err
	}
}
