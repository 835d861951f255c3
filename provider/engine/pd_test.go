package engine

import (
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

const allRights = provider.AccessLocalWrite | provider.AccessRemoteWrite |
	provider.AccessRemoteRead | provider.AccessRemoteInvalidate

// testPD makes a PD that is closed when the test ends.
func testPD(t testing.TB, d *device) *pd {
	t.Helper()
	p := testkit.Must(d.AllocPD())(t).(*pd)
	t.Cleanup(func() { testkit.OK(t, p.Close()) })
	return p
}

// ofPD is the peer of a QP of p.
func ofPD(p *pd) *memory.Peer { return &memory.Peer{Domain: &p.Domain} }

// testMR registers n bytes until the test ends.
func testMR(t testing.TB, p *pd, n int, access provider.Access) *memory.Region {
	t.Helper()
	m := testkit.Must(p.RegMR(make([]byte, n), access))(t).(*memory.Region)
	t.Cleanup(func() { m.Close() })
	return m
}

const bindable = provider.AccessLocalWrite | provider.AccessMWBind

// testMW makes a window that is closed when the test ends.
func testMW(t testing.TB, p *pd, typ provider.MWType) *memory.Window {
	t.Helper()
	w := testkit.Must(p.AllocMW(typ))(t).(*memory.Window)
	t.Cleanup(func() { closeAll(t, "window", w) })
	return w
}

// testFast makes a region for work requests that is closed when the test ends.
func testFast(t testing.TB, p *pd, n uint64) *memory.FastRegion {
	t.Helper()
	f := testkit.Must(p.AllocFastRegMR(n))(t).(*memory.FastRegion)
	t.Cleanup(func() { closeAll(t, "region", f) })
	return f
}

func sge(m *memory.Region, off, n int) provider.SGE {
	return provider.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

// octetsOf are all bytes of m.
func octetsOf(m *memory.Region) []byte {
	b, _ := m.Slice(m.Addr(), m.Len())
	return b
}

func TestPDCloseOrder(t *testing.T) {
	d := unwired(t)
	p := testkit.Must(d.AllocPD())(t)
	m := testkit.Must(p.RegMR(make([]byte, 1), 0))(t)
	wantErr(t, p.Close(), syscall.EBUSY)
	wantErr(t, d.Close(), syscall.EBUSY)
	other := testkit.Must(p.RegMR(make([]byte, 1), 0))(t) // EBUSY changed nothing
	testkit.OK(t, other.Close())
	testkit.OK(t, m.Close())
	testkit.OK(t, m.Close())
	testkit.OK(t, p.Close())
	testkit.OK(t, p.Close())
	wantErr(t, errOf(p.RegMR(make([]byte, 1), 0)), os.ErrClosed)
	wantErr(t, errOf(p.CreateQP(provider.QPInitAttr{})), os.ErrClosed)
}
