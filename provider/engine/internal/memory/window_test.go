package memory

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// part is what binds a window to n bytes of m.
func part(m *Region, off, n int, access provider.Access) *Work {
	return &Work{lkey: m.stag, addr: m.base + uint64(off), length: uint64(n), access: access}
}

func TestAllocMWArguments(t *testing.T) {
	d := testTable(t)
	p := testPD(t, d)
	for _, typ := range []provider.MWType{0, 3, 1 << 31} {
		wantErr(t, errOf(p.AllocMW(typ)), syscall.EINVAL)
	}
	for _, n := range []uint64{0, MaxRegion + 1} {
		wantErr(t, errOf(p.AllocFastRegMR(n)), syscall.EINVAL)
	}
	d.MWs.Max = 1
	w := testMW(t, p, provider.MWType1)
	wantErr(t, errOf(p.AllocMW(provider.MWType1)), syscall.ENOMEM)
	if _, busy := p.Refs.End(); !busy {
		t.Error("a protection domain with a window could be closed")
	}
	testkit.OK(t, w.Close())
	testkit.OK(t, w.Close())
	again := testMW(t, p, provider.MWType2)
	if again.Type() != provider.MWType2 || again.RKey() == 0 || stagIndex(again.RKey()) == stagIndex(w.RKey()) {
		t.Errorf("type %v, key %#x after %#x", again.Type(), again.RKey(), w.RKey())
	}
}

// TestBindChecks makes each check of a bind fail by itself. A bind that fails changes
// nothing.
func TestBindChecks(t *testing.T) {
	d := testTable(t)
	p := testPD(t, d)
	q := ofPD(p)
	rw := testMR(t, p, 100, bindable)
	ro := testMR(t, p, 100, provider.AccessMWBind)
	plain := testMR(t, p, 100, allRights)
	foreign := testMR(t, testPD(t, d), 100, bindable)
	closed := testMR(t, p, 100, bindable)
	testkit.OK(t, closed.Close())
	unregistered := testFast(t, p, 100)
	window := testMW(t, p, provider.MWType1)
	testkit.OK(t, window.bind(q, window.RKey(), part(rw, 0, 100, provider.AccessRemoteRead)))
	const write, read = provider.AccessRemoteWrite, provider.AccessRemoteRead
	for _, c := range []struct {
		name string
		o    *Work
		want error
	}{
		{"all of it", part(rw, 0, 100, write|read), nil},
		{"the last byte", part(rw, 99, 1, write), nil},
		{"reading what may not be written", part(ro, 0, 100, read), nil},
		{"no right at all", part(ro, 0, 100, 0), nil},
		{"writing what may not be written", part(ro, 0, 100, write), errBindRights},
		{"atomics on what may not be written", part(ro, 0, 8, provider.AccessRemoteAtomic), errBindRights},
		{"a region without the right to bind", part(plain, 0, 100, read), errBindRights},
		{"one byte more", part(rw, 0, 101, read), errBindBounds},
		{"one byte after", part(rw, 100, 1, read), errBindBounds},
		{"one byte before", part(rw, -1, 2, read), errBindBounds},
		{"around the end", &Work{lkey: rw.stag, addr: rw.base + 50, length: ^uint64(0) - 10}, errBindBounds},
		{"a region of another PD", part(foreign, 0, 100, read), errBindRegion},
		{"a closed region", part(closed, 0, 100, read), errBindRegion},
		{"a window", &Work{lkey: window.RKey(), addr: rw.base, length: 1}, errBindRegion},
		{"a region that isn't registered", part(&unregistered.Region, 0, 1, read), errBindRegion},
		{"no region", &Work{lkey: rw.stag ^ 1, addr: rw.base, length: 1}, errBindRegion},
	} {
		for _, typ := range []provider.MWType{provider.MWType1, provider.MWType2} {
			w := testMW(t, p, typ)
			before := w.view.stag
			testkit.Equal(t, c.name+", "+typ.String(), w.bind(q, incRKey(before), c.o), c.want)
			if bound := w.region != nil; bound != (c.want == nil) || bound == (w.view.stag == before) ||
				bound == w.view.remote.IsShut() {
				t.Errorf("%s, %v: bound %v, STag %#x after %#x, shut %v", c.name, typ, bound,
					w.view.stag, before, w.view.remote.IsShut())
			}
			testkit.OK(t, w.Close())
		}
	}
	testkit.OK(t, window.Close())
	for _, m := range []*Region{rw, ro, plain, foreign} {
		testkit.Equal(t, m.name()+" thinks that a window is bound to it", m.windows.Held(), false)
	}
	w := testMW(t, p, provider.MWType2)
	testkit.OK(t, w.bind(q, 7, part(rw, 0, 10, read)))
	testkit.Equal[error](t, "bound twice", w.bind(q, 8, part(rw, 0, 20, read)), errWindowBound)
	testkit.OK(t, w.Close())
	testkit.Equal[error](t, "closed", w.bind(q, 9, part(rw, 0, 10, read)), errWindowClosed)
}

