//go:build cgo && linux && !nokernel

package kernel

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
)

// mw is a memory window. Drivers use the key in its C struct to find it, so that key changes with
// each bind that is posted.
type mw struct {
	object
	pd   *pd
	typ  provider.MWType
	c    *ibv.MW
	rkey atomic.Uint32 // same as in C, where it changes under the lock of the posting QP's send queue

	last atomic.Pointer[mr] // the region of the last bind; unbinding has to name it

	// valid is the key of the last bind known here, or 0 if the window is not bound. It is kept for
	// windows of type 2 on rxe; see addInvalidate.
	valid atomic.Uint32
}

// memoryKeys finds the windows and regions of a context by the keys in work requests, because C
// needs pointers.
type memoryKeys struct {
	mu  sync.RWMutex
	mws map[uint32]*mw // by index: the key without its lowest byte
	mrs map[uint32]*mr // by lkey
}

func (k *memoryKeys) change(do func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mws == nil {
		k.mws, k.mrs = make(map[uint32]*mw), make(map[uint32]*mr)
	}
	do()
}

// window returns the window with the index of a key, or nil if there is none.
func (k *memoryKeys) window(rkey uint32) *mw {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mws[rkey>>8]
}

func (k *memoryKeys) region(lkey uint32) *mr {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return k.mrs[lkey]
}

func (p *pd) AllocMW(t provider.MWType) (provider.MW, error) {
	const op = "ibv_alloc_mw"
	if t != provider.MWType1 && t != provider.MWType2 {
		return nil, opError(op, t.String(), syscall.EINVAL)
	}
	if err := p.hold(); err != nil {
		return nil, opError(op, t.String(), err)
	}
	c, err := p.c.AllocMW(uint32(t))
	if err != nil {
		p.release()
		if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
			err = &provider.UnsupportedError{Feature: "memory windows", Reason: "the device's driver has none (siw is one such)"}
		}
		return nil, opError(op, t.String(), err)
	}
	w := &mw{pd: p, typ: t, c: c}
	w.rkey.Store(c.RKey())
	p.dev.shared.memory.change(func() { p.dev.shared.memory.mws[c.RKey()>>8] = w })
	return w, nil
}

// AllocFastRegMR returns an error, because libibverbs has no such work request.
func (p *pd) AllocFastRegMR(uint64) (provider.FastRegMR, error) {
	return nil, opError("ib_alloc_mr", p.dev.name, errFastReg)
}

var errFastReg = &provider.UnsupportedError{Feature: "registration by work request",
	Reason: "only the kernel's own verbs have it (IB_WR_REG_MR); register with ibv_reg_mr, and give peers a window of type 2"}

func (w *mw) Type() provider.MWType { return w.typ }
func (w *mw) RKey() uint32          { return w.rkey.Load() }

func (w *mw) Close() error {
	return opError("ibv_dealloc_mw", fmt.Sprintf("mw %#x", w.RKey()), w.close(func() error {
		keys := &w.pd.dev.shared.memory
		if err := w.c.Dealloc(); err != nil {
			return err
		}
		w.last.Store(nil)
		keys.change(func() {
			if index := w.RKey() >> 8; keys.mws[index] == w {
				delete(keys.mws, index)
			}
		})
		w.pd.release()
		return nil
	}))
}

// windowRights are the rights that a window can have.
const windowRights = provider.AccessRemoteWrite | provider.AccessRemoteRead | provider.AccessRemoteAtomic | provider.AccessZeroBased

// toBind converts info for C. It holds the window and the region; q releases them when the bind is
// posted.
func (q *qp) toBind(w *mw, info *provider.MWBindInfo) (ibv.BindInfo, error) {
	c := ibv.BindInfo{Addr: info.Addr, Length: info.Length, Access: uint32(info.Access)}
	if extra := info.Access &^ windowRights; extra != 0 {
		return c, fmt.Errorf("the rights of a window must be among %s, and these are %s: %w", windowRights,
			info.Access, syscall.EINVAL)
	}
	var m *mr
	if info.LKey != 0 {
		if m = q.dev.shared.memory.region(info.LKey); m == nil {
			return c, fmt.Errorf("no region has the lkey %#x; take it from MR.LKey: %w", info.LKey, syscall.EINVAL)
		}
		if m.pd != w.pd {
			return c, fmt.Errorf("the window and the region must be of one protection domain: %w", syscall.EPERM)
		}
	} else if info.Addr != 0 || info.Length != 0 {
		return c, fmt.Errorf("the bind has an address or a length, but names no region; set "+
			"LKey: %w", syscall.EINVAL)
	}
	if err := w.hold(); err != nil {
		return c, err
	}
	if m == nil {
		// librxe reads the region even for unbinding, although ibv_bind_mw takes none then.
		if m = w.last.Load(); m == nil {
			w.release()
			return c, fmt.Errorf("the window is not bound, and no region is named: %w",
				syscall.EINVAL)
		}
		c.Addr = m.addr
	}
	if err := m.hold(); err != nil {
		w.release()
		return c, err
	}
	c.MR = m.c
	q.binding = append(q.binding, binding{w: w, m: m})
	return c, nil
}

