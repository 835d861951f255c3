package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// settle is how long the client waits before its first message. From siw's reply to the connection
// request until its accept call returns, siw does not read what arrives, and later reads it only
// when more arrives. The engine's first message could be so fast that the server never sees it.
const settle = 100 * time.Millisecond

// ping is the client.
func (c *pingCmd) ping(ctx context.Context, out *output, p *pinger, addr netip.AddrPort, f *figures) error {
	f.Role, f.Peer, f.Size = "client", addr.String(), c.Size
	dialCtx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	conn, err := rdmacm.Dial(dialCtx, p.vctx, addr, p.config(c.Size))
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", addr, c.whyNot(dialCtx, err))
	}
	p.use(conn)
	select {
	case <-time.After(settle):
	case <-ctx.Done():
	}
	for n := range c.Count {
		began := time.Now()
		if err := p.pingOnce(ctx, n); err != nil {
			return fmt.Errorf("ping %d: %w", n, err)
		}
		f.took(time.Since(began))
		if c.Verbose {
			fmt.Fprintf(out, "ping data: %s\n", text(p.sink.Bytes()))
		}
	}
	return p.disconnect(ctx)
}

// whyNot adds advice to the error of a failed Dial.
func (c *pingCmd) whyNot(dialCtx context.Context, err error) error {
	var rejected *rdmacm.RejectedError
	switch {
	case errors.Is(dialCtx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("no answer for %v (--timeout)", c.Timeout)
	case errors.As(err, &rejected) && len(rejected.PrivateData) == 0:
		return fmt.Errorf("a server of ping is needed there (%s ping --listen ADDR:PORT, or rping -s): %w", name, err)
	case rejected != nil && load.Printable(rejected.PrivateData):
		return fmt.Errorf("the server says %q, and has to be one of ping: %w", rejected.PrivateData, err)
	}
	return err
}

// pingOnce sends the server the address of our data, which the server reads, and then the address
// of our sink, to which the server writes what it has read.
func (p *pinger) pingOnce(ctx context.Context, n int) error {
	fillPing(p.data.Bytes(), n)
	clear(p.sink.Bytes())
	if err := p.tell(ctx, infoOf(p.data)); err != nil {
		return err
	}
	if _, err := p.hear(ctx); err != nil {
		return fmt.Errorf("the server has to read our data: %w", err)
	}
	if err := p.tell(ctx, infoOf(p.sink)); err != nil {
		return err
	}
	if _, err := p.hear(ctx); err != nil {
		return fmt.Errorf("the server has to write the data back: %w", err)
	}
	// The C server writes back the text with its NUL; our text fills the whole buffer.
	if !bytes.Equal(p.data.Bytes(), p.sink.Bytes()) {
		return errors.New("what came back is not what was sent; the server has to be govs-verbs-test ping --listen, " +
			"or rping -s")
	}
	return nil
}

// disconnect ends the connection and waits for its end.
func (p *pinger) disconnect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	if err := p.conn.Disconnect(); err != nil {
		return err
	}
	return p.conn.Wait(ctx)
}
