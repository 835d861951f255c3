package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

const allRights = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead

// memory registers bytes that the peer may read and write.
func memory(t testing.TB, c *rdmacm.Conn, octets int) (*ibverbs.MR, ibverbs.RemoteRegion) {
	t.Helper()
	mr := testkit.Must(c.PD().AllocMR(octets, allRights))(t)
	t.Cleanup(func() { testkit.OK(t, mr.Close()) })
	return mr, testkit.Must(mr.Remote(0, octets))(t)
}

func sge(t testing.TB, mr *ibverbs.MR, off, n int) ibverbs.SGE {
	t.Helper()
	return testkit.Must(mr.SGE(off, n))(t)
}

// TestConnDo: a Write, a Read that brings it back, and a Send, each complete when the call returns.
func TestConnDo(t *testing.T) {
	ctx := timeout(t)
	in := &receiver{n: 2, size: 64}
	a, b := pair(t, nil, &rdmacm.ConnConfig{Prepare: in.prepare})
	t.Cleanup(in.close)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)

	copy(here.Bytes(), "over there and back")
	testkit.OK(t, a.Write(ctx, there, sge(t, here, 0, 19)))
	testkit.OK(t, a.Read(ctx, sge(t, here, 32, 19), there))
	if got := here.Bytes()[32:51]; string(got) != "over there and back" {
		t.Errorf("what was written is read back as %q", got)
	}
	testkit.OK(t, a.Send(ctx, sge(t, here, 0, 10)))
	var wc [1]ibverbs.WC
	testkit.Must(b.RecvCQ().PollWait(ctx, wc[:]))(t)
	testkit.OK(t, wc[0].Err())
	if got := in.mr.Bytes()[:wc[0].ByteLen]; string(got) != "over there" {
		t.Errorf("received %q", got)
	}
	// In order: the Write's data is in place when the Send is received.
	copy(here.Bytes(), "second")
	testkit.OK(t, a.Do(ctx,
		ibverbs.SendWR{
			Opcode: ibverbs.WRRDMAWrite, RemoteAddr: there.Addr, RKey: there.RKey,
			SGList: []ibverbs.SGE{sge(t, here, 0, 6)},
		},
		ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge(t, here, 0, 6)}},
	))
	testkit.Must(b.RecvCQ().PollWait(ctx, wc[:]))(t)
	testkit.OK(t, wc[0].Err())
}

// TestConnDoOfMany: more goroutines than the queue has places, with chains of several lengths. Each
// reads back its own bytes.
func TestConnDoOfMany(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 8}}, nil)
	const callers, size = 24, 32
	rounds := 50
	if onKernel() {
		rounds = 5
	}
	here, _ := memory(t, a, callers*2*size)
	_, there := memory(t, b, callers*size)
	var all sync.WaitGroup
	for k := range callers {
		mine := testkit.Must(there.Part(k*size, size))(t)
		from, to := sge(t, here, 2*k*size, size), sge(t, here, (2*k+1)*size, size)
		all.Go(func() {
			for round := range rounds {
				text := here.Bytes()[2*k*size:][:size]
				copy(text, fmt.Sprintf("caller %d, round %d          ", k, round))
				wrs := []ibverbs.SendWR{{Opcode: ibverbs.WRRDMAWrite, RemoteAddr: mine.Addr,
					RKey: mine.RKey, SGList: []ibverbs.SGE{from}}}
				for range (k + round) % 7 { // up to what the queue holds, with the Read
					wrs = append(wrs, wrs[0])
				}
				wrs = append(wrs, ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, RemoteAddr: mine.Addr,
					RKey: mine.RKey, SGList: []ibverbs.SGE{to}})
				if err := a.Do(ctx, wrs[:min(len(wrs), 8)]...); err != nil {
					t.Errorf("caller %d: %v", k, err)
					return
				}
				if len(wrs) > 8 {
					if err := a.Read(ctx, to, mine); err != nil {
						t.Errorf("caller %d: %v", k, err)
						return
					}
				}
				if got := here.Bytes()[(2*k+1)*size:][:size]; !bytes.Equal(got, text) {
					t.Errorf("caller %d wrote %q and read %q", k, text, got)
					return
				}
			}
		})
	}
	all.Wait()
}

// TestConnDoGivenUp: a call whose context ends leaves its completions to the other calls, which
// still get theirs, and its places come back.
func TestConnDoGivenUp(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 2}}, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	gave := 0
	for round := 0; round < 10000 && gave < 20; round++ {
		over, cancel := context.WithCancel(ctx)
		timer := time.AfterFunc(time.Duration(round%50)*time.Microsecond, cancel)
		err := a.Read(over, sge(t, here, 0, 8), there)
		timer.Stop()
		cancel()
		if err != nil {
			wantErr(t, "a call whose context ends", err, context.Canceled, "Conn.Read")
			gave++
		}
		testkit.OK(t, a.Read(ctx, sge(t, here, 8, 8), there))
	}
	if gave == 0 {
		t.Error("no call was given up")
	}
	testkit.OK(t, a.QP().Drain(ctx))
	for range 2 * 2 { // all places are free
		testkit.OK(t, a.Do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite},
			ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}))
	}
}

