package engine

import (
	"fmt"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// TestLoopsOfFewDescriptors: on a machine with many CPUs the progress goroutines take no more than
// an eighth of the descriptors that the process may have, so that connections have theirs.
func TestLoopsOfFewDescriptors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(40))
	var old unix.Rlimit
	testkit.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	defer func() { testkit.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	for files, want := range map[uint64]int{16: 1, 64: 2, 256: 8, 1024: policy.MostLoops} {
		testkit.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: old.Max}))
		var o Options
		testkit.OK(t, o.complete())
		testkit.Equal(t, fmt.Sprintf("progress goroutines for %d descriptors", files),
			o.ProgressGoroutines, want)
	}
}
