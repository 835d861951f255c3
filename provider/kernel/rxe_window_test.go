//go:build cgo && linux && !nokernel

package kernel

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// bindable returns a region of s over the first bytes of its buffer to which windows can be bound.
func bindable(t *testing.T, s *side) provider.MR {
	t.Helper()
	mr := testkit.Must(s.pd.RegMR(s.buf[:8192], provider.AccessLocalWrite|provider.AccessMWBind))(t)
	t.Cleanup(func() { closeAll(t, mr) })
	return mr
}

func window(t *testing.T, s *side, typ provider.MWType) provider.MW {
	t.Helper()
	w := testkit.Must(s.pd.AllocMW(typ))(t)
	t.Cleanup(func() { closeAll(t, w) })
	return w
}

// useWindow makes a write to p's window and read it back.
func useWindow(t *testing.T, what string, a *side, key uint32, at uint64, n int) {
	t.Helper()
	fill(a.buf[20000:20000+n], int(key))
	clear(a.buf[40000 : 40000+n])
	a.send(
		provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(20000, n)}, RemoteAddr: at, RKey: key},
		provider.SendWR{WRID: 2, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(40000, n)}, RemoteAddr: at, RKey: key})
	for i, wc := range a.poll(2) {
		if wc.WRID != uint64(1+i) || wc.Status != provider.WCSuccess {
			t.Fatalf("%s: %+v", what, wc)
		}
	}
	if !bytes.Equal(a.buf[20000:20000+n], a.buf[40000:40000+n]) {
		t.Errorf("%s: other bytes were read than written", what)
	}
}

