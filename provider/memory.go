package provider

import "io"

// PD is a protection domain (struct ibv_pd): MRs, MWs, QPs and SRQs of one PD may be used
// together, those of different PDs may not, but for a QP with the SRQ of another:
// its receives are the SRQ's, and name regions of the SRQ's PD.
type PD interface {
	// RegMR registers buf (ibv_reg_mr). The memory must stay at its address
	// until the MR is closed: memory off the Go heap (mmap), or Go memory
	// without pointers, which the provider pins until then. An empty buf is
	// EINVAL. RemoteWrite or RemoteAtomic without LocalWrite is EINVAL.
	//
	// Memory that is not there, or may not be written although the rights say so,
	// is EFAULT.
	RegMR(buf []byte, access Access) (MR, error)

	// RegMRIova is RegMR of a region whose first byte has the address iova
	// (ibv_reg_mr_iova). The region must not reach beyond 2^64, and with a kernel
	// device buf and iova must be alike within a page: EINVAL.
	RegMRIova(buf []byte, iova uint64, access Access) (MR, error)

	// RegObject registers size bytes of something that is not memory: work requests
	// and peers read its bytes from offset 0 on with ReadAt, and write them, if the
	// rights say so, with WriteAt, which it then must have: EACCES otherwise. Both are
	// called from any goroutine and at the same time, ReadAt several times for one
	// connection, too, and may take their time. They must not call the region's Close,
	// which waits for them. A method that fails, or reads less than asked for, ends the
	// connection: with a Terminate to the peer, a completion in error for work of our
	// own, and its error in QP.Cause. The rights are LocalWrite, RemoteWrite, RemoteRead
	// and ZeroBased. An object that is a VectorWriterAt is written with that, too.
	RegObject(object io.ReaderAt, size uint64, access Access) (MR, error)

	// AllocFastRegMR makes a region without memory (ib_alloc_mr of the kernel's verbs
	// with IB_MR_TYPE_MEM_REG; libibverbs has none), which WRRegMR registers and
	// WRLocalInv, or the peer's Send with Invalidate, ends again, any number of times.
	// It can hold up to maxLen bytes at a time; 0, and more than
	// DeviceAttr.MaxMRSize, are EINVAL.
	AllocFastRegMR(maxLen uint64) (FastRegMR, error)

	// AllocMW makes a memory window (ibv_alloc_mw). It is bound to nothing, so that
	// its key names nothing. EINVAL for a type that is neither MWType1 nor MWType2.
	AllocMW(t MWType) (MW, error)

	// CreateQP makes a QP that no CM id owns yet (ibv_create_qp). The ID that
	// connects it takes it through ConnParam.QP.
	CreateQP(init QPInitAttr) (QP, error)

	// CreateSRQ makes a shared receive queue (ibv_create_srq). QPs of any PD of
	// the device may be made with it.
	CreateSRQ(init SRQInitAttr) (SRQ, error)

	Close() error // ibv_dealloc_pd
}

// VectorWriterAt is an io.WriterAt that can write the bytes of several slices in one call. Many
// objects take one long write in less time than several short ones. PD.RegObject says where it is
// used.
type VectorWriterAt interface {
	io.WriterAt

	// WriteVectorAt writes the bytes of all slices of b, one slice after the other, from offset
	// off on. It returns how many bytes it has written, and an error if these are fewer than all.
	// It may neither change b and its bytes, nor keep them after it has returned.
	WriteVectorAt(b [][]byte, off int64) (n int, err error)
}

// MR is a memory region (struct ibv_mr).
type MR interface {
	// Addr is the address of the region's first byte as SGEs and peers name
	// it: the tagged offset on the wire. With the kernel it is the virtual
	// address, with the engine a value that says nothing about this process.
	Addr() uint64
	Len() uint64  // bytes
	LKey() uint32 // for SGE.LKey
	RKey() uint32 // for SendWR.RKey at the peer: the STag on the wire
	Access() Access

	// Close deregisters (ibv_dereg_mr). When it returns nil no byte of the
	// region is read or written any more; work that still names it completes
	// with an error. EBUSY while a window is bound to it.
	Close() error

	// Rereg changes what change names: the PD, the memory, the rights
	// (ibv_rereg_mr). It returns the region as it is now, whose keys may be other
	// ones; the MR itself is closed then, as by Close. After an error it is as it
	// was. EINVAL if change is empty or unknown.
	Rereg(change ReregFlags, pd PD, buf []byte, access Access) (MR, error)
}

// FastRegMR is a region that work requests register (struct ib_mr of the kernel's
// verbs, made by ib_alloc_mr). It is registered from when a WRRegMR is done until a
// WRLocalInv is, or the peer has sent a Send with Invalidate, for which it needs
// AccessRemoteInvalidate; in between, and before the first time, its key names
// nothing. Addr, Len, LKey, RKey and Access describe the registration that was posted
// last, so that later work requests can name the region at once.
//
// Rereg is an [*UnsupportedError].
type FastRegMR interface {
	MR

	// Map says which memory the next WRRegMR that is posted registers (ib_map_mr_sg).
	// It must stay as that of PD.RegMR must, until the registration has ended. EINVAL
	// for an empty buf, and one that is longer than the region was made for; EFAULT
	// for memory that is not there.
	Map(buf []byte) error
}

// MW is a memory window (struct ibv_mw): part of a region, with rights of its own and
// a key of its own, which work requests on a send queue give and take. Only peers use
// it; it can't be named in an SGE.
//
// A window of type 2 is 2B in the words of InfiniBand, as iWARP has them: what is bound
// by a QP can be used, and invalidated, by the peer of that QP only. It ends by
// WRLocalInv on that QP, by the peer's Send with Invalidate, when the QP is closed or
// reset, and by Close.
type MW interface {
	Type() MWType

	// RKey is the key for the peer: as the bind that was posted last makes it,
	// whether that is done or not, and whatever came of it.
	RKey() uint32

	Close() error // ibv_dealloc_mw; a window that is bound is unbound
}

// MWBindInfo says what a window is bound to (struct ibv_mw_bind_info, with the
// region's LKey for the region).
//
// The region must be of the window's PD and have AccessMWBind, and for remote writing
// and atomics AccessLocalWrite; it needs none of the rights that the window gives.
type MWBindInfo struct {
	LKey   uint32 // of the region
	Addr   uint64 // of the first byte in the region, counted as SGE.Addr
	Length uint64 // bytes
	Access Access // RemoteWrite, RemoteRead, RemoteAtomic, ZeroBased: the window's addresses count from 0, otherwise they are the region's
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

	// AccessRemoteInvalidate lets the peer end the region's remote use with a
	// Send with Invalidate. It is govs' own (libibverbs has no such flag): the
	// engine requires it (RFC 5040 section 8.1.1 asks for control over who may
	// invalidate), the kernel provider drops it.
	AccessRemoteInvalidate Access = 1 << 30
)
