package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// errLeft says that the client has ended the connection.
var errLeft = errors.New("the client has left")

// serve is the server, for one client.
func (c *pingCmd) serve(ctx context.Context, out *output, p *pinger, addr netip.AddrPort, f *figures) error {
	f.Role = "server"
	l, err := rdmacm.Listen(ctx, p.vctx, addr, nil)
	if err != nil {
		return unable(fmt.Errorf("listening on %s: %w", addr, err))
	}
	defer l.Close()
	fmt.Fprintf(out.errors, "listening on %s\n", l.Addr())
	req, err := l.Accept(ctx)
	if err != nil {
		return fmt.Errorf("waiting for a client: %w", err)
	}
	f.Peer = req.RemoteAddr().String()
	acceptCtx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	// The client's size is not known before its first message.
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

// serveOnce reads the client's data and writes it to where the client wants it.
// It returns the data, which stay valid until the next call. The error is
// errLeft if the client ended the connection between two pings.
func (p *pinger) serveOnce(ctx context.Context) ([]byte, error) {
	from, err := p.hear(ctx)
	if p.left(err) {
		return nil, errLeft
	}
	if err != nil {
		return nil, err
	}
	if from.Size == 0 || from.Size > maxPing {
		return nil, fmt.Errorf("the client's data has %d octets; rping takes up to %d", from.Size, maxPing)
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
		return nil, fmt.Errorf("the client's sink has %d octets, its data had %d", to.Size, from.Size)
	}
	wr.Opcode, wr.RemoteAddr, wr.RKey = ibverbs.WRRDMAWrite, to.Addr, to.Key
	if err := p.do(ctx, wr); err != nil {
		return nil, fmt.Errorf("writing the client's data back: %w", err)
	}
	return p.data.Bytes()[:from.Size], p.tell(ctx, pingInfo{})
}
