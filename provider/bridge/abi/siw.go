package abi

// SiwABI is SIW_ABI_VERSION.
const SiwABI = 1

// Limits of siw's queue elements.
const (
	SiwMaxSGE    = 6
	SiwMaxInline = 16 * (SiwMaxSGE - 1) // in bytes, stored over the second and later SGEs
)

// SiwInvalidKey is the key of a queue that cannot be mapped (SIW_INVAL_UOBJ_KEY).
const SiwInvalidKey = 0x090000

// Operations of SQEs and CQEs (enum siw_opcode).
const (
	SiwWrite         = 0
	SiwRead          = 1
	SiwReadLocalInv  = 2
	SiwSend          = 3
	SiwSendWithImm   = 4
	SiwSendRemoteInv = 5
	SiwFetchAndAdd   = 6
	SiwCompAndSwap   = 7
	SiwReceive       = 8
	SiwReadResponse  = 9
	SiwInvalSTag     = 10
	SiwRegMR         = 11
)

// Flags of queue elements (enum siw_wqe_flags).
const (
	SiwWQEValid     = 1
	SiwWQEInline    = 1 << 1
	SiwWQESignalled = 1 << 2
	SiwWQESolicited = 1 << 3
	SiwWQEReadFence = 1 << 4
	SiwWQERemInval  = 1 << 5
	SiwWQECompleted = 1 << 6
)

// Events for which a program arms a CQ, in SiwCQCtrl (enum siw_notify_flags).
const (
	SiwNotifySolicited      = 1
	SiwNotifyNextCompletion = 1 << 1
	SiwNotifyMissedEvents   = 1 << 2
)

// States of completions (enum siw_wc_status).
const (
	SiwWCSuccess      = 0
	SiwWCLocLenErr    = 1
	SiwWCLocProtErr   = 2
	SiwWCLocQPOpErr   = 3
	SiwWCWRFlushErr   = 4
	SiwWCBadRespErr   = 5
	SiwWCLocAccessErr = 6
	SiwWCRemAccessErr = 7
	SiwWCRemInvReqErr = 8
	SiwWCGeneralErr   = 9
)

// SiwAllocCtxResp follows GetContextResp (siw_uresp_alloc_ctx).
type SiwAllocCtxResp struct {
	DevID uint32 `c:"dev_id"`
	_     uint32
}

// SiwCreateCQResp follows CreateCQResp (siw_uresp_create_cq).
type SiwCreateCQResp struct {
	CQID   uint32 `c:"cq_id"`
	NumCQE uint32 `c:"num_cqe"`
	CQKey  uint64 `c:"cq_key"` // offset for mmap
}

// SiwCreateQPResp follows CreateQPResp (siw_uresp_create_qp).
type SiwCreateQPResp struct {
	QPID   uint32 `c:"qp_id"`
	NumSQE uint32 `c:"num_sqe"`
	NumRQE uint32 `c:"num_rqe"`
	_      uint32
	SQKey  uint64 `c:"sq_key"` // offset for mmap
	RQKey  uint64 `c:"rq_key"` // offset for mmap
}

// SiwRegMRReq follows RegMR (siw_ureq_reg_mr).
type SiwRegMRReq struct {
	STagKey uint8 `c:"stag_key"`
	_       [3]uint8
	_       uint32
}

// SiwRegMRResp follows RegMRResp (siw_uresp_reg_mr).
type SiwRegMRResp struct {
	STag uint32 `c:"stag"`
	_    uint32
}

// SiwCreateSRQResp follows CreateSRQResp (siw_uresp_create_srq).
type SiwCreateSRQResp struct {
	NumRQE uint32 `c:"num_rqe"`
	_      uint32
	SRQKey uint64 `c:"srq_key"` // offset for mmap
}

// SiwSGE is siw_sge.
type SiwSGE struct {
	LAddr  uint64 `c:"laddr"`
	Length uint32 `c:"length"`
	LKey   uint32 `c:"lkey"`
}

// SiwSQE is siw_sqe, an element of a send queue.
type SiwSQE struct {
	ID     uint64            `c:"id"`
	Flags  uint16            `c:"flags"`
	NumSGE uint8             `c:"num_sge"`
	Opcode uint8             `c:"opcode"`
	RKey   uint32            `c:"rkey"`
	RAddr  uint64            `c:"raddr"`
	SGE    [SiwMaxSGE]SiwSGE `c:"sge"`
}

// SiwRQE is siw_rqe, an element of a receive queue.
type SiwRQE struct {
	ID     uint64 `c:"id"`
	Flags  uint16 `c:"flags"`
	NumSGE uint8  `c:"num_sge"`
	Opcode uint8  `c:"opcode"`
	_      uint32
	SGE    [SiwMaxSGE]SiwSGE `c:"sge"`
}

// SiwCQE is siw_cqe, an element of a CQ.
type SiwCQE struct {
	ID        uint64 `c:"id"`
	Flags     uint8  `c:"flags"`
	Opcode    uint8  `c:"opcode"`
	Status    uint16 `c:"status"`
	Bytes     uint32 `c:"bytes"`
	InvalSTag uint32 `c:"inval_stag"` // or the first half of imm_data
	_         uint32
	QPID      uint64 `c:"qp_id"`
}

// SiwCQCtrl comes after the elements of a CQ (siw_cq_ctrl).
type SiwCQCtrl struct {
	Flags uint32 `c:"flags"`
	_     uint32
}
