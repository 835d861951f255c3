package rsocket

import (
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ibverbs"
)

// leaveUntouched gives the pages of a fresh region back until they are used. The engine has the
// kernel make all of them to find out whether they can be had, and a connection may never need most
// of them. Devices of the kernel have pinned them.
func leaveUntouched(vctx *ibverbs.Context, mr *ibverbs.MR) {
	if vctx.Provider() == "engine" {
		_ = unix.Madvise(mr.Bytes(), unix.MADV_DONTNEED)
	}
}
