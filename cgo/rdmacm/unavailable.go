//go:build !cgo || !linux || nokernel

package rdmacm

import "github.com/govs-rdma/govs/cgo/ibv"

// Available says whether librdmacm was built in.
const Available = false

// WhyUnavailable says what the build lacks, empty if it lacks nothing.
func WhyUnavailable() string { return ibv.WhyUnavailable() }
