package remote_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/remote"
)

// TestPrintable: an agent's texts about itself and its errors contain no control characters for a
// terminal.
func TestPrintable(t *testing.T) {
	const act = "\x1b]0;title\a"
	var failed error
	s := dial(t, agent(t, &remote.Agent{
		Host: remote.Host{Build: act, Kernel: act, Siw: act, Offers: []remote.Offer{{Name: act, Why: act}}},
		Open: func(string, []string) (provider.Provider, error) { return nil, failed },
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
	for _, text := range said {
		if strings.ContainsAny(text, act[:1]+"\a") || !strings.Contains(text, "]0;title") {
			t.Errorf("%q", text)
		}
	}
}
