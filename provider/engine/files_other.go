//go:build !linux

package engine

// maxDescriptors returns a number that limits nothing: without sockets no connection has a
// descriptor.
func maxDescriptors(most int) int { return most }
