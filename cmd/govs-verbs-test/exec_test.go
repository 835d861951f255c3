//go:build !race

package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/bridge/recording"
)

// execLibraries builds the libraries of exec, once, and returns their folder. It is a folder of the
// project, so that tests in the guest find them there.
var execLibraries = sync.OnceValues(func() (dir string, err error) {
	if dir, err = filepath.Abs("../../out/lib/govs"); err != nil || vmtest.Inside() {
		return dir, err
	}
	out, err := exec.Command("../../ci/build", "--libraries", dir).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ci/build: %w\n%s", err, out)
	}
	return dir, err
})

// bridged runs programs with exec.
type bridged struct {
	t         *testing.T
	libraries string
	cache     string
	flags     []string // of exec, for all
}

// of returns b for a part of its test.
func (b *bridged) of(t *testing.T) *bridged {
	part := *b
	part.t = t
	return &part
}

// newBridged prepares exec: it builds the libraries, and checks for the C programs.
func newBridged(t *testing.T) *bridged {
	t.Helper()
	if !vmtest.Inside() {
		// Of the guest's, busybox and the compiler.
		vmtest.NeedPackages(t, "guest", "kernel", "witnesses")
	}
	dir, err := execLibraries()
	if err != nil {
		t.Fatal(err)
	}
	return &bridged{t: t, libraries: dir, cache: t.TempDir()}
}

