package engine

import (
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider/engine/transport"
)

// tcpNetwork makes the network of a device for which Options names none.
func tcpNetwork(opts Options) (transport.Network, error) {
	tcp := transport.NewTCP(&opts.TCP)
	return tcp, tcp.Check()
}

// maxDescriptors is how many descriptors the process may have.
func maxDescriptors() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil || limit.Cur > maxQP*2 {
		return maxQP * 2
	}
	return int(limit.Cur)
}