// TestWindowAccess makes each check of what a peer names through a window fail by
// itself.
//
//rfc:5041 DDP-8.2-02 Stream-ID mismatch: not placed, local error
//rfc:5041 DDP-8.3.1-2-01 Single-stream STag not usable by other streams
//rfc:5041 DDP-8.2-03 PD and Stream association both supported
//rfc:5041 DDP-8.3-3-01 STag-stream association settable
//rfc:5042 SEC-6.1.1-03 Stream-limited STag refused on other streams
func TestWindowAccess(t *testing.T) {
	d := testTable(t)
	p, other := testPD(t, d), testPD(t, d)
	q, second, foreign := ofPD(p), ofPD(p), ofPD(other)
	m := testMR(t, p, 100, bindable)
	const all = provider.AccessRemoteWrite | provider.AccessRemoteRead
	bind := func(typ provider.MWType, access provider.Access) *Window {
		w := testMW(t, p, typ)
		key := incRKey(w.RKey())
		w.posted.Store(key)
		testkit.OK(t, w.bind(q, key, part(m, 40, 20, access)))
		return w
	}
	one, two := bind(provider.MWType1, all), bind(provider.MWType2, all)
	ro, wo := bind(provider.MWType1, provider.AccessRemoteRead), bind(provider.MWType2, provider.AccessRemoteWrite)
	zero := bind(provider.MWType2, all|provider.AccessZeroBased)
	unbound := bind(provider.MWType1, all)
	testkit.OK(t, unbound.bind(q, incRKey(unbound.RKey()), &Work{}))
	gone := bind(provider.MWType2, all)
	testkit.OK(t, q.InvalidateLocal(gone.RKey()))
	fresh := testMW(t, p, provider.MWType1)
	at := m.base + 40
	checkAccess(t, []access{
		{"type 1", q, one.RKey(), at, 20, nil, nil},
		{"type 1, another QP of the PD", second, one.RKey(), at, 20, nil, nil},
		{"type 1, another PD", foreign, one.RKey(), at, 20, ddp.ErrSTagNotAssociated, rdmap.ErrReadNotAssociated},
		{"type 2", q, two.RKey(), at, 20, nil, nil},
		{"type 2, another QP of the PD", second, two.RKey(), at, 20, ddp.ErrSTagNotAssociated, rdmap.ErrReadNotAssociated},
		{"type 2, another PD", foreign, two.RKey(), at, 20, ddp.ErrSTagNotAssociated, rdmap.ErrReadNotAssociated},
		{"reading only", q, ro.RKey(), at, 1, ddp.ErrTaggedAccess, nil},
		{"writing only", q, wo.RKey(), at, 1, nil, rdmap.ErrReadAccess},
		{"the byte before, which the region has", q, one.RKey(), at - 1, 1, ddp.ErrBaseBounds, rdmap.ErrReadBaseBounds},
		{"the byte after", q, one.RKey(), at + 20, 1, ddp.ErrBaseBounds, rdmap.ErrReadBaseBounds},
		{"one too many", q, two.RKey(), at, 21, ddp.ErrBaseBounds, rdmap.ErrReadBaseBounds},
		{"zero-based", q, zero.RKey(), 0, 20, nil, nil},
		{"zero-based, one too many", q, zero.RKey(), 0, 21, ddp.ErrBaseBounds, rdmap.ErrReadBaseBounds},
		{"zero-based, the region's address", q, zero.RKey(), at, 1, ddp.ErrBaseBounds, rdmap.ErrReadBaseBounds},
		{"the key before the bind", q, one.RKey()&^0xff | (one.RKey()-1)&0xff, at, 1, ddp.ErrInvalidSTag, rdmap.ErrReadInvalidSTag},
		{"the key after it", q, incRKey(one.RKey()), at, 1, ddp.ErrInvalidSTag, rdmap.ErrReadInvalidSTag},
		{"never bound", q, fresh.RKey(), at, 1, ddp.ErrInvalidSTag, rdmap.ErrReadInvalidSTag},
		{"unbound", q, incRKey(unbound.RKey()), at, 1, ddp.ErrInvalidSTag, rdmap.ErrReadInvalidSTag},
		{"invalidated", q, gone.RKey(), at, 1, ddp.ErrInvalidSTag, rdmap.ErrReadInvalidSTag},
		{"the region itself", q, m.stag, m.base, 1, ddp.ErrTaggedAccess, rdmap.ErrReadAccess},
	})
	w, b, err := q.WriteTarget(zero.RKey(), 19, 1)
	testkit.OK(t, err)
	testkit.Equal(t, "the last byte of the window", &b[0], &m.buf[59])
	w.ReleaseRemote()
}

