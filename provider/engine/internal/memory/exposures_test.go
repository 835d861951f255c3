package memory

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestExposed registers, closes, binds, unbinds and writes as a peer does, at random, over one
// piece of memory, on two devices, and compares whether each region is sent without a copy with
// what the list of all regions and windows permits.
func TestExposed(t *testing.T) {
	const size, regions, rounds = 200, 40, 4000
	memory := make([]byte, size)
	pds := []*Domain{testPD(t, testTable(t)), testPD(t, testTable(t))}
	type entry struct {
		lo, hi int
		m      *Region
		fast   *FastRegion
		w      *Window
		writes bool
	}
	var all []*entry
	rng := rand.New(rand.NewPCG(1, 2))
	part := func() (int, int) {
		if len(all) > 0 && rng.IntN(3) == 0 { // the same octets once more
			e := all[rng.IntN(len(all))]
			return e.lo, e.hi
		}
		lo := rng.IntN(size)
		return lo, min(size, lo+1+rng.IntN(30))
	}
	peers := []*Peer{ofPD(pds[0]), ofPD(pds[1])}
	add := func() {
		e := &entry{}
		e.lo, e.hi = part()
		b := memory[e.lo:e.hi]
		i := rng.IntN(2)
		p := pds[i]
		switch kind := rng.IntN(5); kind {
		case 0: // exposes nothing yet
			e.m = testkit.Must(p.RegMR(b, provider.AccessLocalWrite|provider.AccessRemoteWrite))(t).(*Region)
		case 1:
			e.m = testkit.Must(p.RegMR(b, provider.AccessLocalWrite|provider.AccessRemoteRead))(t).(*Region)
		case 2:
			e.m = testkit.Must(p.RegMR(b, bindable))(t).(*Region)
		case 3:
			e.fast = testkit.Must(p.AllocFastRegMR(size))(t).(*FastRegion)
			access := provider.AccessLocalWrite |
				[]provider.Access{provider.AccessRemoteWrite, 0}[rng.IntN(2)]
			e.writes = access&provider.AccessRemoteWrite != 0
			testkit.OK(t, e.fast.register(incRKey(e.fast.stag),
				&Work{region: e.fast, buf: b, access: access}))
		default:
			e.m = testkit.Must(p.RegMR(b, bindable))(t).(*Region)
			e.w = testkit.Must(p.AllocMW(provider.MWType1))(t).(*Window)
			access := []provider.Access{provider.AccessRemoteWrite, provider.AccessRemoteRead}[rng.IntN(2)]
			e.writes = access&provider.AccessRemoteWrite != 0
			testkit.OK(t, e.w.bind(peers[i], incRKey(e.w.view.stag), &Work{
				window: e.w, lkey: e.m.stag, addr: e.m.base, length: uint64(len(b)), access: access,
			}))
		}
		all = append(all, e)
	}
	drop := func() {
		i := rng.IntN(len(all))
		e := all[i]
		if e.w != nil {
			testkit.OK(t, e.w.Close())
			if e.writes = false; rng.IntN(2) == 0 {
				e.w = nil
				return
			}
		}
		if e.fast != nil {
			if rng.IntN(2) == 0 {
				testkit.OK(t, e.fast.invalidate(peers[0], e.fast.stag, false))
			}
			testkit.OK(t, e.fast.Close())
		} else {
			testkit.OK(t, e.m.Close())
			if e.m.IsStill() {
				t.Fatal("a closed region can be used")
			}
		}
		all = slices.Delete(all, i, i+1)
	}
	write := func() {
		for _, e := range all {
			if e.m != nil && e.m.access&provider.AccessRemoteWrite != 0 && rng.IntN(4) == 0 {
				if !e.m.acquireRemote() {
					t.Fatal("a region that can't be used")
				}
				e.m.willBeWritten()
				e.m.ReleaseRemote()
				e.writes = true
			}
		}
	}
	for round := range rounds {
		if round%5 == 0 {
			write()
		}
		if len(all) == 0 || len(all) < regions && rng.IntN(2) == 0 {
			add()
		} else {
			drop()
		}
		for _, e := range all {
			if e.m == nil {
				continue
			}
			want := true
			for _, o := range all {
				if o.writes && o.lo < e.hi && e.lo < o.hi {
					want = false
				}
			}
			if got := e.m.IsStill(); got != want {
				t.Fatalf("round %d: octets %d to %d are sent without a copy: %v, want %v", round,
					e.lo, e.hi, got, want)
			}
		}
	}
	for len(all) > 0 {
		drop()
	}
	if n := Exposures(memory); n > 0 {
		t.Errorf("%d intervals of the memory are left", n)
	}
}

