//go:build cgo && linux && !nokernel

package kernel

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
)

type pd struct {
	object
	dev *device
	c   *ibv.PD
}

func (d *device) AllocPD() (provider.PD, error) {
	if err := d.hold(); err != nil {
		return nil, opError("ibv_alloc_pd", d.name, err)
	}
	c, err := d.shared.verbs.AllocPD()
	if err != nil {
		d.release()
		return nil, opError("ibv_alloc_pd", d.name, err)
	}
	return &pd{dev: d, c: c}, nil
}

func (p *pd) Close() error {
	return opError("ibv_dealloc_pd", p.dev.name, p.close(func() error {
		if err := p.c.Dealloc(); err != nil {
			return err
		}
		p.dev.release()
		return nil
	}))
}

// mr keeps buf alive and in place, because the kernel has its pages. For the same reason mrs holds
// it until it is closed, even if the program has dropped it: the garbage collector would reuse its
// memory.
type mr struct {
	object
	token  uintptr
	pd     *pd
	c      *ibv.MR
	buf    []byte
	addr   uint64
	pin    runtime.Pinner
	access provider.Access
	lkey   uint32
	rkey   uint32
}

func (p *pd) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	if access&provider.AccessZeroBased != 0 {
		// By ibv_reg_mr(3) this has the same meaning, and works with drivers that do not know the
		// flag.
		return p.regMR("ibv_reg_mr", buf, new(uint64), access)
	}
	return p.regMR("ibv_reg_mr", buf, nil, access)
}

func (p *pd) RegMRIova(buf []byte, iova uint64, access provider.Access) (provider.MR, error) {
	if access&provider.AccessZeroBased != 0 {
		iova = 0
	}
	return p.regMR("ibv_reg_mr_iova", buf, &iova, access)
}

// RegObject returns an error, because the kernel registers memory only.
func (p *pd) RegObject(io.ReaderAt, uint64, provider.Access) (provider.MR, error) {
	return nil, opError("ibv_reg_mr", "object", &provider.UnsupportedError{Feature: "a region over an object",
		Reason: "the kernel registers memory; map it into memory if it is a file"})
}

// regMR registers buf at address iova, or at its own address if iova is nil.
func (p *pd) regMR(op string, buf []byte, iova *uint64, access provider.Access) (provider.MR, error) {
	fail := func(err error) (provider.MR, error) {
		return nil, opError(op, fmt.Sprintf("%d bytes", len(buf)), err)
	}
	if len(buf) == 0 {
		return fail(fmt.Errorf("the buffer is empty; pass at least 1 byte: %w", syscall.EINVAL))
	}
	if iova != nil && p.dev.siw {
		// The C call would succeed, but the region would keep its virtual address.
		return fail(&provider.UnsupportedError{Feature: "a region with an address of its own (iova, zero-based)",
			Reason: "siw names regions by their virtual address, whatever it is asked for"})
	}
	if err := p.hold(); err != nil {
		return fail(err)
	}
	m := &mr{pd: p, buf: buf, access: access, addr: uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))}
	m.pin.Pin(unsafe.SliceData(buf))
	rights := kernelRights(access)
	var c *ibv.MR
	var err error
	if iova == nil {
		c, err = p.c.RegMR(unsafe.Pointer(unsafe.SliceData(buf)), len(buf), rights)
	} else {
		m.addr = *iova
		c, err = p.c.RegMRIova(unsafe.Pointer(unsafe.SliceData(buf)), len(buf), *iova, rights)
	}
	if err != nil {
		m.pin.Unpin()
		p.release()
		return fail(whyNotRegistered(whyNoRegion(access, err), iova != nil))
	}
	m.enter(c)
	return m, nil
}

// kernelRights returns rights without the ones for which libibverbs has no flag or another
// mechanism.
func kernelRights(access provider.Access) uint32 {
	return uint32(access &^ (provider.AccessRemoteInvalidate | provider.AccessZeroBased))
}