// testRxeWindows: windows of both types are bound, used by the peer, invalidated, and then refused.
func testRxeWindows(t *testing.T) {
	const both = provider.AccessRemoteWrite | provider.AccessRemoteRead
	t.Run("type 1", func(t *testing.T) {
		a, p := connected(t)
		mr, w := bindable(t, p), window(t, p, provider.MWType1)
		for round := range 3 {
			info := provider.MWBindInfo{LKey: mr.LKey(), Addr: mr.Addr() + uint64(100*round), Length: 3000, Access: both}
			old := w.RKey()
			if err := p.qp.BindMW(w, 5, provider.SendSignaled, info); err != nil {
				t.Fatal(err)
			}
			if wc := p.poll(1)[0]; wc.WRID != 5 || wc.Status != provider.WCSuccess || wc.Opcode != provider.WCBindMW {
				t.Fatalf("the bind: %+v", wc)
			}
			if w.RKey() != ibv.IncRKey(old) {
				t.Errorf("key %#x after %#x", w.RKey(), old)
			}
			useWindow(t, "a window", a, w.RKey(), info.Addr, 3000)
		}
		err := mr.Close()
		wantErrno(t, "a region with a window bound to it", err, syscall.EBUSY)
		key := w.RKey()
		if err := p.qp.BindMW(w, 6, provider.SendSignaled, provider.MWBindInfo{}); err != nil {
			t.Fatal(err)
		}
		if wc := p.poll(1)[0]; wc.WRID != 6 || wc.Status != provider.WCSuccess {
			t.Fatalf("the end of the bind: %+v", wc)
		}
		a.send(provider.SendWR{WRID: 7, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 1)}, RemoteAddr: mr.Addr(), RKey: key})
		if wc := a.poll(1)[0]; wc.Status != provider.WCRemAccessErr {
			t.Errorf("a Write to a window that is not bound any more: %+v", wc)
		}
	})
	t.Run("type 2", func(t *testing.T) {
		a, p := connected(t)
		mr, w := bindable(t, p), window(t, p, provider.MWType2)
		bind := provider.SendWR{WRID: 5, Opcode: provider.WRBindMW, Flags: provider.SendSignaled,
			Bind: &provider.MWBindInfo{LKey: mr.LKey(), Addr: mr.Addr() + 50, Length: 3000, Access: both}}
		for round := range 3 {
			bind.RKey = ibv.IncRKey(w.RKey())
			p.send(bind)
			if wc := p.poll(1)[0]; wc.WRID != 5 || wc.Status != provider.WCSuccess || wc.Opcode != provider.WCBindMW {
				t.Fatalf("the bind: %+v", wc)
			}
			if w.RKey() != bind.RKey {
				t.Errorf("the window says %#x, bound was %#x", w.RKey(), bind.RKey)
			}
			useWindow(t, "a window of type 2", a, bind.RKey, mr.Addr()+50, 3000)
			if round == 0 {
				p.send(provider.SendWR{WRID: 6, Opcode: provider.WRLocalInv, Flags: provider.SendSignaled, InvalidateRKey: bind.RKey})
				if wc := p.poll(1)[0]; wc.WRID != 6 || wc.Status != provider.WCSuccess || wc.Opcode != provider.WCLocalInv {
					t.Fatalf("the invalidation: %+v", wc)
				}
				continue
			}
			p.recv(provider.RecvWR{WRID: 7, SGList: []provider.SGE{p.sge(0, 8)}})
			a.send(provider.SendWR{WRID: 8, Opcode: provider.WRSendWithInv, Flags: provider.SendSignaled, InvalidateRKey: bind.RKey})
			if wc := a.poll(1)[0]; wc.WRID != 8 || wc.Status != provider.WCSuccess {
				t.Fatalf("the Send with Invalidate: %+v", wc)
			}
			if wc := p.poll(1)[0]; wc.WRID != 7 || wc.Status != provider.WCSuccess || wc.Flags != provider.WCWithInv || wc.InvalidatedRKey != bind.RKey {
				t.Fatalf("the receive: %+v", wc)
			}
		}
		a.send(provider.SendWR{WRID: 9, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 1)}, RemoteAddr: mr.Addr() + 50, RKey: bind.RKey})
		if wc := a.poll(1)[0]; wc.Status != provider.WCRemAccessErr {
			t.Errorf("a Read of a window that was invalidated: %+v", wc)
		}
	})
	t.Run("invalidations of what is not bound", testRxeUnbound)
	t.Run("a bind without the right", func(t *testing.T) {
		_, p := connected(t)
		w := window(t, p, provider.MWType2)
		p.send(provider.SendWR{WRID: 5, Opcode: provider.WRBindMW, Flags: provider.SendSignaled, RKey: ibv.IncRKey(w.RKey()),
			Bind: &provider.MWBindInfo{LKey: p.mr.LKey(), Addr: p.mr.Addr(), Length: 8, Access: provider.AccessRemoteRead}})
		// IBA has the status MW_BIND_ERR for it; rxe reports that the operation is wrong.
		if wc := p.poll(1)[0]; wc.WRID != 5 || wc.Status != provider.WCMWBindErr && wc.Status != provider.WCLocQPOpErr {
			t.Errorf("%+v", wc)
		}
	})
	t.Run("refused", func(t *testing.T) {
		a, p := connected(t)
		one, two, mr := window(t, a, provider.MWType1), window(t, a, provider.MWType2), bindable(t, a)
		other := testkit.Must(a.dev.AllocPD())(t)
		defer closeAll(t, other)
		theirs := testkit.Must(other.RegMR(make([]byte, 4096), provider.AccessMWBind))(t)
		defer closeAll(t, theirs)
		info := provider.MWBindInfo{LKey: mr.LKey(), Addr: mr.Addr(), Length: 8}
		bind := func(key uint32, info *provider.MWBindInfo) error {
			_, err := a.qp.PostSend([]provider.SendWR{{Opcode: provider.WRBindMW, RKey: key, Bind: info}})
			return err
		}
		for _, c := range []struct {
			name string
			err  error
			want syscall.Errno
		}{
			{"type 2 by BindMW", a.qp.BindMW(two, 0, 0, info), syscall.EINVAL},
			{"type 1 by a work request", bind(ibv.IncRKey(one.RKey()), &info), syscall.EINVAL},
			{"nothing to bind to", bind(ibv.IncRKey(two.RKey()), nil), syscall.EINVAL},
			{"no window", bind(0, &info), syscall.EINVAL},
			{"no region", a.qp.BindMW(one, 0, 0, provider.MWBindInfo{LKey: mr.LKey() ^ 0x5a5a00, Length: 1}), syscall.EINVAL},
			{"the end of what was not begun", a.qp.BindMW(one, 0, 0, provider.MWBindInfo{}), syscall.EINVAL},
			{"an address of no region", a.qp.BindMW(one, 0, 0, provider.MWBindInfo{Addr: 1}), syscall.EINVAL},
			{"a region of another PD", a.qp.BindMW(one, 0, 0, provider.MWBindInfo{LKey: theirs.LKey(), Addr: theirs.Addr(), Length: 8}), syscall.EPERM},
			{"a right that windows have not", a.qp.BindMW(one, 0, 0, provider.MWBindInfo{LKey: mr.LKey(), Addr: mr.Addr(), Length: 8, Access: provider.AccessLocalWrite}), syscall.EINVAL},
			{"inline", a.qp.BindMW(one, 0, provider.SendInline, info), syscall.EINVAL},
			{"a PD with windows", a.pd.Close(), syscall.EBUSY},
		} {
			wantErrno(t, c.name, c.err, c.want)
		}
		_, err := a.pd.AllocMW(7)
		wantErrno(t, "a type that there is not", err, syscall.EINVAL)
		_, err = a.pd.AllocFastRegMR(4096)
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a region for work requests: %v", err)
		}
		if _, err = a.qp.PostSend([]provider.SendWR{{Opcode: provider.WRRegMR}}); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a registration: %v", err)
		}
		closeAll(t, one)
		if err := a.qp.BindMW(one, 0, 0, info); err == nil {
			t.Error("a closed window was bound")
		}
		p.recv(provider.RecvWR{SGList: []provider.SGE{p.sge(0, 8)}})
		a.send(provider.SendWR{WRID: 3, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 8)}})
		if wc := a.poll(1)[0]; wc.WRID != 3 || wc.Status != provider.WCSuccess {
			t.Errorf("in the end: %+v", wc)
		}
	})
}

