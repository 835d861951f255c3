package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// checkAddress reports what is wrong with the form of HOST:PORT. resolve looks up names later.
func checkAddress(text string, listen bool) error {
	_, port, err := net.SplitHostPort(text)
	if err != nil || port == "" {
		all := ""
		if listen {
			all = "; 0.0.0.0, [::] or no host is all addresses"
		}
		return fmt.Errorf("%s: an IP address or a name, and a port are needed, such as 192.0.2.1:7471, "+
			"[2001:db8::1]:7471 or localhost:7471%s", text, all)
	}
	number, err := net.LookupPort("tcp", port)
	if err != nil {
		return fmt.Errorf("%s: the port has to be a number up to 65535 or the name of a service: %w", text, err)
	}
	if number == 0 && !listen {
		return fmt.Errorf("%s: port 0 can't be listened on: name a port from 1 to 65535", text)
	}
	return nil
}

// resolve returns the address of HOST:PORT. For a name it is the first one, IPv4 before IPv6.
func resolve(ctx context.Context, text string, listen bool) (netip.AddrPort, error) {
	addrs, err := rdmacm.GetAddrInfo(ctx, text, &rdmacm.AddrInfoHints{Passive: listen})
	if err != nil {
		return netip.AddrPort{}, err
	}
	i := slices.IndexFunc(addrs, func(a netip.AddrPort) bool { return a.Addr().Is4() })
	if i < 0 || addrs[0].Addr().IsUnspecified() {
		i = 0 // :: stands for the addresses of both families
	}
	return addrs[i], nil
}

// hasAddr reports whether addr, an address of ifc without a zone, is the wanted address. The wanted
// zone may be the interface's name or number.
func hasAddr(ifc *net.Interface, addr, wanted netip.Addr) bool {
	if addr.Unmap() != wanted.Unmap().WithZone("") {
		return false
	}
	zone := wanted.Zone()
	return zone == "" || zone == ifc.Name || zone == strconv.Itoa(ifc.Index)
}