// command returns a command that runs exec with flags and a program.
func (b *bridged) command(flags []string, args ...string) *exec.Cmd {
	b.t.Helper()
	self := testkit.Must(os.Executable())(b.t)
	all := append([]string{"exec", "--library", b.libraries, "--congestion", "reno"},
		slices.Concat(b.flags, flags)...)
	cmd := exec.Command(self, append(append(all, "--"), args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "XDG_CACHE_HOME="+b.cache)
	return cmd
}

func (b *bridged) start(args ...string) *program {
	b.t.Helper()
	return startCmd(b.t, b.command(nil, args...))
}

// server starts a program that listens on a port, and waits until it listens.
func (b *bridged) server(port uint16, args ...string) *program {
	b.t.Helper()
	p := b.start(args...)
	awaitListener(b.t, p, port)
	return p
}

// TestExecDevice: ibv_devinfo finds the device and prints what it is.
func TestExecDevice(t *testing.T) {
	b := newBridged(t)
	b.start("ibv_devinfo", "-v").want(t, 0, "hca_id:	siw0", "iWARP (1)", "PORT_ACTIVE (4)",
		"max_sge:			6")
}

// TestExecPing: a bridged rping and this project's ping interoperate.
func TestExecPing(t *testing.T) {
	b := newBridged(t)
	port := freePort()
	server := b.server(port, "rping", "-s", "-v", "-a", "127.0.0.1", "-p", fmt.Sprint(port))
	start(t, "ping", fmt.Sprintf("127.0.0.1:%d", port), "--provider", "engine", "--count",
		"5").want(t, exitPassed, parts("5 pings"), nil)
	server.want(t, 0, "server ping data: rdma-ping-4")
	own := start(t, "ping", "--listen", "127.0.0.1:0", "--provider", "engine")
	addr := netip.MustParseAddrPort(own.stderr.await(t, `listening on (\S+)\n`)[1])
	b.start("rping", "-c", "-v", "-V", "-C", "5", "-a", "127.0.0.1", "-p",
		fmt.Sprint(addr.Port())).want(t, 0, "ping data: rdma-ping-4")
	own.want(t, exitPassed, parts("served 5 pings"), nil)
}

// TestExecTrace prints each command with its result.
func TestExecTrace(t *testing.T) {
	b := newBridged(t)
	file := filepath.Join(t.TempDir(), "trace")
	startCmd(t, b.command([]string{"--output", file}, "ibv_devinfo")).want(t, 0, "siw0")
	trace := string(testkit.Must(os.ReadFile(file))(t))
	wantText(t, "the trace", trace, parts("get_context(", "num_comp_vectors=1",
		"query_port({response=", "port_num=1}) = 0 {"))
}

// TestExecAddress: a program that listens at any address listens at the device's address.
func TestExecAddress(t *testing.T) {
	b := newBridged(t)
	port := freePort()
	arguments := func(addr string) []string {
		return []string{"-v", "-C", "3", "-a", addr, "-p", fmt.Sprint(port)}
	}
	for _, address := range []string{"127.0.0.5", "::ffff:127.0.0.5"} {
		server := startCmd(t, b.command([]string{"--address", address},
			append([]string{"rping", "-s"}, arguments("0.0.0.0")...)...))
		awaitListener(t, server, port)
		b.start(append([]string{"rping", "-c"}, arguments("127.0.0.1")...)...).want(t, 255)
		b.start(append([]string{"rping", "-c"}, arguments("127.0.0.5")...)...).want(t, 0)
		server.want(t, 0)
	}
	for want, addresses := range map[string][]string{
		"--address :: is any address":                                          {"::"},
		"--address 127.0.0.5 and --address 127.0.0.6 are of one family":        {"127.0.0.5", "127.0.0.6"},
		"--address 127.0.0.5 and --address 127.0.0.5 are of one family":        {"127.0.0.5", "127.0.0.5"},
		"--address 127.0.0.5 and --address ::ffff:127.0.0.6 are of one family": {"127.0.0.5", "::ffff:127.0.0.6"},
	} {
		var flags []string
		for _, addr := range addresses {
			flags = append(flags, "--address", addr)
		}
		// A separate process: if exec finds nothing wrong, the program replaces it.
		p := startCmd(t, b.command(flags, "true"))
		if got := p.wait(t); got != exitUsage || !strings.Contains(p.stderr.String(), want) {
			t.Errorf("%s: status %d, prints %q, want %q", p, got, &p.stderr, want)
		}
	}
}

// TestExecComplainsOnce: the reason why a device can't be opened is printed once, by exec if it
// knows the reason, and otherwise by the library, which a program calls several times.
func TestExecComplainsOnce(t *testing.T) {
	b := newBridged(t)
	for cause, p := range map[string]*program{
		"--congestion nosuch: ": startCmd(t, b.command([]string{"--congestion", "nosuch"}, "ibv_devices")),
		"GOVS_BRIDGE_CRC is ":   b.start("sh", "-c", "GOVS_BRIDGE_CRC=sometimes exec rping -s -a 127.0.0.1"),
	} {
		if p.wait(t) == 0 {
			t.Errorf("%s: it succeeds", p)
		}
		if got := p.stderr.String(); strings.Count(got, cause) != 1 {
			t.Errorf("%s prints %q, want %q once", p, got, cause)
		}
	}
}

// TestExecStatus: the caller gets the program's exit status or the signal that ends it, and a
// program that opens no device loads nothing.
func TestExecStatus(t *testing.T) {
	b := newBridged(t)
	b.start("sh", "-c", "exit 7").want(t, 7)
	p := b.start("sh", "-c", "kill -TERM $$")
	if got := p.wait(t); got != -1 || !strings.Contains(p.cmd.ProcessState.String(), "terminated") {
		t.Errorf("a program that SIGTERM ended: %s", p.cmd.ProcessState)
	}
	out := string(testkit.Must(b.command(nil, "cat", "/proc/self/maps").Output())(t))
	if !strings.Contains(out, preloadLibrary) || strings.Contains(out, bridgeLibrary) {
		t.Errorf("a program that opens no device has mapped:\n%s", clip(out))
	}
}

// TestExecLeavesNothing: many programs share one folder.
func TestExecLeavesNothing(t *testing.T) {
	b := newBridged(t)
	for range 3 {
		b.start("ibv_devices").want(t, 0, "siw0")
	}
	left := testkit.Must(filepath.Glob(filepath.Join(b.cache, "govs", "exec", "*")))(t)
	if len(left) != 1 {
		t.Errorf("after 3 programs there are %d folders: %v", len(left), left)
	}
}

// TestExecSymbols: the library before libc exports only the libc functions that it replaces,
// ibv_open_device, govs_thread_begins and govs_watch_mappings. Some linkers also list the ends of
// its section, which are hidden, so that the loader binds nothing to them.
func TestExecSymbols(t *testing.T) {
	b := newBridged(t)
	out := string(testkit.Must(exec.Command("nm", "-D", "--defined-only", filepath.Join(b.libraries,
		preloadLibrary)).Output())(t))
	const taken = " __start_nexts __stop_nexts access bsd_signal canonicalize_file_name " +
		"chdir clone close close_range closefrom daemon " +
		"dup dup2 dup3 eaccess euidaccess faccessat fchdir fclose fcntl fcntl64 fopen fopen64 " +
		"_Fork forkpty freopen freopen64 fstat fstat64 fstatat fstatat64 __fxstat __fxstat64 " +
		"__fxstatat __fxstatat64 " +
		"getxattr glob glob64 govs_thread_begins govs_watch_mappings ibv_open_device ioctl lgetxattr " +
		"listxattr llistxattr lseek lseek64 lstat lstat64 __lxstat __lxstat64 mmap mmap64 " +
		"login_tty mprotect mremap munmap open open64 __open64_2 __open_2 openat openat64 __openat64_2 " +
		"__openat_2 opendir pread pread64 __pread_chk __pread64_chk preadv preadv64 " +
		"prlimit prlimit64 pthread_sigmask " +
		"pwrite pwrite64 pwritev pwritev64 read __read_chk readlink __readlink_chk " +
		"readlinkat __readlinkat_chk readv realpath __realpath_chk scandir scandir64 send sendmsg sendto " +
		"setrlimit setrlimit64 sigaction sigaltstack sigignore siginterrupt signal " +
		"sigprocmask sigset socket ssignal stat stat64 statx __sysv_signal " +
		"sysv_signal write writev __xstat __xstat64 "
	seen := 0
	for _, line := range strings.Split(strings.TrimSpace(out), "\n") {
		words := strings.Fields(line)
		if symbol := words[len(words)-1]; !strings.Contains(taken, " "+symbol+" ") {
			t.Errorf("the library has the symbol %s", symbol)
		}
		seen++
	}
	if want := len(strings.Fields(taken)); seen != want && seen != want-2 {
		t.Errorf("the library has %d symbols, want %d", seen, want)
	}
}

// TestExecRefuses: programs that the loader would run without the libraries are refused before they
// start.
func TestExecRefuses(t *testing.T) {
	b := newBridged(t)
	dir := t.TempDir()
	file := func(name, content string) string {
		path := filepath.Join(dir, name)
		testkit.OK(t, os.WriteFile(path, []byte(content), 0o755))
		return path
	}
	tools := testkit.Must(exec.Command("go", "env", "GOTOOLDIR").Output())(t)
	goProgram := filepath.Join(strings.TrimSpace(string(tools)), "compile")
	privileged := "/usr/bin/passwd" // of root
	if os.Getuid() == 0 {
		privileged = file("setuid", string(testkit.Must(os.ReadFile("/bin/true"))(t)))
		testkit.OK(t, os.Chown(privileged, 1, 1))
		testkit.OK(t, os.Chmod(privileged, 0o755|os.ModeSetuid))
	}
	for path, want := range map[string]string{
		"/bin/busybox": "linked statically",
		privileged:     "it is setuid",
		goProgram:      "it is a Go program without cgo",
		file("script", "#!/bin/busybox sh\n"): "its interpreter /bin/busybox: it is linked " +
			"statically",
		file("text", "hello\n"): "neither a program nor a script",
		"no-such-program":       "executable file not found",
	} {
		start(t, "exec", "--library", b.libraries, "--", path).want(t, exitUsage, nil, parts(want))
	}
	start(t, "exec", "--library", dir, "--", "true").want(t, exitUsage, nil, parts(preloadLibrary,
		"make build", "make install"))
	start(t, "exec").want(t, exitUsage, nil, parts("no program is given; usage: "+execUsage))
	spaced := filepath.Join(dir, "with space")
	testkit.OK(t, os.Symlink(b.libraries, spaced))
	for _, c := range []struct{ flag, want string }{
		{"--frobnicate", "unknown flag --frobnicate; usage: govs-verbs-test exec [flags]"},
		{"--library=" + spaced, "copy them to another folder, and name it with --library"},
		{"--address=203.0.113.77", "--address 203.0.113.77: no interface of this machine has it"},
		{"--address=224.0.0.1", "is a multicast address"},
	} {
		start(t, "exec", "--library", b.libraries, c.flag, "--", "true").want(t, exitUsage, nil,
			parts("govs-verbs-test: exec: ", c.want))
	}
}

// TestExecSIGPIPE: the program has the default action of the signal, which the command ignores.
func TestExecSIGPIPE(t *testing.T) {
	b := newBridged(t)
	out := string(testkit.Must(b.command(nil, "grep", "SigIgn", "/proc/self/status").Output())(t))
	if ignored := strings.Fields(out)[1]; ignored[len(ignored)-4] != '0' {
		t.Errorf("the program ignores the signals %s, SIGPIPE among them", ignored)
	}
}

// TestExecNoCache: a user without a cache folder, such as nobody, has the files that replace sysfs
// in a folder of the user's own below the folder for temporary files.
func TestExecNoCache(t *testing.T) {
	b := newBridged(t)
	tmp := t.TempDir()
	command := func() *exec.Cmd {
		cmd := b.command(nil, "ibv_devices")
		cmd.Env = append(cmd.Env, "XDG_CACHE_HOME=/proc/none", "TMPDIR="+tmp)
		return cmd
	}
	startCmd(t, command()).want(t, 0, "siw0")
	own := filepath.Join(tmp, fmt.Sprintf("govs-%d", os.Getuid()))
	testkit.OK(t, os.Chmod(own, 0o777)) // others could change what is in it
	p := startCmd(t, command())
	p.want(t, exitUsage)
	wantText(t, "the error", p.stderr.String(), parts("/proc/none", own, "XDG_CACHE_HOME"))
}

// TestExecBuilds: a command made by go run or go install builds the libraries once, from the source
// from which the command was built.
func TestExecBuilds(t *testing.T) {
	b := newBridged(t)
	for _, builds := range []bool{true, false} {
		cmd := exec.Command(testkit.Must(os.Executable())(t), "exec", "--", "ibv_devices")
		cmd.Env = append(os.Environ(), asCommand+"=1", "XDG_CACHE_HOME="+b.cache,
			"GOCACHE="+goCache(t))
		p := startCmd(t, cmd)
		p.want(t, 0, "siw0")
		if said := strings.Contains(p.stderr.String(), "building the libraries"); said != builds {
			t.Errorf("it builds: %v, want %v: %s", said, builds, &p.stderr)
		}
	}
}

// goCache returns the go command's cache, which otherwise is in the user's cache folder.
func goCache(t *testing.T) string {
	t.Helper()
	out := testkit.Must(exec.Command("go", "env", "GOCACHE").Output())(t)
	return strings.TrimSpace(string(out))
}

// builtPrograms is the folder of compiled programs: a folder of the project, so that the guest has
// them.
const builtPrograms = "../../out/exec-test"

// compiled returns the program of a C file in testdata.
func compiled(t *testing.T, name string, libraries ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	compiledAs(t, program, name, libraries...)
	return program
}

// compiledOnHost returns the program of a C file in testdata for a test that runs in the guest. The
// host compiles it, because the guest needs ten seconds for that.
func compiledOnHost(t *testing.T, name string, libraries ...string) string {
	t.Helper()
	program := filepath.Join(builtPrograms, name)
	if !vmtest.Inside() {
		vmtest.NeedPackages(t, "kernel", "witnesses")
		testkit.OK(t, os.MkdirAll(builtPrograms, 0o755))
		compiledAs(t, program, name, libraries...)
	}
	return program
}

// compiledAs makes a program of a C file in testdata. The file appears whole.
func compiledAs(t *testing.T, program, name string, flags ...string) {
	t.Helper()
	part := fmt.Sprintf("%s.%d", program, os.Getpid())
	args := append([]string{"-Wall", "-Wextra", "-Werror", "-Wno-nonnull", "-Wno-stringop-overread",
		"-o", part, filepath.Join("testdata", name+".c")}, flags...)
	if out, err := exec.Command("cc", args...).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	testkit.OK(t, os.Rename(part, program))
}

// TestExecPaths checks calls that take paths.
func TestExecPaths(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "paths")).want(t, 0, "as it must be")
	ls := b.start("ls", "-l", "/sys/class/infiniband", "/dev/infiniband")
	ls.want(t, 0, "siw0", "uverbs0")
	if errors := ls.stderr.String(); errors != "" {
		t.Errorf("ls prints: %s", errors)
	}
	b.start("test", "-c", "/dev/infiniband/rdma_cm").want(t, 0)
}

