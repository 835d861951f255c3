//go:build !race

package crc32c

import (
	"sync"
	"testing"
)

// TestCopyOfWhatChanges copies a source that is being written, as may happen with an RDMA Read. The
// CRC must be that of the copied octets. This is a race, so the test is only in builds without the
// race detector, which ci/test also runs.
func TestCopyOfWhatChanges(t *testing.T) {
	src := make([]byte, 64<<10)
	done := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(done)
	wg.Go(func() {
		for x := uint64(1); ; {
			select {
			case <-done:
				return
			default:
			}
			for range 1 << 10 {
				x = x*6364136223846793005 + 1442695040888963407
				src[x>>33%uint64(len(src))]++
			}
		}
	})
	dst := make([]byte, len(src))
	for i := range 1_000_000 {
		n := []int{1, 63, 64, 127, 128, 192, 1458, 4096, 4100, 12032, 32544, 65458}[i%12]
		at := i * 7919 % (len(src) - n + 1)
		if got, want := Copy(0, dst[:n], src[at:at+n]), Update(0, dst[:n]); got != want {
			t.Fatalf("%d octets at %d: CRC %#08x of a copy whose CRC is %#08x", n, at, got, want)
		}
	}
}
