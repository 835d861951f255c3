package bridge

import (
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
