// Package recording holds what a program wrote to an RDMA device and what the device answered, byte
// for byte. A recording can be a file, or steps: values without what differs from run to run.
// Compare lists the differences between two recordings.
//
// Package tracer records a program over a device of the kernel. The library that govs-verbs-test
// exec loads records one over the engine. Comparing both recordings compares the bridge with siw.
package recording