// TestExecCloseAll: programs that close all descriptors do not close the library's own, nor the
// descriptors of its outputs.
func TestExecCloseAll(t *testing.T) {
	b := newBridged(t)
	dir := t.TempDir()
	trace, record := filepath.Join(dir, "trace"), filepath.Join(dir, "record")
	startCmd(t, b.command([]string{"--output", trace, "--record", record},
		compiled(t, "closeall"))).want(t, 0, "as it must be")
	const ids = 7 * 2 // of each use
	if n := strings.Count(string(testkit.Must(os.ReadFile(trace))(t)), "create_id("); n != ids {
		t.Errorf("%d ids in the trace, want %d", n, ids)
	}
	rec := testkit.Must(recording.Read(testkit.Must(os.Open(record))(t)))(t)
	opened := 0
	for _, e := range rec.Entries {
		if e.Op == recording.Open {
			opened++
		}
	}
	if opened != ids/2 {
		t.Errorf("rdma_cm is opened %d times in the recording, want %d", opened, ids/2)
	}
}

// TestExecSanitizers: programs that are built with sanitizers run, and the sanitizers find their
// faults.
func TestExecSanitizers(t *testing.T) {
	b := newBridged(t)
	for _, sanitizer := range []string{"address", "thread", "undefined"} {
		t.Run(sanitizer, func(t *testing.T) {
			b := b.of(t)
			program := compiled(t, "once", "-fsanitize="+sanitizer, "-libverbs", "-lrdmacm")
			cmd := b.command(nil, program)
			cmd.Env = append(cmd.Env, "ASAN_OPTIONS=detect_leaks=0")
			startCmd(t, cmd).want(t, 0)
		})
	}
	p := b.start(compiled(t, "overrun", "-fsanitize=address", "-libverbs"))
	if p.wait(t) == 0 {
		t.Error("a program that writes beyond its memory ends with status 0")
	}
	wantText(t, "the report", p.stderr.String(), parts("heap-buffer-overflow"))
}

