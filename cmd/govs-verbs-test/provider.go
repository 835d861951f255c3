package main

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// openProvider opens the first device of a provider, or of the one that auto
// takes, and says which it took and why.
func openProvider(which string) (*ibverbs.Context, string, error) {
	if which == "engine" {
		vctx, err := ibverbs.Open(engine.New(nil), "")
		return vctx, "provider engine, as asked", err
	}
	vctx, err := ibverbs.Open(kernel.New(), "")
	if which == "kernel" || err == nil {
		return vctx, "provider kernel", err
	}
	why := fmt.Sprintf("provider engine: %v", err)
	vctx, err = ibverbs.Open(engine.New(nil), "")
	return vctx, why, err
}
