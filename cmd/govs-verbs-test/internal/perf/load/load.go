package load

import (
	"context"
	"errors"
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
)

// Server serves clients, one after another.
type Server struct{}

// Listen makes a server at addr, whose port may be 0. self is what clients are
// told of this end.
func Listen(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, self End) (*Server, error) {
	return nil, errors.ErrUnsupported
}

// Addr returns the address that the server listens at.
func (s *Server) Addr() netip.AddrPort { return netip.AddrPort{} }

// Serve serves n clients one after another, each until it closes; with n == 0 it
// goes on until ctx ends. A client that comes while another one is served is
// rejected and told why. The error is ctx.Err(), or that of the listener, or of
// the last client that did not end in order.
func (s *Server) Serve(ctx context.Context, n int) error { return errors.ErrUnsupported }

// Close ends listening. Call it after Serve.
func (s *Server) Close() error { return nil }

// Client is the end that decides what is done. Its methods are for one goroutine.
type Client struct{}

// Dial connects to a server. self is what the server is told of this end.
func Dial(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, self End) (*Client, error) {
	return nil, errors.ErrUnsupported
}

// Peer tells what the server is.
func (c *Client) Peer() End { return End{} }

// Run does one run. Connections are kept for the next one if that differs in
// nothing but how long it is. After an error the client is good for Close only.
func (c *Client) Run(ctx context.Context, spec Spec) (Result, error) {
	return Result{}, errors.ErrUnsupported
}

// Close ends all connections.
func (c *Client) Close() error { return nil }
