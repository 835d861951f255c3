//go:build linux

package transport

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// sockaddrOf converts an address, and returns the family of the socket that it is for.
func sockaddrOf(a netip.AddrPort) (unix.Sockaddr, int, error) {
	addr := a.Addr().Unmap()
	if addr.Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: addr.As4()}, unix.AF_INET, nil
	}
	sa := &unix.SockaddrInet6{Port: int(a.Port()), Addr: addr.As16()}
	if zone := addr.Zone(); zone != "" {
		index, err := zoneIndex(zone)
		if err != nil {
			return nil, 0, fmt.Errorf("zone of %s: %w", a, err)
		}
		sa.ZoneId = index
	}
	return sa, unix.AF_INET6, nil
}

func zoneIndex(zone string) (uint32, error) {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, fmt.Errorf("%q: %w", zone, syscall.ENODEV)
	}
	return uint32(ifi.Index), nil
}

// addrPortOf is the inverse. It returns an IPv4 address for one that a dual-stack socket reports as
// IPv6.
func addrPortOf(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		addr := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.ZoneId != 0 && addr.Is6() {
			addr = addr.WithZone(zoneName(sa.ZoneId))
		}
		return netip.AddrPortFrom(addr, uint16(sa.Port))
	}
	return netip.AddrPort{}
}

func zoneName(index uint32) string {
	if ifi, err := net.InterfaceByIndex(int(index)); err == nil {
		return ifi.Name
	}
	return strconv.FormatUint(uint64(index), 10)
}

func opError(op string, addr netip.AddrPort, err error) error {
	return fmt.Errorf("%s %s: %w", op, addr, err)
}
