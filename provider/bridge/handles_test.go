package bridge

import (
	"fmt"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestHandleNumbers: a new object gets the lowest free number.
func TestHandleNumbers(t *testing.T) {
	var h handles
	for want := range uint32(100) {
		if got := h.add(int(want)); got != want {
			t.Fatalf("number %d, want %d", got, want)
		}
	}
	for _, id := range []uint32{70, 3, 50} {
		if err := remove(&h, id, func(int) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []uint32{3, 50, 70, 100} {
		if got := h.add("new"); got != want {
			t.Errorf("number %d, want %d", got, want)
		}
	}
}

// TestHandleCost: allocating a number takes about the same time with many objects as with few, even
// if the lowest number is freed again and again.
func TestHandleCost(t *testing.T) {
	const few, many = 1 << 6, 1 << 18
	cost := func(objects int) time.Duration {
		var h handles
		for i := range objects {
			h.add(i)
		}
		began := time.Now()
		for range 100 {
			testkit.OK(t, remove(&h, 0, func(int) error { return nil }))
			low, high := h.add(0), h.add(0)
			if low != 0 || high != uint32(objects) {
				t.Fatalf("numbers %d and %d, want 0 and %d", low, high, objects)
			}
			testkit.OK(t, remove(&h, high, func(int) error { return nil }))
		}
		return time.Since(began)
	}
	testkit.Once(t, func() error {
		if a, b := cost(few), cost(many); b > 50*a {
			return fmt.Errorf("%v beside %d objects, %v beside %d", a, few, b, many)
		}
		return nil
	})
}
