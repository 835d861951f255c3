package onengine_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Every option of the suite is one, and does something unless it is a default.
func TestOptionsOfTheSuite(t *testing.T) {
	defaults := []string{"crc=on", "markers=off", "extensions=off"}
	tried := make(map[string]bool)
	for _, s := range scenarios.Suite().All() {
		for _, o := range slices.Concat(s.Options, s.ResponderOptions) {
			var opts engine.Options
			if err := onengine.Set(&opts, []string{o}); err != nil {
				t.Errorf("%s: %v", s.Slug, err)
			} else if (opts == engine.Options{}) != slices.Contains(defaults, o) {
				t.Errorf("%s: %s gives %+v", s.Slug, o, opts)
			}
			tried[o] = true
		}
	}
	if len(tried) < 5 {
		t.Errorf("the suite has the options %v only", tried)
	}
}

func TestSet(t *testing.T) {
	opts := engine.Options{Extensions: true, BusyWait: time.Hour}
	err := onengine.Set(&opts, []string{"crc=off", "rtr=write", "startup=1s", "close=2s", "fallback=closed", "rdmac=permitted", "extensions=off", "markers=on"})
	want := engine.Options{
		CRC: engine.CRCOff, PeerToPeer: true, StartupTimeout: time.Second, CloseTimeout: 2 * time.Second,
		Conformance: engine.Conformance{
			RTR: mpa.RTRWrite, Fallback: engine.FallbackClosed, RDMAC: mpa.RDMACPermitted, Markers: true,
		},
		BusyWait: time.Hour,
	}
	if err != nil || opts != want {
		t.Errorf("got %+v, %v", opts, err)
	}
	for _, bad := range []string{"", "crc", "crc=", "crc=perhaps", "speed=high", "startup=soon", "close=late", "=on"} {
		if err := onengine.Set(new(engine.Options), []string{"crc=on", bad}); err == nil || !strings.Contains(err.Error(), `"`+bad+`"`) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
