package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestJoin(t *testing.T) {
	alone := collection(outcome("a/b", "engine", "engine", check(true)), outcome("r/w", Raw, "engine", check(true)))
	alone.Kernel, alone.Started = "host", time.Unix(1, 0)
	alone.Outcomes[0].Capture = "a-b.engine-engine.pcapng"
	alone.Outcomes[0].CaptureAtPeer = "a-b.engine-engine.at-peer.pcapng"
	with := collection(outcome("a/b", "engine", "kernel", check(true)))
	with.Kernel, with.Siw, with.Require, with.Started = "guest", "crc", []string{"kernel"}, time.Unix(2, 0)
	join := func(parts ...*Collection) (*Collection, error) {
		var list []Part
		for i, c := range parts {
			list = append(list, Part{"/" + string(rune('a'+i)), c})
		}
		return Join("engine", list...)
	}
	got, err := join(alone, with)
	if err != nil {
		t.Fatal(err)
	}
	want := collection(alone.Outcomes[0], alone.Outcomes[1], with.Outcomes[0])
	want.Kernel, want.Siw, want.Require, want.Started = "guest", "crc", []string{"kernel"}, time.Unix(1, 0)
	want.Outcomes[0].Capture = "/a/a-b.engine-engine.pcapng"
	want.Outcomes[0].CaptureAtPeer = "/a/a-b.engine-engine.at-peer.pcapng"
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if alone.Outcomes[0].Capture != "a-b.engine-engine.pcapng" {
		t.Error("a part was changed")
	}

	for want, change := range map[string]func(c *Collection){
		`the seed is "7" and "8"`:                          func(c *Collection) { c.Seed = 8 },
		`the version of the program is "" and "2"`:         func(c *Collection) { c.Version = "2" },
		`the kernel is "guest" and "other"`:                func(c *Collection) { c.Kernel = "other" },
		`the variant of siw is "crc" and "p2p"`:            func(c *Collection) { c.Siw = "p2p" },
		`both /a and /b have the run a/b engine->kernel: `: func(c *Collection) { c.Outcomes[0].Scenario = "a/b" },
	} {
		other := collection(outcome("a/c", "engine", "kernel", check(true)))
		other.Kernel, other.Siw = with.Kernel, with.Siw
		change(other)
		if _, err := join(with, other); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if _, err := join(); err == nil {
		t.Error("nothing was joined")
	}
}
