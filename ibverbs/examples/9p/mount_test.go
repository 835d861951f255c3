package main

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
	"github.com/govs-rdma/govs/provider/kernel"
)

// fsxVar names the environment variable that says how long TestMount reads and writes at random;
// the default is 2 seconds.
const fsxVar = "GOVS_9P_FSX"

// TestMount makes Linux mount what a Go program serves, over siw: with 9pnet_rdma, which knows
// nothing of this project.
func TestMount(t *testing.T) {
	if exampletest.Kernel() {
		t.Skip("TestOnSiw runs this package's other tests; TestMount brings its own guest")
	}
	if !vmtest.Inside() {
		vmtest.NeedKernelProvider(t, kernel.Available)
		vmtest.Self(t, vmtest.Options{Timeout: 8 * time.Minute})
		return
	}
	if out, err := exec.Command("modprobe", "-a", "9pnet_rdma", "9pnet_fd").CombinedOutput(); err != nil {
		t.Fatalf("modprobe: %v\n%s", err, out)
	}
	traceSiw(t)
	defer took(t, time.Now(), "everything")
	t.Run("engine", func(t *testing.T) {
		s := serve(t, "engine")
		t.Run("tree", func(t *testing.T) { testTree(t, s, 20) })
		t.Run("big file", func(t *testing.T) { testBigFile(t, s, 4<<20) })
		t.Run("calls", func(t *testing.T) { testCalls(t, s) })
		t.Run("random", func(t *testing.T) { testRandom(t, s) })
		t.Run("two mounts", func(t *testing.T) { testTwoMounts(t, s) })
	})
	t.Run("kernel", func(t *testing.T) { // siw at both ends
		s := serve(t, "kernel")
		t.Run("calls", func(t *testing.T) { testCalls(t, s) })
		t.Run("big file", func(t *testing.T) { testBigFile(t, s, 4<<20) })
	})
	t.Run("tcp", func(t *testing.T) { testCalls(t, serve(t, "engine", "--tcp")) })
	t.Run("read only", testReadOnly)
	t.Run("server killed", testKilled)
}

// traceSiw makes siw's connection manager log what it does, which a failure shows.
func traceSiw(t *testing.T) {
	t.Helper()
	if err := unix.Mount("none", "/sys/kernel/debug", "debugfs", 0, ""); err != nil && err != unix.EBUSY {
		t.Fatal(err)
	}
	const control = "/sys/kernel/debug/dynamic_debug/control"
	if err := os.WriteFile(control, []byte("file siw_cm.c +p"), 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(control, []byte("file siw_cm.c -p"), 0); err != nil {
			t.Error(err)
		}
	})
}

// served is a server and what it serves.
type served struct {
	*exampletest.Server
	dir string
	tcp bool
	siw bool // the server uses siw
}

// serve starts a server on siw's address.
func serve(t *testing.T, provider string, flags ...string) *served {
	t.Helper()
	t.Setenv("GOVS_PROVIDER", provider)
	dir := t.TempDir()
	p := exampletest.Self(t)
	p.Limit = 8 * time.Minute
	return &served{p.Start(t, append(flags, "--listen", "192.0.2.1:0", dir)...), dir,
		slices.Contains(flags, "--tcp"), provider == "kernel"}
}

// mount mounts what a server serves, until the end of the test.
func (s *served) mount(t *testing.T, options string) string {
	t.Helper()
	dir := s.mountOnly(t, options)
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Errorf("umount: %v", err)
		}
	})
	return dir
}

// mountOnly mounts what a server serves. The client sends a message as soon as it is connected, and
// waits for the answer. If siw does not read that message, mountOnly kills the client and retries.
// It also retries if TCP uses the client's port (kernel-notes/siw-port-zero.md): up to eight times,
// as rdmacm.Dial does.
func (s *served) mountOnly(t *testing.T, options string) string {
	t.Helper()
	host, port, _ := strings.Cut(s.Addr, ":")
	dir := t.TempDir()
	trans := "rdma"
	if s.tcp {
		trans = "tcp"
	}
	options = "trans=" + trans + ",port=" + port + ",version=9p2000.L," + options
	for taken := 0; ; {
		before := kernelLog(t)
		cmd := exec.Command("mount", "-i", "-t", "9p", "-o", options, host, dir)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		var err error
		go func() {
			defer close(done)
			err = cmd.Wait()
		}()
		hung := s.siw && siwhang.Hung(t, uint16(testkit.Must(strconv.ParseUint(port, 10, 16))(t)), done)
		if hung {
			_ = cmd.Process.Kill()
		}
		<-done
		if err == nil {
			return dir
		}
		if hung {
			continue
		}
		log := kernelLog(t)
		const portTaken = "kernel_bindconnect: error -98" // EADDRINUSE; the client says ENOTCONN
		if strings.Count(log, portTaken) > strings.Count(before, portTaken) && taken < 7 {
			taken++
			t.Logf("the client's port was taken %d times: trying again", taken)
			continue
		}
		t.Logf("the kernel's log ends with:\n%s", log[max(0, len(log)-4000):])
		t.Fatalf("%s: %v: %s", cmd, err, bytes.TrimSpace(out.Bytes()))
	}
}

