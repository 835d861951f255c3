//go:build cgo && linux && !nokernel

package kernel

import (
	"errors"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// TestWorkLog follows work requests whose completions come late, twice, or not at all.
func TestWorkLog(t *testing.T) {
	var l workLog
	const places = 4
	send := func(wrid uint64, signaled bool) uint64 {
		return l.add(classSend, work{wrid: wrid, signaled: signaled}, places)
	}
	wrids := func(ws []work) (ids []uint64) {
		for _, w := range ws {
			ids = append(ids, w.wrid)
		}
		return ids
	}
	a, b, c := send(7, true), send(7, false), send(8, true)
	read := l.add(classRead, work{wrid: 9, signaled: true}, places)
	recv := l.add(classRecv, work{wrid: 10, signaled: true}, places)

	if w, ok := l.complete(c); !ok || w.wrid != 8 {
		t.Errorf("the third: %+v, %v", w, ok)
	}
	if w, ok := l.complete(c); ok {
		t.Errorf("the third twice: %+v", w)
	}
	if w, ok := l.complete(b); ok {
		t.Errorf("an unsignalled one after a later one: %+v", w)
	}
	l.refuse(send(11, true))
	d := send(12, true)
	if got := wrids(l.lost(classSend, classRead)); !slices.Equal(got, []uint64{7, 9, 12}) {
		t.Errorf("lost in the send queue: %v, want 7, 9 and 12", got)
	}
	for _, id := range []uint64{a, read, d, 1<<classBits - 1, ^uint64(0)} {
		if w, ok := l.complete(id); ok {
			t.Errorf("complete(%#x) after lost: %+v", id, w)
		}
	}
	if w, ok := l.complete(recv); !ok || w.wrid != 10 {
		t.Errorf("the receive: %+v, %v", w, ok)
	}

	// Unsignalled work is removed from the log when siw cannot have it any more.
	for range 1000 {
		send(13, false)
	}
	if n := len(l.classes[classSend].waiting()); n > places+1 {
		t.Errorf("%d unsignalled work requests are in the log of a queue of %d", n, places)
	}
	allocs := testing.AllocsPerRun(1000, func() {
		for range places {
			l.complete(send(14, true))
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// TestWorkLogIsBounded: the log holds no more than siw and the CQ can have, whatever the program
// does.
func TestWorkLogIsBounded(t *testing.T) {
	const places, rounds, most = 4, 10000, 64
	size := func(t *testing.T, l *workLog) {
		t.Helper()
		for c := range l.classes {
			if n := cap(l.classes[c].buf); n > most {
				t.Errorf("class %d has memory for %d work requests, for a queue of %d", c, n, places)
			}
		}
	}
	t.Run("a full queue refuses work", func(t *testing.T) {
		var l workLog
		first := l.add(classRecv, work{wrid: 1, signaled: true}, places)
		for range rounds {
			l.refuse(l.add(classRecv, work{wrid: 2, signaled: true}, places))
		}
		size(t, &l)
		last := l.add(classRecv, work{wrid: 3, signaled: true}, places)
		for i, id := range []uint64{first, last} {
			if w, ok := l.complete(id); !ok || w.wrid != uint64(1+2*i) {
				t.Errorf("completion %d: %+v, %v", i, w, ok)
			}
		}
	})
	t.Run("a completion stays in the CQ", func(t *testing.T) {
		var l workLog
		first := l.add(classSend, work{wrid: 1, signaled: true}, places)
		for range rounds {
			l.add(classSend, work{wrid: 2}, places)
		}
		size(t, &l)
		last := l.add(classSend, work{wrid: 3}, places)
		if w, ok := l.complete(last); !ok || w.wrid != 3 {
			t.Errorf("the last one, which has failed: %+v, %v", w, ok)
		}
		if w, ok := l.complete(first); !ok || w.wrid != 1 {
			t.Errorf("the first one: %+v, %v", w, ok)
		}
	})
	t.Run("the first one is lost", func(t *testing.T) {
		var l workLog
		l.add(classSend, work{wrid: 1, signaled: true}, places)
		for range rounds {
			if w, ok := l.complete(l.add(classSend, work{wrid: 2, signaled: true},
				places)); !ok || w.wrid != 2 {
				t.Fatalf("completion: %+v, %v", w, ok)
			}
		}
		size(t, &l)
		if lost := l.lost(classSend, classRead); len(lost) != 1 || lost[0].wrid != 1 {
			t.Errorf("lost: %+v", lost)
		}
	})
}

// TestWorkLogAtRandom posts and completes at random, with refusals, duplicate completions and
// losses. Each accepted signalled work request is returned once with its own WRID, and all have
// been returned at the end.
func TestWorkLogAtRandom(t *testing.T) {
	const places, steps = 8, 5000
	for seed := range uint64(20) {
		var l workLog
		rnd := rand.New(rand.NewPCG(seed, 0))
		under := map[uint64]uint64{} // the program's WRIDs, by siw's
		var ids, old []uint64        // keys of under, and of completed requests
		for wrid := range uint64(steps) {
			class, signaled := workClass(rnd.IntN(int(classes))), rnd.IntN(3) > 0
			id := l.add(class, work{wrid: wrid, signaled: signaled}, places)
			switch {
			case rnd.IntN(4) == 0:
				l.refuse(id)
				old = append(old, id)
			case signaled:
				under[id] = wrid
				ids = append(ids, id)
			}
			for len(ids) > places && rnd.IntN(8) > 0 {
				i := rnd.IntN(len(ids))
				id := ids[i]
				if w, ok := l.complete(id); !ok || w.wrid != under[id] {
					t.Fatalf("seed %d: completion of %d: %+v, %v", seed, under[id], w, ok)
				}
				delete(under, id)
				ids = slices.Delete(ids, i, i+1)
				old = append(old, id)
			}
			if len(old) > 0 {
				if w, ok := l.complete(old[rnd.IntN(len(old))]); ok {
					t.Fatalf("seed %d: a second completion: %+v", seed, w)
				}
			}
		}
		var want, got []uint64
		for _, wrid := range under {
			want = append(want, wrid)
		}
		slices.Sort(want)
		for _, w := range l.lost(classSend, classRecv) {
			got = append(got, w.wrid)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: lost %v, want %v", seed, got, want)
		}
	}
}

// testEndsUnderReads: when the peer disconnects during Reads, each Read and each receive completes
// exactly once. siw loses some completions and duplicates others.
func testEndsUnderReads(t *testing.T) {
	const rounds, depth = 12, 8
	for round := range rounds {
		a, p := connected(t)
		read := func(id uint64) (n int, err error) {
			return a.qp.PostSend([]provider.SendWR{{
				WRID: id, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
				SGList: []provider.SGE{a.sge(0, 64)}, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey(),
			}})
		}
		const firstRecv = 1 << 32
		completed, posted := map[uint64]int{}, uint64(0)
		for id := range uint64(3) {
			a.recv(provider.RecvWR{WRID: firstRecv + id, SGList: []provider.SGE{a.sge(100, 8)}})
		}
		disconnected, ended := make(chan error, 1), make(chan struct{})
		go func() {
			defer close(ended)
			a.want("while Reads are under way", provider.CMDisconnected)
		}()
		go func() {
			time.Sleep(time.Duration(5+3*round) * time.Millisecond)
			disconnected <- p.id.Disconnect()
		}()
		want := 3
		deadline, failed := time.Now().Add(patience), false
		for wcs := make([]provider.WC, 16); len(completed) < want || !failed; {
			for !failed && posted-uint64(len(completed)) < depth {
				n, err := read(posted + 1)
				posted += uint64(n) // even if posting noticed the end
				if errors.Is(err, syscall.ENOTCONN) {
					failed = true
					break
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			want = int(posted) + 3
			n, err := a.cq.Poll(wcs)
			if err != nil {
				t.Fatal(err)
			}
			for _, wc := range wcs[:n] {
				completed[wc.WRID]++
				failed = failed || wc.Status != provider.WCSuccess
			}
			if time.Now().After(deadline) {
				t.Fatalf("round %d: %d of %d work requests have completed", round, len(completed), want)
			}
			if n == 0 {
				time.Sleep(100 * time.Microsecond)
			}
		}
		if err := <-disconnected; err != nil {
			t.Fatal(err)
		}
		<-ended
		for id, n := range completed {
			if n != 1 || id > posted && (id < firstRecv || id >= firstRecv+3) {
				t.Errorf("round %d: work request %d of %d has completed %d times", round, id, posted, n)
			}
		}
	}
}