// testRxeUnbound: local invalidations that would crash the kernel are refused in the provider, at
// any place of a batch; others are not refused.
func testRxeUnbound(t *testing.T) {
	a, p := connected(t)
	mr, w := bindable(t, p), window(t, p, provider.MWType2)
	bind := func(key uint32) provider.SendWR {
		return provider.SendWR{Opcode: provider.WRBindMW, Flags: provider.SendSignaled, RKey: key,
			Bind: &provider.MWBindInfo{LKey: mr.LKey(), Addr: mr.Addr(), Length: 100, Access: provider.AccessRemoteRead}}
	}
	invalidate := func(key uint32) provider.SendWR {
		return provider.SendWR{Opcode: provider.WRLocalInv, Flags: provider.SendSignaled, InvalidateRKey: key}
	}
	// post posts wrs to p and waits for the first n, which must be accepted.
	post := func(what string, n int, wrs ...provider.SendWR) {
		t.Helper()
		got, err := p.qp.PostSend(wrs)
		if got != n || (err == nil) != (n == len(wrs)) {
			t.Fatalf("%s: %d posted, want %d: %v", what, got, n, err)
		}
		if err != nil {
			wantErrno(t, what, err, syscall.EINVAL)
		}
		for _, wc := range p.poll(n) {
			if wc.Status != provider.WCSuccess {
				t.Fatalf("%s: %+v", what, wc)
			}
		}
	}
	first := w.RKey()
	second, third := ibv.IncRKey(first), ibv.IncRKey(ibv.IncRKey(first))
	post("a window that was never bound", 0, invalidate(first))
	post("the next key of it", 0, invalidate(second))
	post("bound and invalidated twice", 2, bind(second), invalidate(second), invalidate(second))
	post("invalidated again", 0, invalidate(second))
	bad := bind(third)
	bad.Bind.LKey ^= 0x5a5a5a00
	post("after a bind that can't be", 0, bad, invalidate(third))
	post("that bind has not been posted", 0, invalidate(third))
	post("bound again", 1, bind(third))
	post("with the key from before", 0, invalidate(second))
	post("what stands after an error is not posted", 0, provider.SendWR{Opcode: 77}, invalidate(third))

	p.recv(provider.RecvWR{WRID: 7})
	a.send(provider.SendWR{WRID: 8, Opcode: provider.WRSendWithInv, Flags: provider.SendSignaled, InvalidateRKey: third})
	if wc := a.poll(1)[0]; wc.Status != provider.WCSuccess {
		t.Fatalf("the Send with Invalidate: %+v", wc)
	}
	if wc := p.poll(1)[0]; wc.Flags != provider.WCWithInv || wc.InvalidatedRKey != third {
		t.Fatalf("the receive: %+v", wc)
	}
	post("which the peer has invalidated", 0, invalidate(third))

	// The same many times from two QPs at once: in each round one of them is refused.
	other, _ := connected(t)
	key := third
	for range 50 {
		key = ibv.IncRKey(key)
		post("bound", 1, bind(key))
		results := make(chan int, 2)
		for _, q := range []provider.QP{p.qp, other.qp} {
			go func() {
				n, _ := q.PostSend([]provider.SendWR{invalidate(key)})
				results <- n
			}()
		}
		if n := <-results + <-results; n != 1 {
			t.Fatalf("%d of two invalidations were posted", n)
		}
		for done := false; !done; { // on one of the two
			for _, s := range []*side{p, other} {
				var wc [1]provider.WC
				n := testkit.Must(s.cq.Poll(wc[:]))(t)
				if n > 0 && wc[0].Status != provider.WCSuccess {
					t.Fatalf("the invalidation: %+v", wc[0])
				}
				done = done || n > 0
			}
		}
	}
}
