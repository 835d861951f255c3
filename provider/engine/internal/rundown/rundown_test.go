package rundown

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestGate: a gate that is shut admits nothing until it is opened.
func TestGate(t *testing.T) {
	var g Gate
	g.InitShut()
	if g.Enter() || !g.IsShut() {
		t.Error("a use of a gate that is shut")
	}
	g.Open()
	if !g.Enter() || g.IsShut() || g.Uses() != 1 {
		t.Errorf("after Open there are %d uses", g.Uses())
	}
	g.Leave()
	g.Shut()
	g.Shut()
	if g.Enter() || g.Uses() != 0 {
		t.Error("a use after Shut")
	}
}

// TestShutWaits: when Shut returns, in whichever goroutine, no use is in progress.
func TestShutWaits(t *testing.T) {
	for range 200 {
		var g Gate
		g.Init()
		var inside atomic.Int32
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for g.Enter() {
					inside.Add(1)
					inside.Add(-1)
					g.Leave()
				}
			})
			all.Go(func() {
				g.Shut()
				testkit.Equal(t, "uses after Shut", inside.Load(), 0)
			})
		}
		all.Wait()
	}
}
