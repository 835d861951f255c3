//go:build !cgo || !linux || nokernel

package rdmacm

import "github.com/govs-rdma/govs/cgo/ibv"

// Available reports whether librdmacm was built in.
const Available = false

// WhyUnavailable returns what the build lacks, or "" if it lacks nothing.
func WhyUnavailable() string { return ibv.WhyUnavailable() }
