package engine

import "golang.org/x/sys/unix"

// maxDescriptors returns how many descriptors the process may have, but no more than most.
func maxDescriptors(most int) int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > uint64(most) {
		return most
	}
	return int(limit.Cur)
}
