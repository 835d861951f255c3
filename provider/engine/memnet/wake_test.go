package memnet_test

import (
	"errors"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/engine/transport/transporttest"
)

// told is a handler that counts its calls.
type told struct {
	readable, writable atomic.Int64
	at                 atomic.Int64 // of the last call, in nanoseconds
	do                 func()
}

func (h *told) Ready(readable, writable bool) {
	if readable {
		h.readable.Add(1)
	}
	if writable {
		h.writable.Add(1)
	}
	h.at.Store(time.Now().UnixNano())
	if h.do != nil {
		h.do()
	}
}

// pairs makes n connections of network.
func pairs(t *testing.T, network *memnet.Network, n int) (dialed, accepted []transport.Conn) {
	t.Helper()
	l := testkit.Must(network.Listen(netip.MustParseAddrPort("192.0.2.1:7471"), n))(t)
	defer l.Close()
	for range n {
		d := testkit.Must(network.Dial(t.Context(), netip.AddrPort{}, l.Addr()))(t)
		a := testkit.Must(l.Accept(t.Context()))(t)
		t.Cleanup(func() { _, _ = d.Close(), a.Close() })
		dialed, accepted = append(dialed, d), append(accepted, a)
	}
	return dialed, accepted
}

// TestContractStands: networks with Shuffle and Yield keep the contract of package transport.
func TestContractStands(t *testing.T) {
	opts := memnet.Options{Seed: 11, Shuffle: true, Yield: 5, MaxDelay: time.Millisecond, Cut: true}
	transporttest.Run(t, func(t *testing.T, test func(*testing.T, transporttest.Harness)) {
		synctest.Test(t, func(t *testing.T) { test(t, harness(&opts, "192.0.2.1")) })
	})
}

// TestShuffle: handlers of streams that are ready are called in another order, and none is
// forgotten.
func TestShuffle(t *testing.T) {
	order := func(opts memnet.Options) (list []int) {
		synctest.Test(t, func(t *testing.T) {
			network := memnet.New(&opts)
			dialed, accepted := pairs(t, network, 20)
			p, _ := network.NewPoller()
			defer p.Close()
			for i, c := range accepted {
				h := &told{}
				h.do = func() {
					list = append(list, i)
					_ = p.WantRead(c, false)
				}
				testkit.OK(t, p.Add(c, h))
				_, _ = dialed[i].Writev([][]byte{{1}})
			}
			for len(list) < len(accepted) {
				testkit.OK(t, p.Wait(t.Context()))
				p.Poll()
			}
		})
		return list
	}
	sorted := func(list []int) bool { // from anywhere on: Wait looks at the first
		for i, v := range list {
			if v != (list[0]+i)%len(list) {
				return false
			}
		}
		return true
	}
	if list := order(memnet.Options{}); !sorted(list) {
		t.Errorf("without Shuffle: %v", list)
	}
	if list := order(memnet.Options{Shuffle: true, Seed: 3}); sorted(list) {
		t.Errorf("with Shuffle: %v", list)
	}
}

// TestMaxWake: a handler is called late, but not later than MaxWake.
func TestMaxWake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{Seed: 5, MaxWake: time.Second})
		dialed, accepted := pairs(t, network, 1)
		p, _ := network.NewPoller()
		defer p.Close()
		h := &told{}
		testkit.OK(t, p.Add(accepted[0], h))
		late := 0
		for range 100 {
			begin := time.Now()
			_, _ = dialed[0].Writev([][]byte{{1}})
			for h.readable.Swap(0) == 0 {
				p.Poll()
			}
			d := time.Unix(0, h.at.Load()).Sub(begin)
			if d > time.Second {
				t.Fatalf("called after %v", d)
			}
			if d > 0 {
				late++
			}
			_, _ = accepted[0].Readv([][]byte{make([]byte, 10)})
		}
		if late < 5 || late > 60 {
			t.Errorf("called late %d times of 100, want about 25", late)
		}
	})
}

