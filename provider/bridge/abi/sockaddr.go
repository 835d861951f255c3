package abi

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
)

// Address families of Linux.
const (
	FamilyUnspec = 0
	FamilyINET   = 2
	FamilyINET6  = 10
	FamilyIB     = 27
)

// Sizes of addresses, in bytes.
const (
	SizeofSockaddrIn  = 16
	SizeofSockaddrIn6 = 28
)

// Sockaddr is struct sockaddr_in6; it may also hold a sockaddr_in.
type Sockaddr [SizeofSockaddrIn6]uint8

// SockaddrStorage is struct __kernel_sockaddr_storage.
type SockaddrStorage [128]uint8

// Family returns the address family.
func (a *Sockaddr) Family() int { return family(a[:]) }

// Family returns the address family.
func (a *SockaddrStorage) Family() int { return family(a[:]) }

// AddrPort returns the address: the zero AddrPort for FamilyUnspec, and an error for a family other
// than IPv4 and IPv6.
func (a *Sockaddr) AddrPort() (netip.AddrPort, error) { return addrPort(a[:]) }

// AddrPort returns the address: the zero AddrPort for FamilyUnspec, and an error for a family other
// than IPv4 and IPv6.
func (a *SockaddrStorage) AddrPort() (netip.AddrPort, error) { return addrPort(a[:]) }

// Set sets the address and returns its size in bytes. The zero AddrPort becomes FamilyUnspec with
// size 0. The zone of an IPv6 address must be the number of an interface.
func (a *Sockaddr) Set(ap netip.AddrPort) int {
	clear(a[:])
	return set(a[:], ap)
}

// Set sets the address and returns its size in bytes, as Sockaddr.Set does.
func (a *SockaddrStorage) Set(ap netip.AddrPort) int {
	clear(a[:])
	return set(a[:], ap)
}

func family(b []byte) int { return int(binary.NativeEndian.Uint16(b)) }

func addrPort(b []byte) (netip.AddrPort, error) {
	port := binary.BigEndian.Uint16(b[2:])
	switch family(b) {
	case FamilyUnspec:
		return netip.AddrPort{}, nil
	case FamilyINET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), nil
	case FamilyINET6:
		addr := netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 {
			addr = addr.WithZone(strconv.FormatUint(uint64(scope), 10))
		}
		return netip.AddrPortFrom(addr, port), nil
	}
	return netip.AddrPort{}, fmt.Errorf("address family %d is neither AF_INET (2) nor AF_INET6 (10)", family(b))
}

func set(b []byte, ap netip.AddrPort) int {
	addr := ap.Addr()
	if !addr.IsValid() {
		return 0
	}
	binary.BigEndian.PutUint16(b[2:], ap.Port())
	if addr.Is4() {
		binary.NativeEndian.PutUint16(b, FamilyINET)
		copy(b[4:], addr.AsSlice())
		return SizeofSockaddrIn
	}
	binary.NativeEndian.PutUint16(b, FamilyINET6)
	copy(b[8:], addr.AsSlice())
	scope, _ := strconv.ParseUint(addr.Zone(), 10, 32) // a zone that is a name becomes 0
	binary.NativeEndian.PutUint32(b[24:], uint32(scope))
	return SizeofSockaddrIn6
}
