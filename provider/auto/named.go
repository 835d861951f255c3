package auto

import (
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// Named returns the provider that a user has named, in a flag or a configuration: "engine",
// "kernel", or "auto", which calls New with opts. The engine gets opts.Engine; the kernel provider
// has no options. For any other name Named returns a [*provider.Error] that wraps EINVAL and lists
// the three.
func Named(name string, opts *Options) (provider.Provider, error) {
	switch name {
	case "engine":
		return engine.New(opts.complete().Engine), nil
	case "kernel":
		return kernel.New(), nil
	case "auto":
		return New(opts), nil
	}
	return nil, &provider.Error{
		Op: "auto.Named", Object: fmt.Sprintf("provider %q", name),
		Err: fmt.Errorf("there are engine, kernel and auto: %w", syscall.EINVAL),
	}
}