// TestExecChained: a library of LD_PRELOAD that comes after exec's sees the program's mappings.
func TestExecChained(t *testing.T) {
	b := newBridged(t)
	cmd := b.command(nil, compiled(t, "chained"))
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+compiled(t, "chained", "-DHOOKS", "-shared", "-fPIC"))
	startCmd(t, cmd).want(t, 0, "as it must be")
}

// TestExecMainEnds: a program whose main thread has ended can use the device, whether it has opened
// it before or opens it after that.
func TestExecMainEnds(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "mainends", "-libverbs", "-lpthread")
	b.start(program, "early").want(t, 0, "as it must be")
	b.start(program, "late").want(t, 0, "as it must be")
}

// TestExecUnmap: if a program unmaps memory before it deregisters it, the program does not end when
// a peer writes there, or when a Send reads from it. The program's own accesses end it.
func TestExecUnmap(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "unmap", "-libverbs", "-lrdmacm")
	b.start(program).want(t, 0, "as it must be")
	b.start(program, "blocked").want(t, 0, "as it must be")
	p := b.start(program, "touch")
	if got := p.wait(t); got != -1 || !strings.Contains(p.cmd.ProcessState.String(), "segmentation") {
		t.Errorf("a program that touches what it has unmapped: %s", p.cmd.ProcessState)
	}
}

