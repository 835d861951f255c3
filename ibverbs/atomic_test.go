package ibverbs_test

import (
	"errors"
	"math"
	"os"
	"sync"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
)

func TestWords(t *testing.T) {
	o := newObjects(t)
	const off = 4096 - 8
	testkit.OK(t, o.mr.Store(off, 40))
	want := func(what string, got uint64, err error, want uint64) {
		t.Helper()
		if err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", what, got, err, want)
		}
	}
	old, err := o.mr.FetchAdd(off, 2)
	want("FetchAdd", old, err, 40)
	old, err = o.mr.CompareAndSwap(off, 41, 1)
	want("CompareAndSwap of something else", old, err, 42)
	old, err = o.mr.Load(off)
	want("leaves it", old, err, 42)
	old, err = o.mr.CompareAndSwap(off, 42, math.MaxUint64)
	want("CompareAndSwap", old, err, 42)
	old, err = o.mr.FetchAdd(off, 2)
	want("FetchAdd wraps", old, err, math.MaxUint64)
	old, err = o.mr.Load(off)
	want("Load", old, err, 1)
	n := testing.AllocsPerRun(100, func() {
		_ = o.mr.Store(0, 1)
		_, _ = o.mr.Load(0)
		_, _ = o.mr.FetchAdd(0, 1)
		_, _ = o.mr.CompareAndSwap(0, 2, 3)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestBadWords(t *testing.T) {
	o := newObjects(t)
	calls := map[string]func(*ibverbs.MR, int) error{
		"Load":           func(m *ibverbs.MR, off int) error { _, err := m.Load(off); return err },
		"Store":          func(m *ibverbs.MR, off int) error { return m.Store(off, 1) },
		"FetchAdd":       func(m *ibverbs.MR, off int) error { _, err := m.FetchAdd(off, 1); return err },
		"CompareAndSwap": func(m *ibverbs.MR, off int) error { _, err := m.CompareAndSwap(off, 0, 1); return err },
	}
	small := testkit.Must(o.pd.AllocMR(7, ibverbs.AccessLocalWrite))(t)
	for name, call := range calls {
		for _, off := range []int{-1, -8, math.MinInt, 4089, 4096, math.MaxInt} {
			wantErrno(t, name, call(o.mr, off), syscall.EINVAL, "MR."+name, "the region, which has 4096")
		}
		for off := 1; off < 8; off++ {
			wantErrno(t, name, call(o.mr, off), syscall.EINVAL, "64-bit boundary")
		}
		wantErrno(t, name+" of 7 bytes", call(small, 0), syscall.EINVAL, "which has 7")
		wantErrno(t, name+" of nil", call(nil, 0), syscall.EINVAL, "nil")
	}
	for _, b := range o.mr.Bytes() {
		if b != 0 {
			t.Fatal("memory was changed")
		}
	}
	testkit.OK(t, o.mr.Close())
	for name, call := range calls {
		wantErr(t, name+" of a closed region", call(o.mr, 0), os.ErrClosed)
	}
}

// TestWordsAndClose: Close unmaps the memory only when no call uses a word of it.
func TestWordsAndClose(t *testing.T) {
	o := newObjects(t)
	for range 30 {
		mr := testkit.Must(o.pd.AllocMR(8, ibverbs.AccessLocalWrite))(t)
		var wg sync.WaitGroup
		var begun sync.WaitGroup
		for range 3 {
			begun.Add(1)
			wg.Go(func() {
				for i := 0; ; i++ {
					_, err := mr.FetchAdd(0, 1)
					if i == 0 {
						begun.Done()
					}
					if errors.Is(err, os.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		begun.Wait()
		testkit.OK(t, mr.Close())
		wg.Wait()
	}
}
