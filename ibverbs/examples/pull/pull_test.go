package main

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main, "--timeout", "1m") }

// offer starts a server with a file of n random bytes.
func offer(t *testing.T, n int) (server *exampletest.Server, file string, content []byte) {
	t.Helper()
	content = make([]byte, n)
	random := rand.NewChaCha8([32]byte{11})
	_, _ = random.Read(content)
	file = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return exampletest.Start(t, "--listen", exampletest.Host()+":0", file), file, content
}

func TestPull(t *testing.T) {
	testPull(t, nil, []string{"--chunk", "70001", "--depth", "3"})
}

// TestPullFlags copies with flags that make no difference to the device.
func TestPullFlags(t *testing.T) {
	testPull(t, []string{"--chunk", "100000000", "--depth", "1"}, []string{"--progress"})
}

// testPull copies a file once with each of the sets of flags.
func testPull(t *testing.T, flags ...[]string) {
	server, _, content := offer(t, 5<<20+4321)
	for _, args := range flags {
		t.Run(strings.Join(args, " "), func(t *testing.T) {
			name := filepath.Join(t.TempDir(), "new")
			stdout, stderr, err := exampletest.Run(t, append(args, server.Addr, name)...)
			if err != nil || !strings.HasPrefix(stdout, name+": 5247201 bytes in ") {
				t.Fatalf("%v, prints %q\n%s", err, stdout, stderr)
			}
			got, err := os.ReadFile(name)
			if err != nil || !bytes.Equal(got, content) {
				t.Errorf("%v, %d bytes that are not those of the file", err, len(got))
			}
			if bar := strings.Contains(stderr, "["+strings.Repeat("=", barWidth)+"] 100%"); bar != (len(args) == 1) {
				t.Errorf("a bar: %v, of %q", bar, stderr)
			}
			server.Line(": left")
		})
	}
}

// TestPullFails makes copies that fail: they leave no file behind.
func TestPullFails(t *testing.T) {
	server, file, _ := offer(t, 1<<20)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "new")
	fails := func(t *testing.T, want string, args ...string) {
		t.Helper()
		stdout, stderr, err := exampletest.Run(t, args...)
		if err == nil || stdout != "" || !strings.Contains(stderr, want) {
			t.Errorf("%v, prints %q and %q, want an error with %q", err, stdout, stderr, want)
		}
		if left, _ := filepath.Glob(name + "*"); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	}
	t.Run("empty file", func(t *testing.T) { fails(t, "is empty", "--listen", exampletest.Host()+":0", empty) })
	t.Run("no file", func(t *testing.T) { fails(t, "pull: 1 arguments after the flags: ", server.Addr) })
	t.Run("nobody listens", func(t *testing.T) { fails(t, "rdma_connect", exampletest.Host()+":1", name) })
	t.Run("file cut short", func(t *testing.T) {
		if exampletest.Kernel() {
			t.Skip("the kernel pins the pages, and goes on with what they held")
		}
		if err := os.Truncate(file, 4096); err != nil {
			t.Fatal(err)
		}
		fails(t, "reading from "+server.Addr, server.Addr, name)
	})
}
