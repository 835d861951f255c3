package ibverbs

import (
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// MW is a memory window (struct ibv_mw). It gives peers access to part of a region, with its own
// key and rights, and ends the access again, without registering memory. Work requests do both, in
// the order of posting. So a Send after a bind may carry the new key to the peer, and work that is
// posted before an invalidation is done before it. Only peers use windows; an SGE cannot name one.
//
// QP.BindMW binds a window of type 1, on any QP of its PD and any number of times. Each bind ends
// the access that the previous bind gave. The peers of all QPs of the PD can use the window.
//
// A work request binds a window of type 2:
//
//	info, err := mr.BindInfo(off, n, ibverbs.AccessRemoteWrite)
//	err = qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: ibverbs.IncRKey(mw.RKey()), Bind: &info})
//
// Only the peer of that QP can use it (type 2B in InfiniBand's terms; iWARP has no other). The
// access ends with WRLocalInv on that QP, or with the peer's Send with Invalidate, whose completion
// has the key (WC.InvalidatedRKey). Only then can the window be bound again, with a key that
// differs in its lowest byte.
//
// A peer that names an unbound window, or a window that is bound for another peer, ends its
// connection with a Terminate, as with an unknown key. A bind or invalidation that fails in the
// queue completes with WCMWBindErr, and ends its own connection.
//
// siw has no windows (errors.ErrUnsupported).
type MW struct {
	obj object.Object
	pd  *PD
	p   provider.MW
}

// AllocMW makes a memory window (ibv_alloc_mw). It is not bound, so peers cannot use its key. A
// type other than MWType1 and MWType2 is EINVAL.
func (pd *PD) AllocMW(t MWType) (*MW, error) {
	const op = "ibv_alloc_mw"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	mw := &MW{pd: pd}
	mw.obj.Describe(object.KindMW, pd.ctx.Name())
	if err := mw.obj.Open(op, &pd.obj); err != nil {
		return nil, err
	}
	p, err := pd.p.AllocMW(t)
	if err != nil {
		mw.obj.Abandon()
		return nil, err
	}
	mw.p = p
	mw.obj.Number(p.RKey())
	mw.obj.List(mw)
	return mw, nil
}

// MWBind is a request to bind a window of type 1 (struct ibv_mw_bind).
type MWBind struct {
	WRID  uint64
	Flags SendFlags // SendSignaled, SendFence
	Info  MWBindInfo
}

// BindMW posts the bind of a window of type 1 (ibv_bind_mw); its completion has the opcode
// WCBindMW. When BindMW returns, MW.RKey is the new key. Send the key to the peer with a Send that
// is posted after the bind; to bring it there in another way, wait for the completion first. A
// program that needs the old key in case the bind fails must save it before.
//
// A length of 0 unbinds. EINVAL: the window is nil, of another context, or of type 2. EPERM: it is
// of another PD. ENOMEM: the queue is full. BindMW does not allocate.
func (qp *QP) BindMW(mw *MW, bind MWBind) error {
	const op = "ibv_bind_mw"
	if err := qp.ok(op); err != nil {
		return err
	}
	if mw == nil || mw.p == nil {
		return errNil(op, "mw")
	}
	if err := mw.obj.Check(op); err != nil {
		return err
	}
	if mw.pd.ctx != qp.pd.ctx {
		return qp.obj.Errorf(op, syscall.EINVAL,
			"the window belongs to another context; make one with the PD of the queue pair")
	}
	if !qp.sent.Load() {
		qp.sent.Store(true)
	}
	return qp.p.BindMW(mw.p, bind.WRID, bind.Flags, bind.Info)
}

// Type returns the window's type.
func (mw *MW) Type() MWType {
	if mw == nil || mw.p == nil {
		return 0
	}
	return mw.p.Type()
}

// RKey returns the key for the peer, which the last posted bind has set.
func (mw *MW) RKey() uint32 {
	if mw == nil || mw.p == nil {
		return 0
	}
	return mw.p.RKey()
}

// PD returns the PD that the window was made in.
func (mw *MW) PD() *PD {
	if mw == nil {
		return nil
	}
	return mw.pd
}

// Close unbinds and frees the window (ibv_dealloc_mw). After Close returns nil, no peer reads or
// writes through it.
func (mw *MW) Close() error {
	if mw == nil || mw.p == nil {
		return nil
	}
	return mw.obj.Close(mw.p.Close)
}

// IncRKey returns rkey with its lowest byte incremented (ibv_inc_rkey): a key for the next bind of
// a window of type 2, or the next registration of a region of AllocFastRegMR.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// BindInfo names n bytes of the region from offset off for a window with the rights access. It
// checks off and n as SGE does. The region must have AccessMWBind, and also AccessLocalWrite if the
// window is to have AccessRemoteWrite or AccessRemoteAtomic; it needs no remote rights itself. n =
// 0 unbinds a window of type 1.
func (mr *MR) BindInfo(off, n int, access Access) (MWBindInfo, error) {
	p, err := mr.inside("bind info", off, n)
	if err != nil {
		return MWBindInfo{}, err
	}
	return MWBindInfo{LKey: p.LKey(), Addr: p.Addr() + uint64(off), Length: uint64(n), Access: access}, nil
}
