package engine

import "github.com/govs-rdma/govs/provider/engine/transport"

// tcpNetwork makes the network of a device for which Options names none.
func tcpNetwork(opts Options) (transport.Network, error) {
	tcp := transport.NewTCP(&opts.TCP)
	return tcp, tcp.Check()
}
