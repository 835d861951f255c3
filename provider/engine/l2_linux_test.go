package engine

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestL2Cache reads what sysfs has about caches, and what it should not have.
func TestL2Cache(t *testing.T) {
	for size, want := range map[string]int{
		"2048K\n": 2 << 20, "512K\n": 512 << 10, "": 0, "K\n": 0, "2M\n": 0, "-4K\n": 0,
		"99999999999K\n": 0,
	} {
		dir := t.TempDir()
		for index, text := range map[string][2]string{
			"index0": {"1\n", "48K\n"}, "index2": {"2\n", size}, "index3": {"3\n", "4096K\n"},
		} {
			testkit.OK(t, os.Mkdir(filepath.Join(dir, index), 0o755))
			testkit.OK(t, os.WriteFile(filepath.Join(dir, index, "level"), []byte(text[0]), 0o644))
			testkit.OK(t, os.WriteFile(filepath.Join(dir, index, "size"), []byte(text[1]), 0o644))
		}
		if got := l2CacheIn(dir); got != want {
			t.Errorf("an L2 cache of %q is %d octets, want %d", size, got, want)
		}
	}
	if got := l2CacheIn(t.TempDir()); got != 0 {
		t.Errorf("no cache at all is %d octets", got)
	}
}

func TestBatchCached(t *testing.T) {
	for l2, want := range map[int]uint64{
		0: batchOctets, 256 << 10: batchOctets, 1 << 20: 512 << 10, 5 << 18: 640 << 10,
		2 << 20: batchLong, 16 << 20: batchLong,
	} {
		if got := batchCached(l2); got != want {
			t.Errorf("batches of %d octets with an L2 cache of %d, want %d", got, l2, want)
		}
	}
}
