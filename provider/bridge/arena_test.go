package bridge

import (
	"errors"
	"os"
	"os/exec"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"golang.org/x/sys/unix"
)

// TestArenaLasts: a program makes and destroys CQs of the largest size for as long as it runs.
func TestArenaLasts(t *testing.T) {
	a, fd, err := newArena(unix.MFD_CLOEXEC)
	testkit.OK(t, err)
	defer func() {
		a.close()
		_ = unix.Close(fd)
	}()
	for range 8_500 {
		q := testkit.Must(a.alloc(cqOctets(roundUp(maxCQE))))(t)
		q.mem[len(q.mem)-1] = 1
		q.free()
	}
	var st unix.Stat_t
	testkit.OK(t, unix.Fstat(fd, &st))
	if st.Blocks != 0 {
		t.Errorf("%d blocks are in use, and no queue", st.Blocks)
	}
}

// TestArenaWithinALimit: a program whose files may not be longer than its limit, which it can't
// raise, opens the device. The limit is of a process, so that the test has one of its own.
func TestArenaWithinALimit(t *testing.T) {
	if os.Getenv("ARENA_LIMIT") == "" {
		c := exec.Command(testkit.Must(os.Executable())(t), "-test.run", "^TestArenaWithinALimit$")
		c.Env = append(os.Environ(), "ARENA_LIMIT=1", "GOCOVERDIR="+t.TempDir())
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const limit = 1<<20 + 1
	testkit.OK(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: limit}))
	a, fd, err := newArena(unix.MFD_CLOEXEC)
	testkit.OK(t, err)
	q := testkit.Must(a.alloc(1 << 19))(t)
	q.mem[len(q.mem)-1] = 1
	if _, err := a.alloc(1 << 19); !errors.Is(err, unix.ENOMEM) {
		t.Errorf("beyond the limit: %v, want ENOMEM", err)
	}
	q.free()
	a.close()
	_ = unix.Close(fd)
	var now unix.Rlimit
	testkit.OK(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &now))
	if now.Cur != 4096 {
		t.Errorf("the limit is %d now, want 4096", now.Cur)
	}
}
