//go:build cgo && linux && !nokernel

package kernel

import (
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
)

// siwKeys lets a context of siw have any number of queues.
//
// The kernel assigns mmap keys from the lowest free page up. libsiw takes the key of page 144 (with
// pages of 4 KiB) to mean "none". It then destroys the new kernel object, which frees the key for
// the next queue. So with about twenty connections the pages below 144 are used up, and nothing can
// be created any more. Once this has happened, siwKeys occupies the page with a CQ of its own;
// programs with fewer queues have no such CQ.
type siwKeys struct {
	mu       sync.RWMutex // held for reading while something is created
	reserved *ibv.SiwReservation
}

// create calls f, which creates a CQ, QP or SRQ of verbs. If f failed because the page was not
// reserved, create reserves it and calls f again.
func (k *siwKeys) create(verbs *ibv.Context, f func() error) error {
	err, done := k.try(f)
	// libsiw fails without an errno; package ibv returns EIO then.
	if done || err != syscall.EIO {
		return err
	}
	if err := k.reserve(verbs); err != nil {
		return err
	}
	err, _ = k.try(f)
	return err
}

// try calls f and reports whether the page was reserved at that time.
func (k *siwKeys) try(f func() error) (err error, reserved bool) {
	k.mu.RLock()
	defer k.mu.RUnlock()
	return f(), k.reserved != nil
}

// reserve occupies the key. A queue of several pages may fail because of the key while single pages
// below it are free, so reserve occupies these until it gets the key. Nothing else is created
// during this, because the caller has the lock.
func (k *siwKeys) reserve(verbs *ibv.Context) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reserved != nil {
		return nil
	}
	var below []*ibv.SiwReservation
	defer func() {
		for _, r := range below {
			_ = r.Release() // a CQ that nobody uses
		}
	}()
	for {
		r, err := verbs.SiwReserve()
		switch {
		case err != nil:
			return memlockError(err)
		case r.Key == ibv.SiwInvalidKey:
			k.reserved = r
			return nil
		}
		below = append(below, r)
		if r.Key > ibv.SiwInvalidKey {
			return nil // another queue has got the page
		}
	}
}

// release frees the reservation. The context has no other queues.
func (k *siwKeys) release() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.reserved != nil {
		_ = k.reserved.Release() // a CQ that nobody uses
		k.reserved = nil
	}
}

// createQueues calls f, which creates a CQ, a QP or an SRQ of the device.
func (d *device) createQueues(f func() error) error {
	if !d.libsiw {
		return f()
	}
	return d.shared.keys.create(d.shared.verbs, f)
}
