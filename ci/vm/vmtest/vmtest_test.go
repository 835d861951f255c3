package vmtest_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// told is a test that keeps what becomes of it.
type told struct {
	testing.TB
	what string
}

func (t *told) Skip(args ...any) { t.end("skip: " + fmt.Sprint(args...)) }

func (t *told) Fatal(args ...any) { t.end("fail: " + fmt.Sprint(args...)) }

func (t *told) end(what string) {
	t.what = what
	runtime.Goexit()
}

// TestNoGuest has tests left out on demand, but not where all are demanded.
func TestNoGuest(t *testing.T) {
	t.Setenv("NO_GUEST", "1")
	for require, want := range map[string]string{"": "skip: NO_GUEST=1", "0": "skip: NO_GUEST=1", "1": "fail: REQUIRE_SIW=1 wants every test"} {
		t.Setenv("REQUIRE_SIW", require)
		x := &told{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			vmtest.Need(x)
		}()
		<-done
		if !strings.HasPrefix(x.what, want) {
			t.Errorf("REQUIRE_SIW=%q: %q, want %q", require, x.what, want)
		}
	}
}