// TestConnDoOfOthers: completions of the program's own work go to OnSend.
func TestConnDoOfOthers(t *testing.T) {
	ctx := timeout(t)
	var mu sync.Mutex
	var others []uint64
	a, _ := pair(t, &rdmacm.ConnConfig{OnSend: func(wc *ibverbs.WC) {
		mu.Lock()
		others = append(others, wc.WRID)
		mu.Unlock()
	}}, nil)
	empty := ibverbs.SendWR{WRID: 7, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}
	testkit.OK(t, a.QP().PostSend(empty))
	testkit.OK(t, a.Do(ctx, empty)) // completes after it, and has the same WRID
	mu.Lock()
	defer mu.Unlock()
	if len(others) != 1 || others[0] != 7 {
		t.Errorf("OnSend got the WRIDs %v, want 7 once", others)
	}
}

// TestConnDoEnds: the connection's end ends all calls with an error.
func TestConnDoEnds(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	testkit.OK(t, a.Write(ctx, there, sge(t, here, 0, 8)))
	const callers = 8
	ended := make(chan error, callers)
	for range callers {
		go func() {
			for {
				if err := a.Read(ctx, ibverbs.SGE{Addr: here.Addr(), Length: 8, LKey: here.LKey()},
					there); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	time.Sleep(20 * time.Millisecond)
	testkit.OK(t, b.Disconnect())
	for range callers {
		select {
		case err := <-ended:
			if ctx.Err() != nil {
				t.Fatalf("not by the connection's end: %v", err)
			}
			t.Log(err)
		case <-ctx.Done():
			t.Fatal("a call waits although the connection is over")
		}
	}
}

// TestConnDoClosed: Close ends waiting calls.
func TestConnDoClosed(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, nil)
	mr := testkit.Must(b.PD().AllocMR(8, allRights))(t)
	there := testkit.Must(mr.Remote(0, 8))(t)
	here := testkit.Must(a.PD().AllocMR(8, allRights))(t)
	from := sge(t, here, 0, 8)
	ended := make(chan error, 4)
	for range cap(ended) {
		go func() {
			for {
				if err := a.Write(ctx, there, from); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	time.Sleep(20 * time.Millisecond)
	testkit.OK(t, a.Close())
	for range cap(ended) {
		err := <-ended
		if ctx.Err() != nil {
			t.Fatalf("not by Close: %v", err)
		}
		t.Log(err)
	}
	testkit.OK(t, here.Close())
	testkit.OK(t, mr.Close())
}

// TestConnDoFaults: the error says what is wrong with one work request, with its WRID and the cause
// of the connection's end.
func TestConnDoFaults(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	wantErr(t, "no work request", a.Do(ctx), syscall.EINVAL, "Conn.Do")
	wantErr(t, "too many", a.Do(ctx, make([]ibverbs.SendWR, 1000)...), syscall.EINVAL, "1000 work requests")
	short := testkit.Must(there.Part(0, 4))(t)
	wantErr(t, "more than the peer has", a.Write(ctx, short, sge(t, here, 0, 8)), syscall.EINVAL,
		"Conn.Write", "8 bytes", "only 4")
	wantErr(t, "an opcode that does not exist", a.Do(ctx,
		ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}, ibverbs.SendWR{Opcode: 77}), syscall.EINVAL)
	testkit.OK(t, a.Write(ctx, there, sge(t, here, 0, 8))) // the connection still works

	bad := there
	bad.RKey ^= 0xff00
	err := a.Do(ctx, ibverbs.SendWR{
		WRID: 42, Opcode: ibverbs.WRRDMARead, RemoteAddr: bad.Addr, RKey: bad.RKey,
		SGList: []ibverbs.SGE{sge(t, here, 0, 8)},
	})
	wc := new(ibverbs.WCError)
	if !errors.As(err, &wc) || wc.WRID != 42 {
		t.Errorf("a Read with a key of nothing: %v, want a WCError of WRID 42", err)
	}
	t.Log(err)
}

// TestConnDoRefusedBesideOthers: calls whose work is refused pass their places to waiting calls,
// although nothing completes.
func TestConnDoRefusedBesideOthers(t *testing.T) {
	ctx := timeout(t)
	a, _ := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 2}}, nil)
	rounds := 200
	if onKernel() {
		rounds = 20
	}
	bad := []ibverbs.SendWR{{Opcode: 77}, {Opcode: 77}}
	var all sync.WaitGroup
	for range 6 {
		all.Go(func() {
			for range rounds {
				if err := a.Do(ctx, bad...); !errors.Is(err, syscall.EINVAL) {
					t.Errorf("an opcode that does not exist: %v, want EINVAL", err)
					return
				}
			}
		})
	}
	all.Wait()
	testkit.OK(t, a.Do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}))
}

