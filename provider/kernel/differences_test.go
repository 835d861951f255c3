//go:build cgo && linux && !nokernel

package kernel_test

// Reasons why the engine's completions differ from rxe's.
const (
	// RFC 5040 has no answer to a Send or a Write: it completes when its buffer may be used again
	// (section 5.5). If the peer finds a fault in it, the peer sends a Terminate (section 4.8),
	// which ends the connection. Later work is flushed, and QP.Cause returns the reason.
	noAnswer = "a Send or Write of iWARP has no answer: its fault comes as a Terminate, after its completion"

	// rxe 6.1 has one status for everything that it cannot copy (kernel-notes/rxe-statuses.md).
	// ibv_poll_cq has LOC_PROT_ERR and LOC_LEN_ERR for this.
	oneStatus = "rxe does not say what is wrong with local memory; the engine gives the status that verbs have for it"

	undefinedLength = "verbs define byte_len for what is placed: receives, Reads, atomic operations"
	noImmPayload    = "RFC 7306 section 6 has no Send with payload and immediate data"
	plainRegion     = "rxe lets nobody invalidate a region that was not made by fast registration; the engine asks AccessRemoteInvalidate of any region"
	checkedEarly    = "librxe looks at the address of an atomic operation, which is the responder's to judge (RFC 7306 section 5.1.1)"
	windowBounds    = "rxe holds who uses a window to the bounds of its region, not to the window's (kernel-notes/rxe-windows.md)"
	noMasks         = "libibverbs has no masked atomic operations; RFC 7306 section 5.1 does"
)

// differences lists every field in which the two differ, with the programs that show it.
var differences = []difference{
	{"*", "client send *", "byte_len of what was sent", "*", "0", undefinedLength},

	{"immediate data with payload", "client post 1", "errno", "none", "unsupported", noImmPayload},
	{"immediate data with payload", "server recv 1", "status", "IBV_WC_SUCCESS", "IBV_WC_WR_FLUSH_ERR", noImmPayload},
	{"invalidate", "server recv 1", "status", "IBV_WC_REM_INV_REQ_ERR", "IBV_WC_SUCCESS", plainRegion},
	{"atomic on a word that is not aligned", "client post 1", "errno", "invalid argument", "none", checkedEarly},
	{"requests that can't be", "client post 5", "errno", "unsupported", "none", noMasks},

	{"read beside a window", "client send 1", "status", "IBV_WC_SUCCESS", "IBV_WC_REM_ACCESS_ERR", windowBounds},

	{"invalidate what is nobody's", "server send 1", "status", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_MW_BIND_ERR", oneStatus},

	{"send from memory that is nobody's", "client send 1", "status", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_PROT_ERR", oneStatus},
	{"unsignaled send from memory that is nobody's", "client send 1", "status", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_PROT_ERR", oneStatus},
	{"send longer than its receive", "server recv 1", "status", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_LEN_ERR", oneStatus},
	{"receive into memory that is nobody's", "server recv 1", "status", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_PROT_ERR", oneStatus},

	{"write with a key that is nobody's", "client send 1", "status", "IBV_WC_REM_ACCESS_ERR", "IBV_WC_SUCCESS", noAnswer},
	{"write to memory that may be read only", "client send 1", "status", "IBV_WC_REM_ACCESS_ERR", "IBV_WC_SUCCESS", noAnswer},
	{"write beyond a region", "client send 1", "status", "IBV_WC_REM_ACCESS_ERR", "IBV_WC_SUCCESS", noAnswer},
	{"send longer than its receive", "client send 1", "status", "IBV_WC_REM_OP_ERR", "IBV_WC_SUCCESS", noAnswer},
	{"receive into memory that is nobody's", "client send 1", "status", "IBV_WC_REM_OP_ERR", "IBV_WC_SUCCESS", noAnswer},
	{"send without a receive, tried once", "client send 1", "status", "IBV_WC_RNR_RETRY_EXC_ERR", "IBV_WC_SUCCESS", noAnswer},
}