// contents returns the contents of all files below a directory, by path. It reads many files at the
// same time, because a call takes 10 ms in an emulated machine, most of it waiting for a wake-up.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	found := make(map[string]string)
	var mu sync.Mutex
	var wg sync.WaitGroup
	places := make(chan struct{}, 16)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, name)
		if d.IsDir() {
			mu.Lock()
			defer mu.Unlock()
			found[rel] = "/"
			return nil
		}
		places <- struct{}{}
		wg.Go(func() {
			defer func() { <-places }()
			data, err := os.ReadFile(name)
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			found[rel] = string(data)
		})
		return nil
	})
	wg.Wait()
	if err != nil {
		t.Error(err)
	}
	return found
}

// random returns n bytes.
func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8), byte(n >> 16)})
	_, _ = r.Read(b)
	return b
}

// write writes a file, and makes the directories above it.
func write(t *testing.T, name string, data []byte, mode fs.FileMode) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(name), 0o777)
	if err := errors.Join(err, os.WriteFile(name, data, mode)); err != nil {
		t.Fatal(err)
	}
}

// took logs how long something took since start.
func took(t *testing.T, start time.Time, format string, args ...any) {
	t.Helper()
	t.Logf("%s: %.1f s", fmt.Sprintf(format, args...), time.Since(start).Seconds())
}

// testTree compares a tree of n files, and makes and removes a smaller one.
func testTree(t *testing.T, s *served, n int) {
	mnt := s.mount(t, "msize=65536")
	dir := filepath.Join(s.dir, "tree")
	for i := range n {
		name := filepath.Join(dir, fmt.Sprintf("%d/%d/f%d", i%7, i%3, i))
		write(t, name, random(i*5), 0o666)
	}
	start := time.Now()
	want, got := contents(t, dir), contents(t, filepath.Join(mnt, "tree"))
	took(t, start, "comparing %d files", n)
	compare(t, got, want)
	if len(want) < n {
		t.Errorf("%d files, want %d", len(want), n)
	}
	start = time.Now()
	made := make(map[string]string)
	for i := range n / 10 {
		name := filepath.Join(mnt, fmt.Sprintf("made/%d/f%d", i%7, i))
		write(t, name, random(i*50), 0o600)
		made[fmt.Sprintf("%d/f%d", i%7, i)], made[fmt.Sprint(i%7)], made["."] = string(random(i*50)), "/", "/"
	}
	compare(t, contents(t, filepath.Join(s.dir, "made")), made)
	if err := errors.Join(os.RemoveAll(filepath.Join(mnt, "made")), os.RemoveAll(dir)); err != nil {
		t.Error(err)
	}
	took(t, start, "making and removing %d files", n/10)
	if left := contents(t, s.dir); len(left) != 1 {
		t.Errorf("%d files are left", len(left))
	}
}

func compare(t *testing.T, got, want map[string]string) {
	t.Helper()
	for name, data := range want {
		if have, ok := got[name]; !ok || have != data {
			t.Errorf("%s: %d bytes (there: %v), want %d", name, len(have), ok, len(data))
		}
	}
	if len(got) != len(want) {
		t.Errorf("%d files and directories, want %d", len(got), len(want))
	}
}

