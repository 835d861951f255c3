package rsocket

import (
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ibverbs"
)

// leaveUntouched returns the pages of a new region to the kernel until they are used. The engine
// makes the kernel allocate all of them, to check that they are available, but a connection may
// never need most of them. Kernel devices have pinned the pages.
func leaveUntouched(vctx *ibverbs.Context, mr *ibverbs.MR) {
	if vctx.Provider() == "engine" {
		_ = unix.Madvise(mr.Bytes(), unix.MADV_DONTNEED)
	}
}
