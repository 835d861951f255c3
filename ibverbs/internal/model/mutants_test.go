package model

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/engine"
)

// noticed are engines broken on purpose, of those of the conformance suite, that
// random plans have to notice: in completions, in memory, and in what regions and
// rights protect.
var noticed = []string{
	"completion-lost", "completions-reversed", "length-wrong", "opcode-wrong", "flush-succeeds", "errors-succeed", "errors-are-flushes",
	"receive-mistold", "completion-invented", "invalidation-untold", "all-signalled", "inline-lost", "gather-reversed",
	"full-queue-hidden", "bad-work-hidden", "posted-miscounted", "end-untold",
	"rights-ignored", "bounds-loose", "neighbour-touched", "receive-overrun", "pd-ignored",
	"unknown-key-dropped", "out-of-bounds-dropped", "send-without-receive-dropped",
	"write-shifted", "responses-crossed", "solicited-forgotten", "invalidate-forgotten", "invalidate-ignored", "close-refused",
	"srq-newest-first", "srq-limit-deaf", "terminate-other-code", "ord-ignored",
	"window-wide", "window-never-unbound", "window-for-all", "local-invalidation-ignored", "registration-read-only",
	"atomic-off-by-one", "atomic-masks-ignored", "atomic-rights-ignored",
}

// rare are those of them that few plans notice: somebody has to break the one rule.
var rare = []string{"window-for-all", "atomic-rights-ignored", "solicited-forgotten"}

// broken makes a world in which one side is a mutant.
func broken(t *testing.T, m *mutants.Mutant, side int, ext bool) *world {
	addr := netip.MustParseAddrPort("127.0.0.1:0")
	w := &world{name: m.Name, wrapped: true, patience: 500 * time.Millisecond, addr: [2]netip.AddrPort{addr, addr}}
	w.stubborn = true
	w.ext = ext
	opts := engine.Options{Extensions: ext}
	providers := [2]provider.Provider{engine.New(&opts), engine.New(&opts)}
	providers[side] = m.New(&opts)
	if err := w.open(providers, [2]string{}); err != nil {
		t.Fatal(err)
	}
	return w
}

func randomPlan(rnd *rand.Rand) plan {
	p := plan{setup: rnd.Uint64(), steps: make([]uint64, 150)}
	for i := range p.steps {
		p.steps[i] = rnd.Uint64()
	}
	return p
}

// TestNoticesMutants: the property fails where it should, and not for what stands
// between a mutant and its engine.
func TestNoticesMutants(t *testing.T) {
	if testkit.Race {
		t.Skip("plans are six times slower with the race detector, which watches TestSimulated; ci/test runs this without")
	}
	if err := goleak.Find(left...); err != nil {
		t.Error(err)
	}
	defer func() { left = append(left, goleak.IgnoreCurrent()) }()
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	sound := &mutants.Mutant{Name: "nothing broken"}
	reached := make(map[string]int)
	for i := range 20 {
		w := broken(t, sound, i%2, i/2%2 == 1)
		w.patience, w.reached = 2*time.Minute, reached
		if err := w.runAndClose(randomPlan(rnd)); err != nil {
			t.Fatal(err)
		}
	}
	t.Log(reached)
	for _, name := range noticed {
		t.Run(name, func(t *testing.T) {
			m := mutants.Find(name)
			if m == nil {
				t.Fatalf("there is no mutant %s", name)
			}
			tries := 400
			if slices.Contains(rare, name) {
				tries = 3000 // one plan of 20 to 80 notices these, so that 400 fail once in hundreds of runs
			}
			for i := range tries {
				if err := broken(t, m, i%2, i/2%2 == 1 || strings.HasPrefix(name, "atomic-")).runAndClose(randomPlan(rnd)); err != nil {
					t.Logf("noticed by plan %d: %.300s", i+1, err)
					return
				}
			}
			t.Errorf("%d plans did not notice that it %s", tries, m.What)
		})
	}
}