// whyNotRegistered explains an errno of a registration.
func whyNotRegistered(err error, iova bool) error {
	switch {
	case errors.Is(err, syscall.EFAULT):
		return fmt.Errorf("the memory is not mapped, or the rights ask for writing and it may "+
			"not be written: %w", err)
	case iova && errors.Is(err, syscall.EINVAL):
		return fmt.Errorf("the iova and the buffer's address must have the same offset in a "+
			"page: %w", err)
	}
	return memlockError(err)
}

// enter records the region's C object.
func (m *mr) enter(c *ibv.MR) {
	m.c, m.lkey, m.rkey = c, c.LKey(), c.RKey()
	m.token = mrs.add(m)
	keys := &m.pd.dev.shared.memory
	keys.change(func() { keys.mrs[m.lkey] = m })
}

// forget undoes enter.
func (m *mr) forget() {
	mrs.remove(m.token)
	keys := &m.pd.dev.shared.memory
	keys.change(func() {
		if keys.mrs[m.lkey] == m {
			delete(keys.mrs, m.lkey)
		}
	})
}

// whyNotDeregistered turns rxe's EINVAL for a region with windows bound to it into EBUSY. An
// existing region gets EINVAL for no other reason.
func whyNotDeregistered(err error) error {
	if err == syscall.EINVAL {
		return fmt.Errorf("a window is bound to it; close or invalidate that first (the driver says %v): %w",
			err, syscall.EBUSY)
	}
	return err
}

// Rereg asks the kernel, and moves the region to a new mr if the kernel succeeded. After some
// failures the region is unusable, as libibverbs documents, but it can still be closed.
func (m *mr) Rereg(change provider.ReregFlags, to provider.PD, buf []byte, access provider.Access) (provider.MR, error) {
	const op = "ibv_rereg_mr"
	n := &mr{pd: m.pd, buf: m.buf, access: m.access, addr: m.addr}
	if change&provider.ReregPD != 0 {
		var ours bool
		if n.pd, ours = to.(*pd); !ours || n.pd.dev.shared != m.pd.dev.shared {
			return nil, opError(op, "pd",
				fmt.Errorf("belongs to another device or provider; pass one of this device: %w",
					syscall.EINVAL))
		}
	}
	if change&provider.ReregTranslation != 0 {
		if len(buf) == 0 {
			return nil, opError(op, "0 bytes",
				fmt.Errorf("the buffer is empty; pass at least 1 byte: %w", syscall.EINVAL))
		}
		n.buf, n.addr = buf, uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
	}
	var rights uint32 // libibverbs refuses rights without the flag that changes them
	if change&provider.ReregAccess != 0 {
		n.access, rights = access, kernelRights(access)
	}
	if err := n.pd.hold(); err != nil {
		return nil, opError(op, n.pd.dev.name, err)
	}
	n.pin.Pin(unsafe.SliceData(n.buf))
	done := false
	err := m.close(func() error {
		err := m.c.Rereg(uint32(change), n.pd.c, unsafe.Pointer(unsafe.SliceData(n.buf)), len(n.buf), rights)
		if err != nil {
			return err
		}
		done = true
		m.forget()
		n.enter(m.c)
		m.pin.Unpin()
		m.pd.release()
		return nil
	})
	if done {
		return n, nil
	}
	n.pin.Unpin()
	n.pd.release()
	switch {
	case err == nil: // it was closed
		err = os.ErrClosed
	case errors.Is(err, syscall.EOPNOTSUPP):
		err = &provider.UnsupportedError{Feature: "re-registration", Reason: "the device's driver has none; close the region and register anew"}
	default:
		err = whyNotRegistered(err, false)
	}
	return nil, opError(op, fmt.Sprintf("mr %#x", m.lkey), err)
}

func (m *mr) Addr() uint64            { return m.addr }
func (m *mr) Len() uint64             { return uint64(len(m.buf)) }
func (m *mr) LKey() uint32            { return m.lkey }
func (m *mr) RKey() uint32            { return m.rkey }
func (m *mr) Access() provider.Access { return m.access }

func (m *mr) Close() error {
	return opError("ibv_dereg_mr", fmt.Sprintf("mr %#x", m.lkey), m.close(func() error {
		if err := m.c.Dereg(); err != nil {
			return whyNotDeregistered(err)
		}
		m.forget()
		m.pin.Unpin()
		m.pd.release()
		return nil
	}))
}
