package memory

import (
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Work is the checked task of a bind or a registration, from when it is posted. The zero value is
// no task.
type Work struct {
	window *Window
	region *FastRegion // instead of a window

	lkey         uint32 // of the region to which the window is bound
	addr, length uint64
	buf          []byte // memory to register
	access       provider.Access
}

// The errors of work on our own memory that can't be posted.
var (
	errNoBind    = fmt.Errorf("WRBindMW needs MWBindInfo; set SendWR.Bind: %w", syscall.EINVAL)
	errNoWindow  = fmt.Errorf("the key names no window of type 2: %w", syscall.EINVAL)
	errNoFastReg = fmt.Errorf("the key names no region of AllocFastRegMR: %w", syscall.EINVAL)
	errOtherPD   = fmt.Errorf("the window, the region and the queue pair must be of one protection "+
		"domain: %w", syscall.EPERM)
	errWindowRights = fmt.Errorf("the rights of a window must be among %s: %w", windowRights, syscall.EINVAL)
	errBindNothing  = fmt.Errorf("the bind has an address or a length, but names no region; "+
		"set LKey: %w", syscall.EINVAL)
	errBindZero = fmt.Errorf("a bind of length 0 does not unbind a window of type 2; invalidate it "+
		"(WRLocalInv): %w", syscall.EINVAL)
	errSameKey = fmt.Errorf("it has this key already, and a peer that kept the key would have "+
		"access again; use another (IncRKey): %w", syscall.EINVAL)
	errNotMapped = fmt.Errorf("no memory was mapped for the registration; call Map first: %w",
		syscall.EINVAL)
	errRegRights = fmt.Errorf("a region can't have these rights; AccessRemoteWrite and AccessRemoteAtomic "+
		"need AccessLocalWrite, too: %w", syscall.EINVAL)
	errNotWritable = fmt.Errorf("the rights ask for writing, and the memory may not be written; "+
		"map it with PROT_WRITE, or leave AccessLocalWrite out: %w", syscall.EFAULT)
)

// Check decides whether wr, a bind or a registration, can be posted, and stores the task in o.
func (p *Peer) Check(wr *provider.SendWR, o *Work) error {
	if wr.Opcode == provider.WRRegMR {
		return p.checkReg(wr, o)
	}
	return p.checkBindWR(wr, o)
}

// checkBindWR checks a bind of a window of type 2.
func (p *Peer) checkBindWR(wr *provider.SendWR, o *Work) error {
	w, _ := p.Domain.Table.owner(wr.RKey).(*Window)
	switch {
	case wr.Bind == nil:
		return errNoBind
	case w == nil || w.typ != provider.MWType2:
		return errNoWindow
	case wr.RKey == w.posted.Load():
		return errSameKey
	case wr.Bind.Length == 0:
		return errBindZero
	}
	return p.CheckBind(w, wr.Bind, o)
}

// CheckBind decides whether a bind of w as info says can be posted, and stores the task in o. It
// leaves conditions that may change until the bind's turn to Do.
func (p *Peer) CheckBind(w *Window, info *provider.MWBindInfo, o *Work) error {
	switch {
	case w.view.pd != p.Domain:
		return errOtherPD
	case info.Access&^windowRights != 0:
		return errWindowRights
	case info.LKey == 0 && (info.Addr != 0 || info.Length != 0):
		return errBindNothing
	case info.Length != 0:
		if m := p.Domain.Table.lookup(info.LKey); m != nil && m.pd != p.Domain {
			return errOtherPD
		}
	}
	*o = Work{window: w, lkey: info.LKey, addr: info.Addr, length: info.Length, access: info.Access}
	return nil
}

// checkReg checks a registration.
func (p *Peer) checkReg(wr *provider.SendWR, o *Work) error {
	f, _ := p.Domain.Table.owner(wr.RKey).(*FastRegion)
	switch {
	case f == nil:
		return errNoFastReg
	case f.pd != p.Domain:
		return errOtherPD
	}
	buf, err := f.toPost(wr)
	if err != nil {
		return err
	}
	*o = Work{region: f, buf: buf, access: wr.Access}
	return nil
}

// Posted makes the window or region return its new key, because the work is posted now.
func (o *Work) Posted(key uint32) {
	if o.window != nil {
		o.window.posted.Store(key)
	} else {
		o.region.setPosted(key, o.access, len(o.buf))
	}
}

// Do binds or registers, on behalf of the queue pair of p. It waits for the uses in progress of
// what it replaces. The errors are *iwarp.Error.
func (o *Work) Do(p *Peer, key uint32) error {
	if o.window != nil {
		return o.window.bind(p, key, o)
	}
	return o.region.register(key, o)
}

// Undo undoes a bind or registration with that key, unless the program has ended it since.
func (p *Peer) Undo(key uint32) {
	switch owner := p.Domain.Table.owner(key).(type) {
	case *Window:
		owner.undo(key)
	case *FastRegion:
		// Fails if the program has invalidated it, or bound a window to it, since.
		_ = owner.invalidate(p, key, false)
	}
}

// errLocalInv is the error of an invalidation of ours whose key names nothing.
var errLocalInv = rdmap.LocalCatastrophe("an invalidation names neither a window of type 2 of this " +
	"queue pair nor a region of AllocFastRegMR")

// InvalidateLocal does what WRLocalInv asks for.
func (p *Peer) InvalidateLocal(stag uint32) error {
	owner := p.Domain.Table.owner(stag)
	if owner == nil || owner.domain() != p.Domain {
		return errLocalInv
	}
	switch err := owner.invalidate(p, stag, false); err {
	case nil:
		return nil
	case rdmap.ErrMayNotInvalidate:
		return errMayNotInv
	}
	return errLocalInv
}

// errMayNotInv is the error of an invalidation of ours whose key may not be invalidated.
var errMayNotInv = rdmap.LocalCatastrophe("an invalidation names a window of type 1 or of another queue " +
	"pair, or a region with windows bound to it")
