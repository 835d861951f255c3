package remote_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/engine"
)

// acting is a provider with names that a terminal acts on.
type acting struct {
	provider.Provider
	name string
}

type actingDevice struct {
	provider.Device
	name string
}

func (p acting) Devices() ([]provider.DeviceInfo, error) {
	return []provider.DeviceInfo{{Name: p.name, Netdev: p.name}}, nil
}

func (p acting) Open(string) (provider.Device, error) {
	d, err := p.Provider.Open("")
	return actingDevice{d, p.name}, err
}

func (d actingDevice) Name() string { return d.name }

// TestPrintable: an agent's texts about itself and its devices, and its errors, contain no control
// characters for a terminal.
func TestPrintable(t *testing.T) {
	const act = "\x1b]0;title\a\u009b2J"
	var failed error
	s := dial(t, agent(t, &remote.Agent{
		Host: remote.Host{Build: act, Kernel: act, Siw: act, Offers: []remote.Offer{{Name: act, Why: act,
			Addr: netip.MustParseAddr("fe80::1").WithZone(act)}}},
		Open: func(string, []string) (provider.Provider, error) { return acting{engine.New(nil), act}, failed },
	}))
	h := s.Host()
	said := []string{h.Build, h.Kernel, h.Siw, h.Offers[0].Name, h.Offers[0].Why}
	nested := errors.New(act)
	for range 100 {
		nested = fmt.Errorf("%w", nested)
	}
	for _, failed = range []error{
		errors.New("broken" + act), nested,
		&provider.Error{Op: act, Err: syscall.EIO}, &provider.Error{Object: act, Err: syscall.EIO},
		&provider.UnsupportedError{Feature: act}, &provider.UnsupportedError{Reason: act},
		&provider.TerminateError{Text: act},
	} {
		_, err := s.Provider("engine", nil).Devices()
		if err == nil {
			t.Fatal("there are devices")
		}
		said = append(said, err.Error())
	}
	failed = nil
	for _, d := range testkit.Must(s.Provider("engine", nil).Devices())(t) {
		said = append(said, d.Name, d.Netdev)
	}
	said = append(said, testkit.Must(s.Provider("engine", nil).Open(""))(t).Name())
	if h.Offers[0].Addr.Zone() == act {
		t.Error("a zone with control characters")
	}
	for _, text := range said {
		if strings.ContainsAny(text, "\x1b\a\u009b") || !strings.Contains(text, "]0;title") {
			t.Errorf("%q", text)
		}
	}
}