// TestInvalidations: what of a window or region can be invalidated by whom.
//
//rfc:5040 RDMAP-7.2-05 Invalidate STag valid
//rfc:5040 RDMAP-7.2-06 Invalidate STag belongs to this stream
//rfc:5040 RDMAP-8.1.1-7-01 Peer cannot invalidate an STag shared by several streams
//rfc:5042 SEC-6.4.5-01 No STag valid on several streams when peers distrust
func TestInvalidations(t *testing.T) {
	d := testTable(t)
	p := testPD(t, d)
	q, second, foreign := ofPD(p), ofPD(p), ofPD(testPD(t, d))
	const noInvalidate = allRights &^ provider.AccessRemoteInvalidate
	m, busy := testMR(t, p, 100, bindable), testMR(t, p, 100, allRights|provider.AccessMWBind)
	plain, guarded := testMR(t, p, 100, allRights), testMR(t, p, 100, noInvalidate)
	fast, kept := testFast(t, p, 100), testFast(t, p, 100)
	unregistered, busyFast := testFast(t, p, 100), testFast(t, p, 100)
	one, two := testMW(t, p, provider.MWType1), testMW(t, p, provider.MWType2)
	unbound := testMW(t, p, provider.MWType2)
	onBusy, onFast := testMW(t, p, provider.MWType1), testMW(t, p, provider.MWType2)
	bind := func(w *Window, m *Region) {
		t.Helper()
		if w.region == nil {
			key := incRKey(w.view.stag)
			w.posted.Store(key)
			testkit.OK(t, w.bind(q, key, part(m, 0, 10, provider.AccessRemoteRead)))
		}
	}
	register := func(f *FastRegion, access provider.Access) {
		t.Helper()
		if !f.valid {
			key := incRKey(f.stag)
			testkit.OK(t, f.register(key, &Work{buf: make([]byte, 100), access: access}))
			f.setPosted(key, access, 100)
		}
	}
	setup := func() {
		t.Helper()
		bind(one, m)
		bind(two, m)
		register(fast, allRights)
		register(kept, noInvalidate)
	}
	bind(onBusy, busy)
	register(busyFast, bindable|provider.AccessRemoteInvalidate)
	bind(onFast, &busyFast.Region)
	const cannot, mayNot = "cannot", "may not"
	refusals := map[string]error{cannot: rdmap.ErrCannotInvalidate, mayNot: rdmap.ErrMayNotInvalidate}
	locals := map[string]error{cannot: errLocalInv, mayNot: errMayNotInv}
	for _, c := range []struct {
		name          string
		q             *Peer
		stag          func() uint32
		remote, local string // "" for done
	}{
		{"type 1", q, one.RKey, mayNot, mayNot},
		{"type 2", q, two.RKey, "", ""},
		{"type 2, the wrong key", q, func() uint32 { return incRKey(two.RKey()) }, cannot, cannot},
		{"type 2, another QP", second, two.RKey, mayNot, mayNot},
		{"type 2, another PD", foreign, two.RKey, mayNot, cannot},
		{"type 2, not bound", q, unbound.RKey, cannot, ""},
		{"fast region", q, fast.RKey, "", ""},
		{"fast region, another QP", second, fast.RKey, "", ""},
		{"fast region, the wrong key", q, func() uint32 { return incRKey(fast.RKey()) }, cannot, cannot},
		{"fast region, another PD", foreign, fast.RKey, mayNot, cannot},
		{"fast region without the right", q, kept.RKey, mayNot, ""},
		{"fast region, not registered", q, unregistered.RKey, cannot, ""},
		{"fast region with a window", q, busyFast.RKey, mayNot, mayNot},
		{"region, the wrong key", q, func() uint32 { return plain.stag ^ 1 }, cannot, cannot},
		{"region, another PD", foreign, func() uint32 { return plain.stag }, mayNot, cannot},
		{"region without the right", q, func() uint32 { return guarded.stag }, mayNot, cannot},
		{"region", q, func() uint32 { return plain.stag }, "", cannot},
		{"region with a window", q, func() uint32 { return busy.stag }, mayNot, cannot},
		{"zero", q, func() uint32 { return 0 }, cannot, cannot},
	} {
		setup()
		testkit.Equal(t, c.name+", by us", c.q.InvalidateLocal(c.stag()), locals[c.local])
		setup()
		err := c.q.Invalidate(c.stag())
		testkit.Equal(t, c.name+", by the peer", fmt.Sprint(err), fmt.Sprint(refusals[c.remote]))
	}
	testkit.Equal[error](t, "region, twice", q.Invalidate(plain.stag), rdmap.ErrCannotInvalidate)
	if !plain.acquire() {
		t.Fatal("we can't use what the peer has invalidated")
	}
	plain.Release()
	for _, m := range []*Region{guarded, busy, &kept.Region, &busyFast.Region} {
		if !m.acquireRemote() {
			t.Fatalf("the peer can't use %s, which it may not invalidate", m.name())
		}
		m.ReleaseRemote()
	}
	wantErr(t, busyFast.Close(), syscall.EBUSY)
	testkit.OK(t, onFast.Close())
	testkit.OK(t, q.InvalidateLocal(busyFast.RKey()))
}

