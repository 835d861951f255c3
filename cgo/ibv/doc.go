// Package ibv binds libibverbs, call by call. It adds no policy: no locking, no reference counts,
// no retries. Its only user, package provider/kernel, adds those; programs use package ibverbs.
//
// A Go type such as [QP] is the C structure of the same name, and a *QP is the pointer that
// libibverbs returned. It may be compared and passed back, and Go never frees it. As in C, using it
// after the call that destroys it is a bug. Enumerations are passed as the numbers of the C header;
// [Constants] lists them by name.
//
// The comment of each wrapper ends with "Implements:" and the C prototype. ci/capi reads these
// lines and the installed header, and reports what is covered.
//
// # Memory
//
// No C call here keeps a pointer into Go memory, except [PD.RegMR]: the kernel keeps the registered
// pages until [MR.Dereg], and until then the caller must keep the memory from moving or being
// freed. Work requests and completions cross in C memory of a [SendBatch], [RecvBatch] or
// [WCBatch], so posting and polling cost one call into C per batch and allocate nothing.
//
// # Errors
//
// Errors are plain [syscall.Errno] values. libibverbs has three conventions, which the wrappers
// hide: a positive errno as the result, -1 or NULL with errno set, and in some drivers a negative
// errno as the result.
//
// # Building
//
// The package needs cgo and libibverbs' header (Debian: libibverbs-dev). Without cgo, on other
// systems than Linux, or with the build tag nokernel, it only has [Available], which is then false,
// and [WhyUnavailable]. So a program without the kernel provider still builds.
//
// # Limitations
//
// The package binds what RC queue pairs need, memory windows included. It does not bind address
// handles, multicast, XRC, flows, device memory, DMA-BUF, the extended interfaces for posting and
// polling (ibv_wr_*, ibv_start_poll) and on-demand paging. ci/capi lists what is bound.
package ibv
