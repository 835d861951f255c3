package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/attempt"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// DialName is Dial to "host:port", as [GetAddrInfo] takes it. Without a host it is this one.
//
// The addresses of a name are tried one after the other, in the order in which
// cfg.Resolver gives them, until one connects; each but the last has its share of the
// time that ctx leaves, and 2 seconds if that is more. cfg.Prepare is called for
// each that it gets to. If cfg.LocalAddr has an address, only those of its family
// are tried. The error has those of all the addresses; a name that can't be looked
// up is a *net.DNSError.
//
// Unlike net.Dialer it does not try two families at the same time (RFC 8305). A TCP
// connection that loses the race is closed before the peer's program sees it. Here each attempt
// would reach the peer's program, which may accept both and then lose one, and cfg.Prepare would
// run twice at once. A program that wants the race calls Dial for each address itself.
func DialName(ctx context.Context, vctx *ibverbs.Context, address string, cfg *ConnConfig) (*Conn, error) {
	if cfg == nil {
		cfg = &ConnConfig{}
	}
	if _, err := vctx.Query(); err != nil { // before any server is asked
		return nil, err
	}
	addrs, err := GetAddrInfo(ctx, address, &AddrInfoHints{Resolver: cfg.Resolver})
	if err != nil {
		return nil, err
	}
	addrs = ofFamily(addrs, cfg.LocalAddr.Addr())
	if len(addrs) == 0 {
		return nil, nameError(ctx, "rdma_resolve_addr", address,
			fmt.Errorf("no address of the family of %s", cfg.LocalAddr.Addr()))
	}
	if addrs[0].Port() == 0 {
		return nil, noPort(address)
	}
	conn, err := attempt.Each(ctx, addrs, func(share context.Context, addr netip.AddrPort) (*Conn, error) {
		conn, err := Dial(share, vctx, addr, cfg)
		if err != nil && share.Err() != nil && ctx.Err() == nil {
			err = &ibverbs.Error{Op: "rdma_connect", Object: addr.String(), Err: err}
		}
		return conn, err
	})
	if err != nil && ctx.Err() != nil {
		err = gaveUp(ctx, "rdma_connect", address, err, "a peer answered")
	}
	return conn, err
}

// ListenName is Listen at "host:port", as [GetAddrInfo] takes it. Without a host, or with
// "*", it is every address that the system has. Of a name's addresses it is the first
// that is the system's.
func ListenName(ctx context.Context, vctx *ibverbs.Context, address string, cfg *ListenConfig) (*Listener, error) {
	if cfg == nil {
		cfg = &ListenConfig{}
	}
	if _, err := vctx.Query(); err != nil {
		return nil, err
	}
	addrs, err := GetAddrInfo(ctx, address, &AddrInfoHints{Passive: true, Resolver: cfg.Resolver})
	if err != nil {
		return nil, err
	}
	l, err := attempt.Each(ctx, addrs, func(_ context.Context, addr netip.AddrPort) (*Listener, error) {
		return Listen(ctx, vctx, addr, cfg)
	})
	if err != nil && ctx.Err() != nil {
		err = gaveUp(ctx, "rdma_listen", address, err, "listening began")
	}
	return l, err
}

// gaveUp is err, if it says that ctx has ended, and otherwise an error that says so.
func gaveUp(ctx context.Context, op, address string, err error, until string) error {
	var e *ibverbs.Error
	if errors.As(err, &e) && errors.Is(err, ctx.Err()) {
		return err
	}
	return object.GaveUp(ctx, op, address, ctx.Err(), until)
}
