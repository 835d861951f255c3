package transporttest

import (
	"os"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// NoMoreFDs counts the file descriptors of the process, and returns a function that fails the test
// unless there are as few again. A wake-up that is under way keeps one for a while.
func NoMoreFDs(t testing.TB) func() {
	t.Helper()
	// From the first pipe or socket of the process on, Go's netpoller has two of its own.
	r, w := testkit.Must2(os.Pipe())(t)
	testkit.OK(t, r.Close())
	testkit.OK(t, w.Close())
	before := openFDs(t)
	return func() {
		t.Helper()
		after := openFDs(t)
		for end := time.Now().Add(2 * time.Minute); after > before && time.Now().Before(end); after = openFDs(t) {
			time.Sleep(time.Millisecond)
		}
		if after > before {
			t.Errorf("%d file descriptors before, %d after", before, after)
		}
	}
}

func openFDs(t testing.TB) int {
	t.Helper()
	entries := testkit.Must(os.ReadDir("/proc/self/fd"))(t)
	return len(entries)
}
