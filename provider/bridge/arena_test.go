package bridge

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"golang.org/x/sys/unix"
)

// TestArenaLasts: a program can make and destroy CQs of the largest size any number of times.
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

// TestArenaWithinALimit: a program with a limit of file sizes that it cannot raise can open the
// device.
func TestArenaWithinALimit(t *testing.T) {
	if !alone(t) {
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
	wantLimit(t, 4096)
}

// TestArenasAtOnce: threads may open the device at the same time under a limit of file sizes, and
// the limit is unchanged afterwards.
func TestArenasAtOnce(t *testing.T) {
	if !alone(t) {
		return
	}
	testkit.OK(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: 1 << 40}))
	var threads sync.WaitGroup
	for range 4 {
		threads.Go(func() {
			for range 2000 {
				a, fd, err := newArena(unix.MFD_CLOEXEC)
				if err != nil {
					t.Error(err)
					return
				}
				a.close()
				_ = unix.Close(fd)
			}
		})
	}
	threads.Wait()
	wantLimit(t, 4096)
}

// TestArenaLimitSet: a limit of file sizes that a thread of the program sets while another one
// opens the device is not lost.
func TestArenaLimitSet(t *testing.T) {
	if !alone(t) {
		return
	}
	testkit.OK(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 4096, Max: 1 << 40}))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint64(50) {
			want := 4096 * (1 + i%4)
			for lengthening.TryLock() { // until the other is in lengthen
				lengthening.Unlock()
				runtime.Gosched()
			}
			if err := unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: want, Max: 1 << 40}); err != nil {
				t.Error(err)
				return
			}
			lengthening.Lock() // waits until the limit is not raised
			wantLimit(t, want)
			lengthening.Unlock()
		}
	}()
	for {
		select {
		case <-done:
			return
		default:
		}
		a, fd, err := newArena(unix.MFD_CLOEXEC)
		if errors.Is(err, unix.EFBIG) { // the new limit came before the file was long
			continue
		}
		testkit.OK(t, err)
		a.close()
		_ = unix.Close(fd)
	}
}

// alone runs the test in a process of its own, because limits apply to a process, and reports
// whether this is that process.
func alone(t *testing.T) bool {
	if os.Getenv("ARENA_LIMIT") != "" {
		return true
	}
	c := exec.Command(testkit.Must(os.Executable())(t), "-test.run", "^"+t.Name()+"$")
	c.Env = append(os.Environ(), "ARENA_LIMIT=1", "GOCOVERDIR="+t.TempDir())
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// wantLimit checks the limit of file sizes.
func wantLimit(t *testing.T, want uint64) {
	t.Helper()
	var now unix.Rlimit
	testkit.OK(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &now))
	if now.Cur != want {
		t.Errorf("the limit is %d now, want %d", now.Cur, want)
	}
}
