// Package auto chooses a provider: the kernel if one of its devices is usable, otherwise the
// engine.
//
//	p := auto.New(nil)
//	log.Print(p.Why())                  // kernel: siw0 is usable: a QP was made on it
//	vctx, err := ibverbs.Open(p, "")
//	log.Print(vctx.Provider())          // kernel
//
// A listed device may not work: its port may be down, the process may lack the rights or the locked
// memory for a queue, or the connection manager's module may not be loaded. So New tries each
// device. An iWARP device is usable if it has an active port and New could make the objects of a
// connection on it: a protection domain, a completion queue, a queue pair and a connection
// manager's id. New closes them again.
package auto

import (
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// Options configures the choice. Nil means the zero value.
type Options struct {
	// Addr, if valid, is the address that the program will connect to or listen on. New skips a
	// kernel device without a route to it: siw cannot use 127.0.0.1, and reaches only what its
	// interface reaches.
	Addr netip.Addr

	// ResolveTimeout limits how long New waits for a kernel device to resolve Addr. 0 means 2 s.
	ResolveTimeout time.Duration

	// Engine holds the options of the engine, if New chooses it.
	Engine *engine.Options
}

// Provider is the chosen provider. Name and Devices return that provider's.
type Provider struct {
	provider.Provider
	device string
	why    string
}

// usable returns an error if p is not from New.
func (p *Provider) usable() error {
	if p == nil || p.Provider == nil {
		return fmt.Errorf("nil or zero auto.Provider, which auto.New makes: %w", syscall.EINVAL)
	}
	return nil
}

// New chooses a provider. It opens and closes kernel devices, and with Options.Addr waits for their
// address resolution. It never fails, because the engine is always available.
func New(opts *Options) *Provider {
	o := opts.complete()
	return choose(kernel.New(), engine.New(o.Engine), o)
}

// Try returns why a device of p is not usable as this package defines it, or nil if it is.
func Try(p provider.Provider, device string, opts *Options) error {
	if p == nil {
		return fmt.Errorf("auto.Try: the provider is nil: %w", syscall.EINVAL)
	}
	_, err := try(p, device, opts.complete())
	return err
}

// complete returns the options with their defaults.
func (o *Options) complete() Options {
	var c Options
	if o != nil {
		c = *o
	}
	if c.ResolveTimeout <= 0 {
		c.ResolveTimeout = 2 * time.Second
	}
	return c
}

// choose returns first if one of its devices is usable, otherwise fallback.
func choose(first, fallback provider.Provider, o Options) *Provider {
	device, why, ok := firstUsable(first, o)
	if ok {
		return &Provider{first, device, fmt.Sprintf("%s: %s is usable: %s", first.Name(), device, why)}
	}
	return &Provider{fallback, "", fmt.Sprintf("%s: no usable device of the %s: %s", fallback.Name(), first.Name(), why)}
}

// firstUsable returns the first usable device of p. If there is none, why holds the reason for each
// device.
func firstUsable(p provider.Provider, o Options) (device, why string, ok bool) {
	infos, err := p.Devices()
	if err != nil {
		return "", err.Error(), false
	}
	if len(infos) == 0 {
		return "", "there is none", false
	}
	var reasons []string
	for _, info := range infos {
		if info.Transport != provider.TransportIWARP {
			reasons = append(reasons, fmt.Sprintf("%s is not an iWARP device", info.Name))
			continue
		}
		why, err := try(p, info.Name, o)
		if err == nil {
			return info.Name, why, true
		}
		reasons = append(reasons, fmt.Sprintf("%s: %v", info.Name, err))
	}
	return "", strings.Join(reasons, "; "), false
}

// Name returns the name of the chosen provider.
func (p *Provider) Name() string {
	if p.usable() != nil {
		return ""
	}
	return p.Provider.Name()
}

// Devices returns the devices of the chosen provider.
func (p *Provider) Devices() ([]provider.DeviceInfo, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	return p.Provider.Devices()
}

// Open opens a device of the chosen provider by name; the empty name opens the device that was
// found usable.
func (p *Provider) Open(name string) (provider.Device, error) {
	if err := p.usable(); err != nil {
		return nil, err
	}
	if name == "" {
		name = p.device
	}
	return p.Provider.Open(name)
}

// Why returns one line that names the chosen provider and device, and the reason.
func (p *Provider) Why() string {
	if p == nil {
		return ""
	}
	return p.why
}

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
