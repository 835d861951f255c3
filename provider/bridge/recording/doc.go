// Package recording has what a program said to an RDMA device and what the device answered, byte
// for byte: as a file, as values without what differs from run to run, and as a list of the
// differences between two of them.
//
// Package tracer records a program over a device of the kernel. The library that govs-verbs-test
// exec loads records one over the engine. That both recordings agree is how the bridge is compared
// with siw.
package recording
