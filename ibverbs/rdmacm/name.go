package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// DialName is Dial to "host:port", where host is a name or an address, one of IPv6
// in brackets and with a zone if it is link-local ("[fe80::1%eth0]:7471"), and port
// a number or the name of a service. Without a host it is this one.
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
	const op = "rdma_resolve_addr"
	addrs, err := lookup(ctx, cfg.Resolver, address, loopbacks)
	if err != nil {
		return nil, nameError(ctx, op, address, err)
	}
	addrs = ofFamily(addrs, cfg.LocalAddr.Addr())
	if len(addrs) == 0 {
		return nil, nameError(ctx, op, address, fmt.Errorf("no address of the family of %s", cfg.LocalAddr.Addr()))
	}
	if addrs[0].Port() == 0 {
		return nil, noPort(address)
	}
	var failures []error
	for i, addr := range addrs {
		conn, err := dialShare(ctx, vctx, addr, cfg, len(addrs)-i)
		if err == nil {
			return conn, nil
		}
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, "rdma_connect", address, err, "a peer answered")
		}
		failures = append(failures, err)
	}
	if len(failures) == 1 {
		return nil, failures[0]
	}
	return nil, errors.Join(failures...)
}

// leastShare is what an address is given if there is that much time.
const leastShare = 2 * time.Second

// dialShare is Dial with its share of the time for as many addresses as are left.
func dialShare(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, cfg *ConnConfig, left int) (*Conn, error) {
	deadline, limited := ctx.Deadline()
	if !limited || left == 1 {
		return Dial(ctx, vctx, addr, cfg)
	}
	share := max(time.Until(deadline)/time.Duration(left), leastShare)
	one, cancel := context.WithTimeout(ctx, share)
	defer cancel()
	conn, err := Dial(one, vctx, addr, cfg)
	if err != nil && one.Err() != nil && ctx.Err() == nil {
		err = &ibverbs.Error{Op: "rdma_connect", Object: addr.String(), Err: err}
	}
	return conn, err
}

// ListenName is Listen at "host:port", as DialName takes it. Without a host, or with
// "*", it is every address that the system has. Of a name's addresses it is the first
// that is the system's.
func ListenName(ctx context.Context, vctx *ibverbs.Context, address string, cfg *ListenConfig) (*Listener, error) {
	if cfg == nil {
		cfg = &ListenConfig{}
	}
	addrs, err := lookup(ctx, cfg.Resolver, address, wildcards)
	if err != nil {
		return nil, nameError(ctx, "rdma_bind_addr", address, err)
	}
	var failures []error
	for _, addr := range addrs {
		l, err := Listen(ctx, vctx, addr, cfg)
		if err == nil {
			return l, nil
		}
		if ctx.Err() != nil {
			return nil, gaveUp(ctx, "rdma_listen", address, err, "listening began")
		}
		failures = append(failures, err)
	}
	if len(failures) == 1 {
		return nil, failures[0]
	}
	return nil, errors.Join(failures...)
}

// What no host stands for, connecting and listening. The second of each is for
// systems without IPv6, or devices.
var (
	loopbacks = []netip.Addr{netip.IPv6Loopback(), netip.AddrFrom4([4]byte{127, 0, 0, 1})}
	wildcards = []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()}
)

// unsplit adds to err, why address is not "host:port", what to do if it is an IPv6 address.
func unsplit(address string, err error) error {
	if addr, parsed := netip.ParseAddr(address); parsed == nil && addr.Is6() {
		return fmt.Errorf("%w: an address of IPv6 before a port needs brackets, as in [::1]:7471", err)
	}
	return err
}

// lookup returns the addresses of "host:port", at least one.
func lookup(ctx context.Context, r *net.Resolver, address string, none []netip.Addr) ([]netip.AddrPort, error) {
	if r == nil {
		r = net.DefaultResolver
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, unsplit(address, err)
	}
	port, err := r.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, err
	}
	addrs := none
	if host != "" && host != "*" {
		if addrs, err = addrsOf(ctx, r, host); err != nil {
			return nil, err
		}
	}
	out := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		out[i] = netip.AddrPortFrom(a.Unmap(), uint16(port))
	}
	return out, nil
}

// addrsOf is Resolver.LookupNetIP, which forgets the zones of addresses.
func addrsOf(ctx context.Context, r *net.Resolver, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a}, nil
	}
	ips, err := r.LookupIPAddr(ctx, host)
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, ip := range ips {
		if a, ok := netip.AddrFromSlice(ip.IP); ok {
			out = append(out, a.Unmap().WithZone(ip.Zone))
		}
	}
	if len(out) == 0 {
		return nil, &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true}
	}
	return out, nil
}

// ofFamily keeps the addresses that can be connected to from local.
func ofFamily(addrs []netip.AddrPort, local netip.Addr) []netip.AddrPort {
	if !local.IsValid() {
		return addrs
	}
	var out []netip.AddrPort
	for _, a := range addrs {
		if a.Addr().Is4() == local.Unmap().Is4() {
			out = append(out, a)
		}
	}
	return out
}

// nameError names an address that did not come to anything.
func nameError(ctx context.Context, op, address string, err error) error {
	if ctx.Err() != nil {
		return gaveUp(ctx, op, address, err, "the name was resolved")
	}
	return &ibverbs.Error{Op: op, Object: address, Err: err}
}

// gaveUp is err, if it says that ctx has ended, and otherwise an error that says so.
func gaveUp(ctx context.Context, op, address string, err error, until string) error {
	var e *ibverbs.Error
	if errors.As(err, &e) && errors.Is(err, ctx.Err()) {
		return err
	}
	return object.GaveUp(ctx, op, address, ctx.Err(), until)
}
