//go:build !cgo || !linux || nokernel

package kernel

import (
	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
)

// Available reports whether the kernel provider was built in.
const Available = false

// New returns the kernel provider.
func New() provider.Provider { return missing{} }

type missing struct{}

func (missing) Name() string { return "kernel" }

func (missing) Devices() ([]provider.DeviceInfo, error) { return nil, whyMissing() }

func (missing) Open(string) (provider.Device, error) { return nil, whyMissing() }

func whyMissing() error {
	return &provider.UnsupportedError{Feature: "kernel provider", Reason: ibv.WhyUnavailable()}
}
