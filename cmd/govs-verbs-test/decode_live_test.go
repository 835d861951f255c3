//go:build !race

package main

import (
	"net"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestDecodeLive: frames are printed while two connections come and go, until a signal or until the
// number of --count.
func TestDecodeLive(t *testing.T) {
	testkit.NeedRoot(t, "packet sockets need root or CAP_NET_RAW")
	_, addr := serve(t, "127.0.0.1:0", "--persistent", "--provider", "engine")
	_, port, err := net.SplitHostPort(addr)
	testkit.OK(t, err)
	decode := func(args ...string) *command {
		c := start(t, append([]string{"decode", "-i", "lo", "--port", port}, args...)...)
		c.stderr.await(t, "decoding port "+port+" on lo\n")
		return c
	}
	ping := func() { start(t, "ping", addr, "--provider", "engine", "-C", "1").want(t, exitPassed, nil, nil) }
	whole := ` 127\.0\.0\.1:\d+ -> ` + addr + `\n.*--> MPA Request.*<-- MPA Reply.*` +
		`--> Send L.*<-- RDMA Read Request.*FIN\n.*FIN\n`

	all, two, none := decode(), decode("--count", "2"), decode()
	none.stop()
	none.want(t, exitFailed, nil, parts("lo: no iWARP passed at port "+port))
	ping()
	all.stdout.await(t, `(?s)connection 1:`+whole)
	ping()
	all.stdout.await(t, `(?s)connection 2:`+whole)
	all.stop()
	all.want(t, exitPassed, nil, nil)
	if text := all.stdout.String(); strings.Contains(text, "!!") || !strings.Contains(text, "CRC ok") {
		t.Errorf("a frame is wrong, or none has a CRC:\n%s", text)
	}
	two.want(t, exitPassed, parts("connection 1: ", "--> MPA Request", "<-- MPA Reply"), nil)
	if n := lines(&two.stdout); n != 3 {
		t.Errorf("%d lines with --count 2, want 3:\n%s", n, &two.stdout)
	}
}

// TestDecodeLiveDown: an interface that is down ends the command with an error that says so. lo of
// a new network namespace is down.
func TestDecodeLiveDown(t *testing.T) {
	code, out := decodeElsewhere(t, syscall.CLONE_NEWUSER|syscall.CLONE_NEWNET)
	if code != exitUsage {
		t.Errorf("status %d, want %d", code, exitUsage)
	}
	wantText(t, "the output", out, parts("decode: interface lo: is down", "removed", "network is down"))
}

// TestDecodeLiveForbidden: a process in a user namespace of its own has no rights in the network
// namespace, and the error names the missing right.
func TestDecodeLiveForbidden(t *testing.T) {
	code, out := decodeElsewhere(t, syscall.CLONE_NEWUSER)
	if code != exitUsage {
		t.Errorf("status %d, want %d", code, exitUsage)
	}
	wantText(t, "the output", out, parts("operation not permitted", "need root or CAP_NET_RAW"))
}

// decodeElsewhere decodes on lo as root of new namespaces, and returns the status and the output.
func decodeElsewhere(t *testing.T, namespaces uintptr) (status int, out string) {
	t.Helper()
	cmd := self(t, "decode", "-i", "lo", "--port", "7471")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}