// TestExecRemap: a peer does not reach new mappings in the place of a region, however the region's
// memory was removed.
func TestExecRemap(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "remap", "-libverbs", "-lrdmacm")
	for _, way := range append(remaps, "mremap, moved", "failing") {
		t.Run(way, func(t *testing.T) {
			b.start(program, way).want(t, 0, "as it must be")
		})
	}
}

// remaps are ways in which a region's memory is removed.
var remaps = []string{"munmap", "half", "over", "over, without room elsewhere", "a byte over",
	"munmap, fixed", "mremap, smaller", "madvise", "fork", "shrinking"}

// TestExecRemapOnSiw shows that the peer does not reach such memory over siw either. Over siw,
// moved pages still belong to the region, and mremap unmaps its target before it fails.
func TestExecRemapOnSiw(t *testing.T) {
	program := compiledOnHost(t, "remap", "-libverbs", "-lrdmacm")
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	for _, way := range remaps {
		t.Run(way, func(t *testing.T) { startProgram(t, program, way, siwAddr).want(t, 0, "as it must be") })
	}
}

// TestExecForksLocked: children call functions of libc, for the first time in the program, while
// another thread of their parent has the loader's lock.
func TestExecForksLocked(t *testing.T) {
	b := newBridged(t)
	fifo := filepath.Join(t.TempDir(), "library")
	testkit.OK(t, syscall.Mkfifo(fifo, 0o600))
	b.start(compiled(t, "forklocked", "-lpthread"), fifo).want(t, 0, "as it must be")
}

