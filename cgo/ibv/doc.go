// Package ibv binds libibverbs, call by call. It adds no policy: no locking, no
// reference counts, no retries. Those are the business of its one user, package
// provider/kernel; programs use package ibverbs.
//
// A Go type such as [QP] is the C structure of the same name, and a *QP the
// pointer that libibverbs gave out: it may be compared and passed back, it is
// never freed by Go, and using it after the call that destroys it is as wrong as
// in C. Enumerations are passed as the numbers of the C header; [Constants]
// lists them by name.
//
// The comment of each wrapper ends with "Implements:" and the C prototype.
// ci/capi reads these lines and the installed header, and reports what is
// covered.
//
// # Memory
//
// No C call here keeps a pointer into Go memory, but for [PD.RegMR]: the kernel
// keeps the registered pages until [MR.Dereg], and the caller sees to it that
// the memory neither moves nor is freed until then. Work requests and
// completions cross in C memory that belongs to a [SendBatch], [RecvBatch] or
// [WCBatch], so that posting and polling cost one crossing per batch and
// allocate nothing.
//
// # Errors
//
// Errors are plain [syscall.Errno] values. libibverbs has three conventions
// (a positive errno as the result, -1 or NULL with errno set, and in some
// drivers a negative errno as the result); the wrappers hide them.
//
// # Building
//
// The package needs cgo and libibverbs' header (Debian: libibverbs-dev). Without
// cgo, on other systems than Linux, or with the build tag nokernel, only
// [Available], which is false then, and [WhyUnavailable] are left, so that a
// program without the kernel provider still builds.
//
// # Limitations
//
// The package binds what RC queue pairs need, memory windows included. It does not
// bind address handles, multicast, XRC, flows, device memory, DMA-BUF, the extended
// interfaces for posting and polling (ibv_wr_*, ibv_start_poll) and on-demand paging.
// ci/capi lists what is bound.
package ibv
