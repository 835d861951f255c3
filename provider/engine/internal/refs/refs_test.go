package refs

import (
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestCount: an object with dependants can't be closed, and one that is closed gets no more.
func TestCount(t *testing.T) {
	var c Count
	for n := int64(1); n <= 2; n++ {
		if !c.Hold() || c.Len() != n || !c.Held() {
			t.Fatalf("%d dependants are counted as %d", n, c.Len())
		}
	}
	c.Drop()
	if first, busy := c.End(); first || !busy || c.Closed() {
		t.Errorf("with a dependant: first %v, busy %v, closed %v", first, busy, c.Closed())
	}
	c.Drop()
	if first, busy := c.End(); !first || busy || !c.Closed() || c.Held() {
		t.Errorf("without: first %v, busy %v, closed %v", first, busy, c.Closed())
	}
	if first, busy := c.End(); first || busy {
		t.Errorf("once more: first %v, busy %v", first, busy)
	}
	if c.Hold() {
		t.Error("a closed object has got a dependant")
	}
	defer func() {
		if recover() == nil {
			t.Error("a dependant that there is not was dropped")
		}
	}()
	new(Count).Drop()
}

// TestCountConcurrently: of goroutines that hold an object and others that close it, either one
// closes it or the others hold it.
func TestCountConcurrently(t *testing.T) {
	for range 1000 {
		var c Count
		var held, ended atomic.Int32
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if c.Hold() {
					held.Add(1)
				}
			})
			all.Go(func() {
				if first, _ := c.End(); first {
					ended.Add(1)
				}
			})
		}
		all.Wait()
		if h, e := held.Load(), ended.Load(); e > 1 || e == 1 && h > 0 || e == 1 != c.Closed() {
			t.Fatalf("%d hold it, %d have closed it, closed %v", h, e, c.Closed())
		}
	}
}

// TestLimit: there are at most Max objects, and one that is refused is not counted.
func TestLimit(t *testing.T) {
	l := Limit{Max: 2}
	for n := range 2 {
		if err := l.Take(); err != nil || l.Len() != n+1 {
			t.Fatalf("object %d: %v, %d are counted", n, err, l.Len())
		}
	}
	if err := l.Take(); err != syscall.ENOMEM || l.Len() != 2 {
		t.Errorf("one too many: %v, %d are counted", err, l.Len())
	}
	l.Give()
	testkit.OK(t, l.Take())
}
