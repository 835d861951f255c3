package rsocket_test

import (
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"strconv"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// residentKiB returns how much anonymous memory the process has, in KiB.
func residentKiB(t *testing.T) int {
	debug.FreeOSMemory()
	b := testkit.Must(os.ReadFile("/proc/self/status"))(t)
	m := regexp.MustCompile(`RssAnon:\s+(\d+) kB`).FindSubmatch(b)
	if m == nil {
		t.Fatal("the kernel does not say how much memory the process has")
	}
	return testkit.Must(strconv.Atoi(string(m[1])))(t)
}

// TestIdleMemory: how much memory an idle end of a connection takes on the engine. Its rings take
// none before they are used.
func TestIdleMemory(t *testing.T) {
	if testkit.Race {
		t.Skip("the race detector needs memory of its own")
	}
	const pairs = 100
	for name, tc := range map[string]struct {
		cfg  rsocket.Config
		most int // KiB
	}{"default": {rsocket.Config{}, 110}, "tiny": {tiny, 40}} {
		t.Run(name, func(t *testing.T) {
			vctx, addr := device(t)
			before := residentKiB(t)
			for range pairs {
				c, s := pair(t, vctx, addr, tc.cfg, tc.cfg)
				for _, ends := range [][2]*rsocket.Conn{{c, s}, {s, c}} {
					testkit.Must(ends[0].Write([]byte("x")))(t)
					testkit.Must(io.ReadFull(ends[1], make([]byte, 1)))(t)
				}
			}
			each := (residentKiB(t) - before) / (2 * pairs)
			t.Logf("%d KiB", each)
			if each > tc.most {
				t.Errorf("an idle end takes %d KiB, and %d at most are expected", each, tc.most)
			}
		})
	}
}
