// Package tracer records what a program writes to an RDMA device of the kernel, and the answers
// (package recording). It stops the program's system calls with ptrace(2), because the device
// writes answers through addresses in the commands, and strace does not show those.
//
// In a recorded program, RDMA_VERBS_IOCTL fails with ENOTTY, so libibverbs writes its commands, as
// it does over the bridge. The tracer records the program's threads, but not processes that it
// starts. It does not follow dup(2).
//
// The package exists only on linux/amd64.
package tracer
