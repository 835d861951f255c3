package main

import (
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/auto"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// openProvider opens a device of the provider that --provider names, for use with addr, and prints
// one line with its choice and the reason. If auto chose the engine because the kernel has no
// device, the line is short, because most machines have none. opts are for the engine; nil means
// defaults.
func openProvider(which string, addr netip.Addr, opts *engine.Options) (*ibverbs.Context, string, error) {
	var p provider.Provider
	why := which + ": as asked"
	switch which {
	case "engine":
		p = engine.New(opts)
	case "kernel":
		p = kernel.New()
	default:
		a := auto.New(&auto.Options{Addr: addr, Engine: opts})
		p, why = a, a.Why()
		if devices, err := kernel.New().Devices(); err != nil || len(devices) == 0 {
			why = a.Name() + ": the kernel has no device (" + name + " devices prints why)"
		}
	}
	vctx, err := ibverbs.Open(p, "")
	return vctx, "provider " + why, err
}
