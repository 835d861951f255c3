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

// DialName connects to "host:port", in the form of [GetAddrInfo], as Dial does. No host means this
// host.
//
// DialName tries the addresses of a name one after the other, in the order of cfg.Resolver, until
// one connects. Each but the last gets its share of the time that ctx leaves, but at least 2
// seconds. cfg.Prepare is called again for each address whose attempt gets that far. If
// cfg.LocalAddr has an address, only addresses of its family are tried. The error contains the
// errors of all addresses; for a name that cannot be resolved it contains a *net.DNSError.
//
// Unlike net.Dialer, DialName does not try two families at the same time (RFC 8305). In such a race
// a TCP connection that loses is closed before the peer's program sees it. Here each attempt would
// reach the peer's program, which may accept both and then lose one, and cfg.Prepare would run
// twice concurrently. A program that wants the race can call Dial for each address.
func DialName(ctx context.Context, vctx *ibverbs.Context, address string, cfg *ConnConfig) (*Conn, error) {
	if cfg == nil {
		cfg = &ConnConfig{}
	}
	if _, err := vctx.Query(); err != nil { // fails early, before any name server is asked
		return nil, err
	}
	addrs, err := GetAddrInfo(ctx, address, &AddrInfoHints{Resolver: cfg.Resolver})
	if err != nil {
		return nil, err
	}
	addrs = ofFamily(addrs, cfg.LocalAddr.Addr())
	if len(addrs) == 0 {
		return nil, nameError(ctx, "rdma_resolve_addr", address,
			fmt.Errorf("it has no address of the family of ConnConfig.LocalAddr, %s; leave that out",
				cfg.LocalAddr.Addr()))
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

// ListenName listens at "host:port", in the form of [GetAddrInfo], as Listen does. No host, or "*",
// means every address of the system. Of a name's addresses, ListenName uses the first that belongs
// to the system.
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

// gaveUp returns err if it says that ctx has ended, and otherwise an error that says so.
func gaveUp(ctx context.Context, op, address string, err error, until string) error {
	var e *ibverbs.Error
	if errors.As(err, &e) && errors.Is(err, ctx.Err()) {
		return err
	}
	return object.GaveUp(ctx, op, address, ctx.Err(), until)
}
