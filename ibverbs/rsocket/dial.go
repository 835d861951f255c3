package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/attempt"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// Dial connects to an rsocket listener over the device of vctx, with the defaults of Dialer.
func Dial(ctx context.Context, vctx *ibverbs.Context, network, address string) (*Conn, error) {
	return new(Dialer).Dial(ctx, vctx, network, address)
}

// Dial connects to an rsocket listener over the device of vctx. network and address are in the form
// of [net.Dial]: the network is "tcp", "tcp4" or "tcp6", the address "host:port". host is a name or
// an address. An IPv6 address is in brackets, with a zone if it is link-local. port is a number or
// the name of a service. No host, 0.0.0.0 and :: mean this host. Dial tries the addresses of a name
// one after the other, in the resolver's order; each gets its share of the time that ctx and
// Timeout leave.
//
// The error is a [*net.OpError] that contains the reason, or the errors of all addresses of a name.
// ECONNREFUSED: no program listens, or the listener refuses, as a verbs program may. EPROTO: the
// listener accepts but is not an rsocket. EINVAL: it speaks a protocol other than iWARP, such as
// HTTP. ctx matters only until Dial returns. A nil d is the zero value.
func (d *Dialer) Dial(
	ctx context.Context, vctx *ibverbs.Context, network, address string,
) (*Conn, error) {
	if d == nil {
		d = &Dialer{}
	}
	if err := supported(vctx); err != nil {
		return nil, &net.OpError{Op: "dial", Net: netName, Addr: spelled(address), Err: err}
	}
	limited := ctx
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	explained := func(err error) error {
		if limited.Err() != nil && ctx.Err() == nil {
			return fmt.Errorf("Timeout of the Dialer, %v, has passed: %w", d.Timeout, err)
		}
		return err
	}
	addrs, err := rdmacm.GetAddrInfo(limited, address, &rdmacm.AddrInfoHints{Network: network})
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: netName, Addr: spelled(address), Err: timedOut(explained(err))}
	}
	return attempt.Each(limited, addrs,
		func(share context.Context, addr netip.AddrPort) (*Conn, error) {
			c, err := d.dial(share, vctx, addr)
			if err != nil {
				return nil, failedToDial(d.LocalAddr, addr, explained(err))
			}
			return c, nil
		})
}

func (d *Dialer) dial(
	ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort,
) (*Conn, error) {
	cfg, err := d.Config.settings(vctx)
	if err != nil {
		return nil, err
	}
	p, err := newParts(vctx, cfg)
	if err != nil {
		return nil, err
	}
	cc := p.connConfig()
	cc.NoOpeningWrite = true // the grant of the second half opens the stream
	cc.LocalAddr = d.LocalAddr
	cc.ResponderResources, cc.InitiatorDepth = -1, 1 // as in C
	if p.conn, err = rdmacm.Dial(ctx, vctx, addr, cc); err != nil {
		return nil, errors.Join(err, p.free())
	}
	hello, err := proto.ParseHello(p.conn.PrivateData())
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	c := newConn(p, hello, false)
	c.mu.Lock()
	c.grant() // at once, because the acceptor may not send before it comes
	c.nudge(mostNudges, firstNudge)
	c.mu.Unlock()
	return c, nil
}

// DialContext returns [Dialer.Dial] as a function for users such as http.Transport:
//
//	t := &http.Transport{DialContext: d.DialContext(vctx)}
func (d *Dialer) DialContext(
	vctx *ibverbs.Context,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.Dial(ctx, vctx, network, address)
		if err != nil {
			return nil, err // returning c would make an interface that is not nil
		}
		return c, nil
	}
}
