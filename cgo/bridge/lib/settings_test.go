//go:build linux && cgo

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/recording"
)

// TestSettings reads the environment that exec sets.
func TestSettings(t *testing.T) {
	env := map[string]string{"GOVS_BRIDGE_P2P": "1", "GOVS_BRIDGE_CRC": "off",
		"GOVS_BRIDGE_CONGESTION": "reno", "GOVS_BRIDGE_ADDRESSES": "192.0.2.1,2001:db8::1",
		"GOVS_BRIDGE_NO_OPENING_WRITE": "1"}
	s := testkit.Must(settingsFrom(func(name string) string { return env[name] }))(t)
	if !s.engine.PeerToPeer || s.engine.Extensions || s.engine.TCP.CongestionControl != "reno" ||
		!s.bridge().NoOpeningWrite {
		t.Errorf("settings %+v", s.engine)
	}
	if got := s.bridge().Addresses; len(got) != 2 || got[1].String() != "2001:db8::1" {
		t.Errorf("addresses %s", got)
	}
	if s.recorder() != nil {
		t.Error("commands are recorded, and nobody has asked for it")
	}
	s.record = filepath.Join(t.TempDir(), "recording")
	s.recorder().opened(recording.Uverbs, nil)
	rec := testkit.Must(recording.Read(testkit.Must(os.Open(s.record))(t)))(t)
	if len(rec.Entries) != 1 || rec.Entries[0].Op != recording.Open {
		t.Errorf("recorded: %+v", rec.Entries)
	}
	for name, value := range map[string]string{"GOVS_BRIDGE_P2P": "perhaps",
		"GOVS_BRIDGE_CRC": "sometimes", "GOVS_BRIDGE_ADDRESSES": "here"} {
		if _, err := settingsFrom(func(n string) string {
			if n == name {
				return value
			}
			return ""
		}); err == nil {
			t.Errorf("%s=%s is taken", name, value)
		}
	}
}
