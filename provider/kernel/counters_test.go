//go:build cgo && linux && !nokernel

package kernel

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// TestHWCounters reads a directory in the form of hardware drivers.
func TestHWCounters(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	dir := fstest.MapFS{
		"hw_counters/lifespan":           file("10\n"),
		"hw_counters/ip4InOctets":        file("4096\n"),
		"ports/1/hw_counters/sent_pkts":  file("7\n"),
		"ports/1/hw_counters/lifespan":   file("10\n"),
		"ports/2/hw_counters/sent_pkts":  file("18446744073709551615\n"),
		"ports/1/counters/port_rcv_data": file("N/A (no PMA)\n"),
		"node_guid":                      file("0000:0000:0000:0001\n"),
	}
	got, err := hwCounters(dir)
	want := map[string]uint64{"ip4InOctets": 4096, "1/sent_pkts": 7, "2/sent_pkts": 1<<64 - 1}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
	if got, err := hwCounters(fstest.MapFS{}); err != nil || len(got) != 0 {
		t.Errorf("without counters: %v, %v", got, err)
	}
	dir["hw_counters/ip4InOctets"] = file("many\n")
	if _, err := hwCounters(dir); err == nil || !strings.Contains(err.Error(), "many") {
		t.Errorf("a counter that is no number: %v", err)
	}
}

// testNoCounters tests a driver without counters.
func testNoCounters(t *testing.T) {
	s := newSide(t)
	if st, err := s.dev.(*device).Stats(); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Stats: %+v, %v, want ErrUnsupported", st, err)
	}
}

// testRxeCounters sends a message, which the driver counts in packets.
func testRxeCounters(t *testing.T) {
	a, p := connected(t)
	const name = "1/sent_pkts" // drivers/infiniband/sw/rxe/rxe_hw_counters.c
	count := func() uint64 {
		st, err := a.dev.(*device).Stats()
		if err != nil {
			t.Fatal(err)
		}
		n, counted := st.Counters[name]
		if !counted {
			t.Fatalf("no %s in %v", name, st.Counters)
		}
		return n
	}
	before := count()
	p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(0, 64)}})
	a.send(provider.SendWR{
		WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 64)},
	})
	a.poll(1)
	p.poll(1)
	// The kernel reads the driver's counters at most every 10 ms.
	for deadline := time.Now().Add(patience); count() == before; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s is still %d after a message", name, before)
		}
	}
}
