//go:build !linux

package engine

// l2Cache returns 0: the size of a core's L2 cache is not known here.
func l2Cache() int { return 0 }