// TestExecFileLimit: the limit of file sizes does not apply to queues. If queues can't be made
// because of it, that is an error (librdmacm says ENODEV), and not a signal.
func TestExecFileLimit(t *testing.T) {
	b := newBridged(t)
	once := compiled(t, "once", "-libverbs", "-lrdmacm")
	b.start("sh", "-c", "ulimit -S -f 1 && exec "+once).want(t, 0)
	p := b.start("sh", "-c", "ulimit -f 1 && exec "+once)
	p.want(t, 1)
	wantText(t, "the error", p.stderr.String(), parts("No such device"))
}

// TestExecFewAddresses: where there are too few addresses for Go's runtime, which would end the
// program, there is no device, and what is printed says why.
func TestExecFewAddresses(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "once", "-libverbs", "-lrdmacm")
	for _, kb := range []int{400_000, 830_000, 1_330_000, 1_580_000, 1_800_000} {
		p := b.start("sh", "-c", fmt.Sprintf("ulimit -v %d && exec %s", kb, program))
		p.want(t, 1)
		wantText(t, "the error", p.stderr.String(), parts("raise RLIMIT_AS", "No such device"))
	}
	b.start("sh", "-c", "ulimit -v 3000000 && exec "+program).want(t, 0)
}

// TestExecNoEnvironment: a program that overwrites and clears its environment still has the device
// and the options.
func TestExecNoEnvironment(t *testing.T) {
	b := newBridged(t)
	p := startCmd(t, b.command([]string{"--trace"}, compiled(t, "noenv", "-libverbs")))
	p.want(t, 0, "as it must be")
	if trace := p.stderr.String(); !strings.Contains(trace, "alloc_pd(") {
		t.Errorf("the program has lost --trace: %q", trace)
	}
}

// TestExecConstructor: constructors of the program and of a library that it loads open the device,
// and a destructor uses it.
func TestExecConstructor(t *testing.T) {
	b := newBridged(t)
	b.start(compiled(t, "constructor", "-libverbs"), compiled(t, "constructor", "-libverbs", "-shared",
		"-fPIC")).want(t, 0, "as it must be\nas it must be")
	library := compiled(t, "earlier", "-DLIBRARY", "-shared", "-fPIC")
	b.start(compiled(t, "earlier", library)).want(t, 0, "as it must be")
}

// TestExecGarbledOnSiw shows that siw returns the errnos that garbled wants of exec, too.
func TestExecGarbledOnSiw(t *testing.T) {
	program := compiledOnHost(t, "garbled", "-libverbs")
	if inGuest(t, vmtest.Options{}) {
		startProgram(t, program).want(t, 0, "as it must be")
	}
}

// TestExecDestroyCQ: libsiw unmaps the queue of a CQ that can't be destroyed
// (kernel-notes/libsiw-destroy-cq.md).
func TestExecDestroyCQ(t *testing.T) {
	b := newBridged(t)
	destroyCQ(t, compiled(t, "destroycq", "-rdynamic", "-libverbs"), b.start)
}

// TestExecDestroyCQOnSiw shows that libsiw does the same on siw.
func TestExecDestroyCQOnSiw(t *testing.T) {
	path := compiledOnHost(t, "destroycq", "-rdynamic", "-libverbs")
	if inGuest(t, vmtest.Options{}) {
		destroyCQ(t, path, func(args ...string) *program { return startProgram(t, args...) })
	}
}

func destroyCQ(t *testing.T, path string, start func(args ...string) *program) {
	t.Helper()
	start(path).want(t, 0, "as it must be")
	for _, then := range []string{"poll", "arm"} {
		start(path, then).want(t, 11, "a fault in the queue")
	}
}

// TestExecBusyEnd: a program ends, forks, or loses its queue pair or its peer, while threads post
// and poll.
func TestExecBusyEnd(t *testing.T) {
	b := newBridged(t)
	program := compiled(t, "busyend", "-lrdmacm", "-libverbs", "-pthread")
	for _, how := range []string{"exit", "_exit", "abort", "fork", "error", "peer"} {
		t.Run(how, func(t *testing.T) {
			for range 3 {
				p := b.of(t).start(program, fmt.Sprint(freePort()), how)
				switch how {
				case "abort":
					if got := p.wait(t); got != -1 ||
						!strings.Contains(p.cmd.ProcessState.String(), "aborted") {
						t.Errorf("a program that aborts: %s: %s", p.cmd.ProcessState,
							&p.stderr)
					}
				case "exit", "_exit":
					p.want(t, 0)
				default:
					p.want(t, 0, "as it must be")
				}
			}
		})
	}
}
