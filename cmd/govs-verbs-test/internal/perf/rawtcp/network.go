package rawtcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// Conn is a connection, for control or data.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Listener is what a Network listens with.
type Listener interface {
	net.Listener
	SetDeadline(time.Time) error
}

// A Network makes connections, for control and for data.
type Network interface {
	Listen(ctx context.Context, addr netip.AddrPort) (Listener, error)
	Dial(ctx context.Context, addr netip.AddrPort) (Conn, error)
}

// TCP is the network of TCP. cong is the sockets' TCP_CONGESTION, empty for the system's.
func TCP(cong string) Network { return tcp(cong) }

type tcp string

func (n tcp) Listen(ctx context.Context, addr netip.AddrPort) (Listener, error) {
	cfg := net.ListenConfig{Control: congestion(string(n))} // accepted sockets inherit it
	l, err := cfg.Listen(ctx, "tcp", addr.String())
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

func (n tcp) Dial(ctx context.Context, addr netip.AddrPort) (Conn, error) {
	d := net.Dialer{Control: congestion(string(n))}
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if errors.Is(err, syscall.ECONNREFUSED) {
		return nil, fmt.Errorf("%w; start the server first (the same command with --listen)", err)
	}
	if err != nil {
		return nil, err
	}
	return c.(*net.TCPConn), nil
}

// Streams is the network of rsockets over a device.
func Streams(vctx *ibverbs.Context, cfg rsocket.Config) Network { return streams{vctx, cfg} }

type streams struct {
	vctx *ibverbs.Context
	cfg  rsocket.Config
}

func (n streams) Listen(ctx context.Context, addr netip.AddrPort) (Listener, error) {
	lc := rsocket.ListenConfig{Config: n.cfg}
	return noNil[Listener](lc.Listen(ctx, n.vctx, "tcp", addr.String()))
}

func (n streams) Dial(ctx context.Context, addr netip.AddrPort) (Conn, error) {
	d := rsocket.Dialer{Config: n.cfg}
	return noNil[Conn](d.Dial(ctx, n.vctx, "tcp", addr.String()))
}

// noNil returns v as an interface that is nil after an error.
func noNil[I any, V any](v V, err error) (i I, _ error) {
	if err != nil {
		return i, err
	}
	return any(v).(I), nil
}
