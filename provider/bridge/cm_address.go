package bridge

import (
	"encoding/binary"
	"net/netip"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// unixFcntl reports whether there is a descriptor.
func unixFcntl(fd int) (int, error) { return unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0) }

// sizeofSockaddrIB is the size of struct sockaddr_ib.
const sizeofSockaddrIB = 48

// sizeOfAddress returns the size of an address of a family, 0 if rdma_cm has no such addresses
// (rdma_addr_size).
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

// ip reports whether a family is one of IP.
func ip(family int) bool { return family == abi.FamilyINET || family == abi.FamilyINET6 }

func cmBindIP(r *cmRequest) error {
	var cmd abi.BindIP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if !ip(cmd.Addr.Family()) {
		return syscall.EINVAL
	}
	var addr abi.SockaddrStorage
	copy(addr[:], cmd.Addr[:])
	return r.bind(cmd.ID, &addr)
}

func cmBind(r *cmRequest) error {
	var cmd abi.Bind
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.AddrSize == 0 || int(cmd.AddrSize) != sizeOfAddress(cmd.Addr.Family()) {
		return syscall.EINVAL
	}
	return r.bind(cmd.ID, &cmd.Addr)
}

func (r *cmRequest) bind(handle uint32, addr *abi.SockaddrStorage) error {
	x, err := r.file.lookup(handle)
	if err != nil {
		return err
	}
	if x.id == nil {
		return x.bindProbe(addr)
	}
	ap, err := addr.AddrPort()
	if err != nil {
		return syscall.EAFNOSUPPORT
	}
	return x.id.BindAddr(ap)
}

// bindProbe binds an id that is not of TCP. An address that is of no interface is bound without a
// device, also one of AF_IB.
func (x *cmID) bindProbe(addr *abi.SockaddrStorage) error {
	if addr.Family() == abi.FamilyIB {
		var gid [16]byte
		copy(gid[:], addr[8:24])
		if gid != [16]byte{} {
			return syscall.ENODEV
		}
		x.probe = *addr
		return nil
	}
	if ap, err := addr.AddrPort(); err != nil || !ap.Addr().IsUnspecified() {
		return syscall.ENODEV
	}
	x.probe = *addr
	return nil
}

func cmResolveIP(r *cmRequest) error {
	var cmd abi.ResolveIP
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if f := cmd.SrcAddr.Family(); f != abi.FamilyUnspec && !ip(f) || !ip(cmd.DstAddr.Family()) {
		return syscall.EINVAL
	}
	src, _ := cmd.SrcAddr.AddrPort()
	dst, _ := cmd.DstAddr.AddrPort()
	return r.resolve(cmd.ID, src, dst, cmd.TimeoutMS)
}

func cmResolveAddr(r *cmRequest) error {
	var cmd abi.ResolveAddr
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.SrcSize != 0 && int(cmd.SrcSize) != sizeOfAddress(cmd.SrcAddr.Family()) ||
		cmd.DstSize == 0 || int(cmd.DstSize) != sizeOfAddress(cmd.DstAddr.Family()) {
		return syscall.EINVAL
	}
	var src netip.AddrPort
	var err error
	if cmd.SrcSize != 0 {
		if src, err = cmd.SrcAddr.AddrPort(); err != nil {
			return syscall.EAFNOSUPPORT
		}
	}
	dst, err := cmd.DstAddr.AddrPort()
	if err != nil {
		return syscall.EAFNOSUPPORT
	}
	return r.resolve(cmd.ID, src, dst, cmd.TimeoutMS)
}

func (r *cmRequest) resolve(handle uint32, src, dst netip.AddrPort, ms uint32) error {
	x, err := r.file.lookup(handle)
	switch {
	case err != nil:
		return err
	case x.id == nil:
		return syscall.EINVAL
	}
	return x.id.ResolveAddr(src, dst, time.Duration(ms)*time.Millisecond)
}

func cmResolveRoute(r *cmRequest) error {
	var cmd abi.ResolveRoute
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.bound(cmd.ID)
	if err != nil {
		return err
	}
	return x.id.ResolveRoute(time.Duration(cmd.TimeoutMS) * time.Millisecond)
}

// addresses returns the addresses of an id, invalid where there is none.
func (x *cmID) addresses() (src, dst netip.AddrPort) {
	if x.id == nil {
		src, _ = x.probe.AddrPort()
		return src, dst
	}
	return x.id.LocalAddr(), x.id.RemoteAddr()
}

// nodeGUID returns the GUID of the device, highest octet first.
func (b *Bridge) nodeGUID() (guid [8]uint8) {
	if a, err := b.vctx.Query(); err == nil {
		binary.BigEndian.PutUint64(guid[:], a.NodeGUID)
	}
	return guid
}

// gid returns the device's GID.
func (b *Bridge) gid() [16]uint8 {
	gid, _ := b.vctx.QueryGID(1, 0)
	return gid
}

