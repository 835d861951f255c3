package main

import (
	"bytes"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// The files in the package equal the generator's output. Their first line contains the file names
// it was called with.
func TestGenerated(t *testing.T) {
	dir := t.TempDir()
	const assembly, stubs = "fold_amd64.s", "fold_amd64.go"
	cmd := exec.Command("go", "run", ".", "-out", filepath.Join(dir, assembly), "-stubs", filepath.Join(dir, stubs), "-pkg", "crc32c")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range []string{assembly, stubs} {
		if !bytes.Equal(body(t, filepath.Join(dir, name)), body(t, filepath.Join("..", name))) {
			t.Errorf("%s is not what its generator writes: go generate makes it anew", name)
		}
	}
}

func body(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	_, b, _ = bytes.Cut(b, []byte("\n"))
	return b
}

func TestXPow(t *testing.T) {
	if got := xPow(0); got != 1<<31 {
		t.Errorf("x^0 is %#x", got)
	}
	if got := xPow(32); got != crc32.Castagnoli {
		t.Errorf("x^32 is %#x", got)
	}
	// x * x^-1 = 1
	if inverse := xPow(-1); inverse&1 == 0 || inverse>>1^castagnoli != 1<<31 {
		t.Errorf("x^-1 is %#x", inverse)
	}
	// The CRC of four zero octets multiplies the previous CRC by x^32.
	table := crc32.MakeTable(crc32.Castagnoli)
	for n := range 300 {
		if got, want := xPow(n+32), ^crc32.Update(^xPow(n), table, make([]byte, 4)); got != want {
			t.Errorf("x^%d is %#x, want %#x", n+32, got, want)
		}
	}
}
