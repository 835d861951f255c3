package bridge

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// sizeofSockaddrIB is the size of struct sockaddr_ib; the others are offsets in it, in bytes.
const (
	sizeofSockaddrIB = 48
	ibPkey           = 2
	ibGID            = 8
	ibService        = 24
	ibServiceMask    = 32
)

// sizeOfAddress returns the size in bytes of an address of a family, or 0 if rdma_cm does not
// support the family (rdma_addr_size).
func sizeOfAddress(family int) int {
	switch family {
	case abi.FamilyINET:
		return abi.SizeofSockaddrIn
	case abi.FamilyINET6:
		return abi.SizeofSockaddrIn6
	case abi.FamilyIB:
		return sizeofSockaddrIB
	}
	return 0
}

// ip reports whether a family is IPv4 or IPv6.
func ip(family int) bool { return family == abi.FamilyINET || family == abi.FamilyINET6 }

// ipOf returns an address. Only a link-local one has a zone; the kernel ignores the others' zones.
func ipOf(a *abi.SockaddrStorage) netip.AddrPort {
	ap, _ := a.AddrPort()
	if addr := ap.Addr(); addr.Zone() != "" && !addr.IsLinkLocalUnicast() {
		return netip.AddrPortFrom(addr.WithZone(""), ap.Port())
	}
	return ap
}

// setIP sets the address and port of a, and keeps its family and other fields.
func setIP(a *abi.SockaddrStorage, ap netip.AddrPort) {
	addr := ap.Addr()
	switch {
	case !addr.IsValid():
		return
	case a.Family() == abi.FamilyINET6:
		b := addr.As16()
		copy(a[8:24], b[:])
		if addr.Zone() != "" {
			binary.NativeEndian.PutUint32(a[24:], scopeOf(addr.Zone()))
		}
	case addr.Is4() && a.Family() == abi.FamilyINET:
		b := addr.As4()
		copy(a[4:8], b[:])
	}
	binary.BigEndian.PutUint16(a[2:], ap.Port())
}

// scopeOf returns the number of an interface.
func scopeOf(zone string) uint32 {
	if ifi, err := net.InterfaceByName(zone); err == nil {
		return uint32(ifi.Index)
	}
	var a abi.SockaddrStorage // converts only numbers
	a.Set(netip.AddrPortFrom(netip.IPv6LinkLocalAllNodes().WithZone(zone), 0))
	return binary.NativeEndian.Uint32(a[24:])
}

// numbered returns addresses with interface numbers instead of names, as programs have them.
func numbered(addresses []netip.Addr) []netip.Addr {
	list := slices.Clone(addresses)
	for i, addr := range list {
		if zone := addr.Zone(); zone != "" {
			list[i] = addr.WithZone(strconv.FormatUint(uint64(scopeOf(zone)), 10))
		}
	}
	return list
}

func setFamily(a *abi.SockaddrStorage, family int) {
	binary.NativeEndian.PutUint16(a[:], uint16(family))
}

// widen returns a shorter address as one of the longest kind.
func widen(a *abi.Sockaddr) (wide abi.SockaddrStorage) {
	copy(wide[:], a[:])
	return wide
}

func cmBindIP(r *cmRequest) error {
	var cmd abi.BindIP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if !ip(cmd.Addr.Family()) {
		return syscall.EINVAL
	}
	return r.bind(cmd.ID, widen(&cmd.Addr))
}

func cmBind(r *cmRequest) error {
	var cmd abi.Bind
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.Reserved != 0 || cmd.AddrSize == 0 ||
		int(cmd.AddrSize) != sizeOfAddress(cmd.Addr.Family()) {
		return syscall.EINVAL
	}
	return r.bind(cmd.ID, cmd.Addr)
}

func (r *cmRequest) bind(handle uint32, addr abi.SockaddrStorage) error {
	x, err := r.file.lock(handle)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	return r.file.b.cm.bind(x, addr)
}