// TestWindowModel plays random binds, invalidations, uses and ends of windows and of
// regions for work requests on two QPs against a model of who may do what.
func TestWindowModel(t *testing.T) {
	d := testTable(t)
	rapid.Check(t, func(t *rapid.T) { playWindows(t, d) })
}

// named is what the model knows of a window or fast region.
type named struct {
	w     *Window
	f     *FastRegion
	stag  uint32 // as last bound or registered
	live  bool
	qp    int // of type 2
	on    int // which region a window is bound to
	off   int
	n     int
	right provider.Access
}

func playWindows(t *rapid.T, d *Table) {
	const size = 64
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	p := &Domain{Table: d}
	qps := []*Peer{ofPD(p), ofPD(p)}
	register := func() *Region {
		m, err := p.RegMR(make([]byte, size), bindable)
		check(err)
		return m.(*Region)
	}
	regions := []*Region{register(), register()}
	var all []*named
	for _, typ := range []provider.MWType{provider.MWType1, provider.MWType2, provider.MWType2} {
		w, err := p.AllocMW(typ)
		check(err)
		all = append(all, &named{w: w.(*Window), stag: w.RKey()})
	}
	f, err := p.AllocFastRegMR(size)
	check(err)
	all = append(all, &named{f: f.(*FastRegion), stag: f.RKey()})
	for range rapid.IntRange(1, 40).Draw(t, "steps") {
		x := rapid.SampledFrom(all).Draw(t, "which")
		i := rapid.IntRange(0, 1).Draw(t, "QP")
		q := qps[i]
		type2 := x.w != nil && x.w.typ == provider.MWType2
		switch rapid.SampledFrom([]string{"make", "use", "use", "local", "remote", "end of QP", "close region"}).Draw(t, "what") {
		case "make":
			key := x.stag&^0xff | rapid.Uint32Range(0, 255).Draw(t, "key")
			n := rapid.IntRange(0, size).Draw(t, "octets")
			off := rapid.IntRange(0, size-n).Draw(t, "offset")
			right := rapid.SampledFrom([]provider.Access{provider.AccessRemoteWrite, provider.AccessRemoteRead, 0}).Draw(t, "right")
			if x.f != nil {
				n, off = size, 0
				err := x.f.register(key, &Work{buf: make([]byte, size), access: bindable | right})
				if (err == nil) != !x.live {
					t.Fatalf("registered %v while %+v", err, *x)
				}
			} else {
				on := rapid.IntRange(0, 1).Draw(t, "region")
				err := x.w.bind(q, key, part(regions[on], off, n, right))
				if (err == nil) != !(type2 && x.live) {
					t.Fatalf("bound %v while %+v", err, *x)
				}
				if err == nil {
					x.on = on
				}
			}
			if x.live && (type2 || x.f != nil) {
				continue
			}
			x.stag, x.off, x.n, x.right, x.qp, x.live = key, off, n, right, i, n > 0
		case "use":
			off := rapid.IntRange(0, size-1).Draw(t, "offset")
			base := regions[x.on].base
			if x.f != nil {
				base = x.f.address
			}
			m, b, err := q.ReadSource(x.stag, base+uint64(off), 1)
			may := x.live && x.right == provider.AccessRemoteRead && off >= x.off && off < x.off+x.n && !(type2 && x.qp != i)
			if (err == nil) != may {
				t.Fatalf("byte %d read by QP %d: %v, while %+v", off, i, err, *x)
			}
			if err == nil {
				if x.w != nil && &b[0] != &regions[x.on].buf[off] {
					t.Fatalf("byte %d is another one", off)
				}
				m.ReleaseRemote()
			}
			if m, _, err := q.WriteTarget(x.stag^1, base+uint64(off), 1); err == nil {
				m.ReleaseRemote()
				t.Fatalf("another key of %+v is good, too", *x)
			}
		case "local":
			err := q.InvalidateLocal(x.stag)
			if want := x.f != nil || type2 && (!x.live || x.qp == i); (err == nil) != want {
				t.Fatalf("invalidated by QP %d: %v, while %+v", i, err, *x)
			}
			x.live = x.live && err != nil
		case "remote":
			err := q.Invalidate(x.stag)
			if want := x.live && type2 && x.qp == i; (err == nil) != want {
				t.Fatalf("invalidated by the peer of QP %d: %v, while %+v", i, err, *x)
			}
			x.live = x.live && err != nil
		case "end of QP":
			q.Unbind()
			for _, x := range all {
				if x.w != nil && x.w.typ == provider.MWType2 && x.qp == i {
					x.live = false
				}
			}
		case "close region":
			on := rapid.IntRange(0, 1).Draw(t, "region")
			busy := false
			for _, x := range all {
				busy = busy || x.w != nil && x.live && x.on == on
			}
			if busy {
				_, err := regions[on].Rereg(provider.ReregAccess, nil, nil, 0)
				if provider.Errno(err) != syscall.EBUSY {
					t.Fatalf("region registered anew: %v, with windows bound", err)
				}
			}
			err := regions[on].Close()
			if (err != nil) != busy || regions[on].local.IsShut() == busy {
				t.Fatalf("region closed: %v, with windows bound: %v", err, busy)
			}
			if err == nil {
				regions[on] = register()
			}
		}
	}
	for _, x := range all {
		if x.w != nil {
			check(x.w.Close())
		} else {
			check(x.f.Close())
		}
	}
	for _, m := range regions {
		check(m.Close())
	}
	if first, _ := p.Refs.End(); !first {
		t.Fatal("something is left in the protection domain")
	}
}

