// Package rawtcp is what the workloads of package load are compared with: the
// same without RDMA, over TCP as fast as Go can do it. Each operation is one
// write of Size octets; the receiver reads into one buffer.
//
// Spinning ends make raw non-blocking system calls without pause, outside of the
// Go scheduler's sight. Blocking ones use a net.Conn.
package rawtcp

import (
	"context"
	"errors"
	"net/netip"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// The workloads. Of a load.Spec they use Size, Iters or Duration, Warmup, QPs
// (BW: connections, written to in turn) and Poll.
const (
	BW  load.Op = "tcp-bw"  // one write per message; the time ends when the receiver says that it has all
	Lat load.Op = "tcp-lat" // ping-pong
)

// Server serves clients, one after another.
type Server struct{}

// Listen makes a server at addr, whose port may be 0. cong is the sockets'
// TCP_CONGESTION, empty for the system's.
func Listen(ctx context.Context, addr netip.AddrPort, cong string) (*Server, error) {
	return nil, errors.ErrUnsupported
}

// Addr returns the address that the server listens at.
func (s *Server) Addr() netip.AddrPort { return netip.AddrPort{} }

// Serve serves n clients one after another, each until it closes; with n == 0 it
// goes on until ctx ends.
func (s *Server) Serve(ctx context.Context, n int) error { return errors.ErrUnsupported }

// Close ends listening. Call it after Serve.
func (s *Server) Close() error { return nil }

// Client is the end that decides what is done. Its methods are for one goroutine.
type Client struct{}

// Dial connects to a server.
func Dial(ctx context.Context, addr netip.AddrPort, cong string) (*Client, error) {
	return nil, errors.ErrUnsupported
}

// Run does one run. After an error the client is good for Close only.
func (c *Client) Run(ctx context.Context, spec load.Spec) (load.Result, error) {
	return load.Result{}, errors.ErrUnsupported
}

// Close ends all connections.
func (c *Client) Close() error { return nil }