// testBigFile writes a file and reads it back.
func testBigFile(t *testing.T, s *served, size int) {
	mnt := s.mount(t, "msize=1048576")
	name := filepath.Join(mnt, "big")
	data := random(size)
	start := time.Now()
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		t.Fatal(err)
	}
	took(t, start, "writing %d MiB", size>>20)
	start = time.Now()
	f, err = os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	n, err := io.CopyBuffer(struct{ io.Writer }{sum}, struct{ io.Reader }{f}, make([]byte, 1<<20))
	if err := errors.Join(err, f.Close()); err != nil || n != int64(size) {
		t.Fatalf("read %d bytes: %v", n, err)
	}
	took(t, start, "reading %d MiB", size>>20)
	if want := sha256.Sum256(data); !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("the file that was read is another than was written")
	}
	if there, err := os.ReadFile(filepath.Join(s.dir, "big")); err != nil || !bytes.Equal(there, data) {
		t.Errorf("the server's file has %d bytes that are others, %v", len(there), err)
	}
	if err := os.Remove(name); err != nil {
		t.Error(err)
	}
}

// testCalls makes calls on the file system.
func testCalls(t *testing.T, s *served) {
	mnt := s.mount(t, "msize=65536")
	in := func(name string) string { return filepath.Join(mnt, name) }
	ok := func(what string, errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	is := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	ok("mkdir", os.Mkdir(in("a"), 0o700), os.WriteFile(in("a/f"), []byte("hello"), 0o644))
	f, err := os.OpenFile(in("a/f"), os.O_RDWR|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	ok("rename above an open file", os.Rename(in("a"), in("b")))
	_, err = f.WriteString(" world")
	ok("append", err)
	data, err := os.ReadFile(in("b/f"))
	if err != nil || string(data) != "hello world" {
		t.Errorf("b/f has %q, %v", data, err)
	}
	ok("link", os.Link(in("b/f"), in("h")))
	ok("symlink", os.Symlink("b/f", in("s")), os.Symlink("/etc/passwd", in("out")))
	if to, err := os.Readlink(in("s")); err != nil || to != "b/f" {
		t.Errorf("readlink: %q, %v", to, err)
	}
	if data, err := os.ReadFile(in("s")); err != nil || string(data) != "hello world" {
		t.Errorf("through the link: %q, %v", data, err)
	}
	then := time.Unix(1_000_000_000, 0) // 9p of Linux 6.1 leaves out fractions
	ok("chmod and times", os.Chmod(in("h"), 0o640), os.Chtimes(in("h"), then, then), os.Truncate(in("h"), 5))
	ok("times again", os.Chtimes(in("h"), then, then), os.Chown(in("h"), 12, 34), os.Lchown(in("s"), 12, 34))
	info, err := os.Stat(filepath.Join(s.dir, "b/f"))
	if err != nil {
		t.Fatal(err)
	}
	if st := info.Sys().(*syscall.Stat_t); info.Mode() != 0o640 || !info.ModTime().Equal(then) || info.Size() != 5 ||
		st.Nlink != 2 || st.Uid != 12 || st.Gid != 34 {
		t.Errorf("the server's file is %v, %+v", info, st)
	}
	ok("unlink of an open file", os.Remove(in("b/f")), os.Remove(in("h")))
	n, err := f.ReadAt(make([]byte, 10), 0)
	if n != 5 || err != io.EOF {
		t.Errorf("read of a file that has no name: %d, %v", n, err)
	}
	ok("close", f.Close())
	is("rmdir of a file's name", unix.Rmdir(in("s")), syscall.ENOTDIR)
	is("mknod", unix.Mknod(in("null"), unix.S_IFCHR|0o666, 0x103), syscall.EOPNOTSUPP)
	is("set-user-ID", os.Chmod(in("b"), 0o755|fs.ModeSetuid), syscall.EPERM)
	_, err = os.OpenFile(in("b"), os.O_CREATE|os.O_EXCL, 0)
	is("exclusive", err, syscall.EEXIST)
	is("a long name", os.Mkdir(in(strings.Repeat("x", 256)), 0o777), syscall.ENAMETOOLONG)
	if f, err = os.Create(in("lock")); err != nil {
		t.Fatal(err)
	}
	is("flock", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB), syscall.ENOLCK)
	ok("close", f.Close())
	var st unix.Statfs_t
	if err := unix.Statfs(mnt, &st); err != nil || st.Type != unix.V9FS_MAGIC || st.Blocks == 0 {
		t.Errorf("statfs: %+v, %v", st, err)
	}
	ok("removing everything", os.Remove(in("lock")), os.Remove(in("s")), os.Remove(in("out")), os.Remove(in("b")))
}

// testRandom reads, writes and truncates a file at random places beside a copy in memory, as fsx
// does, without and with a cache in the client.
func testRandom(t *testing.T, s *served) {
	limit := 2 * time.Second
	if v := os.Getenv(fsxVar); v != "" {
		var err error
		if limit, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, cache := range []string{"none", "mmap"} {
		mnt := s.mount(t, "msize=131072,cache="+cache)
		seed := uint64(time.Now().UnixNano())
		n := fsx(t, filepath.Join(mnt, "fsx"), cache == "mmap", rand.New(rand.NewPCG(seed, 0)), limit/2)
		t.Logf("cache=%s, seed %d: %d operations in %v", cache, seed, n, limit/2)
	}
}

// fsx makes random operations on a file for a time, and returns how many.
func fsx(t *testing.T, name string, mapped bool, r *rand.Rand, limit time.Duration) (n int) {
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(f.Close(), os.Remove(name)); err != nil {
			t.Error(err)
		}
	}()
	const most = 1 << 20
	var model []byte
	for end := time.Now().Add(limit); time.Now().Before(end) && !t.Failed(); n++ {
		at, length := r.IntN(most), 1+r.IntN(1<<r.IntN(18))
		length = min(length, most-at)
		var err error
		switch what := r.IntN(10); {
		case what < 4:
			data := random(length)
			if at > len(model) {
				model = append(model, make([]byte, at-len(model))...)
			}
			model = append(model[:at], append(data, model[min(len(model), at+length):]...)...)
			_, err = f.WriteAt(data, int64(at))
		case what < 8:
			got := make([]byte, length)
			k, failed := f.ReadAt(got, int64(at))
			if failed != io.EOF {
				err = failed
			}
			want := model[min(at, len(model)):min(at+length, len(model))]
			if !bytes.Equal(got[:k], want) {
				t.Errorf("operation %d: read of %d at %d: %d bytes that are others, of a file of %d",
					n, length, at, k, len(model))
			}
		case what < 9:
			if at < len(model) {
				model = model[:at]
			} else {
				model = append(model, make([]byte, at-len(model))...)
			}
			err = f.Truncate(int64(at))
		case mapped && len(model) > 0:
			var m []byte
			m, err = unix.Mmap(int(f.Fd()), 0, len(model), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
			if err == nil {
				if !bytes.Equal(m, model) {
					t.Errorf("operation %d: the mapped file is another", n)
				}
				k := r.IntN(len(model))
				model[k]++
				m[k]++
				err = errors.Join(unix.Msync(m, unix.MS_SYNC), unix.Munmap(m))
			}
		default:
			err = f.Sync()
		}
		if err != nil {
			t.Errorf("operation %d: %v", n, err)
		}
	}
	got, err := os.ReadFile(name)
	if err != nil || !bytes.Equal(got, model) {
		t.Errorf("after %d operations the file has %d bytes that are others, want %d: %v",
			n, len(got), len(model), err)
	}
	return n
}

// testTwoMounts mounts with two clients at once, which see each other's files.
func testTwoMounts(t *testing.T, s *served) {
	mounts := []string{s.mount(t, "msize=131072"), s.mount(t, "msize=16384")}
	var wg sync.WaitGroup
	for k, mnt := range mounts {
		for i := range 4 {
			wg.Go(func() {
				for n := range 4 {
					name := fmt.Sprintf("%d.%d.%d", k, i, n)
					data := random(100_000 + n)
					err := os.WriteFile(filepath.Join(mnt, name), data, 0o666)
					got, failed := os.ReadFile(filepath.Join(mounts[1-k], name))
					if !bytes.Equal(got, data) {
						err = errors.Join(err, fmt.Errorf("the other mount has %d bytes that are others", len(got)))
					}
					if err := errors.Join(err, failed, os.Remove(filepath.Join(mounts[1-k], name))); err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
		}
	}
	wg.Wait()
	if left := contents(t, s.dir); len(left) != 1 {
		t.Errorf("%d files are left", len(left))
	}
}

// testReadOnly mounts an fs.FS.
func testReadOnly(t *testing.T) {
	s := serve(t, "engine", "--ro")
	write(t, filepath.Join(s.dir, "f"), random(300_000), 0o644)
	write(t, filepath.Join(s.dir, "d/g"), nil, 0o644)
	mnt := s.mount(t, "msize=131072")
	compare(t, contents(t, mnt), contents(t, s.dir))
	if err := os.WriteFile(filepath.Join(mnt, "new"), nil, 0o666); !errors.Is(err, syscall.EROFS) {
		t.Errorf("creating a file: %v", err)
	}
	if _, err := os.OpenFile(filepath.Join(mnt, "f"), os.O_RDWR, 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("opening a file to write: %v", err)
	}
}
