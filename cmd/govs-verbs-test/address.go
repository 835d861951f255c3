package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
)

// checkAddress reports what is wrong with the form of HOST:PORT. A name is looked up later, by
// resolve.
func checkAddress(text string, listen bool) error {
	host, port, err := net.SplitHostPort(text)
	number, portErr := strconv.ParseUint(port, 10, 16)
	if err != nil || host == "" || portErr != nil {
		all := ""
		if listen {
			all = "; 0.0.0.0 or [::] is all addresses"
		}
		return fmt.Errorf("%s: an IP address or a name, and a port are needed, such as 192.0.2.1:7471, "+
			"[2001:db8::1]:7471 or localhost:7471%s", text, all)
	}
	if number == 0 && !listen {
		return fmt.Errorf("%s: port 0 can't be listened on: name a port from 1 to 65535", text)
	}
	return nil
}

// resolve returns the address of HOST:PORT: that of a name is its first one, IPv4 before IPv6.
func resolve(ctx context.Context, text string) (netip.AddrPort, error) {
	if addr, err := netip.ParseAddrPort(text); err == nil {
		return addr, nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return netip.AddrPort{}, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	i := max(0, slices.IndexFunc(addrs, netip.Addr.Is4)) // there is at least one
	return netip.AddrPortFrom(addrs[i], uint16(number)), nil
}
