package ibverbs_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
)

func TestMemoryPool(t *testing.T) {
	ctx := timeout(t)
	c := link(t)
	pool := testkit.Must(c.client.PD().NewPool(remoteRights, []ibverbs.PoolClass{{Size: 1000, Count: 2}, {Size: 10, Count: 3}}))(t)
	defer func() { testkit.OK(t, pool.Close()) }()
	var out []ibverbs.PoolBuf
	for i, want := range []int{10, 10, 10, 1000, 1000} { // long buffers replace short ones
		b := testkit.Must(pool.Get(7))(t)
		if got := b.Bytes(); len(got) != want || cap(got) != want || uintptr(unsafe.Pointer(&got[0]))%64 != 0 {
			t.Errorf("buffer %d: %d bytes, capacity %d, at %p; want %d", i, len(got), cap(got), &got[0], want)
		}
		for j := range b.Bytes() {
			b.Bytes()[j] = byte(i + 1)
		}
		out = append(out, b)
	}
	for i, b := range out {
		if bytes.Count(b.Bytes(), []byte{byte(i + 1)}) != len(b.Bytes()) {
			t.Errorf("buffer %d was written to by another one", i)
		}
	}
	_, err := pool.Get(1)
	wantErrno(t, "empty", err, syscall.ENOBUFS)
	wantErrno(t, "closing it", pool.Close(), syscall.EBUSY, "5 buffers")
	if pool.MR().Bytes() == nil {
		t.Fatal("the Close that was EBUSY closed")
	}
	ended, cancel := context.WithTimeout(ctx, 5*time.Millisecond)
	_, err = pool.Wait(ended, 1)
	cancel()
	wantErr(t, "waiting in vain", err, context.DeadlineExceeded)
	time.AfterFunc(5*time.Millisecond, func() { testkit.OK(t, out[4].Release()) })
	out[4] = testkit.Must(pool.Wait(ctx, 11))(t)

	// Work requests can use them: from one to the other, through the peer.
	from, to := out[3], out[4]
	copy(from.Bytes()[100:], "from one buffer to another")
	src := testkit.Must(from.SGE(100, 26))(t)
	dst := testkit.Must(c.serverMR.Remote(8, 26))(t)
	testkit.OK(t, done(t, ctx, c.client, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{src}, RemoteAddr: dst.Addr, RKey: dst.RKey}))
	back := testkit.Must(to.Remote(974, 26))(t)
	sge := ibverbs.SGE{Addr: back.Addr, Length: 26, LKey: pool.MR().LKey()}
	testkit.OK(t, done(t, ctx, c.client, ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{sge}, RemoteAddr: dst.Addr, RKey: dst.RKey}))
	if got := string(to.Bytes()[974:]); got != "from one buffer to another" {
		t.Errorf("got %q", got)
	}
	for _, x := range [][2]int{{-1, 1}, {0, -1}, {1000, 1}, {0, 1001}, {1001, 0}, {math.MaxInt, math.MaxInt}} {
		_, err := to.SGE(x[0], x[1])
		wantErrno(t, "SGE outside of the buffer", err, syscall.EINVAL, "which has 1000")
		_, err = to.Remote(x[0], x[1])
		wantErrno(t, "Remote outside of the buffer", err, syscall.EINVAL, "which has 1000")
	}
	for _, b := range out {
		testkit.OK(t, b.Release())
	}
}

// A second Release, and any use after the first, is an error, even if another user has the buffer.
// The other user does not notice.
func TestBadPool(t *testing.T) {
	vctx, _ := open()
	defer vctx.Close()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	for name, classes := range map[string][]ibverbs.PoolClass{
		"no class":       nil,
		"size 0":         {{Size: 0, Count: 1}},
		"size -1":        {{Size: -1, Count: 1}},
		"count 0":        {{Size: 1, Count: 0}},
		"count -1":       {{Size: 1, Count: -1}},
		"2^63-1 bytes":   {{Size: math.MaxInt, Count: 1}},
		"2^63-1 buffers": {{Size: 1, Count: math.MaxInt}},
		"overflow":       {{Size: min(1<<40, math.MaxInt), Count: min(1<<40, math.MaxInt)}},
		"twice the same": {{Size: 8, Count: 1}, {Size: 8, Count: 2}},
	} {
		p, err := pd.NewPool(remoteRights, classes)
		refused(t, name, err, syscall.EINVAL)
		testkit.OK(t, p.Close()) // nil
	}
	_, err := pd.NewPool(ibverbs.AccessRemoteWrite, []ibverbs.PoolClass{{Size: 1, Count: 1}})
	refused(t, "impossible rights", err, syscall.EINVAL)
	_, err = (*ibverbs.PD)(nil).NewPool(0, []ibverbs.PoolClass{{Size: 1, Count: 1}})
	refused(t, "no PD", err, syscall.EINVAL)
	_, err = (*ibverbs.Pool)(nil).Get(1)
	refused(t, "no pool", err, syscall.EINVAL)
	_, err = new(ibverbs.Pool).Wait(t.Context(), 1)
	refused(t, "zero pool", err, syscall.EINVAL)
	refused(t, "zero buffer", ibverbs.PoolBuf{}.Release(), syscall.EINVAL)
	if (ibverbs.PoolBuf{}).Bytes() != nil {
		t.Error("the zero buffer has bytes")
	}

	pool := testkit.Must(pd.NewPool(remoteRights, []ibverbs.PoolClass{{Size: 8, Count: 1}}))(t)
	for _, n := range []int{-1, 9, math.MaxInt} {
		_, err := pool.Get(n)
		refused(t, "no buffer is as long", err, syscall.EINVAL)
	}
	mine := testkit.Must(pool.Get(8))(t)
	copied := mine
	testkit.OK(t, mine.Release())
	refused(t, "second Release", mine.Release(), syscall.EINVAL)
	theirs := testkit.Must(pool.Get(0))(t)
	for name, err := range map[string]error{
		"second Release": copied.Release(),
		"SGE":            func() error { _, err := mine.SGE(0, 1); return err }(),
		"Remote":         func() error { _, err := mine.Remote(0, 1); return err }(),
	} {
		refused(t, name+" of what is somebody else's", err, syscall.EINVAL)
		wantErr(t, name, err, os.ErrClosed)
	}
	if mine.Bytes() != nil || theirs.Bytes() == nil {
		t.Error("whose buffer it is has been forgotten")
	}
	wantErrno(t, "PD of a pool", pd.Close(), syscall.EBUSY, "1 MR")
	testkit.OK(t, theirs.Release())
	testkit.OK(t, pool.Close())
	testkit.OK(t, pool.Close())
	_, err = pool.Get(1)
	wantErr(t, "Get from a closed pool", err, os.ErrClosed)
	refused(t, "Release into a closed pool", theirs.Release(), syscall.EINVAL)
}

