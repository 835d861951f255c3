// Package model has property tests. Random sequences of verbs, legal and some illegal, run between
// two devices, and a small model predicts their results.
//
// A plan is a list of numbers that rapid draws, each a step. For each step the run does what is
// possible at the moment: it registers memory, posts lists of work requests, polls, connects, ends
// connections in every possible way, breaks rules. The model covers two pieces of memory, the
// windows and registrations over them, and the queues. It knows which bytes posted work may still
// read or write, and which keys it may still change. So the run requests nothing without a definite
// outcome, except when a connection ends.
//
// The same property runs on the engine over the simulated network, on the engine over TCP, and in
// the guest between the engine and siw. siw's differences are in the functions that check whether
// an end is on the kernel.
package model

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// left are the goroutines that engines broken on purpose have left behind.
var left []goleak.Option

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 {
		if err := goleak.Find(left...); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// world is a pair of devices that can reach each other.
type world struct {
	name     string
	vctx     [2]*ibverbs.Context
	addr     [2]netip.AddrPort // where they can listen
	kernel   [2]bool
	wrapped  bool           // one is behind what mutants are made with, which doesn't pass on re-registrations
	ext      bool           // both have RFC 7306
	idle     func()         // waits until nothing moves any more; may be nil
	reset    func(on bool)  // breaks the network, until it is called with false; may be nil
	stubborn bool           // what a failed run leaves may need to be closed twice
	patience time.Duration  // for what should take no time
	reached  map[string]int // what plans got to and how often; may be nil
}

// open opens the devices.
func (w *world) open(providers [2]provider.Provider, names [2]string) error {
	for e := range w.vctx {
		var err error
		if w.vctx[e], err = ibverbs.Open(providers[e], names[e]); err != nil {
			return err
		}
	}
	return nil
}

// close closes the devices. Nothing may be open on them, but what siw takes its time
// to let go of.
func (w *world) close() error {
	for e, v := range w.vctx {
		err := v.Close()
		for begin := time.Now(); err != nil && w.kernel[e] && time.Since(begin) < w.patience; {
			time.Sleep(10 * time.Millisecond)
			err = v.Close()
		}
		if err != nil {
			return fmt.Errorf("%s: side %d: %w", w.name, e, err)
		}
	}
	return nil
}

// check has rapid draw n plans, unless the command line says how many, and shrink
// one that fails.
func check(t *testing.T, n, steps int, run func(t *rapid.T, p plan) error) {
	t.Helper()
	checks := flag.Lookup("rapid.checks")
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == checks.Name })
	if was := checks.Value.String(); !given {
		if err := checks.Value.Set(fmt.Sprint(n)); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = checks.Value.Set(was) }()
	}
	rapid.Check(t, func(t *rapid.T) {
		if err := run(t, drawPlan(t, steps)); err != nil {
			t.Fatal(err)
		}
	})
}

// shapes are the networks in memory that plans are run on.
var shapes = []memnet.Options{
	{},
	{Cut: true},
	{MinDelay: time.Microsecond, MaxDelay: time.Millisecond},
	{Cut: true, MaxDelay: 100 * time.Microsecond, MSS: 512},
	{Window: 2000, MaxDelay: 50 * time.Microsecond},
	{MSS: 60000},
}

// TestSimulated: two engines over the network in memory, in a bubble with a time of
// its own, where it is certain when nothing moves any more.
func TestSimulated(t *testing.T) {
	reached := make(map[string]int)
	plans := 400
	if testkit.Race { // ci/test runs all of them without it, too
		plans = 100
		defer func() { t.Log(reached) }()
	} else {
		defer func() { gotTo(t, reached, everything) }()
	}
	check(t, plans, 70, func(rt *rapid.T, p plan) (err error) {
		d := &dice{p.setup}
		opts := shapes[d.pick(len(shapes))]
		opts.Seed = d.next()
		eng := engine.Options{
			CRC:         one(d, []engine.CRCPolicy{engine.CRCPreferred, engine.CRCPreferred, engine.CRCOff}),
			Conformance: engine.Conformance{Markers: d.oneIn(4)},
			PeerToPeer:  d.oneIn(4), Extensions: d.oneIn(2),
		}
		rt.Logf("network %+v, engine %+v", opts, eng)
		defer func() {
			if v := recover(); v != nil { // goroutines that are left in the bubble
				err = errors.Join(err, fmt.Errorf("panic: %v", v))
			}
		}()
		synctest.Test(t, func(*testing.T) { err = simulated(opts, eng, p, reached) })
		return err
	})
}

// everything is what a run of all plans gets to.
var everything = []string{
	"IBV_WR_ATOMIC_FETCH_AND_ADD", "IBV_WR_ATOMIC_CMP_AND_SWP", "IB_WR_MASKED_ATOMIC_FETCH_AND_ADD", "IB_WR_MASKED_ATOMIC_CMP_AND_SWP",
	"bind of type 1", "bind of type 2", "Write through a window", "Read through a window", "atomic through a window",
	"local invalidation of a window", "window gone with its connection",
	"registration", "Write of a registration", "Read of a registration", "local invalidation of a region", "invalidation behind work",
	"settling by Send",
}

// gotTo checks that plans have got to what they are for.
func gotTo(t *testing.T, reached map[string]int, want []string) {
	t.Log(reached)
	// The plans are others, or fewer.
	if t.Failed() || testing.Short() || flag.Lookup("rapid.checks").Value.String() != "100" {
		return
	}
	for _, what := range want {
		if reached[what] == 0 {
			t.Errorf("no plan got to: %s", what)
		}
	}
}

func simulated(opts memnet.Options, eng engine.Options, p plan, reached map[string]int) error {
	var broken atomic.Bool
	opts.Filter = func(*memnet.Segment) memnet.Verdict {
		if broken.Load() {
			return memnet.Reset
		}
		return memnet.Pass
	}
	eng.Network = memnet.New(&opts)
	w := &world{
		name: "simulated", patience: 30 * time.Second, idle: synctest.Wait, reset: broken.Store, ext: eng.Extensions, reached: reached,
		addr: [2]netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:0"), netip.MustParseAddrPort("192.0.2.2:0")},
	}
	if err := w.open([2]provider.Provider{engine.New(&eng), engine.New(&eng)}, [2]string{}); err != nil {
		return err
	}
	return w.runAndClose(p)
}

func (w *world) runAndClose(p plan) error {
	err := w.run(p)
	if err != nil && w.stubborn {
		_ = w.close()
	}
	if cerr := w.close(); err == nil {
		err = cerr
	}
	return err
}

// TestLoopback: two engines over TCP.
func TestLoopback(t *testing.T) {
	plans := 150
	if testkit.Race { // ci/test runs all of them without it, too
		plans = 50
	}
	check(t, plans, 70, func(rt *rapid.T, p plan) error {
		d := &dice{p.setup}
		eng := engine.Options{Extensions: d.oneIn(2)}
		addr := netip.MustParseAddrPort("127.0.0.1:0")
		w := &world{name: "TCP", patience: 2 * time.Minute, ext: eng.Extensions, addr: [2]netip.AddrPort{addr, addr}}
		if err := w.open([2]provider.Provider{engine.New(&eng), engine.New(&eng)}, [2]string{}); err != nil {
			return err
		}
		return w.runAndClose(p)
	})
}
