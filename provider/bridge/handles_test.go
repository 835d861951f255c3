package bridge

import "testing"

// TestHandleNumbers: a new object gets the lowest number that is free.
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
