package vmtest_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// recorder is a test that records how it ended.
type recorder struct {
	testing.TB
	what string
}

func (t *recorder) Skip(args ...any) { t.end("skip: " + fmt.Sprint(args...)) }

func (t *recorder) Fatal(args ...any) { t.end("fail: " + fmt.Sprint(args...)) }

func (t *recorder) end(what string) {
	t.what = what
	runtime.Goexit()
}

// TestNoGuest checks that tests are skipped on demand, but not if all tests are required.
func TestNoGuest(t *testing.T) {
	t.Setenv("NO_GUEST", "1")
	for require, want := range map[string]string{"": "skip: NO_GUEST=1", "0": "skip: NO_GUEST=1", "1": "fail: REQUIRE_SIW=1 wants every test"} {
		t.Setenv("REQUIRE_SIW", require)
		x := &recorder{TB: t}
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
