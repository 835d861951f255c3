package engine

import "golang.org/x/sys/unix"

// maxDescriptors is how many descriptors the process may have.
func maxDescriptors() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > maxQP*2 {
		return maxQP * 2
	}
	return int(limit.Cur)
}
