package ondevice

import (
	"os"
	"slices"
	"strings"
	"testing"
)

func TestDevices(t *testing.T) {
	for _, c := range []struct {
		provider, device string
		siw, rxe, kernel bool
		netdev           string
	}{
		{"", "", false, false, false, ""},
		{"", "siw0", false, false, false, ""},
		{"kernel", "siw0", true, false, true, "d0"},
		{"kernel", "rxe0", false, true, true, "d1"},
	} {
		t.Setenv("GOVS_PROVIDER", c.provider)
		t.Setenv("GOVS_DEVICE", c.device)
		if OnSiw() != c.siw || OnRxe() != c.rxe || OnKernel() != c.kernel || Netdev() != c.netdev {
			t.Errorf("%+v: on siw %v, on rxe %v, on a device of the kernel %v, over %q", c, OnSiw(), OnRxe(), OnKernel(), Netdev())
		}
	}
}

// TestChoose: what is left out is left out by its name, and has to be there.
func TestChoose(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, skip, err := choose(exe, "^TestDevices|^TestChoose", map[string]string{"TestDevices": "why not"})
	if err != nil || !slices.Equal(want, []string{"TestChoose"}) || skip != "^(TestDevices)$" {
		t.Errorf("%q, skip %q, %v", want, skip, err)
	}
	want, skip, err = choose(exe, "^Test", nil)
	if err != nil || len(want) != 2 || skip != "" {
		t.Errorf("%q, skip %q, %v", want, skip, err)
	}
	for pattern, leftOut := range map[string]map[string]string{
		"^TestChoose":   {"TestDevices": "does not match"},
		"^TestDevices$": {"TestDevices": "and nothing is left"},
		"^Nothing$":     nil,
	} {
		if _, _, err := choose(exe, pattern, leftOut); err == nil || !strings.Contains(err.Error(), "test") {
			t.Errorf("%s without %v: %v", pattern, leftOut, err)
		}
	}
}
