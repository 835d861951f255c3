package provider

// PD is a protection domain (struct ibv_pd): MRs and QPs of one PD may be used
// together, those of different PDs may not.
type PD interface {
	// RegMR registers buf (ibv_reg_mr). The memory must stay at its address
	// until the MR is closed: memory off the Go heap (mmap), or Go memory
	// without pointers, which the provider pins until then. An empty buf is
	// EINVAL. RemoteWrite or RemoteAtomic without LocalWrite is EINVAL.
	RegMR(buf []byte, access Access) (MR, error)

	// CreateQP makes a QP that no CM id owns yet (ibv_create_qp). The ID that
	// connects it takes it through ConnParam.QP.
	CreateQP(init QPInitAttr) (QP, error)

	Close() error // ibv_dealloc_pd
}

// MR is a memory region (struct ibv_mr).
type MR interface {
	// Addr is the address of the region's first octet as SGEs and peers name
	// it: the tagged offset on the wire. With the kernel it is the virtual
	// address, with the engine a value that says nothing about this process.
	Addr() uint64
	Len() uint64  // octets
	LKey() uint32 // for SGE.LKey
	RKey() uint32 // for SendWR.RKey at the peer: the STag on the wire
	Access() Access

	// Close deregisters (ibv_dereg_mr). When it returns nil no octet of the
	// region is read or written any more; work that still names it completes
	// with an error.
	Close() error
}

// Access is a set of access rights (enum ibv_access_flags).
type Access uint32

// Rights of an MR. Local read is always allowed.
const (
	AccessLocalWrite   Access = 1 << 0
	AccessRemoteWrite  Access = 1 << 1
	AccessRemoteRead   Access = 1 << 2
	AccessRemoteAtomic Access = 1 << 3
	AccessMWBind       Access = 1 << 4
	AccessZeroBased    Access = 1 << 5

	// AccessRemoteInvalidate lets the peer end the region's remote use with a
	// Send with Invalidate. It is govs' own (libibverbs has no such flag): the
	// engine requires it (RFC 5040 section 8.1.1 asks for control over who may
	// invalidate), the kernel provider drops it.
	AccessRemoteInvalidate Access = 1 << 30
)
