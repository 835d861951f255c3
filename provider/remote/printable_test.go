package remote_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/remote"
)

// TestPrintable: what an agent says of itself and of its errors does nothing to a terminal.
func TestPrintable(t *testing.T) {
	const act = "\x1b]0;title\a"
	s := dial(t, agent(t, &remote.Agent{
		Host: remote.Host{Build: act, Kernel: act, Siw: act, Offers: []remote.Offer{{Name: act, Why: act}}},
		Open: func(string, []string) (provider.Provider, error) { return nil, errors.New("broken" + act) },
	}))
	h := s.Host()
	_, err := s.Provider("engine", nil).Devices()
	if err == nil {
		t.Fatal("there are devices")
	}
	for _, said := range []string{h.Build, h.Kernel, h.Siw, h.Offers[0].Name, h.Offers[0].Why, err.Error()} {
		if strings.ContainsAny(said, act[:1]+"\a") || !strings.Contains(said, "]0;title") {
			t.Errorf("%q", said)
		}
	}
}
