// Package onengine runs the suite over the engine: it opens an engine as a scenario's
// options say. It is a package of its own because the suite imports no provider.
package onengine

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Side says what the endpoints of one kind have in common.
type Side struct {
	Name string     // the provider's name in pairings
	Addr netip.Addr // the address they listen at

	// Tap sees their connections; nil for none.
	Tap transport.Tap

	// New makes the provider; nil is engine.New.
	New func(*engine.Options) provider.Provider
}

// Opener opens a device of its own for each call, with a scenario's options.
func (s Side) Opener() conformance.Opener {
	return func(options []string) (*conformance.Endpoint, error) {
		p, err := s.Provider(options)
		if err != nil {
			return nil, err
		}
		vctx, err := ibverbs.Open(p, "")
		if err != nil {
			return nil, err
		}
		return &conformance.Endpoint{Name: s.Name, Context: vctx, Addr: s.Addr}, nil
	}
}

// Provider makes a provider with a scenario's options.
func (s Side) Provider(options []string) (provider.Provider, error) {
	opts := new(engine.Options)
	if err := Set(opts, options); err != nil {
		return nil, err
	}
	if s.Tap != nil {
		opts.Network = transport.NewTCP(&transport.TCPOptions{Tap: s.Tap})
	}
	if s.New == nil {
		return engine.New(opts), nil
	}
	return s.New(opts), nil
}

// Set reads a scenario's options into opts: crc=on|off, markers=on|off,
// rdmac=permitted|only, extensions=on|off, startup=DURATION, close=DURATION,
// rtr=send|write|read and fallback=closed|unenhanced. The error names an option that is
// not one of them.
func Set(opts *engine.Options, options []string) error {
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := set(opts, key, value); err != nil {
			return fmt.Errorf("scenario option %q: %w", o, err)
		}
	}
	return nil
}

func set(opts *engine.Options, key, value string) error {
	var ok bool
	switch key {
	case "crc":
		opts.CRC, ok = map[string]engine.CRCPolicy{"on": engine.CRCOn, "off": engine.CRCOff}[value]
	case "markers":
		opts.Conformance.Markers, ok = map[string]bool{"on": true, "off": false}[value]
	case "rtr":
		opts.Conformance.RTR, ok = map[string]mpa.RTR{
			"send": mpa.RTRSend, "write": mpa.RTRWrite, "read": mpa.RTRRead,
		}[value]
		opts.PeerToPeer = true
	case "fallback":
		opts.Conformance.Fallback, ok = map[string]engine.FallbackPolicy{
			"closed": engine.FallbackClosed, "unenhanced": engine.FallbackUnenhanced,
		}[value]
	case "rdmac":
		opts.Conformance.RDMAC, ok = map[string]mpa.RDMACPolicy{
			"permitted": mpa.RDMACPermitted, "only": mpa.RDMACOnly,
		}[value]
	case "extensions":
		opts.Extensions, ok = map[string]bool{"on": true, "off": false}[value]
	case "startup":
		d, err := time.ParseDuration(value)
		opts.StartupTimeout, ok = d, err == nil
	case "close":
		d, err := time.ParseDuration(value)
		opts.CloseTimeout, ok = d, err == nil
	default:
		return errors.New("no such option")
	}
	if !ok {
		return errors.New("no such value")
	}
	return nil
}

// ProcessAddr returns a loopback address of the calling process's own, made from its process
// id, so that ports that other processes use don't collide with the ports of a run.
func ProcessAddr() netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(1 + pid>>16&0x7f), byte(pid >> 8), byte(pid)})
}