func cmQueryRoute(r *cmRequest) error {
	var cmd abi.Query
	var resp abi.QueryRouteResp
	if err := r.fits(abi.Size(resp) - 8); err != nil { // without ibdev_index
		return err
	}
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.lookup(cmd.ID)
	if err != nil {
		return err
	}
	src, dst := x.addresses()
	resp.SrcAddr.Set(src)
	resp.DstAddr.Set(dst)
	if x.hasDevice() {
		resp.NodeGUID, resp.PortNum = r.file.b.nodeGUID(), 1
		resp.Route0.SGID = r.file.b.gid()
	}
	return r.answer(cmd.Response, &resp)
}

func cmQuery(r *cmRequest) error {
	var cmd abi.Query
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.lookup(cmd.ID)
	if err != nil {
		return err
	}
	if cmd.Option == abi.QueryPath {
		if err := r.fits(abi.Size(abi.QueryPathResp{})); err != nil {
			return err
		}
		return r.answer(cmd.Response, &abi.QueryPathResp{})
	}
	var resp abi.QueryAddrResp
	if cmd.Option != abi.QueryAddr && cmd.Option != abi.QueryGID {
		return syscall.ENOSYS
	}
	if err := r.fits(abi.Size(resp) - 8); err != nil { // without ibdev_index
		return err
	}
	if x.hasDevice() {
		resp.NodeGUID, resp.PortNum, resp.Pkey = r.file.b.nodeGUID(), 1, 0
	}
	if cmd.Option == abi.QueryAddr {
		r.fillAddresses(x, &resp)
	} else {
		r.fillGIDs(x, &resp)
	}
	return r.answer(cmd.Response, &resp)
}

func (r *cmRequest) fillAddresses(x *cmID, resp *abi.QueryAddrResp) {
	if x.probe.Family() == abi.FamilyIB {
		resp.SrcAddr, resp.SrcSize = x.probe, sizeofSockaddrIB
		return
	}
	src, dst := x.addresses()
	resp.SrcSize, resp.DstSize = uint16(resp.SrcAddr.Set(src)), uint16(resp.DstAddr.Set(dst))
}

// fillGIDs fills in addresses of AF_IB: GIDs, and service ids that have the port (rdma_get_service_id).
func (r *cmRequest) fillGIDs(x *cmID, resp *abi.QueryAddrResp) {
	if x.probe.Family() == abi.FamilyIB {
		r.fillAddresses(x, resp)
		return
	}
	src, dst := x.addresses()
	var gid [16]uint8
	if x.hasDevice() {
		gid = r.file.b.gid()
	}
	set := func(to *abi.SockaddrStorage, gid [16]uint8, port uint16) uint16 {
		binary.NativeEndian.PutUint16(to[:], abi.FamilyIB)
		binary.BigEndian.PutUint16(to[2:], 0xffff) // the partition key
		copy(to[8:], gid[:])
		binary.BigEndian.PutUint64(to[24:], uint64(abi.PortSpaceTCP)<<16|uint64(port))
		return sizeofSockaddrIB
	}
	resp.SrcSize = set(&resp.SrcAddr, gid, src.Port())
	resp.DstSize = set(&resp.DstAddr, [16]uint8{}, dst.Port())
}

func cmSetOption(r *cmRequest) error {
	var cmd abi.SetOption
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.lookup(cmd.ID)
	if err != nil {
		return err
	}
	if cmd.OptLen > 4096 {
		return syscall.EINVAL
	}
	value := make([]byte, cmd.OptLen)
	if err := r.file.b.prog.ReadMemory(cmd.OptVal, value); err != nil && cmd.OptLen > 0 {
		return err
	}
	switch {
	case cmd.Level == abi.OptionIB && cmd.OptName == abi.OptionIBPath:
		return syscall.EINVAL // iWARP has no paths
	case cmd.Level != abi.OptionID:
		return syscall.ENOSYS
	}
	return x.setOption(cmd.OptName, value)
}

func (x *cmID) setOption(name uint32, value []byte) error {
	option, size := rdmacm.OptionTOS, 1
	switch name {
	case abi.OptionIDTOS:
	case abi.OptionIDReuseaddr:
		option, size = rdmacm.OptionReuseAddr, 4
	case abi.OptionIDAfonly:
		option, size = rdmacm.OptionAFOnly, 4
	case abi.OptionIDAckTimeout:
		option = rdmacm.OptionAckTimeout
	default:
		return syscall.ENOSYS
	}
	if len(value) != size {
		return syscall.EINVAL
	}
	v := int(value[0])
	if size == 4 {
		v = 0
		if binary.NativeEndian.Uint32(value) != 0 {
			v = 1
		}
	}
	if x.id == nil || option == rdmacm.OptionAckTimeout { // which the kernel keeps, and iWARP has no use for
		return nil
	}
	return x.id.SetOption(option, v)
}
