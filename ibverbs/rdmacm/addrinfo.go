package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
)

// AddrInfoHints says which addresses [GetAddrInfo] returns. Nil is the zero value.
type AddrInfoHints struct {
	// Passive requests addresses to listen at (RAI_PASSIVE): no host, or "*", is every address of
	// the system. Otherwise no host, and 0.0.0.0 or ::, is this system's loopback address.
	Passive bool

	// Network chooses the family of the addresses, as package net names it: "tcp4" or "tcp6". Empty
	// or "tcp" is both.
	Network string

	// Resolver resolves the names; nil means net.DefaultResolver.
	Resolver *net.Resolver
}

// GetAddrInfo returns the addresses of "host:port", at least one, in the resolver's order
// (rdma_getaddrinfo). host is a name or an address. An IPv6 address is in brackets, with a zone if
// it is link-local ("[fe80::1%eth0]:7471"). port is a number or the name of a service. IPv4
// addresses in IPv6 form ("[::ffff:192.0.2.1]:7471") are returned as IPv4.
//
// The error is an [*ibverbs.Error] that names address. It contains a [*net.DNSError] for a name
// that cannot be resolved, a [net.UnknownNetworkError] for an unknown Network, and EINVAL for an
// address of another form.
func GetAddrInfo(ctx context.Context, address string, hints *AddrInfoHints) ([]netip.AddrPort, error) {
	if hints == nil {
		hints = &AddrInfoHints{}
	}
	addrs, err := hints.lookup(ctx, address)
	if err != nil {
		return nil, nameError(ctx, "rdma_getaddrinfo", address, err)
	}
	return addrs, nil
}

func (h *AddrInfoHints) lookup(ctx context.Context, address string) ([]netip.AddrPort, error) {
	r := h.Resolver
	if r == nil {
		r = net.DefaultResolver
	}
	switch h.Network {
	case "", "tcp", "tcp4", "tcp6":
	default:
		return nil, net.UnknownNetworkError(h.Network)
	}
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return nil, unsplit(address, err)
	}
	port, err := r.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, fmt.Errorf("the port has to be a number up to 65535, or a name in /etc/services: %w", err)
	}
	all := []netip.Addr{netip.IPv6Unspecified(), netip.IPv4Unspecified()} // IPv4 where there is no IPv6
	if host != "" && (host != "*" || !h.Passive) {
		if all, err = addrsOf(ctx, r, host); err != nil {
			return nil, err
		}
	}
	var out []netip.AddrPort
	for _, a := range all {
		if a = a.Unmap(); h.Network == "tcp4" && !a.Is4() || h.Network == "tcp6" && a.Is4() {
			continue
		}
		if a.IsUnspecified() && !h.Passive {
			a = loopbackLike(a)
		}
		out = append(out, netip.AddrPortFrom(a, uint16(port)))
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("it has no address of network %s, but %s; leave AddrInfoHints.Network out for any",
			h.Network, all[0])
	}
	return out, nil
}

// loopbackLike returns the loopback address of the family of a.
func loopbackLike(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	return netip.IPv6Loopback()
}

// unsplit says why address is not "host:port", from the error of net.SplitHostPort, and how to
// write it.
func unsplit(address string, err error) error {
	why := err.Error()
	if e, ok := errors.AsType[*net.AddrError](err); ok {
		why = e.Err // without the address, which nameError adds
	}
	if addr, parsed := netip.ParseAddr(address); parsed == nil && addr.Is6() {
		return fmt.Errorf("%s; an IPv6 address before a port needs brackets, as in [::1]:7471: %w", why, syscall.EINVAL)
	}
	return fmt.Errorf("%s; write host:port, or :port for this host: %w", why, syscall.EINVAL)
}

// addrsOf returns the addresses of host with their zones, which Resolver.LookupNetIP drops.
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

// ofFamily returns the addresses that have local's family, all if local is zero.
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

// nameError returns err with the address that could not be resolved.
func nameError(ctx context.Context, op, address string, err error) error {
	if ctx.Err() != nil {
		return gaveUp(ctx, op, address, err, "the name was resolved")
	}
	return &ibverbs.Error{Op: op, Object: address, Err: err}
}
