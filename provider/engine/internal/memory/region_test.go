package memory

import (
	"math"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

func TestRegMRArguments(t *testing.T) {
	p := testPD(t, testTable(t))
	page := make([]byte, 4096)
	for _, c := range []struct {
		name   string
		buf    []byte
		access provider.Access
		want   syscall.Errno // 0: success
		grants provider.Access
	}{
		{"no bytes", nil, 0, syscall.EINVAL, 0},
		{"no bytes, not nil", []byte{}, 0, syscall.EINVAL, 0},
		{"remote write without local write", page, provider.AccessRemoteWrite, syscall.EINVAL, 0},
		{"remote atomic without local write", page, provider.AccessRemoteAtomic, syscall.EINVAL, 0},
		{"unknown right", page, 1 << 20, syscall.EINVAL, 0},
		{"local read", page, 0, 0, 0},
		{"one byte", page[:1], allRights, 0, allRights},
		{"remote read only", page, provider.AccessRemoteRead, 0, provider.AccessRemoteRead},
		{"atomic is dropped", page, provider.AccessLocalWrite | provider.AccessRemoteAtomic | provider.AccessMWBind, 0, provider.AccessLocalWrite | provider.AccessMWBind},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, err := p.RegMR(c.buf, c.access)
			if c.want != 0 {
				wantErr(t, err, c.want)
				testkit.Equal(t, "the MR beside the error", m, nil)
				return
			}
			testkit.OK(t, err)
			defer m.Close()
			if m.Len() != uint64(len(c.buf)) || m.Access() != c.grants {
				t.Errorf("%d bytes with rights %s, want %d with %s", m.Len(), m.Access(), len(c.buf), c.grants)
			}
			if m.LKey() == 0 || m.LKey() != m.RKey() {
				t.Errorf("LKey %#x, RKey %#x: want the STag in both", m.LKey(), m.RKey())
			}
			if m.Addr() == 0 || m.Addr()%4096 != 0 || m.Addr()+m.Len() < m.Addr() {
				t.Errorf("address %#x", m.Addr())
			}
		})
	}
}

// TestMRSlice tries every edge of a region, with arithmetic that would wrap if
// it were done the other way round.
//
//rfc:5041 DDP-7.1t3-01 Tagged: TO within registered range
//rfc:5041 DDP-7.1t4-01 Tagged: TO+len within range
//rfc:5041 DDP-8.3.1-3-01 No access outside the registered range
//rfc:5042 SEC-6.2.1-01 No access outside the registered buffer
//rfc:5042 SEC-6.3.4-01 Base and bounds tight
func TestMRSlice(t *testing.T) {
	p := testPD(t, testTable(t))
	m := testMR(t, p, 100, 0)
	base := m.Addr()
	for _, c := range []struct {
		name    string
		addr, n uint64
		want    bool
	}{
		{"all", base, 100, true},
		{"last byte", base + 99, 1, true},
		{"nothing at the start", base, 0, true},
		{"nothing at the end", base + 100, 0, true},
		{"nothing before", base - 1, 0, false},
		{"nothing after", base + 101, 0, false},
		{"one too many", base, 101, false},
		{"one after", base + 100, 1, false},
		{"one before", base - 1, 1, false},
		{"over the start", base - 1, 100, false},
		{"over the end", base + 1, 100, false},
		{"length wraps to inside", base + 1, math.MaxUint64, false},
		{"length wraps to the end", base + 50, math.MaxUint64 - 49, false},
		{"address near 2^64", math.MaxUint64, 1, false},
		{"address near 2^64, wraps", math.MaxUint64, base + 2, false},
		{"address 0", 0, 1, false},
		{"everything", 0, math.MaxUint64, false},
	} {
		b, ok := m.Slice(c.addr, c.n)
		if ok != c.want || ok && uint64(len(b)) != c.n {
			t.Errorf("%s: slice(base%+d, %d) = %d bytes, %v, want %v", c.name, int64(c.addr-base), c.n, len(b), ok, c.want)
		}
		testkit.Equal(t, c.name+": how long the slice can grow", cap(b), len(b))
	}
}

// TestMRCloseWaits: Close does not return while somebody is inside, and nobody
// gets in once it has begun.
//
//rfc:5041 DDP-8.3.1-6-01 After revoke the network can no longer modify the buffer
func TestMRCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, remote := range []bool{false, true} {
			p := testPD(t, testTable(t))
			m := testMR(t, p, 100, allRights)
			enter, leave := m.acquire, m.Release
			if remote {
				enter, leave = m.acquireRemote, m.ReleaseRemote
			}
			for range 2 {
				if !enter() {
					t.Fatal("cannot use a new region")
				}
			}
			var closes atomic.Int32
			for range 2 { // two closers: neither may return early
				go func() {
					testkit.OK(t, m.Close())
					closes.Add(1)
				}()
			}
			for range 2 {
				synctest.Wait()
				testkit.Equal(t, "calls of Close that have returned during a use", closes.Load(), 0)
				testkit.Equal(t, "a use began after Close", enter(), false)
				leave()
			}
			synctest.Wait()
			if n := closes.Load(); n != 2 || m.acquire() || m.acquireRemote() || p.Table.lookup(m.stag) != nil {
				t.Errorf("%d of 2 calls of Close have returned, or the region can be used or found", n)
			}
			testkit.OK(t, m.Close())
		}
	})
}