// TestConnDoNeedsACQOfItsOwn: the program may wait elsewhere for completions of a CQ that it has
// made.
func TestConnDoNeedsACQOfItsOwn(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	cq := testkit.Must(vctx.CreateCQ(128, nil))(t)
	defer cq.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			c, _ := req.Accept(ctx, nil)
			accepted <- c
		}
	}()
	c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{SendCQ: cq}))(t)
	wantErr(t, "a shared CQ", c.Do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}),
		syscall.EINVAL, "SendCQ")
	testkit.OK(t, c.Close())
	testkit.OK(t, (<-accepted).Close())
}

// TestDoAllocatesNothing counts a call's allocations after earlier calls.
func TestDoAllocatesNothing(t *testing.T) {
	if testkit.Race {
		t.Skip("the race detector allocates; ci/test runs this without it")
	}
	ctx := timeout(t)
	a, b := pair(t, nil, messages(4, 64))
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	from, msg := sge(t, here, 0, 16), make([]byte, 64)
	chain := []ibverbs.SendWR{
		{Opcode: ibverbs.WRRDMAWrite, RemoteAddr: there.Addr, RKey: there.RKey, SGList: []ibverbs.SGE{from}},
		{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{from}},
	}
	for _, c := range []struct {
		name string
		do   func() error
	}{
		{"Write", func() error { return a.Write(ctx, there, from) }},
		{"Read", func() error { return a.Read(ctx, from, there) }},
		{"Do of a Write and a Send, and Receive", func() error {
			if err := a.Do(ctx, chain...); err != nil {
				return err
			}
			m, err := b.Receive(ctx)
			if err != nil {
				return err
			}
			return m.Release()
		}},
		{"SendBytes, and Conn.Receive", func() error {
			if err := a.SendBytes(ctx, msg); err != nil {
				return err
			}
			m, err := b.Receive(ctx)
			if err != nil {
				return err
			}
			return m.Release()
		}},
	} {
		if n := testing.AllocsPerRun(200, func() {
			if err := c.do(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", c.name, n)
		}
	}
}

// BenchmarkConnWrite compares Conn.Write with the program's own post and wait, and with several
// concurrent callers.
func BenchmarkConnWrite(b *testing.B) {
	for _, callers := range []int{1, 8} {
		b.Run(fmt.Sprintf("Conn.Write, %d callers", callers), func(b *testing.B) {
			a, from, there := writer(b)
			var all sync.WaitGroup
			b.ReportAllocs()
			b.ResetTimer()
			for k := range callers {
				all.Go(func() {
					for range (b.N + k) / callers {
						if err := a.Write(b.Context(), there, from); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
	b.Run("PostSend and PollWait", func(b *testing.B) {
		a, from, there := writer(b)
		wrs := []ibverbs.SendWR{{
			Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled,
			RemoteAddr: there.Addr, RKey: there.RKey, SGList: []ibverbs.SGE{from},
		}}
		wc := make([]ibverbs.WC, 1)
		b.ReportAllocs()
		b.ResetTimer()
		for range b.N {
			testkit.OK(b, a.QP().PostSend(wrs...))
			testkit.Must(a.SendCQ().PollWait(b.Context(), wc))(b)
			testkit.OK(b, wc[0].Err())
		}
	})
}

func writer(b *testing.B) (a *rdmacm.Conn, from ibverbs.SGE, there ibverbs.RemoteRegion) {
	a, peer := pair(b, nil, nil)
	here, _ := memory(b, a, 64)
	_, there = memory(b, peer, 64)
	return a, sge(b, here, 0, 64), there
}

// TestConnDoBesideAFullQueue: the program's own work fills the send queue. A call takes its
// completions from the CQ, and then has room.
func TestConnDoBesideAFullQueue(t *testing.T) {
	ctx := timeout(t)
	const places = 8
	var own int
	a, b := pair(t, &rdmacm.ConnConfig{
		Cap:    ibverbs.QPCap{MaxSendWR: places},
		OnSend: func(wc *ibverbs.WC) { own++ },
	}, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	read := ibverbs.NewRead(there, sge(t, here, 0, 64)) // keeps its place until the answer
	empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
	posted := 0
	for round := range 3 {
		// More than the queue holds would overflow the CQ, which is not polled yet.
		for range places {
			testkit.OK(t, a.QP().PostSend(read))
			posted++
		}
		if err := a.Do(ctx, empty, empty); err != nil {
			t.Fatalf("round %d, after %d work requests of the program's own: %v", round, posted, err)
		}
		// siw completes a Write before earlier Reads, but not a Read
		// (kernel-notes/siw-completion-order.md).
		testkit.OK(t, a.Read(ctx, sge(t, here, 0, 64), there))
	}
	if own != posted {
		t.Errorf("OnSend got %d completions of %d", own, posted)
	}
}