// TestSpurious: a handler is called although nothing is ready.
func TestSpurious(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{Seed: 5, Spurious: 3})
		_, accepted := pairs(t, network, 1)
		p, _ := network.NewPoller()
		defer p.Close()
		h := &told{}
		testkit.OK(t, p.Add(accepted[0], h))
		for range 300 {
			if n := p.Poll(); n != 0 {
				t.Fatalf("Poll has served %d, and nothing is ready", n)
			}
		}
		if r, w := h.readable.Load(), h.writable.Load(); r < 30 || w < 30 {
			t.Errorf("called %d times as readable and %d times as writable, want at least 30 each",
				r, w)
		}
		if n := network.Told(); n != 0 {
			t.Errorf("Told counts %d spurious calls", n)
		}
		p.Remove(accepted[0])
		before := h.readable.Load() + h.writable.Load()
		for range 100 {
			p.Poll()
		}
		if h.readable.Load()+h.writable.Load() != before {
			t.Error("called for a stream that is not watched any more")
		}
	})
}

// TestOnSpin: OnSpin reports a handler that does nothing when it is called, and none that reads.
func TestOnSpin(t *testing.T) {
	for _, reads := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			spins := 0
			network := memnet.New(&memnet.Options{OnSpin: func(conn uint64) {
				if spins++; conn != 1 {
					t.Errorf("connection %d spins", conn)
				}
			}})
			dialed, accepted := pairs(t, network, 1)
			p, _ := network.NewPoller()
			defer p.Close()
			h := &told{do: func() {
				if reads {
					_, _ = accepted[0].Readv([][]byte{make([]byte, 1)})
				}
			}}
			testkit.OK(t, p.Add(accepted[0], h))
			for range 7000 {
				if reads {
					_, _ = dialed[0].Writev([][]byte{{1}})
				}
				p.Poll()
				if !reads && h.readable.Load() == 0 {
					_, _ = dialed[0].Writev([][]byte{{1}})
				}
			}
			if reads != (spins == 0) {
				t.Errorf("reads %v: %d spins", reads, spins)
			}
		})
	}
}

// TestReset: Reset resets the connections that it is asked for, and no others, and Used counts ends
// and ports in use.
func TestReset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		dialed, accepted := pairs(t, network, 2)
		if u := network.Used(); u.Ends != 4 || u.Ports != 2 {
			t.Errorf("in use: %+v", u)
		}
		victim := dialed[1].LocalAddr()
		if n := network.Reset(func(d, _ netip.AddrPort) bool { return d == victim }); n != 1 {
			t.Errorf("%d connections were reset", n)
		}
		for i, c := range []transport.Conn{dialed[0], accepted[0], dialed[1], accepted[1]} {
			_, err := c.Readv([][]byte{make([]byte, 1)})
			if i < 2 && err != transport.ErrWouldBlock || i >= 2 && !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("end %d reads: %v", i, err)
			}
		}
		for _, c := range append(dialed, accepted...) {
			_ = c.Close()
		}
		if u := network.Used(); u != (memnet.Use{}) {
			t.Errorf("everything is closed, but still in use: %+v", u)
		}
	})
}

// TestPollTellsWhoIsReady: and not one that stands before it and is not.
func TestPollTellsWhoIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		dialed, accepted := pairs(t, network, 2)
		p, _ := network.NewPoller()
		defer p.Close()
		var h [2]told
		for i, c := range accepted {
			testkit.OK(t, p.Add(c, &h[i]))
		}
		_, _ = dialed[1].Writev([][]byte{{1}})
		n := p.Poll()
		if a, b := h[0].readable.Load(), h[1].readable.Load(); n != 1 || a != 0 || b != 1 {
			t.Errorf("Poll has served %d; told %d and %d times, want 0 and 1", n, a, b)
		}
	})
}
