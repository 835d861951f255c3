//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
	"math"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
)

type srq struct {
	object
	pd    *pd
	dev   *device
	token uintptr
	init  provider.SRQInitAttr

	// limit is the armed limit, as far as this package knows. mu does not guard it, because Close
	// holds mu while it waits for the goroutine that delivers the event.
	limit atomic.Int32

	// mu guards the fields below, and keeps c from being destroyed while it is posted to.
	mu      sync.Mutex
	granted provider.SRQAttr // without the limit
	batch   *ibv.RecvBatch
	c       *ibv.SRQ
	empty   bool // c is destroyed
}

var srqs registry[*srq]

func (p *pd) CreateSRQ(init provider.SRQInitAttr) (provider.SRQ, error) {
	const op = "ibv_create_srq"
	a := init.Attr
	// The manual does not define an SRQ without receives. siw refuses it, and nothing could be
	// posted to it.
	if a.MaxWR < 1 || a.MaxSGE < 0 || a.MaxWR > math.MaxInt32 || a.MaxSGE > math.MaxInt32 {
		return nil, opError(op, "",
			fmt.Errorf("MaxWR is %d and MaxSGE %d; they must be at least 1 and 0: %w",
				a.MaxWR, a.MaxSGE, syscall.EINVAL))
	}
	if init.Recvs != nil {
		return nil, opError(op, "", errOutside)
	}
	r := &srq{pd: p, dev: p.dev, init: init}
	if err := p.hold(); err != nil {
		return nil, opError(op, "", err)
	}
	if err := r.create(a); err != nil {
		p.release()
		return nil, opError(op, "", memlockError(p.dev.whyNoSRQ(a, err)))
	}
	return r, nil
}

func (r *srq) create(a provider.SRQAttr) error {
	// Limit stays 0, because the manual says that it is ignored here, but siw would arm it.
	attr := ibv.SRQAttr{MaxWR: uint32(a.MaxWR), MaxSGE: uint32(a.MaxSGE)}
	if r.dev.libsiw {
		attr.MaxSGE = max(attr.MaxSGE, 1) // a receive without entries is posted with one, see addRecv
	}
	r.token = srqs.add(r)
	err := r.dev.createQueues(func() (err error) { r.c, err = r.pd.c.CreateSRQ(&attr, r.token); return err })
	if err != nil {
		srqs.remove(r.token)
		return err
	}
	r.granted = provider.SRQAttr{MaxWR: int(attr.MaxWR), MaxSGE: int(attr.MaxSGE)}
	if r.dev.libsiw {
		// siw returns the requested size, and makes the next power of two.
		r.granted.MaxWR = 1 << bits.Len32(attr.MaxWR-1)
	}
	if r.batch, err = ibv.NewRecvBatch(min(r.granted.MaxWR, postBatch), max(r.granted.MaxSGE, 1)); err != nil {
		_ = r.destroy()
		return err
	}
	return nil
}

func (r *srq) Cookie() any { return r.init.Cookie }

func (r *srq) err(op string, err error) error {
	if err == nil {
		return nil // and nothing is allocated for a name
	}
	return opError(op, "srq of "+r.dev.name, err)
}

func (r *srq) PostRecv(wrs []provider.RecvWR) (int, error) {
	n, err := r.post(wrs)
	return n, r.err("ibv_post_srq_recv", err)
}

func (r *srq) post(wrs []provider.RecvWR) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.empty {
		return 0, os.ErrClosed
	}
	done := 0
	for done < len(wrs) {
		r.batch.Reset()
		var refused error
		for i := done; i < len(wrs) && !r.batch.Full(); i++ {
			if n := len(wrs[i].SGList); n > r.granted.MaxSGE {
				refused = fmt.Errorf("%d SGEs, and the shared receive queue was made for %d (SRQAttr.MaxSGE): %w",
					n, r.granted.MaxSGE, syscall.EINVAL)
			} else {
				refused = addRecv(r.batch, &wrs[i], r.dev.libsiw)
			}
			if refused != nil {
				break
			}
		}
		n, err := r.c.PostRecv(r.batch)
		err = whyNoPost(err, errSRQFull)
		done += n
		if err == nil {
			err = refused
		}
		if err != nil {
			return done, err
		}
	}
	return done, nil
}

func (r *srq) Modify(attr provider.SRQAttr, mask provider.SRQAttrMask) error {
	return r.err("ibv_modify_srq", r.modify(attr, mask))
}

func (r *srq) modify(attr provider.SRQAttr, mask provider.SRQAttrMask) error {
	for bit, n := range map[provider.SRQAttrMask]int{provider.SRQAttrMaxWR: attr.MaxWR, provider.SRQAttrLimit: attr.Limit} {
		if mask&bit != 0 && (n < 0 || n > math.MaxInt32) {
			return fmt.Errorf("MaxWR or Limit is %d, and must be at least 0: %w", n, syscall.EINVAL)
		}
	}
	if unknown := mask &^ (provider.SRQAttrMaxWR | provider.SRQAttrLimit); unknown != 0 {
		return fmt.Errorf("attributes %#x can't be changed: %w", uint32(unknown), syscall.EINVAL)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.empty {
		return os.ErrClosed
	}
	before := r.limit.Load()
	if mask&provider.SRQAttrLimit != 0 {
		r.limit.Store(int32(attr.Limit)) // before Modify, because the event may come at once
	}
	err := r.c.Modify(ibv.SRQAttr{MaxWR: uint32(attr.MaxWR), Limit: uint32(attr.Limit)}, uint32(mask))
	if err != nil {
		r.limit.Store(before)
	}
	switch {
	case err == syscall.EOPNOTSUPP && mask&provider.SRQAttrMaxWR != 0:
		return &provider.UnsupportedError{Feature: "resizing an SRQ", Reason: "the device's driver has no IBV_SRQ_MAX_WR"}
	case err != nil:
		return because(err, syscall.EINVAL, outside(size{"Limit", attr.Limit, 0, r.granted.MaxWR}))
	}
	if mask&provider.SRQAttrMaxWR != 0 {
		r.granted.MaxWR = attr.MaxWR
	}
	return nil
}

// Query returns the recorded sizes and the limit that was set last if the library cannot query
// them, as with libsiw. That limit is the program's until this package reads the event from C.
func (r *srq) Query() (provider.SRQAttr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.empty {
		return provider.SRQAttr{}, r.err("ibv_query_srq", os.ErrClosed)
	}
	a, err := r.c.Query()
	if err == syscall.EOPNOTSUPP {
		attr := r.granted
		attr.Limit = int(r.limit.Load())
		return attr, nil
	}
	return provider.SRQAttr{MaxWR: int(a.MaxWR), MaxSGE: int(a.MaxSGE), Limit: int(a.Limit)}, r.err("ibv_query_srq", err)
}

func (r *srq) Close() error {
	return r.err("ibv_destroy_srq", r.close(func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		if err := r.destroy(); err != nil {
			return err
		}
		r.pd.dev.forgetEvents(func(e provider.AsyncEvent) bool { return e.SRQ == provider.SRQ(r) })
		r.pd.release()
		return nil
	}))
}

// destroy frees the C object.
func (r *srq) destroy() error {
	if err := r.c.Destroy(); err != nil {
		return err
	}
	r.empty = true
	srqs.remove(r.token)
	if r.batch != nil {
		r.batch.Free()
	}
	return nil
}
