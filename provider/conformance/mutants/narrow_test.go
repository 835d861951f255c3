//go:build !race

// Most of the work here is cutting octets, which needs no race detector. TestDecoratorsAreSound
// runs the decorators under it.

package mutants_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestNarrowStreams shows that a mutant's streams are streams whatever the network makes of
// them. With windows shorter than an FPDU, writes that are taken in part and reads that end
// anywhere, everything still arrives, in order and once, and the end comes after it.
func TestNarrowStreams(t *testing.T) {
	for _, window := range []int{700, 5000} {
		t.Run(fmt.Sprint("window ", window), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			b := newBench(t)
			sound := &mutants.Mutant{Name: soundName}
			n := memnet.New(&memnet.Options{Seed: seed, MSS: 400, Window: window, Cut: true})
			open := func(options []string) (*conformance.Endpoint, error) {
				opts := &engine.Options{Network: n}
				if err := onengine.Set(opts, options); err != nil {
					return nil, err
				}
				vctx, err := ibverbs.Open(sound.New(opts), "")
				if err != nil {
					return nil, err
				}
				return &conformance.Endpoint{Name: soundName, Context: vctx, Addr: netip.MustParseAddr("192.0.2.1")}, nil
			}
			only := "send/*,write/*,read/one-fpdu,read/one-mib,read/both-ways,read/depth-3,order/write-then-send,order/mixed-both-ways," +
				"conn/shutdown,conn/disconnect-responder,conn/many-at-once,protection/write-bad-key"
			var failed []error
			for _, scale := range []float64{5, 40} { // what ran out of time has more, for a busy machine
				outcomes, err := conformance.Run(t.Context(), conformance.Config{
					Suite: b.suite, Seed: seed, Scale: scale, Only: only,
					Pairings: []conformance.Pairing{{Initiator: soundName, Responder: soundName}},
					Open:     map[string]conformance.Opener{soundName: open},
				})
				testkit.OK(t, err)
				failed = nil
				var again []string
				for k := range outcomes {
					if err := b.passes(outcomes[k]); err != nil {
						t.Logf("with time limits of %v times the usual: %v", scale, err)
						failed = append(failed, err)
						if !ranOut(outcomes[k]) {
							t.Fatal("it did not run out of time")
						}
						again = append(again, outcomes[k].Scenario)
					}
				}
				if only = strings.Join(again, ","); only == "" {
					return
				}
			}
			t.Error(errors.Join(failed...))
		})
	}
}

// ranOut reports whether time ran out in a run: then the first check that failed says so.
func ranOut(o conformance.Outcome) bool {
	for _, c := range o.Checks {
		if !c.OK {
			return strings.Contains(c.Got, context.DeadlineExceeded.Error()) || strings.Contains(c.Got, "took longer")
		}
	}
	return false
}