// bind binds x as rdma_bind_addr does. x.mu is held.
func (s *cmState) bind(x *cmID, addr abi.SockaddrStorage) error {
	if x.state != cmIdle {
		return syscall.EINVAL
	}
	x.src = abi.SockaddrStorage{}
	copy(x.src[:], addr[:sizeOfAddress(addr.Family())])
	if addr.Family() == abi.FamilyIB {
		if err := s.bindIB(x); err != nil {
			return err
		}
	} else {
		ap := ipOf(&x.src)
		if err := x.mayBind(ap.Addr()); err != nil {
			return err
		}
		at, err := s.deviceAddress(ap)
		if err != nil {
			return err
		}
		if !x.reuse && ap.Port() != 0 { // the device checks only ids that have the address
			if err := s.conflict(x); err != nil {
				return err
			}
		}
		if err := x.id.BindAddr(at); err != nil {
			return s.taken(x, err)
		}
		setIP(&x.src, netip.AddrPortFrom(ap.Addr(), x.id.LocalAddr().Port()))
		x.device = !ap.Addr().IsUnspecified() && s.has(ap.Addr())
		s.mu.Lock()
		x.owns, x.anywhere = true, ap.Addr().IsUnspecified()
		s.mu.Unlock()
	}
	setFamily(&x.dst, x.src.Family())
	x.state = cmBound
	return nil
}

// deviceAddress returns the address to which an id is bound instead of the unspecified one. It
// returns ENODEV for an address that is not the device's. As in the kernel, a loopback address can
// still be bound, to no device (cma_any_addr).
func (s *cmState) deviceAddress(ap netip.AddrPort) (netip.AddrPort, error) {
	if len(s.addresses) == 0 {
		return ap, nil
	}
	for _, addr := range s.addresses {
		if addr == ap.Addr() ||
			ap.Addr().IsUnspecified() && addr.Is4() == ap.Addr().Is4() {
			return netip.AddrPortFrom(addr, ap.Port()), nil
		}
	}
	if ap.Addr().IsLoopback() {
		return ap, nil
	}
	return ap, syscall.ENODEV
}

// has reports whether an address is the device's.
func (s *cmState) has(addr netip.Addr) bool {
	return len(s.addresses) == 0 || slices.Contains(s.addresses, addr)
}

// mayBind checks for errors that the device would not return, or would return as another errno.
func (x *cmID) mayBind(addr netip.Addr) error {
	switch {
	case addr.Is6() && addr.IsLinkLocalUnicast() && addr.Zone() == "":
		return syscall.EINVAL
	case addr.Is4In6():
		return syscall.EADDRNOTAVAIL // no interface has such an address
	case x.ps == abi.PortSpaceIPoIB && !addr.IsUnspecified():
		return syscall.EINVAL // not InfiniBand
	}
	return nil
}

// taken returns the errno for an address that is in use, EADDRINUSE. The kernel returns another one
// if either of the two ids is bound to the unspecified address, or to a loopback one.
func (s *cmState) taken(x *cmID, err error) error {
	if errno(err) != syscall.EADDRINUSE {
		return err
	}
	if err := s.conflict(x); err != nil {
		return err
	}
	if anyAddr(ipOf(&x.src).Addr()) { // another program's
		return syscall.EADDRNOTAVAIL
	}
	return syscall.EADDRINUSE
}

// conflict looks for other ids of the program that have bound the address of x (cma_check_port).
func (s *cmState) conflict(x *cmID) error {
	own := ipOf(&x.src)
	s.mu.Lock()
	ids := slices.DeleteFunc(s.ids.all(), func(y *cmID) bool { return y == x || !y.owns })
	anywhere := make(map[*cmID]bool)
	for _, y := range ids {
		anywhere[y] = y.anywhere
	}
	s.mu.Unlock()
	for _, y := range ids {
		other := y.id.LocalAddr()
		switch {
		case other.Port() != own.Port(), other.Addr().Is4() != own.Addr().Is4():
		case anyAddr(own.Addr()) || anyAddr(other.Addr()) || anywhere[y]:
			return syscall.EADDRNOTAVAIL
		case own == other:
			return syscall.EADDRINUSE
		}
	}
	return nil
}

