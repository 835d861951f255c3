package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// errLeft reports that the client has ended the connection.
var errLeft = errors.New("the client has left")

// listen listens, and prints the address.
func (c *pingCmd) listen(ctx context.Context, out *output, vctx *ibverbs.Context,
	addr netip.AddrPort) (*rdmacm.Listener, error) {
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	if err != nil {
		return nil, unable(fmt.Errorf("listening on %s: %w", addr, err))
	}
	fmt.Fprintf(out.errors, "listening on %s\n", l.Addr())
	return l, nil
}

// serve serves one client.
func (c *pingCmd) serve(ctx context.Context, out *output, p *pinger, addr netip.AddrPort, f *figures) error {
	f.Role = "server"
	l, err := c.listen(ctx, out, p.vctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	req, err := l.Accept(ctx)
	if err != nil {
		return fmt.Errorf("waiting for a client: %w", err)
	}
	return c.serveClient(ctx, out, p, req, f)
}

// mostClients limits the clients of a persistent server at a time, because each has 130 KiB of
// registered memory. Others wait until one has left.
const mostClients = 64

// serveAll is the persistent server. If a client fails, it prints a line on stderr. The output of
// concurrent clients consists of whole lines.
func (c *pingCmd) serveAll(ctx context.Context, out *output, vctx *ibverbs.Context,
	addr netip.AddrPort) error {
	l, err := c.listen(ctx, out, vctx, addr)
	if err != nil {
		return err
	}
	defer l.Close()
	var clients sync.WaitGroup
	defer clients.Wait()
	places := make(chan struct{}, mostClients)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		req, err := l.Accept(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("waiting for a client: %w", err)
		}
		clients.Go(func() {
			defer func() { <-places }()
			if err := c.serveOneOfMany(ctx, out, vctx, req); err != nil && ctx.Err() == nil {
				fmt.Fprintf(out.errors, "%v\n", err)
			}
		})
	}
}

// serveOneOfMany serves a client with its own PD and queues.
func (c *pingCmd) serveOneOfMany(ctx context.Context, out *output, vctx *ibverbs.Context,
	req *rdmacm.Request) (err error) {
	p, err := newPinger(vctx, c.Timeout)
	if err != nil {
		return errors.Join(err, req.Close())
	}
	defer func() { err = errors.Join(err, p.close()) }()
	f := figures{Role: "server", Provider: vctx.Provider(), Device: vctx.Name()}
	if err := c.serveClient(ctx, out, p, req, &f); err != nil {
		return err
	}
	return f.print(out, false)
}

// serveClient accepts a client, and serves it until it leaves.
func (c *pingCmd) serveClient(ctx context.Context, out *output, p *pinger, req *rdmacm.Request,
	f *figures) error {
	f.Peer = req.RemoteAddr().String()
	acceptCtx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	// Only the client's first message shows its size.
	conn, err := req.Accept(acceptCtx, p.config(maxPing))
	if err != nil {
		return fmt.Errorf("accepting %s: %w", f.Peer, err)
	}
	p.use(conn)
	for {
		data, err := p.serveOnce(ctx)
		if errors.Is(err, errLeft) && f.Count > 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("ping %d of %s: %w", f.Count, f.Peer, err)
		}
		f.Count++
		f.Size = len(data)
		if c.Verbose {
			fmt.Fprintf(out, "server ping data: %s\n", text(data))
		}
	}
}

// serveOnce reads the client's data and writes it to the address that the client gives. It returns
// the data, which stay valid until the next call. The error is errLeft if the client ended the
// connection between two pings.
func (p *pinger) serveOnce(ctx context.Context) ([]byte, error) {
	from, err := p.hear(ctx)
	if p.left(err) {
		return nil, errLeft
	}
	if err != nil {
		return nil, err
	}
	if from.Size == 0 || from.Size > maxPing {
		return nil, fmt.Errorf("the client's data has %d bytes; rping takes up to %d", from.Size, maxPing)
	}
	sge, err := p.data.SGE(0, int(from.Size))
	if err != nil {
		return nil, err
	}
	wr := ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{sge}, RemoteAddr: from.Addr, RKey: from.Key}
	if err := p.do(ctx, wr); err != nil {
		return nil, fmt.Errorf("reading the client's data: %w", err)
	}
	if err := p.tell(ctx, pingInfo{}); err != nil {
		return nil, err
	}
	to, err := p.hear(ctx)
	if err != nil {
		return nil, fmt.Errorf("the client has to say where its data is to be written: %w", err)
	}
	if to.Size != from.Size {
		return nil, fmt.Errorf("the client's sink has %d bytes, its data had %d", to.Size, from.Size)
	}
	wr.Opcode, wr.RemoteAddr, wr.RKey = ibverbs.WRRDMAWrite, to.Addr, to.Key
	if err := p.do(ctx, wr); err != nil {
		return nil, fmt.Errorf("writing the client's data back: %w", err)
	}
	return p.data.Bytes()[:from.Size], p.tell(ctx, pingInfo{})
}
