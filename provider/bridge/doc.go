// Package bridge serves the kernel's RDMA ABI from a device of this project: a program that speaks
// to /dev/infiniband/uverbs0 and /dev/infiniband/rdma_cm, as libibverbs and librdmacm with siw's
// library do, gets the answers that siw would give, and the engine does the work.
//
// A [Bridge] serves one program, which [Program] stands for: its memory and its descriptors.
// Package cgo/bridge/lib implements it for the process that it is loaded into; tests implement it
// in Go. The bridge has a file for each open device, as the kernel has: a [File]. What the program
// writes to the descriptor is a command, and goes to File.Write.
//
// Arguments are checked as the kernel checks them, and errors are the kernel's errnos. Messages are
// those of package abi.
package bridge
