package memory

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Window is a memory window. Under its STag peers find the view: a Region with bytes of the bound
// region. No work request of ours can use the view, because its local gate is never opened. Its
// remote gate is open while the window is bound. The region can't be closed before the window is
// unbound, so a peer's use of the view is not a use of the region.
type Window struct {
	typ  provider.MWType
	view Region
	refs refs.Count // open or closed; has no dependants

	Posting sched.Mutex[locks.WindowPosting] // guards posting of binds of type 1
	posted  atomic.Uint32                    // STag after the bind that was posted last

	mu         sched.Mutex[locks.Window] // guards the rest, and the view while it is changed
	region     *Region                   // the region that it is bound to, nil for none
	next, prev *Window                   // in the list of view.peer, guarded by that list's lock
}

// windowRights are the rights that a window can have.
const windowRights = provider.AccessRemoteWrite | provider.AccessRemoteRead |
	provider.AccessRemoteAtomic | provider.AccessZeroBased

// AllocMW implements provider.PD.
func (p *Domain) AllocMW(t provider.MWType) (provider.MW, error) {
	const op = "ibv_alloc_mw"
	if t != provider.MWType1 && t != provider.MWType2 {
		return nil, fail(op, t.String(), fmt.Errorf("a window must be of MWType1 or MWType2: %w",
			syscall.EINVAL))
	}
	if err := p.admit(op, t.String(), &p.Table.MWs); err != nil {
		return nil, err
	}
	w := &Window{typ: t, view: Region{pd: p}}
	w.view.owner = w
	w.view.local.InitShut()
	w.view.remote.InitShut()
	p.Table.insertByIndex(&w.view)
	w.posted.Store(w.view.stag)
	return w, nil
}

// Type implements provider.MW.
func (w *Window) Type() provider.MWType { return w.typ }

// RKey implements provider.MW.
func (w *Window) RKey() uint32 { return w.posted.Load() }

// Close implements provider.MW.
func (w *Window) Close() error {
	if first, _ := w.refs.End(); first {
		w.mu.Lock()
		w.unbind()
		w.mu.Unlock()
		p := w.view.pd
		p.Table.remove(&w.view)
		p.Table.MWs.Give()
		p.Refs.Drop()
	}
	return nil
}

// IsOf reports whether the window belongs to the device with table t.
func (w *Window) IsOf(t *Table) bool { return w.view.pd.Table == t }

// Closed reports whether Close was called.
func (w *Window) Closed() bool { return w.refs.Closed() }

func (w *Window) domain() *Domain { return w.view.pd }

// The errors of a bind that fails when its turn comes.
var (
	errWindowClosed = rdmap.LocalCatastrophe("a bind names a window that is closed")
	errWindowBound  = rdmap.LocalCatastrophe("a bind names a window of type 2 that is bound: invalidate it first")
	errBindRegion   = rdmap.LocalCatastrophe("a bind names no region of the window's protection domain")
	errBindRights   = rdmap.LocalCatastrophe("a bind asks for what the region doesn't allow: it needs the " +
		"right to bind windows, and for remote writing and atomics that of local writing")
	errBindBounds = rdmap.LocalCatastrophe("a bind reaches out of the region")
)

// bind binds the window on behalf of the queue pair of p, or unbinds it if o has no bytes. After an
// error the window is unchanged. A window of type 1 may have been bound to something else.
//
// A window of type 2 is then for p only, and can be bound once, as with the RDMA Consortium's
// windows and InfiniBand's type 2B.
//
//rfc:5041 DDP-8.3-3-01 STag-stream association settable
//rfc:5041 DDP-8.2-03 PD and Stream association both supported
func (w *Window) bind(p *Peer, stag uint32, o *Work) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.refs.Closed():
		return errWindowClosed
	case w.typ == provider.MWType2 && w.region != nil:
		return errWindowBound
	case o.length == 0:
		w.unbind()
		w.view.stag = stag
		return nil
	}
	m := p.Domain.Table.Local(o.lkey)
	if m == nil {
		return errBindRegion
	}
	defer m.Release()
	need := provider.AccessMWBind
	if o.access&(provider.AccessRemoteWrite|provider.AccessRemoteAtomic) != 0 {
		need |= provider.AccessLocalWrite
	}
	b, inside := m.Slice(o.addr, o.length)
	switch {
	case m.pd != w.view.pd:
		return errBindRegion
	case m.access&need != need:
		return errBindRights
	case !inside:
		return errBindBounds
	case !m.windows.Hold():
		return errBindRegion // the region is being closed
	}
	w.unbind()
	w.region = m
	v := &w.view
	v.stag, v.base, v.buf, v.access = stag, o.addr, b, o.access&p.Domain.Table.grants
	if o.access&provider.AccessZeroBased != 0 {
		v.base = 0
	}
	if w.typ == provider.MWType2 {
		v.peer = p
		v.access |= provider.AccessRemoteInvalidate
		p.windows.add(w)
	}
	v.remote.Open()
	return nil
}

// unbind ends the peers' use of the window, if it is bound. mu is held.
func (w *Window) unbind() {
	if w.region == nil {
		return
	}
	v := &w.view
	v.remote.Shut()
	if v.peer != nil {
		v.peer.windows.remove(w)
		v.peer = nil
	}
	v.buf = nil
	w.region.windows.Drop()
	w.region = nil
}

// invalidate implements stagOwner. A window of type 1 is for all streams of its protection domain,
// and only another bind ends it. If a window of type 2 is not bound, our own program's invalidation
// succeeds.
//
//rfc:5040 RDMAP-8.1.1-7-01 Peer cannot invalidate an STag shared by several streams
func (w *Window) invalidate(p *Peer, stag uint32, remote bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.typ == provider.MWType1:
		return rdmap.ErrMayNotInvalidate
	case w.view.stag != stag, w.region == nil && remote:
		return rdmap.ErrCannotInvalidate
	case w.region != nil && w.view.peer != p:
		return rdmap.ErrMayNotInvalidate
	}
	w.unbind()
	return nil
}

// undo unbinds the window, if it still has the key of the bind that is to be undone.
func (w *Window) undo(stag uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.view.stag == stag {
		w.unbind()
	}
}
