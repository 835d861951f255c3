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

// Dial connects to an rsocket listener over the device of vctx. network and address are those of
// [net.Dial]: the network is "tcp", "tcp4" or "tcp6", the address "host:port", where host is a name
// or an address, one of IPv6 in brackets and with a zone if it is link-local, and port a number or
// the name of a service. Without a host, or with 0.0.0.0 or ::, it is this one. The addresses of a
// name are tried one after the other, in the order in which the resolver returns them; each has its
// share of the time that ctx and Timeout leave.
//
// The error is a [*net.OpError] with the reason in it, or has one for each address of a name:
// ECONNREFUSED where nobody listens, or the listener refuses, as one of verbs may; EPROTO where it
// accepts but is no rsocket; EINVAL where it speaks another protocol than iWARP, such as HTTP. ctx
// counts until Dial returns. A nil d is the zero value.
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
	cc.NoOpeningWrite = true // the grant of the second half is what opens the stream
	cc.LocalAddr = d.LocalAddr
	cc.ResponderResources, cc.InitiatorDepth = -1, 1 // as C asks for
	if p.conn, err = rdmacm.Dial(ctx, vctx, addr, cc); err != nil {
		return nil, errors.Join(err, p.free())
	}
	hello, err := proto.ParseHello(p.conn.PrivateData())
	if err != nil {
		return nil, errors.Join(err, p.close())
	}
	c := newConn(p, hello, false)
	c.mu.Lock()
	c.grant() // at once: until it has come, an acceptor may not send
	c.nudge(mostNudges, firstNudge)
	c.mu.Unlock()
	return c, nil
}

// DialContext returns [Dialer.Dial] as a function for what wants one, such as http.Transport:
//
//	t := &http.Transport{DialContext: d.DialContext(vctx)}
func (d *Dialer) DialContext(
	vctx *ibverbs.Context,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := d.Dial(ctx, vctx, network, address)
		if err != nil {
			return nil, err // c would be an interface that is not nil
		}
		return c, nil
	}
}
