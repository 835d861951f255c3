package memory

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

const patience = time.Minute

const (
	allRights = provider.AccessLocalWrite | provider.AccessRemoteWrite |
		provider.AccessRemoteRead | provider.AccessRemoteInvalidate
	bindable = provider.AccessLocalWrite | provider.AccessMWBind
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testTable makes the table of a device, and checks that it is empty when the test ends.
func testTable(t testing.TB) *Table {
	t.Helper()
	d := NewTable(Config{MaxMR: 1 << 16, MaxMW: 1 << 16})
	t.Cleanup(func() {
		if n := d.Len(); n != 0 || d.MRs.Len() != 0 || d.MWs.Len() != 0 {
			t.Errorf("%d STags, %d regions and %d windows are left", n, d.MRs.Len(), d.MWs.Len())
		}
	})
	return d
}

// testPD makes a protection domain that is closed when the test ends.
func testPD(t testing.TB, d *Table) *Domain {
	t.Helper()
	p := &Domain{Table: d}
	t.Cleanup(func() {
		if _, busy := p.Refs.End(); busy {
			t.Error("a protection domain has regions or windows that are not closed")
		}
	})
	return p
}

// ofPD is the peer of a queue pair of p.
func ofPD(p *Domain) *Peer { return &Peer{Domain: p} }

// testMR registers n bytes until the test ends.
func testMR(t testing.TB, p *Domain, n int, access provider.Access) *Region {
	t.Helper()
	m := testkit.Must(p.RegMR(make([]byte, n), access))(t).(*Region)
	t.Cleanup(func() { m.Close() })
	return m
}

// testMW makes a window that is closed when the test ends.
func testMW(t testing.TB, p *Domain, typ provider.MWType) *Window {
	t.Helper()
	w := testkit.Must(p.AllocMW(typ))(t).(*Window)
	t.Cleanup(func() { testkit.OK(t, w.Close()) })
	return w
}

// testFast makes a region for work requests that is closed when the test ends.
func testFast(t testing.TB, p *Domain, n uint64) *FastRegion {
	t.Helper()
	f := testkit.Must(p.AllocFastRegMR(n))(t).(*FastRegion)
	t.Cleanup(func() { testkit.OK(t, f.Close()) })
	return f
}

func sge(m *Region, off, n int) provider.SGE {
	return provider.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

// incRKey is ibv_inc_rkey.
func incRKey(key uint32) uint32 { return key&^0xff | (key+1)&0xff }

// wantErr fails the test unless err is a *provider.Error with want in it.
func wantErr(t testing.TB, err, want error) {
	t.Helper()
	var perr *provider.Error
	if !errors.As(err, &perr) || !errors.Is(err, want) {
		t.Fatalf("error %v, want a *provider.Error with %v", err, want)
	}
}

// errOf is the error of a call that returns something beside it.
func errOf[T any](_ T, err error) error { return err }
