//go:build linux && cgo

package main

import (
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestRegions: the places of regions are reused, even for a region that is registered twice.
func TestRegions(t *testing.T) {
	var r regions
	r.add(4096, 100)
	r.add(4096, 100)
	r.add(8192, 100)
	if got := placed(); !slices.Equal(got, []uint64{4096, 4096, 8192}) {
		t.Errorf("places of %v", got)
	}
	r.remove(4096, 100)
	r.remove(4096, 200) // not a registered region
	if got := placed(); !slices.Equal(got, []uint64{4096, 8192}) {
		t.Errorf("one less: places of %v", got)
	}
	r.add(1<<20, 1)
	if r.taken != 3 {
		t.Errorf("%d places are taken for 3 regions", r.taken)
	}
	r.remove(1<<20, 1)
	r.remove(4096, 100)
	r.remove(8192, 100)
	if got := placed(); len(got) != 0 || len(r.at) != 0 || len(r.free) != 3 {
		t.Errorf("without regions there are places of %v, %d lists, %d free", got, len(r.at),
			len(r.free))
	}
}

// TestRegionsSuffice: each region that the device can have gets a place, without which the program
// could map something else where a peer writes.
func TestRegionsSuffice(t *testing.T) {
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	defer func() { testkit.OK(t, vctx.Close()) }()
	if limits := testkit.Must(vctx.Query())(t); limits.MaxMR > places {
		t.Errorf("the device has %d regions, and there are %d places", limits.MaxMR, places)
	}
	r := regions{taken: places}
	if r.add(4096, 100) {
		t.Error("a region got a place beyond the last one")
	}
}

// TestReserving: what the engine and other threads do at the moment when a program unmaps memory of
// a region. The program includes faults.c, and stops it there.
func TestReserving(t *testing.T) {
	program := filepath.Join(t.TempDir(), "reserving")
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-o", program, "testdata/reserving.c",
		"-ldl").CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