// All goroutines at once, and Close until it succeeds: no buffer has two users, none is lost.
func TestMemoryPoolRaces(t *testing.T) {
	o := newObjects(t)
	pool := testkit.Must(o.pd.NewPool(0, []ibverbs.PoolClass{{Size: 8, Count: 3}, {Size: 64, Count: 2}}))(t)
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(1, uint64(w)))
			for range 500 {
				b, err := pool.Get(rnd.IntN(65))
				switch {
				case errors.Is(err, syscall.ENOBUFS):
					runtime.Gosched()
					continue
				case errors.Is(err, os.ErrClosed):
					return
				case err != nil:
					t.Error(err)
					return
				}
				mem := b.Bytes()
				for i := range mem {
					mem[i] = byte(w) // races with another owner, which -race reports
				}
				runtime.Gosched()
				if bytes.Count(mem, []byte{byte(w)}) != len(mem) {
					t.Error("a buffer is with two")
				}
				var released sync.WaitGroup
				var good, bad = make(chan struct{}, 2), make(chan struct{}, 2)
				for range 2 {
					released.Go(func() {
						if b.Release() == nil {
							good <- struct{}{}
						} else {
							bad <- struct{}{}
						}
					})
				}
				released.Wait()
				if len(good) != 1 || len(bad) != 1 {
					t.Errorf("of two Releases %d succeeded", len(good))
				}
			}
		})
	}
	for range 100 {
		_ = pool.Close() // EBUSY, unless no goroutine has a buffer
	}
	wg.Wait()
	testkit.OK(t, pool.Close())
	_, err := pool.Get(1)
	wantErr(t, "a closed pool", err, os.ErrClosed)
}

func TestMemoryPoolAllocatesNothing(t *testing.T) {
	o := newObjects(t)
	pool := testkit.Must(o.pd.NewPool(ibverbs.AccessRemoteRead,
		[]ibverbs.PoolClass{{Size: 64, Count: 1}, {Size: 4096, Count: 4}}))(t)
	ctx := timeout(t)
	n := testing.AllocsPerRun(100, func() {
		a, err1 := pool.Get(64)
		b, err2 := pool.Wait(ctx, 100)
		_, err3 := a.SGE(0, 64)
		_, err4 := b.Remote(0, 4096)
		if err := errors.Join(err1, err2, err3, err4); err != nil || len(b.Bytes()) != 4096 {
			t.Fatal(err)
		}
		if a.Release() != nil || b.Release() != nil || a.Release() == nil {
			t.Fatal("Release")
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
	testkit.OK(t, pool.Close())
}

// Huge pages: if there are enough, the region uses them; otherwise the error says so.
func TestMemoryHugePages(t *testing.T) {
	vctx, _ := open()
	defer vctx.Close()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	mr, err := pd.AllocMR(100, remoteRights, ibverbs.HugePages)
	if err != nil {
		t.Log(err)
		refused(t, "no huge pages", err, syscall.ENOMEM, syscall.EINVAL)
		wantErr(t, "no huge pages", err, ibverbs.Errno(err), "mmap", "huge pages")
	} else {
		mr.Bytes()[99] = 1
		if uintptr(unsafe.Pointer(&mr.Bytes()[0]))%(1<<21) != 0 || mr.Len() != 100 {
			t.Errorf("%d bytes at %p", mr.Len(), &mr.Bytes()[0])
		}
		testkit.OK(t, mr.Close())
	}
	mr, err = pd.AllocMR(3<<20, remoteRights, ibverbs.TransparentHugePages)
	if err != nil {
		t.Log(err)
		refused(t, "no transparent huge pages", err, syscall.EINVAL)
		wantErr(t, "no transparent huge pages", err, syscall.EINVAL, "madvise", "transparent huge pages")
	} else {
		mr.Bytes()[3<<20-1] = 1
		testkit.OK(t, mr.Close())
	}
	_, err = pd.AllocMR(1, 0, ibverbs.HugePages, ibverbs.TransparentHugePages)
	refused(t, "both", err, syscall.EINVAL)
	_, err = pd.AllocMR(1, 0, 77)
	refused(t, "unknown option", err, syscall.EINVAL)
	_, err = pd.AllocMR(math.MaxInt, 0, ibverbs.TransparentHugePages)
	refused(t, "2^63-1 bytes", err, syscall.EINVAL)
	_, err = pd.AllocMR(min(1<<50, math.MaxInt), 0, ibverbs.HugePages)
	refused(t, "2^50 bytes", err, syscall.ENOMEM, syscall.EINVAL)
}
