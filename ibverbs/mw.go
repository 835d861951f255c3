package ibverbs

import (
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// MW is a memory window (struct ibv_mw). It gives peers access to part of a region, under a key
// and with rights of its own, and takes the access back, without a registration. Work requests
// in a send queue do both, in the order of posting: a Send that is posted after a bind may carry
// the new key to the peer, and work that is posted before an invalidation is done before it. Only
// peers use windows; an SGE can't name one.
//
// A window of type 1 is bound with QP.BindMW, on any QP of its PD and any number of
// times. Each bind ends the access that the one before gave. The peers of all QPs of the PD can
// use the window.
//
// A window of type 2 is bound with a work request:
//
//	info, err := mr.BindInfo(off, n, ibverbs.AccessRemoteWrite)
//	err = qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: ibverbs.IncRKey(mw.RKey()), Bind: &info})
//
// Only the peer of that QP can use it (type 2B in InfiniBand's words; iWARP has no
// other). It is over with WRLocalInv on that QP, or with the peer's Send with
// Invalidate, whose completion has the key (WC.InvalidatedRKey); only then can it be
// bound again, and it must be with a key that differs in its lowest byte.
//
// A peer that names a window which is not bound, or which is bound for another peer, ends its
// connection with a Terminate, as with a key that names nothing. A bind or invalidation that fails
// when its turn comes has the status WCMWBindErr, and ends its own connection.
//
// siw has no windows (errors.ErrUnsupported).
type MW struct {
	obj object.Object
	pd  *PD
	p   provider.MW
}

// AllocMW makes a memory window (ibv_alloc_mw). It is not bound, and its key names
// nothing. Another type than MWType1 and MWType2 is EINVAL.
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

// BindMW posts the bind of a window of type 1 (ibv_bind_mw); its completion has the
// opcode WCBindMW. MW.RKey is the new key when it returns. A program that brings the key
// to the peer in another way than with a Send after the bind waits for the completion
// first. One that needs the old key, should the bind fail, has kept it.
//
// A length of 0 unbinds. A nil window and one of another context are EINVAL, as is one
// of type 2; another PD is EPERM; a full queue is ENOMEM. It does not allocate.
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
		return qp.obj.Errorf(op, syscall.EINVAL, "the window belongs to another context")
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

// RKey returns the key for the peer, as the bind that was posted last makes it.
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

// Close frees the window, and unbinds it before that (ibv_dealloc_mw). When it returns
// nil no peer reads or writes through it any more.
func (mw *MW) Close() error {
	if mw == nil || mw.p == nil {
		return nil
	}
	return mw.obj.Close(mw.p.Close)
}

// IncRKey returns rkey with another lowest byte (ibv_inc_rkey): a key for the next bind
// of a window of type 2, or the next registration of a region of AllocFastRegMR.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// BindInfo names n bytes of the region from offset off for a window with the rights access, with
// the checks of SGE. The region must have AccessMWBind for it, and AccessLocalWrite if the window
// is to have AccessRemoteWrite or AccessRemoteAtomic; it needs no remote rights itself. With n = 0
// a window of type 1 is unbound.
func (mr *MR) BindInfo(off, n int, access Access) (MWBindInfo, error) {
	p, err := mr.inside("bind info", off, n)
	if err != nil {
		return MWBindInfo{}, err
	}
	return MWBindInfo{LKey: p.LKey(), Addr: p.Addr() + uint64(off), Length: uint64(n), Access: access}, nil
}
