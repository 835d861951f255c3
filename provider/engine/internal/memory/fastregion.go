package memory

import (
	"fmt"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// FastRegion is a region that work requests register. Both gates are open while it is registered.
type FastRegion struct {
	Region
	maxLen  uint64
	address uint64 // Addr, unless a registration is zero-based

	posting  sched.Mutex[locks.RegPosting] // guards the fields below
	mapped   []byte                        // memory for the next registration, nil for none
	writable bool                          // mapped
	posted   fastReg

	mu    sched.Mutex[locks.FastReg] // guards the fields below, and the Region while it is changed
	valid bool                       // it is registered
}

// fastReg is the result of the registration that was posted last, which the methods of a FastRegion
// return.
type fastReg struct {
	stag   uint32
	base   uint64
	length uint64
	access provider.Access
}

// AllocFastRegMR implements provider.PD.
func (p *Domain) AllocFastRegMR(maxLen uint64) (provider.FastRegMR, error) {
	const op = "ib_alloc_mr"
	object := fmt.Sprintf("%d bytes", maxLen)
	if maxLen == 0 || maxLen > MaxRegion {
		return nil, fail(op, object, fmt.Errorf("the region must have from 1 to %d bytes: %w",
			uint64(MaxRegion), syscall.EINVAL))
	}
	if err := p.admit(op, object, &p.Table.MRs); err != nil {
		return nil, err
	}
	f := &FastRegion{Region: Region{pd: p}, maxLen: maxLen, address: randomBase()}
	f.owner = f
	f.local.InitShut()
	f.remote.InitShut()
	p.Table.insertByIndex(&f.Region)
	f.posted = fastReg{stag: f.stag, base: f.address}
	return f, nil
}

// Map implements provider.FastRegMR.
func (f *FastRegion) Map(buf []byte) error {
	const op = "ib_map_mr_sg"
	object := fmt.Sprintf("%s, %d bytes", f.name(), len(buf))
	if f.windows.Closed() {
		return fail(op, f.name(), os.ErrClosed)
	}
	if n := uint64(len(buf)); n == 0 || n > f.maxLen {
		return fail(op, object, fmt.Errorf("the region takes from 1 to %d bytes: %w",
			f.maxLen, syscall.EINVAL))
	}
	if err := probe(buf, false); err != nil {
		return fail(op, object, err)
	}
	writable := probe(buf, true) == nil
	f.posting.Lock()
	f.mapped, f.writable = buf[:len(buf):len(buf)], writable
	f.posting.Unlock()
	return nil
}

// toPost decides whether a registration with the key and the rights of wr can be posted, and
// returns its memory.
func (f *FastRegion) toPost(wr *provider.SendWR) ([]byte, error) {
	f.posting.Lock()
	defer f.posting.Unlock()
	writable := wr.Access&provider.AccessLocalWrite != 0
	switch {
	case wr.Access&^(mrRights|mrDropped) != 0,
		!writable && wr.Access&(provider.AccessRemoteWrite|provider.AccessRemoteAtomic) != 0:
		return nil, errRegRights
	case wr.RKey == f.posted.stag:
		return nil, errSameKey
	case f.mapped == nil:
		return nil, errNotMapped
	case writable && !f.writable:
		return nil, errNotWritable
	}
	return f.mapped, nil
}

// setPosted records the result of a registration that is posted.
func (f *FastRegion) setPosted(stag uint32, access provider.Access, length int) {
	r := fastReg{stag: stag, base: f.BaseWith(access), length: uint64(length), access: access & f.pd.Table.grants}
	f.posting.Lock()
	f.posted = r
	f.posting.Unlock()
}

// lastPosted returns the result of the registration that was posted last.
func (f *FastRegion) lastPosted() fastReg {
	f.posting.Lock()
	defer f.posting.Unlock()
	return f.posted
}

func (f *FastRegion) BaseWith(access provider.Access) uint64 {
	if access&provider.AccessZeroBased != 0 {
		return 0
	}
	return f.address
}

// The errors of a registration that fails when its turn comes.
var (
	errRegClosed = rdmap.LocalCatastrophe("a registration names a region that is closed")
	errRegValid  = rdmap.LocalCatastrophe("a registration names a region that is registered: invalidate it first")
)

// register registers the memory in o as the region.
func (f *FastRegion) register(stag uint32, o *Work) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.windows.Closed():
		return errRegClosed
	case f.valid:
		return errRegValid
	}
	f.stag, f.base, f.buf, f.access = stag, f.BaseWith(o.access), o.buf, o.access&f.pd.Table.grants
	f.valid = true
	f.local.Open()
	f.remote.Open()
	return nil
}

// invalidate implements stagOwner. It waits for the uses in progress. It succeeds if our own
// program invalidates a region that is not registered any more.
//
// A region with windows bound to it can't be invalidated. A bind uses the region, so no window can
// be bound once the local gate is shut.
func (f *FastRegion) invalidate(_ *Peer, stag uint32, remote bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.stag != stag, !f.valid && remote:
		return rdmap.ErrCannotInvalidate
	case !f.valid:
		return nil
	case remote && f.access&provider.AccessRemoteInvalidate == 0, f.windows.Held():
		return rdmap.ErrMayNotInvalidate
	}
	f.local.Shut()
	if f.windows.Held() {
		f.local.Open()
		return rdmap.ErrMayNotInvalidate
	}
	f.remote.Shut()
	f.valid, f.buf = false, nil
	return nil
}

// Addr implements provider.MR.
func (f *FastRegion) Addr() uint64 { return f.lastPosted().base }

// Len implements provider.MR.
func (f *FastRegion) Len() uint64 { return f.lastPosted().length }

// LKey implements provider.MR.
func (f *FastRegion) LKey() uint32 { return f.lastPosted().stag }

// RKey implements provider.MR.
func (f *FastRegion) RKey() uint32 { return f.lastPosted().stag }

// Access implements provider.MR.
func (f *FastRegion) Access() provider.Access { return f.lastPosted().access }

// Rereg implements provider.MR.
func (f *FastRegion) Rereg(provider.ReregFlags, provider.PD, []byte, provider.Access) (provider.MR, error) {
	return nil, fail("ibv_rereg_mr", f.name(), &provider.UnsupportedError{
		Feature: "re-registration of a region that work requests register",
		Reason:  "invalidate it with WRLocalInv and register anew with WRRegMR",
	})
}

// Close implements provider.MR.
func (f *FastRegion) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	first, busy := f.windows.End()
	if busy {
		return failBound("ibv_dereg_mr", f.name())
	}
	if !first {
		return nil
	}
	f.local.Shut()
	f.remote.Shut()
	f.valid, f.buf = false, nil
	f.pd.Table.remove(&f.Region)
	f.pd.Table.MRs.Give()
	f.pd.Refs.Drop()
	return nil
}

func (f *FastRegion) domain() *Domain { return f.pd }

func (f *FastRegion) name() string { return fmt.Sprintf("mr %#x", f.LKey()) }
