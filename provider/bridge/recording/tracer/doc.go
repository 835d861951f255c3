// Package tracer records what a program says to an RDMA device of the kernel, and what it is
// answered (package recording). It stops the program's system calls with ptrace(2), because answers
// are written through addresses in the commands, where strace does not look.
//
// RDMA_VERBS_IOCTL fails with ENOTTY in a program that is recorded, so that libibverbs writes its
// commands, as it does over the bridge. Threads are recorded, other processes that the program
// starts are not. dup(2) is not followed.
//
// It is there on linux/amd64 only.
package tracer