// TestExposedOnce: of many regions over the same memory the first that a peer writes visits the
// others, and no other one does. The memory is exposed until the last of those is closed.
func TestExposedOnce(t *testing.T) {
	const regions = 100
	p := testPD(t, testTable(t))
	b := make([]byte, 64)
	register := func(access provider.Access) *Region {
		return testkit.Must(p.RegMR(b, access))(t).(*Region)
	}
	source := register(provider.AccessLocalWrite)
	defer func() { testkit.OK(t, source.Close()) }()
	exposures := func() int {
		exposed.mu.Lock()
		defer exposed.mu.Unlock()
		return source.exposures
	}
	var all []*Region
	for range regions {
		all = append(all, register(provider.AccessLocalWrite|provider.AccessRemoteWrite))
	}
	for _, m := range all {
		if !m.acquireRemote() {
			t.Fatal("a region that can't be used")
		}
		m.willBeWritten()
		m.ReleaseRemote()
		if n := exposures(); n != 1 {
			t.Fatalf("the memory is exposed %d times, want once", n)
		}
	}
	rng := rand.New(rand.NewPCG(3, 4))
	rng.Shuffle(regions, func(i, j int) { all[i], all[j] = all[j], all[i] })
	for i, m := range all {
		if source.IsStill() {
			t.Fatalf("%d regions that peers have written are left, and nothing is exposed", regions-i)
		}
		testkit.OK(t, m.Close())
	}
	if n := exposures(); n != 0 || !source.IsStill() {
		t.Errorf("the memory is exposed %d times after all are closed", n)
	}
}

// TestExposedWaitsAlone: while a peer's first Write, and the end of the region, wait for what is
// being sent, other memory is registered, written and closed on every device. A second peer that
// writes the same octets waits, too.
func TestExposedWaitsAlone(t *testing.T) {
	const open = provider.AccessLocalWrite | provider.AccessRemoteWrite
	p, elsewhere := testPD(t, testTable(t)), testPD(t, testTable(t))
	memory := make([]byte, 64)
	register := func(p *Domain, b []byte) *Region { return testkit.Must(p.RegMR(b, open))(t).(*Region) }
	write := func(m *Region) {
		if !m.acquireRemote() {
			t.Error("a region that can't be used")
			return
		}
		m.willBeWritten()
		m.ReleaseRemote()
	}
	source, first, second := register(p, memory), register(p, memory), register(elsewhere, memory)
	if !source.still.Enter() {
		t.Fatal("a region that is not sent without a copy")
	}
	var waiting sync.WaitGroup
	var written atomic.Int32
	for i, m := range []*Region{first, first, second} {
		waiting.Go(func() { write(m); written.Add(1) })
		for i == 0 && !source.still.IsShut() {
			time.Sleep(time.Millisecond)
		}
	}
	var closed atomic.Bool
	waiting.Go(func() { testkit.OK(t, source.Close()); closed.Store(true) })

	others := make(chan struct{})
	go func() {
		defer close(others)
		for _, b := range [][]byte{make([]byte, 64), memory} {
			m := register(elsewhere, b)
			if &b[0] != &memory[0] {
				write(m)
			}
			testkit.OK(t, m.Close())
		}
	}()
	select {
	case <-others:
	case <-time.After(patience):
		t.Error("what has nothing to do with the memory waits")
	}
	time.Sleep(100 * time.Millisecond) // for those that should be waiting
	if n := written.Load(); n > 0 || closed.Load() {
		t.Errorf("%d peers may write memory that is being sent, region closed: %v", n, closed.Load())
	}
	source.still.Leave()
	waiting.Wait()
	<-others
	testkit.OK(t, first.Close())
	testkit.OK(t, second.Close())
}

// TestSameMemoryCost: to register the same memory again and again, and to close the regions, costs
// about what regions of different addresses do.
func TestSameMemoryCost(t *testing.T) {
	const regions = 1 << 14
	memory := make([]byte, regions)
	cost := func(at func(i int) []byte) time.Duration {
		var x exposures
		list := make([]Region, regions)
		began := time.Now()
		for i := range list {
			list[i].buf = at(i)
			x.enter(&list[i])
		}
		for i := range list {
			x.leave(&list[i])
		}
		return time.Since(began)
	}
	testkit.Once(t, func() error {
		apart := cost(func(i int) []byte { return memory[i : i+1] })
		same := cost(func(int) []byte { return memory[:1] })
		if same > 10*apart {
			return fmt.Errorf("%v with the same memory, %v with different addresses", same, apart)
		}
		return nil
	})
}
