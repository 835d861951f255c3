package bridge

import (
	"encoding/binary"
	"math"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// getContext executes GET_CONTEXT: it makes the descriptor of asynchronous events.
func getContext(r *request) error {
	if err := r.parse(&abi.Response{}); err != nil {
		return err
	}
	f := r.file
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.async != nil {
		return syscall.EINVAL
	}
	if r.extra < abi.Size(abi.SiwAllocCtxResp{}) {
		return syscall.EINVAL
	}
	ch, fd, err := newChannel(f.b.prog, unix.SOCK_CLOEXEC)
	if err != nil {
		return err
	}
	if err = r.answer(&abi.GetContextResp{AsyncFD: uint32(fd), NumCompVectors: 1}); err == nil {
		err = r.answerDriver(&abi.SiwAllocCtxResp{})
	}
	if err == nil {
		err = f.b.prog.Adopt(fd, asyncFile{})
	}
	if err != nil {
		ch.close()
		_ = unix.Close(fd)
		return err
	}
	f.async = ch
	f.b.watchEvents()
	return nil
}

// asyncFile is the descriptor of asynchronous events; it ends with the device's descriptor.
type asyncFile struct{}

// Write implements File: nothing can be written.
func (asyncFile) Write([]byte) (int, error) { return 0, syscall.EINVAL }

// Close implements File.
func (asyncFile) Close() {}

func queryDevice(r *request) error {
	if err := r.parse(&abi.Response{}); err != nil {
		return err
	}
	resp, err := r.file.b.deviceAttr()
	if err != nil {
		return err
	}
	return r.answer(&resp)
}

func exQueryDevice(r *request) error {
	var cmd abi.ExQueryDevice
	if err := r.parse(&cmd); err != nil {
		return err
	}
	if cmd.CompMask != 0 || cmd.Reserved != 0 || len(r.driver) > 0 || r.extra > 0 {
		return syscall.EINVAL
	}
	base, err := r.file.b.deviceAttr()
	if err != nil {
		return err
	}
	resp := abi.ExQueryDeviceResp{Base: base, DeviceCapFlagsEx: uint64(base.DeviceCapFlags)}
	resp.ResponseLength = uint32(min(r.room, abi.Size(resp)))
	return r.answer(&resp)
}

// deviceAttr returns the device's attributes, limited to what siw's queues support.
func (b *Bridge) deviceAttr() (abi.QueryDeviceResp, error) {
	a, err := b.vctx.Query()
	if err != nil {
		return abi.QueryDeviceResp{}, err
	}
	resp := abi.QueryDeviceResp{
		MaxMRSize: a.MaxMRSize, PageSizeCap: a.PageSizeCap,
		VendorID: vendorID, VendorPartID: vendorPartID, HWVer: a.HWVer,
		MaxQP: count(a.MaxQP), MaxQPWR: count(min(a.MaxQPWR, maxQueue)), DeviceCapFlags: deviceCaps,
		MaxSGE: count(min(a.MaxSGE, abi.SiwMaxSGE)), MaxSGERD: count(min(a.MaxSGERd,
			abi.SiwMaxSGE)),
		MaxCQ: count(a.MaxCQ), MaxCQE: count(min(a.MaxCQE, maxCQE)), MaxMR: count(a.MaxMR),
		MaxPD:       count(a.MaxPD),
		MaxQPRDAtom: count(a.MaxQPRdAtom), MaxResRDAtom: count(a.MaxResRdAtom),
		MaxQPInitRDAtom: count(a.MaxQPInitRdAtom),
		MaxSRQ:          count(a.MaxSRQ), MaxSRQWR: count(min(a.MaxSRQWR, maxSRQ)),
		MaxSRQSGE:   count(min(a.MaxSRQSGE, abi.SiwMaxSGE)),
		PhysPortCnt: a.PhysPortCnt,
	}
	binary.BigEndian.PutUint64(resp.NodeGUID[:], a.NodeGUID)
	binary.BigEndian.PutUint64(resp.SysImageGUID[:], a.SysImageGUID)
	return resp, nil
}

// The vendor id is siw's, so programs know the peculiarities of siw's library. The part id is
// "govs" in ASCII, because siw is not below the library; siw numbers its devices there.
const (
	vendorID     = 0x626d74
	vendorPartID = 0x676f7673
)

// deviceCaps are siw's capabilities, because siw's library does not give access to others that the
// device has.
const deviceCaps = uint32(ibverbs.DeviceMemMgtExtensions)

// siwPortCaps are the capabilities of siw's port: IB_PORT_CM_SUP and IB_PORT_DEVICE_MGMT_SUP.
const siwPortCaps = 1<<16 | 1<<19

// Maximum sizes of siw's queues (SIW_MAX_QP_WR, SIW_MAX_CQE, SIW_MAX_SRQ_WR).
const (
	maxQueue = 1024 * 32
	maxCQE   = 100 * maxQueue
	maxSRQ   = 10 * maxQueue
)

// count converts a limit.
func count(n int) uint32 { return uint32(min(max(n, 0), math.MaxInt32)) }

func queryPort(r *request) error {
	var cmd abi.QueryPort
	if err := r.parse(&cmd); err != nil {
		return err
	}
	p, err := r.file.b.vctx.QueryPort(cmd.PortNum)
	if err != nil {
		return syscall.EINVAL
	}
	width, speed := linkSpeed(p.ActiveWidth, p.ActiveSpeed)
	resp := &abi.QueryPortResp{
		PortCapFlags: p.PortCapFlags | siwPortCaps, MaxMsgSz: p.MaxMsgSz, GIDTblLen: count(p.GIDTblLen),
		PkeyTblLen: p.PkeyTblLen,
		// siw has only one MTU, the interface's.
		State: uint8(p.State), MaxMTU: mtu(p.ActiveMTU), ActiveMTU: mtu(p.ActiveMTU),
		ActiveWidth: width, ActiveSpeed: speed, PhysState: p.PhysState,
		LinkLayer: p.LinkLayer,
	}
	return r.answer(resp)
}

// linkSpeed returns the enum ib_port_width and the enum ib_port_speed of a port. If the device does
// not report them, it returns those for 2.5 Gbit/s, as the kernel's ib_get_eth_speed does.
func linkSpeed(width, speed uint8) (uint8, uint8) {
	if width == 0 || speed == 0 {
		return 1, 1
	}
	return width, speed
}

// mtu converts bytes to enum ib_mtu.
func mtu(octets int) uint8 {
	switch {
	case octets >= 4096:
		return 5
	case octets >= 2048:
		return 4
	case octets >= 1024:
		return 3
	case octets >= 512:
		return 2
	}
	return 1
}

// domain is a PD of the program.
type domain struct {
	pd *ibverbs.PD
}

func allocPD(r *request) error {
	if err := r.parse(&abi.Response{}); err != nil {
		return err
	}
	pd, err := r.file.b.vctx.AllocPD()
	if err != nil {
		return err
	}
	p := &domain{pd}
	h := r.file.handles.add(p)
	if err = r.answer(&abi.AllocPDResp{PDHandle: h}); err != nil {
		_ = remove(&r.file.handles, h, (*domain).destroy)
	}
	return err
}

func (p *domain) destroy() error { return p.pd.Close() }

func deallocPD(r *request) error {
	var cmd abi.DeallocPD
	if err := r.parse(&cmd); err != nil {
		return err
	}
	return remove(&r.file.handles, cmd.PDHandle, (*domain).destroy)
}

// memoryRegion is an MR of the program.
type memoryRegion struct {
	b            *Bridge
	mr           *ibverbs.MR
	addr, length uint64

	ending sync.Mutex // held while destroy runs
	ended  bool       // guarded by ending
}

// Access flags of REG_MR (enum ib_access_flags). The kernel refuses flags in none of these sets.
const (
	accessKnown     = 1<<8 - 1    // LOCAL_WRITE to HUGETLB; later ones are for devices that flush
	accessOptional  = 0x3ff << 20 // may be ignored
	accessOnDemand  = 1 << 6
	accessWritable  = accessLocalWrite | accessRemoteWrite | accessAtomic
	accessZeroBased = 1 << 5

	accessLocalWrite  = 1 << 0
	accessRemoteWrite = 1 << 1
	accessAtomic      = 1 << 3
)

// checkAccess checks flags as the kernel's ib_check_mr_access does.
func checkAccess(flags uint32) error {
	switch {
	case flags&(accessRemoteWrite|accessAtomic) != 0 && flags&accessLocalWrite == 0:
		return syscall.EINVAL
	case flags&^(accessKnown|accessOptional) != 0, flags&accessOnDemand != 0:
		return syscall.EINVAL
	}
	return nil
}

func regMR(r *request) error {
	var cmd abi.RegMR
	if err := r.parse(&cmd); err != nil {
		return err
	}
	mask := uint64(pageSize - 1)
	if cmd.Start&mask != cmd.HCAVA&mask {
		return syscall.EINVAL
	}
	if err := checkAccess(cmd.AccessFlags); err != nil {
		return err
	}
	pd, err := lookup[*domain](&r.file.handles, cmd.PDHandle)
	if err != nil {
		return err
	}
	var driver abi.SiwRegMRReq
	switch {
	case cmd.Length == 0, len(r.driver) < abi.Size(driver), r.extra < abi.Size(abi.SiwRegMRResp{}):
		return syscall.EINVAL
	case cmd.Start+cmd.Length < cmd.Start:
		return syscall.EINVAL
	}
	m, err := r.file.b.register(pd, &cmd)
	if err != nil {
		return err
	}
	h := r.file.handles.add(m)
	if err = r.answer(&abi.RegMRResp{MRHandle: h, LKey: m.mr.LKey(), RKey: m.mr.RKey()}); err == nil {
		err = r.answerDriver(&abi.SiwRegMRResp{STag: m.mr.RKey()})
	}
	if err != nil {
		_ = remove(&r.file.handles, h, (*memoryRegion).destroy)
	}
	return err
}

// register makes the region that cmd describes.
func (b *Bridge) register(pd *domain, cmd *abi.RegMR) (*memoryRegion, error) {
	b.registering.RLock()
	defer b.registering.RUnlock()
	mem, err := b.prog.Memory(cmd.Start, cmd.Length, cmd.AccessFlags&accessWritable != 0)
	if err != nil {
		return nil, err
	}
	access := ibverbs.Access(cmd.AccessFlags) & deviceAccess
	if access&remoteAccess != 0 {
		access |= ibverbs.AccessRemoteInvalidate
	}
	mr, err := pd.pd.RegMRIova(mem, cmd.HCAVA, access)
	if err != nil {
		b.prog.Release(cmd.Start, cmd.Length)
		return nil, err
	}
	m := &memoryRegion{b: b, mr: mr, addr: cmd.Start, length: cmd.Length}
	b.mu.Lock()
	b.memory[m] = struct{}{}
	b.mu.Unlock()
	return m, nil
}

// deviceAccess are the rights that the bridge passes to the device; other flags have no effect with
// siw either.
const deviceAccess = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite |
	ibverbs.AccessRemoteRead | ibverbs.AccessRemoteAtomic

// remoteAccess are the rights of a peer. libibverbs has no access flag for Send with Invalidate.
// siw permits it for each region of the PD, and programs rely on that. Here a peer can invalidate
// the regions that it can access.
const remoteAccess = ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead |
	ibverbs.AccessRemoteAtomic

// destroy ends the region, unless that was done before. If another thread is ending it, destroy
// waits until that thread has released the memory. The region stays in the list until then, so that
// EndMemory waits, too: Release may unmap what is at the addresses.
func (m *memoryRegion) destroy() error {
	m.ending.Lock()
	defer m.ending.Unlock()
	if m.ended {
		return nil
	}
	if err := m.mr.Close(); err != nil {
		return err
	}
	m.b.prog.Release(m.addr, m.length)
	m.ended = true
	m.b.mu.Lock()
	delete(m.b.memory, m)
	m.b.mu.Unlock()
	return nil
}

// EndMemory ends the regions with memory from start to before end, because the program is about to
// map something else there. The kernel's regions would keep their pages. Here work requests and
// peers that name such a region fail as if it were deregistered, and the program deregisters it
// later. When EndMemory returns, nothing accesses the memory.
func (b *Bridge) EndMemory(start, end uint64) error {
	var ended []*memoryRegion
	b.registering.Lock() // waits until regions that are being made are in the list
	b.mu.Lock()
	for m := range b.memory {
		if m.addr < end && start < m.addr+m.length {
			ended = append(ended, m)
		}
	}
	b.mu.Unlock()
	b.registering.Unlock()
	for _, m := range ended {
		if err := m.destroy(); err != nil {
			return err
		}
	}
	return nil
}

func deregMR(r *request) error {
	var cmd abi.DeregMR
	if err := r.parse(&cmd); err != nil {
		return err
	}
	return remove(&r.file.handles, cmd.MRHandle, (*memoryRegion).destroy)
}