// binding is a bind of a window, or its invalidation, that is being posted.
type binding struct {
	w    *mw
	m    *mr    // nil for an invalidation
	at   int    // index in the batch
	rkey uint32 // of type 2: the new key, 0 for an invalidation
	old  uint32 // of type 2: the previous value of valid
}

// bound finishes the binds and invalidations of a batch after n of its requests were posted. The
// caller has sqMu.
func (q *qp) bound(n int) {
	for _, b := range q.binding {
		if b.w.typ == provider.MWType2 && b.m != nil && b.at < n {
			b.w.c.SetRKey(b.rkey)
			b.w.rkey.Store(b.rkey)
			b.w.last.Store(b.m)
		}
	}
	for _, b := range slices.Backward(q.binding) {
		if b.at >= n {
			b.w.valid.CompareAndSwap(b.rkey, b.old)
		}
		if b.m != nil {
			b.m.release()
		}
		b.w.release()
	}
	clear(q.binding)
	q.binding = q.binding[:0]
}

// addBind adds the fields of a WRBindMW to the work request that was added last.
func (q *qp) addBind(c *ibv.SendWR, wr *provider.SendWR) error {
	if wr.Bind == nil {
		return fmt.Errorf("WRBindMW needs MWBindInfo; set SendWR.Bind: %w", syscall.EINVAL)
	}
	w := q.dev.shared.memory.window(wr.RKey)
	if w == nil || w.typ != provider.MWType2 {
		return fmt.Errorf("the key %#x names no window of type 2: %w", wr.RKey, syscall.EINVAL)
	}
	if q.dev.rxe && wr.RKey == w.RKey() {
		// rxe would accept it, but addInvalidate could not distinguish this bind from the previous
		// one.
		return fmt.Errorf("the window has the key %#x already; bind it with another (IncRKey): %w",
			wr.RKey, syscall.EINVAL)
	}
	info, err := q.toBind(w, wr.Bind)
	if err != nil {
		return err
	}
	b := &q.binding[len(q.binding)-1]
	b.at, b.rkey = q.sq.Len()-1, wr.RKey
	b.old = w.valid.Swap(wr.RKey)
	c.SetBind(w.c, wr.RKey, &info)
	return nil
}

// errUnbound refuses a local invalidation that would crash the kernel.
var errUnbound = fmt.Errorf("the window is not bound with this key: %w", syscall.EINVAL)

// addInvalidate checks the key of the WRLocalInv that was added last. Verbs have a completion
// status for invalidating an unbound window, but rxe crashes the kernel
// (kernel-notes/rxe-crash-window.md), so the provider refuses it. Keys of no window in this context
// are not checked, because rxe refuses them.
//
// A window counts as bound as soon as its bind is posted. If rxe then refuses the bind, the window
// keeps its old key and refuses the invalidation of the new one.
func (q *qp) addInvalidate(key uint32) error {
	if !q.dev.rxe {
		return nil
	}
	w := q.dev.shared.memory.window(key)
	if w == nil || w.typ != provider.MWType2 {
		return nil
	}
	if err := w.hold(); err != nil {
		return err
	}
	if key == 0 || !w.valid.CompareAndSwap(key, 0) {
		w.release()
		return errUnbound
	}
	q.binding = append(q.binding, binding{w: w, at: q.sq.Len() - 1, old: key})
	return nil
}

// invalidated records that a peer has invalidated a key, as a completion reported.
func (k *memoryKeys) invalidated(key uint32) {
	if w := k.window(key); w != nil && key != 0 {
		w.valid.CompareAndSwap(key, 0)
	}
}

// BindMW posts through the driver's own call, which makes the new key.
func (q *qp) BindMW(window provider.MW, wrid uint64, flags provider.SendFlags, info provider.MWBindInfo) error {
	const op = "ibv_bind_mw"
	w, ours := window.(*mw)
	if !ours || w.pd.dev.shared != q.dev.shared {
		return q.err(op, fmt.Errorf("the window is not of this device: %w", syscall.EINVAL))
	}
	q.sqMu.Lock()
	defer q.sqMu.Unlock()
	switch {
	case q.empty:
		return q.err(op, os.ErrClosed)
	case w.typ != provider.MWType1:
		return q.err(op, fmt.Errorf("the window is of type 2; post a work request with "+
			"WRBindMW: %w", syscall.EINVAL))
	case flags&^(provider.SendFence|provider.SendSignaled) != 0:
		return q.err(op, fmt.Errorf("flags %#x; only SendFence and SendSignaled are possible: %w",
			uint32(flags), syscall.EINVAL))
	}
	c, err := q.toBind(w, &info)
	if err != nil {
		return q.err(op, err)
	}
	defer q.bound(0)
	if err := q.c.BindMW(w.c, wrid, uint32(flags), &c); err != nil {
		return q.err(op, err)
	}
	w.rkey.Store(w.c.RKey())
	w.last.Store(q.binding[0].m)
	return nil
}