// anyAddr reports what the kernel's cma_any_addr reports.
func anyAddr(addr netip.Addr) bool { return addr.IsUnspecified() || addr.IsLoopback() }

// Service ids of InfiniBand that stand for ports (RDMA_IB_IP_PS_*).
const (
	ibPortSpaceMask = 0xffff_ffff_ffff_0000
	ibPortSpaceIB   = abi.PortSpaceIB << 16
	ibPortSpaceTCP  = abi.PortSpaceTCP << 16
	ibPortSpaceUDP  = abi.PortSpaceUDP << 16
)

// bindIB binds x to an address of AF_IB in src. librdmacm does this to find out whether the kernel
// knows such addresses. iWARP has no GIDs to bind to; an address without a GID is bound to no
// device (cma_select_ib_ps). x.mu is held.
func (s *cmState) bindIB(x *cmID) error {
	if [16]byte(x.src[ibGID:]) != [16]byte{} {
		return syscall.ENODEV
	}
	service, mask := binary.BigEndian.Uint64(x.src[ibService:]),
		binary.BigEndian.Uint64(x.src[ibServiceMask:])
	port := uint16(service & mask)
	in := func(space uint64) bool { return service&mask&ibPortSpaceMask == space&mask }
	isIB := x.ps == abi.PortSpaceIB
	switch {
	case isIB && in(ibPortSpaceIB):
		service = ibPortSpaceIB
	case (isIB || x.ps == abi.PortSpaceTCP) && in(ibPortSpaceTCP):
		service = ibPortSpaceTCP
	case (isIB || x.ps == abi.PortSpaceUDP) && in(ibPortSpaceUDP):
		service = ibPortSpaceUDP
	default:
		return syscall.EPROTONOSUPPORT
	}
	if port == 0 {
		port = s.nextPort()
	}
	binary.BigEndian.PutUint64(x.src[ibService:], service|uint64(port))
	binary.BigEndian.PutUint64(x.src[ibServiceMask:], ^uint64(0))
	return nil
}

// nextPort returns a port for an id with an address of AF_IB, to which nobody can connect.
func (s *cmState) nextPort() uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	const first = 32768
	s.ports = max(s.ports+1, first)
	return s.ports
}

func cmResolveIP(r *cmRequest) error {
	var cmd abi.ResolveIP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if f := cmd.SrcAddr.Family(); f != abi.FamilyUnspec && !ip(f) || !ip(cmd.DstAddr.Family()) {
		return syscall.EINVAL
	}
	return r.resolve(cmd.ID, widen(&cmd.SrcAddr), widen(&cmd.DstAddr), cmd.TimeoutMS)
}

func cmResolveAddr(r *cmRequest) error {
	var cmd abi.ResolveAddr
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.Reserved != 0 || cmd.SrcSize != 0 &&
		int(cmd.SrcSize) != sizeOfAddress(cmd.SrcAddr.Family()) ||
		cmd.DstSize == 0 || int(cmd.DstSize) != sizeOfAddress(cmd.DstAddr.Family()) {
		return syscall.EINVAL
	}
	return r.resolve(cmd.ID, cmd.SrcAddr, cmd.DstAddr, cmd.TimeoutMS)
}