// TestBarrier writes as a peer would, on several goroutines, to regions and through windows. Once
// one is closed, unbound, invalidated or bound to something else, no byte of what it was changes.
//
//rfc:5041 DDP-8.3-2-01 STag validity can be revoked any time
//rfc:5041 DDP-8.3.1-6-01 After revoke the network can no longer modify the buffer
//rfc:5042 SEC-6.2.2-01 Buffer protected (invalidate) before use by ULP
func TestBarrier(t *testing.T) {
	const writers, octets = 3, 64
	p := testPD(t, testTable(t))
	q := ofPD(p)
	for _, typ := range []provider.MWType{provider.MWType1, provider.MWType2} {
		w, fast := testMW(t, p, typ), testFast(t, p, octets)
		var region atomic.Pointer[Region]
		register := func(b []byte, access provider.Access) *Region {
			return testkit.Must(p.RegMR(b, access))(t).(*Region)
		}
		region.Store(testMR(t, p, octets, allRights))
		var stop sync.WaitGroup
		done := make(chan struct{})
		for first := range writers {
			stop.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					m := region.Load()
					// Some other key of the window's may be the good one by now, or none.
					for _, to := range []struct {
						stag uint32
						base uint64
					}{{w.RKey(), 0}, {fast.RKey(), fast.Addr()}, {m.stag, m.base}} {
						use, b, err := q.WriteTarget(to.stag, to.base, octets)
						if err != nil {
							continue
						}
						for i := first; i < len(b); i += writers { // each has bytes of its own
							b[i]++
						}
						use.ReleaseRemote()
					}
					runtime.Gosched()
				}
			})
		}
		for round := range 300 {
			memory := make([]byte, 3*octets)
			m := register(memory[:octets], bindable)
			key := incRKey(w.RKey())
			testkit.OK(t, w.bind(q, key, part(m, 0, octets, provider.AccessRemoteWrite|provider.AccessZeroBased)))
			w.posted.Store(key)
			key = incRKey(fast.RKey())
			testkit.OK(t, fast.register(key, &Work{buf: memory[octets:][:octets], access: allRights}))
			fast.setPosted(key, allRights, octets)
			plain := register(memory[2*octets:], allRights)
			region.Store(plain)
			runtime.Gosched()
			switch {
			case round%3 == 0 && typ == provider.MWType2:
				testkit.OK(t, q.InvalidateLocal(w.RKey()))
			case round%3 == 1 && typ == provider.MWType2:
				testkit.OK(t, q.Invalidate(w.RKey()))
			case typ == provider.MWType2:
				q.Unbind()
			default:
				testkit.OK(t, w.bind(q, incRKey(w.RKey()), &Work{}))
			}
			testkit.OK(t, fast.invalidate(q, fast.RKey(), round%2 == 0))
			if round%2 == 0 {
				testkit.OK(t, plain.Close())
			} else {
				testkit.OK(t, q.Invalidate(plain.stag))
			}
			before := string(memory) // races with a late writer, which -race reports
			runtime.Gosched()
			if before != string(memory) {
				t.Fatal("bytes changed after the barrier")
			}
			testkit.OK(t, plain.Close())
			testkit.OK(t, m.Close())
		}
		close(done)
		stop.Wait()
	}
}
