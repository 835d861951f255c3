package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestConnDoNamesTheCall: errors name the method that the program called.
func TestConnDoNamesTheCall(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	from := sge(t, here, 0, 8)
	testkit.OK(t, a.Do(ctx, ibverbs.SendWR{}))
	over, cancel := context.WithCancel(ctx)
	cancel()
	for _, c := range []struct {
		name string
		call func() error
	}{
		{"Conn.Do", func() error { return a.Do(over, ibverbs.NewRead(there, from)) }},
		{"Conn.Read", func() error { return a.Read(over, from, there) }},
		{"Conn.Write", func() error { return a.Write(over, there, from) }},
		{"Conn.Send", func() error { return a.Send(over, from) }},
	} {
		wantErr(t, c.name, c.call(), context.Canceled, c.name+" ", a.RemoteAddr().String())
	}
}

// TestConnDoEndedContext: a call whose context has already ended posts nothing.
func TestConnDoEndedContext(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, nil)
	here, _ := memory(t, a, 64)
	mr, there := memory(t, b, 64)
	here.Bytes()[0] = 1
	testkit.OK(t, a.Read(ctx, sge(t, here, 8, 8), there))
	over, cancel := context.WithCancel(ctx)
	cancel()
	for range 20 {
		wantErr(t, "Write", a.Write(over, there, sge(t, here, 0, 8)), context.Canceled)
	}
	testkit.OK(t, a.Read(ctx, sge(t, here, 8, 8), there))
	if mr.Bytes()[0] != 0 {
		t.Error("the Write was done")
	}
}

// TestDoFullOfOthers: the program's own unsignalled work fills the queue, and stays there. The call
// ends with its context, and says so.
func TestDoFullOfOthers(t *testing.T) {
	ctx := timeout(t)
	const places = 4
	var server *rdmacm.Conn
	_, server = pair(t, &rdmacm.ConnConfig{NoOpeningWrite: true},
		&rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: places}})
	// The engine holds the accepting side's work until the peer's first message.
	empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
	for _, own := range []int{places, places - 1} {
		for range own {
			_ = server.QP().PostSend(empty)
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		err := server.Do(short, empty, empty)
		wantErr(t, "a queue full of others' work", err, context.DeadlineExceeded, "Conn.Do")
		if ctx.Err() != nil {
			t.Fatal("not by its own context")
		}
	}
}

// TestConnDoOnSendPanics: a program that recovers from a panic of its OnSend goes on. The panic may
// come while a call waits for its work or for places, or posts.
func TestConnDoOnSendPanics(t *testing.T) {
	ctx := timeout(t)
	const places = 4
	bad := true
	a, b := pair(t, &rdmacm.ConnConfig{
		Cap: ibverbs.QPCap{MaxSendWR: places},
		OnSend: func(*ibverbs.WC) {
			if bad {
				panic("OnSend")
			}
		},
	}, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	read := ibverbs.NewRead(there, sge(t, here, 0, 64))
	for own := range places + 1 {
		bad = true
		for range own {
			testkit.OK(t, a.QP().PostSend(read))
		}
		func() {
			defer func() {
				if panicked := recover() != nil; panicked != (own > 0) {
					t.Errorf("%d of the program's own: panic %v", own, panicked)
				}
			}()
			_ = a.Do(ctx, read, read)
		}()
		bad = false
		for range 3 { // all places are free
			if err := a.Do(ctx, read, read, read, read); err != nil {
				t.Fatalf("after a panic with %d of the program's own: %v", own, err)
			}
		}
	}
}

// TestConnDoBesideFullCQ: the program's own signalled work, as much as it may post between calls,
// has completed when a call fills the queue once more. No completion is lost.
func TestConnDoBesideFullCQ(t *testing.T) {
	ctx := timeout(t)
	for _, places := range []int{8, 6, 1} {
		var own atomic.Int32
		a, _ := pair(t, &rdmacm.ConnConfig{
			Cap:    ibverbs.QPCap{MaxSendWR: places},
			OnSend: func(*ibverbs.WC) { own.Add(1) },
		}, nil)
		empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
		signalled := empty
		signalled.Flags = ibverbs.SendSignaled
		chain := make([]ibverbs.SendWR, places)
		for i := range chain {
			chain[i] = empty
		}
		for round := range 5 {
			for range places {
				testkit.OK(t, a.QP().PostSend(signalled))
			}
			if err := a.Do(ctx, chain...); err != nil {
				t.Fatalf("%d places, round %d: %v", places, round, err)
			}
		}
		testkit.OK(t, a.Do(ctx, chain[0]))
		if n := int(own.Load()); n != 5*places {
			t.Errorf("OnSend got %d completions of %d", n, 5*places)
		}
	}
}

// TestDoStress: calls with and without a deadline, beside others' work and Drain. In every case all
// places of the queue come back.
func TestDoStress(t *testing.T) {
	ctx := timeout(t)
	const places = 8
	var own, owned atomic.Int32
	a, b := pair(t, &rdmacm.ConnConfig{
		Cap:    ibverbs.QPCap{MaxSendWR: places},
		OnSend: func(*ibverbs.WC) { own.Add(1) },
	}, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	from := sge(t, here, 0, 8)
	var all sync.WaitGroup
	for k := range 12 {
		all.Go(func() {
			r := rand.New(rand.NewPCG(uint64(k), 7))
			for range 150 {
				call, cancel := ctx, context.CancelFunc(func() {})
				if r.IntN(2) == 0 {
					call, cancel = context.WithTimeout(ctx, time.Duration(r.IntN(100))*time.Microsecond)
				}
				var err error
				switch r.IntN(4) {
				case 0:
					err = a.Read(call, from, there)
				case 1:
					err = a.Write(call, there, from)
				case 2:
					wrs := make([]ibverbs.SendWR, 1+r.IntN(places))
					for i := range wrs {
						wrs[i] = ibverbs.NewRead(there, from)
					}
					err = a.Do(call, wrs...)
				case 3:
					wr := ibverbs.NewWrite(there, from)
					if owned.Add(1)-own.Load() <= places {
						if a.QP().PostSend(wr) != nil {
							owned.Add(-1)
						}
					} else {
						owned.Add(-1)
					}
				}
				if err != nil && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
					t.Errorf("caller %d: %v", k, err)
				}
				cancel()
				if t.Failed() {
					return
				}
			}
		})
	}
	all.Wait()
	for range 3 {
		testkit.OK(t, a.Do(ctx, make([]ibverbs.SendWR, places)...))
	}
	if own.Load() != owned.Load() {
		t.Errorf("OnSend got %d completions of %d", own.Load(), owned.Load())
	}
}

// TestConnDoLast: each caller makes one call, so no later call brings its completion. The test
// found a caller that began to poll although its own work was complete.
func TestConnDoLast(t *testing.T) {
	ctx := timeout(t)
	a, _ := pair(t, nil, nil)
	rounds := 5000
	if onKernel() {
		rounds = 200
	}
	for round := range rounds {
		var all sync.WaitGroup
		for range 3 {
			all.Go(func() {
				if err := a.Do(ctx, ibverbs.SendWR{}); err != nil {
					t.Errorf("round %d: %v", round, err)
				}
			})
		}
		all.Wait()
		if t.Failed() {
			return
		}
	}
}
