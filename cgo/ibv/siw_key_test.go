//go:build cgo && linux && !nokernel

package ibv

import (
	"os"
	"syscall"
	"testing"
)

// testInvalidKey makes the kernel assign all mmap keys below the one that libsiw takes to mean
// "none"; each CQ of one entry takes one. Then nothing more can be created until a reservation has
// that key.
func testInvalidKey(t *testing.T, ctx *Context) {
	var cqs []*CQ
	create := func() error {
		cq, err := ctx.CreateCQ(1, 0, nil, 0)
		if err == nil {
			cqs = append(cqs, cq)
		}
		return err
	}
	below := SiwInvalidKey / os.Getpagesize()
	for range below {
		check(t, "CreateCQ", create())
	}
	for range 3 {
		if err := create(); err != syscall.EIO {
			t.Errorf("a CQ at page %d: %v; has libsiw been corrected?", below, err)
		}
	}
	// Lower keys that become free are used first.
	check(t, "Destroy", cqs[10].Destroy())
	cqs = append(cqs[:10], cqs[11:]...)
	low, err := ctx.SiwReserve()
	check(t, "SiwReserve", err)
	if low.Key != uint64(10*os.Getpagesize()) {
		t.Errorf("key %#x, the lowest that is free is that of page 10", low.Key)
	}
	r, err := ctx.SiwReserve()
	check(t, "SiwReserve", err)
	if r.Key != SiwInvalidKey {
		t.Errorf("key %#x, expected %#x", r.Key, SiwInvalidKey)
	}
	check(t, "Release", low.Release())
	for range 100 {
		check(t, "CreateCQ with the key reserved", create())
	}
	check(t, "Release", r.Release())
	if err := create(); err != syscall.EIO {
		t.Errorf("a CQ after Release: %v", err)
	}
	for _, cq := range cqs {
		check(t, "Destroy", cq.Destroy())
	}
}
