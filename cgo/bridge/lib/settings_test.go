//go:build linux && cgo

package main

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestSettings reads the environment that exec sets.
func TestSettings(t *testing.T) {
	env := map[string]string{"GOVS_BRIDGE_P2P": "1", "GOVS_BRIDGE_CRC": "off",
		"GOVS_BRIDGE_CONGESTION": "reno"}
	s := testkit.Must(settingsFrom(func(name string) string { return env[name] }))(t)
	if !s.engine.PeerToPeer || s.engine.Extensions || s.engine.TCP.CongestionControl != "reno" {
		t.Errorf("settings %+v", s.engine)
	}
	for name, value := range map[string]string{"GOVS_BRIDGE_P2P": "perhaps",
		"GOVS_BRIDGE_CRC": "sometimes"} {
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
