//go:build !linux

package engine

import "github.com/govs-rdma/govs/provider/engine/transport"

// tcpNetwork says that a Network must be given: raw sockets and epoll, which
// package transport builds on, are Linux's.
func tcpNetwork(Options) (transport.Network, error) {
	return nil, failUnsupported("TCP", "sockets are implemented for Linux only; set Options.Network")
}

// maxDescriptors returns a number that limits nothing: without sockets no connection has a
// descriptor.
func maxDescriptors() int { return maxQP * 2 }
