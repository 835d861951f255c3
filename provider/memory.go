package provider

import "io"

// PD is a protection domain (struct ibv_pd). MRs, MWs, QPs and SRQs can only be used together if
// they are of one PD. A QP with an SRQ of another PD is the exception: its receives name regions of
// the SRQ's PD.
type PD interface {
	// RegMR registers buf (ibv_reg_mr). The memory must stay at its address until the MR is closed:
	// memory off the Go heap (mmap), or Go memory without pointers, which the provider pins until
	// then.
	//
	// RegMR returns EINVAL for an empty buf, and for RemoteWrite or RemoteAtomic without
	// LocalWrite. It returns EFAULT for memory that does not exist, or that cannot be written
	// although the rights include writing.
	RegMR(buf []byte, access Access) (MR, error)

	// RegMRIova registers buf as a region whose first byte has the address iova (ibv_reg_mr_iova).
	// It returns EINVAL if the region would reach beyond 2^64. A kernel device also returns EINVAL
	// if buf and iova have different offsets within a page.
	RegMRIova(buf []byte, iova uint64, access Access) (MR, error)

	// RegObject registers size bytes of an object that is not memory. Work requests and peers read
	// its bytes, from offset 0 on, with ReadAt. If the rights include writing, they write with
	// WriteAt; an object without WriteAt is then EACCES.
	//
	// Both methods are called from any goroutine and concurrently, ReadAt even several times for
	// one connection. They may take time, but must not call the region's Close, which waits for
	// them. A method that fails, or reads less than asked for, ends the connection: the peer gets a
	// Terminate, local work completes in error, and QP.Cause returns the method's error.
	//
	// The rights are LocalWrite, RemoteWrite, RemoteRead and ZeroBased. The provider also uses
	// WriteVectorAt if the object is a VectorWriterAt.
	RegObject(object io.ReaderAt, size uint64, access Access) (MR, error)

	// AllocFastRegMR makes a region without memory (ib_alloc_mr of the kernel's verbs with
	// IB_MR_TYPE_MEM_REG; libibverbs has no such call). WRRegMR registers memory for it.
	// WRLocalInv, or the peer's Send with Invalidate, ends the registration. Both can happen any
	// number of times. The region holds up to maxLen bytes at a time. A maxLen of 0, or above
	// DeviceAttr.MaxMRSize, is EINVAL.
	AllocFastRegMR(maxLen uint64) (FastRegMR, error)

	// AllocMW makes a memory window (ibv_alloc_mw). It is not bound, so peers cannot use its key. A
	// type that is neither MWType1 nor MWType2 is EINVAL.
	AllocMW(t MWType) (MW, error)

	// CreateQP makes a QP that no CM id owns (ibv_create_qp). The ID that connects it gets it in
	// ConnParam.QP.
	CreateQP(init QPInitAttr) (QP, error)

	// CreateSRQ makes a shared receive queue (ibv_create_srq), for QPs of any PD of the device.
	CreateSRQ(init SRQInitAttr) (SRQ, error)

	Close() error // ibv_dealloc_pd
}

// VectorWriterAt is an io.WriterAt that can write the bytes of several slices in one call. For many
// objects one long write takes less time than several short ones. PD.RegObject uses it.
type VectorWriterAt interface {
	io.WriterAt

	// WriteVectorAt writes the slices of b, in order, from offset off on. It returns the number of
	// bytes written, and an error if that is fewer than all. It must not change b or its bytes, nor
	// keep them after it returns.
	WriteVectorAt(b [][]byte, off int64) (n int, err error)
}

// MR is a memory region (struct ibv_mr).
type MR interface {
	// Addr returns the address of the region's first byte as SGEs and peers name it: the tagged
	// offset on the wire. With the kernel it is the virtual address; the engine's value reveals
	// nothing about this process.
	Addr() uint64
	Len() uint64  // bytes
	LKey() uint32 // for SGE.LKey
	RKey() uint32 // for SendWR.RKey at the peer: the STag on the wire
	Access() Access

	// Close deregisters (ibv_dereg_mr). After it returns nil, no byte of the region is read or
	// written, and work that still names the region completes with an error. It fails with EBUSY
	// while a window is bound to the region.
	Close() error

	// Rereg changes what change lists: the PD, the memory or the rights (ibv_rereg_mr). It returns
	// the changed region, whose keys may be different, and closes this MR as Close would. After an
	// error this MR is unchanged. It returns EINVAL if change is empty or has unknown flags.
	Rereg(change ReregFlags, pd PD, buf []byte, access Access) (MR, error)
}

// FastRegMR is a region that work requests register (struct ib_mr of the kernel's verbs, made by
// ib_alloc_mr). A registration begins when a WRRegMR is done. It ends when a WRLocalInv is done, or
// when the peer sends a Send with Invalidate, which needs AccessRemoteInvalidate. Outside a
// registration the region's key is invalid. Addr, Len, LKey, RKey and Access describe the
// registration that was posted last, so later work requests can name the region at once.
//
// Rereg returns an [*UnsupportedError].
type FastRegMR interface {
	MR

	// Map sets the memory that the next WRRegMR registers (ib_map_mr_sg). The memory must stay in
	// place until the registration ends, as with PD.RegMR. Map returns EINVAL for an empty buf or
	// one longer than the region was made for, and EFAULT for memory that does not exist.
	Map(buf []byte) error
}

// MW is a memory window (struct ibv_mw): a part of a region with its own rights and its own key.
// Work requests on a send queue bind and invalidate it. Only peers use it; SGEs cannot name it.
//
// A window of type 2 is what InfiniBand calls 2B, as on iWARP: only the peer of the QP that bound
// it can use and invalidate it. The binding ends with WRLocalInv on that QP, with the peer's Send
// with Invalidate, when the QP is closed or reset, and with Close.
type MW interface {
	Type() MWType

	// RKey returns the key for the peer, as made by the bind that was posted last, even if that
	// bind has not completed or has failed.
	RKey() uint32

	Close() error // ibv_dealloc_mw; unbinds a bound window
}

// MWBindInfo describes what a window is bound to (struct ibv_mw_bind_info, with the region's LKey
// instead of a pointer to it).
//
// The region must belong to the window's PD and have AccessMWBind. For remote writing and atomics
// it also needs AccessLocalWrite. It needs none of the rights that the window grants.
type MWBindInfo struct {
	LKey   uint32 // of the region
	Addr   uint64 // of the first byte in the region, counted as in SGE.Addr
	Length uint64 // bytes
	Access Access // RemoteWrite, RemoteRead, RemoteAtomic; ZeroBased: addresses count from 0
}

// ReregFlags says what MR.Rereg changes (enum ibv_rereg_mr_flags).
type ReregFlags uint32

// What MR.Rereg can change.
const (
	ReregTranslation ReregFlags = 1 << 0 // the memory
	ReregPD          ReregFlags = 1 << 1
	ReregAccess      ReregFlags = 1 << 2

	ReregAll = ReregTranslation | ReregPD | ReregAccess
)

// Access is a set of access rights (enum ibv_access_flags).
type Access uint32

// Rights of an MR. Local read is always allowed.
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	AccessMWBind       Access = 1 << 4 // windows may be bound to it
	AccessZeroBased    Access = 1 << 5

	// AccessRemoteInvalidate lets the peer end the region's remote use with a Send with Invalidate.
	// It is govs' own flag; libibverbs has none. The engine requires it, because RFC 5040 section
	// 8.1.1 asks for control over who may invalidate; the kernel provider ignores it.
	AccessRemoteInvalidate Access = 1 << 30
)
