package memory

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"golang.org/x/sys/unix"
)

// TestExposedByAddress: a peer that has written pages is not known to write them by their other
// mapping, from which they are sent without a copy. Package engine's documentation says so.
func TestExposedByAddress(t *testing.T) {
	file := testkit.Must(unix.MemfdCreate("pages", unix.MFD_CLOEXEC))(t)
	defer unix.Close(file)
	testkit.OK(t, unix.Ftruncate(file, mrPage))
	p := testPD(t, testTable(t))
	register := func() *Region {
		b := testkit.Must(unix.Mmap(file, 0, mrPage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED))(t)
		m := testkit.Must(p.RegMR(b, provider.AccessLocalWrite|provider.AccessRemoteWrite))(t).(*Region)
		t.Cleanup(func() {
			testkit.OK(t, m.Close())
			testkit.OK(t, unix.Munmap(b))
		})
		return m
	}
	written, other := register(), register()
	if !written.acquireRemote() {
		t.Fatal("a region that can't be used")
	}
	written.willBeWritten()
	written.buf[0] = 7
	written.ReleaseRemote()
	if other.buf[0] != 7 || written.IsStill() || !other.IsStill() {
		t.Errorf("octet %d, sent without a copy: %v, by the other mapping %v; want 7, false, true",
			other.buf[0], written.IsStill(), other.IsStill())
	}
}
