// Package bridge serves the kernel's RDMA ABI from a device of this project. A program that uses
// /dev/infiniband/uverbs0 and /dev/infiniband/rdma_cm, as libibverbs and librdmacm with siw's
// library do, gets the answers that siw would give, and the engine does the work.
//
// A [Bridge] serves one program. A [Program] gives it access to that program's memory and
// descriptors. Package cgo/bridge/lib implements Program for the process that it is loaded into;
// tests implement it in Go. As in the kernel, the bridge has a file for each open device: a [File].
// A program's write to the descriptor is a command, which File.Write executes.
//
// Arguments are checked as in the kernel, and errors are the kernel's errnos. Package abi defines
// the messages.
package bridge
