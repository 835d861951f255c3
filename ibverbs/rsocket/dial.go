package rsocket

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// Dial connects to an rsocket listener at addr over the device of vctx, with the defaults of
// Dialer. [Dialer.DialContext] is for names of hosts.
func Dial(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort) (*Conn, error) {
	return new(Dialer).Dial(ctx, vctx, addr)
}

// Dial connects to an rsocket listener at addr over the device of vctx. The error is a
// [*net.OpError] with the reason in it: ECONNREFUSED where nobody listens, or the listener refuses,
// as one of verbs may; EPROTO where it accepts but is no rsocket; EINVAL where it speaks another
// protocol than iWARP, such as HTTP. ctx counts until Dial returns.
func (d *Dialer) Dial(
	ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort,
) (*Conn, error) {
	limited := ctx
	if d.Timeout > 0 {
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, d.Timeout)
		defer cancel()
	}
	c, err := d.dial(limited, vctx, addr)
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = fmt.Errorf("Timeout of the Dialer, %v, has passed: %w", d.Timeout, err)
		}
		return nil, failedToDial(d.LocalAddr, addr, err)
	}
	return c, nil
}

func (d *Dialer) dial(
	ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort,
) (*Conn, error) {
	if err := supported(vctx); err != nil {
		return nil, err
	}
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

// DialContext returns a function that dials "host:port" for what wants one, such as http.Transport:
//
//	t := &http.Transport{DialContext: d.DialContext(vctx)}
//
// host is a name or an address; the addresses of a name are tried in the order in which the
// resolver gives them. The network may be "tcp", "tcp4" or "tcp6", and chooses among them.
func (d *Dialer) DialContext(
	vctx *ibverbs.Context,
) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		addrs, err := lookup(ctx, network, address)
		if err != nil {
			return nil, &net.OpError{Op: "dial", Net: network, Err: timedOut(err)}
		}
		var all []error
		for _, addr := range addrs {
			c, err := d.Dial(ctx, vctx, addr)
			if err == nil {
				return c, nil
			}
			all = append(all, err)
			if ctx.Err() != nil {
				break
			}
		}
		if len(all) == 1 {
			return nil, all[0]
		}
		return nil, errors.Join(all...)
	}
}

// lookup returns the addresses of "host:port".
func lookup(ctx context.Context, network, address string) ([]netip.AddrPort, error) {
	family := "ip"
	switch network {
	case "tcp":
	case "tcp4":
		family = "ip4"
	case "tcp6":
		family = "ip6"
	default:
		return nil, net.UnknownNetworkError(network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := net.DefaultResolver.LookupPort(ctx, network, service)
	if err != nil {
		return nil, err
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, family, host)
	if err != nil {
		return nil, err
	}
	addrs := make([]netip.AddrPort, len(ips))
	for i, ip := range ips {
		addrs[i] = netip.AddrPortFrom(ip.Unmap(), uint16(port))
	}
	return addrs, nil
}
