package bridge

import (
	"encoding/binary"
	"syscall"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// nodeGUID returns the GUID of the device, highest byte first.
func (b *Bridge) nodeGUID() (guid [8]uint8) {
	if a, err := b.vctx.Query(); err == nil {
		binary.BigEndian.PutUint64(guid[:], a.NodeGUID)
	}
	return guid
}

// gids returns the GIDs of both ends, which for iWARP are link-layer addresses. The peer's is known
// only if the peer is this machine; the kernel gets it from the neighbour table. x.mu is held.
func (b *Bridge) gids(x *cmID) (src, dst [16]uint8) {
	if !x.device {
		return src, dst
	}
	src, _ = b.vctx.QueryGID(1, 0)
	if to := ipOf(&x.dst).Addr(); x.resolved && (anyAddr(to) || to == ipOf(&x.src).Addr()) {
		dst = src
	}
	return src, dst
}

func cmQueryRoute(r *cmRequest) error {
	var cmd abi.Query
	var resp abi.QueryRouteResp
	if err := r.parseFor(&cmd, abi.Size(resp)-8); err != nil { // without ibdev_index
		return err
	}
	x, err := r.file.lock(cmd.ID)
	if err != nil {
		return err
	}
	copy(resp.SrcAddr[:], x.src[:])
	copy(resp.DstAddr[:], x.dst[:])
	if x.device {
		resp.NodeGUID, resp.PortNum = r.file.b.nodeGUID(), 1
		resp.Route0.SGID, resp.Route0.DGID = r.file.b.gids(x)
	}
	x.mu.Unlock()
	return r.answer(cmd.Response, &resp)
}

func cmQuery(r *cmRequest) error {
	var cmd abi.Query
	if err := r.parse(&cmd); err != nil {
		return err
	}
	x, err := r.file.lock(cmd.ID)
	if err != nil {
		return err
	}
	defer x.mu.Unlock()
	switch cmd.Option {
	case abi.QueryPath:
		return r.queryPath(x, cmd.Response)
	case abi.QueryAddr, abi.QueryGID:
	default:
		return syscall.ENOSYS
	}
	var resp abi.QueryAddrResp
	if err := r.fits(abi.Size(resp) - 8); err != nil { // without ibdev_index
		return err
	}
	if x.device { // its partition key is 0 on iWARP
		resp.NodeGUID, resp.PortNum = r.file.b.nodeGUID(), 1
	}
	if cmd.Option == abi.QueryAddr {
		resp.SrcSize = copyAddress(&resp.SrcAddr, &x.src)
		resp.DstSize = copyAddress(&resp.DstAddr, &x.dst)
	} else {
		src, dst := r.file.b.gids(x)
		resp.SrcSize = x.gidAddress(&resp.SrcAddr, &x.src, src)
		resp.DstSize = x.gidAddress(&resp.DstAddr, &x.dst, dst)
	}
	return r.answer(cmd.Response, &resp)
}

func copyAddress(to, from *abi.SockaddrStorage) uint16 {
	return uint16(copy(to[:], from[:sizeOfAddress(from.Family())]))
}

// gidAddress converts an IP address to an address of AF_IB: a GID, and a service id that contains
// the port (rdma_get_service_id).
func (x *cmID) gidAddress(to, from *abi.SockaddrStorage, gid [16]uint8) uint16 {
	if from.Family() == abi.FamilyIB {
		return copyAddress(to, from)
	}
	setFamily(to, abi.FamilyIB)
	copy(to[ibGID:], gid[:])
	binary.BigEndian.PutUint64(to[ibService:], uint64(x.ps)<<16|uint64(ipOf(from).Port()))
	return sizeofSockaddrIB
}

// queryPath answers QUERY about paths. The only possible path is one set with SET_OPTION. x.mu is
// held.
func (r *cmRequest) queryPath(x *cmID, addr uint64) error {
	var resp abi.QueryPathResp
	if err := r.fits(abi.Size(resp)); err != nil {
		return err
	}
	if x.path == nil {
		return r.answerAll(addr, &resp)
	}
	resp.NumPaths = 1
	path := abi.PathRecData{Flags: abi.PathPrimary, PathRec: [64]uint8(x.path)}
	if r.room-abi.Size(resp) <= abi.Size(path) { // the kernel wants one byte more than it writes
		return r.answerAll(addr, &resp)
	}
	if err := r.answerAll(addr+uint64(abi.Size(resp)), &path); err != nil {
		return err
	}
	return r.answerAll(addr, &resp)
}