// resolve does rdma_resolve_addr. It first binds an id that is not bound, to the unspecified
// address if src has no family. So the id has a port, as with the kernel, and programs can see the
// port from here on.
func (r *cmRequest) resolve(handle uint32, src, dst abi.SockaddrStorage, ms uint32) error {
	x, err := r.file.lock(handle)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	s := &r.file.b.cm
	if x.state != cmBound {
		switch {
		case src.Family() == abi.FamilyUnspec:
			src = anyOf(&dst)
		case sizeOfAddress(src.Family()) == 0:
			return syscall.EAFNOSUPPORT
		}
		if err := s.bind(x, src); err != nil {
			return err
		}
	}
	if x.src.Family() != dst.Family() {
		return syscall.EINVAL
	}
	x.dst = abi.SockaddrStorage{}
	copy(x.dst[:], dst[:sizeOfAddress(dst.Family())])
	switch {
	case dst.Family() == abi.FamilyIB:
		return syscall.ENODEV
	case x.ps == abi.PortSpaceIPoIB:
		s.post(x, abi.EventResp{Event: uint32(rdmacm.AddrError), Status: negative(syscall.EINVAL)})
		return nil
	}
	if err := x.id.ResolveAddr(netip.AddrPort{}, destination(&x.dst),
		milliseconds(ms)); err != nil {
		return err
	}
	x.state = cmAddrQuery
	return nil
}

// anyOf returns the unspecified address of a destination's family.
func anyOf(dst *abi.SockaddrStorage) (a abi.SockaddrStorage) {
	setFamily(&a, dst.Family())
	switch dst.Family() {
	case abi.FamilyINET6:
		copy(a[24:28], dst[24:28]) // the scope
	case abi.FamilyIB:
		copy(a[ibPkey:], dst[ibPkey:ibPkey+2])
	}
	return a
}

// destination returns the address to connect to. The unspecified address means this machine.
func destination(a *abi.SockaddrStorage) netip.AddrPort {
	ap := ipOf(a)
	switch {
	case !ap.Addr().IsUnspecified():
		return ap
	case ap.Addr().Is4():
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), ap.Port())
	}
	return netip.AddrPortFrom(netip.IPv6Loopback(), ap.Port())
}

// negative returns an errno as the status of an event.
func negative(e syscall.Errno) uint32 { return uint32(-int32(e)) }

func milliseconds(ms uint32) time.Duration { return time.Duration(ms) * time.Millisecond }

func cmResolveRoute(r *cmRequest) error {
	var cmd abi.ResolveRoute
	x, err := r.parseBound(&cmd, &cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	if cmd.TimeoutMS == 0 || x.state != cmAddrResolved {
		return syscall.EINVAL
	}
	if err := x.id.ResolveRoute(milliseconds(cmd.TimeoutMS)); err != nil {
		return err
	}
	x.state = cmRouteQuery
	return nil
}

func cmListen(r *cmRequest) error {
	var cmd abi.Listen
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.lock(cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	backlog := int(int32(cmd.Backlog))
	if backlog <= 0 || backlog > maxBacklog {
		backlog = maxBacklog
	}
	return r.file.b.cm.listen(x, backlog)
}

// maxBacklog is the default of the kernel's net.rdma_ucm.max_backlog.
const maxBacklog = 1024

// listen does rdma_listen. x.mu is held.
func (s *cmState) listen(x *cmID, backlog int) error {
	s.mu.Lock()
	x.backlog = backlog
	s.mu.Unlock()
	if x.state != cmBound {
		var any4 abi.SockaddrStorage
		setFamily(&any4, abi.FamilyINET)
		if err := s.bind(x, any4); err != nil {
			return err
		}
	}
	if x.src.Family() == abi.FamilyIB { // no device can listen on such an id
		x.state = cmListening
		return nil
	}
	if x.reuse { // a listener does not share its address
		if err := s.conflict(x); err != nil {
			return err
		}
		x.reuse = false
	}
	if err := x.id.Listen(backlog); err != nil {
		err = s.taken(x, err)
		// The id has lost its port; with the kernel it would still have it.
		at, lost := s.deviceAddress(ipOf(&x.src))
		if lost == nil {
			lost = x.id.BindAddr(at)
		}
		if lost != nil {
			x.state, x.device = cmIdle, false
		}
		return err
	}
	x.state = cmListening
	if x.device {
		x.iw = iwListen
	}
	return nil
}
