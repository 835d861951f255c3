package memory

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

const mapsFile = `1000-3000 r--p 00000000 fe:00 2 /usr/lib/x with spaces
3000-5000 rw-p 00002000 fe:00 2 /usr/lib/x
5000-6000 rw-s 00000000 00:05 9
7000-8000 ---p 00000000 00:00 0
8000-9000 -w-p 00000000 00:00 0
7ffc000000000000-7ffd000000000000 rw-p 00000000 00:00 0
`

func TestProbeMaps(t *testing.T) {
	for _, c := range []struct {
		name       string
		start, end uint64
		write      bool
		want       string // "" for none
	}{
		{"inside one", 0x3000, 0x5000, true, ""},
		{"over two", 0x4fff, 0x5001, true, ""},
		{"read-only, read", 0x1000, 0x3000, false, ""},
		{"read-only, written", 0x2fff, 0x3000, true, "PROT_WRITE"},
		{"first part read-only", 0x2fff, 0x3001, true, "PROT_WRITE"},
		{"into a hole", 0x5fff, 0x6001, true, "not all"},
		{"in a hole", 0x6000, 0x7000, false, "not all"},
		{"over a hole", 0x5000, 0x7001, false, "not all"},
		{"before the first", 0xfff, 0x1001, false, "not all"},
		{"after the last", 0x7ffd000000000000, 0x7ffd000000000001, false, "not all"},
		{"no right", 0x7000, 0x7001, false, "PROT_READ"},
		{"written only", 0x8000, 0x8001, true, "PROT_READ"},
		{"far up", 0x7ffc000000000000, 0x7ffd000000000000, true, ""},
	} {
		if c.end > uint64(^uintptr(0)) {
			continue // no address on a 32-bit system
		}
		err := probeMaps(strings.NewReader(mapsFile), uintptr(c.start), uintptr(c.end), c.write)
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "":
			if !errors.Is(err, syscall.EFAULT) {
				t.Errorf("%s: got %v, want EFAULT", c.name, err)
			} else if !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %q does not say %q", c.name, err, c.want)
			}
		}
	}
	if err := probeMaps(strings.NewReader(strings.Repeat("x", 1<<20)), 1, 2, true); err != nil {
		t.Errorf("of what is no list of mappings: %v", err)
	}
}

// A long region is looked up and not touched: its pages may be meant to stay unused.
func TestProbeLeavesLongRegionsUntouched(t *testing.T) {
	b := testkit.Must(syscall.Mmap(-1, 0, 1<<30, syscall.PROT_READ|syscall.PROT_WRITE,
		syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE))(t)
	defer syscall.Munmap(b)
	before := resident(t)
	p := testPD(t, testTable(t))
	m := testkit.Must(p.RegMR(b, provider.AccessLocalWrite))(t)
	if grown := resident(t) - before; grown > 64<<20 {
		t.Errorf("registering 1 GiB of untouched memory took %d bytes", grown)
	}
	testkit.OK(t, m.Close())
}

func resident(t *testing.T) int {
	t.Helper()
	for line := range strings.Lines(string(testkit.Must(os.ReadFile("/proc/self/status"))(t))) {
		var kb int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kb); err == nil {
			return kb << 10
		}
	}
	t.Fatal("no VmRSS")
	return 0
}
