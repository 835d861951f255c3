package pin

import (
	"os"
	"strings"
	"testing"
)

// What RaiseSession changes is as before when it is restored.
func TestRaiseSession(t *testing.T) {
	before, _ := os.ReadFile(autogroup)
	restore, err := RaiseSession()
	if err != nil {
		t.Fatal(err)
	}
	if restore == nil {
		t.Logf("not possible here: %s has %q", autogroup, before)
		return
	}
	text, _ := os.ReadFile(autogroup)
	if !strings.HasSuffix(strings.TrimSpace(string(text)), "nice -20") {
		t.Errorf("%s has %q", autogroup, text)
	}
	if err := restore(); err != nil {
		t.Error(err)
	}
	if after, _ := os.ReadFile(autogroup); string(after) != string(before) {
		t.Errorf("%s has %q, and had %q before", autogroup, after, before)
	}
}

// What the kernel writes is read (sched(7), and proc_sched_autogroup_show_task in Linux).
func TestSessionNice(t *testing.T) {
	for _, c := range []struct {
		text      string
		nice      int
		scheduled bool
		fails     bool
	}{
		{text: "/autogroup-25 nice -20\n", nice: -20, scheduled: true},
		{text: "/autogroup-1 nice 0\n", scheduled: true},
		{text: ""}, // a process of another cgroup than the root
		{text: "autogroup", fails: true},
		{text: "/autogroup-1 nice low", fails: true},
	} {
		nice, scheduled, err := sessionNice(c.text)
		if nice != c.nice || scheduled != c.scheduled || (err != nil) != c.fails {
			t.Errorf("%q: nice %d, scheduled %v, error %v; want %+v", c.text, nice, scheduled,
				err, c)
		}
	}
}
