package figures

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// idleStreams are streams over which an octet went each way, and nothing since.
type idleStreams struct {
	listener *rsocket.Listener
	over     chan struct{} // closed when no more connections are accepted

	mu    sync.Mutex
	conns []*rsocket.Conn
}

// do has a server listen, or a client have n streams.
func (i *idleStreams) do(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, n int) (
	netip.AddrPort, error,
) {
	if err := mayOpen(files); err != nil {
		return addr, err
	}
	if n == 0 {
		return i.listen(ctx, vctx, addr)
	}
	for len(i.conns) < n {
		c, err := rsocket.Dial(ctx, vctx, "tcp", addr.String())
		if err != nil {
			return addr, fmt.Errorf("stream %d: %w", len(i.conns)+1, err)
		}
		i.add(c)
		if _, err := c.Write([]byte{1}); err != nil {
			return addr, err
		}
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			return addr, err
		}
	}
	return addr, nil
}

func (i *idleStreams) listen(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort) (
	netip.AddrPort, error,
) {
	l, err := rsocket.Listen(ctx, vctx, "tcp", addr.String())
	if err != nil {
		return addr, err
	}
	i.listener, i.over = l, make(chan struct{})
	go func() {
		defer close(i.over)
		for {
			c, err := l.AcceptContext(ctx)
			if err != nil {
				return // closed, or the client gets the error
			}
			i.add(c)
			b := make([]byte, 1)
			if _, err := io.ReadFull(c, b); err == nil {
				_, _ = c.Write(b) // the client waits for it
			}
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort(), nil
}

func (i *idleStreams) add(c *rsocket.Conn) {
	i.mu.Lock()
	i.conns = append(i.conns, c)
	i.mu.Unlock()
}

func (i *idleStreams) close() {
	if i.listener != nil {
		_ = i.listener.Close()
		<-i.over
	}
	for _, c := range i.conns {
		_ = c.Close()
	}
}

// idleStreamsOf measures the memory of idle streams between two processes made for it. The value is
// that of one stream at the end that needs more, in KiB.
func (r *runner) idleStreamsOf(ctx context.Context, m measure) (s Sample) {
	p, err := startPair(ctx, r.Config, false)
	if err != nil {
		return Sample{Error: err.Error()}
	}
	defer func() {
		if err := p.close(); err != nil && s.Error == "" {
			s = Sample{Error: err.Error()}
		}
	}()
	at, err := p.server.order(ctx, order{Idle: new(int), Over: m.Device,
		Addr: netip.AddrPortFrom(r.addr(*m.Device), 0)})
	if err != nil {
		return Sample{Error: "server: " + err.Error()}
	}
	grow := func(n int) (mem [2]memory, err error) {
		if _, err := p.client.order(ctx, order{Idle: &n, Over: m.Device, Addr: at.Addr}); err != nil {
			return mem, err
		}
		return p.memory(ctx)
	}
	before, err := grow(1) // the first needs more than each further one
	if err != nil {
		return Sample{Error: err.Error()}
	}
	after, err := grow(1 + m.Idle)
	if err != nil {
		return Sample{Error: err.Error()}
	}
	most := max(int64(after[0].Resident-before[0].Resident),
		int64(after[1].Resident-before[1].Resident))
	return Sample{Value: float64(most) / kib / float64(m.Idle)}
}
