//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
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

// mr keeps buf alive and in place: the kernel has its pages. For the same reason
// it is in mrs until it is closed, also if the program has forgotten it: the
// garbage collector would give its memory to somebody else.
type mr struct {
	object
	token  uintptr
	pd     *pd
	c      *ibv.MR
	buf    []byte
	pin    runtime.Pinner
	access provider.Access
	lkey   uint32
	rkey   uint32
}

func (p *pd) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	fail := func(err error) (provider.MR, error) {
		return nil, opError("ibv_reg_mr", fmt.Sprintf("%d octets", len(buf)), err)
	}
	if len(buf) == 0 {
		return fail(syscall.EINVAL)
	}
	if err := p.hold(); err != nil {
		return fail(err)
	}
	m := &mr{pd: p, buf: buf, access: access}
	m.pin.Pin(unsafe.SliceData(buf))
	c, err := p.c.RegMR(unsafe.Pointer(unsafe.SliceData(buf)), len(buf), uint32(access&^provider.AccessRemoteInvalidate))
	if err != nil {
		m.pin.Unpin()
		p.release()
		return fail(memlockError(err))
	}
	m.c, m.lkey, m.rkey = c, c.LKey(), c.RKey()
	m.token = mrs.add(m)
	return m, nil
}

func (m *mr) Addr() uint64            { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.buf)))) }
func (m *mr) Len() uint64             { return uint64(len(m.buf)) }
func (m *mr) LKey() uint32            { return m.lkey }
func (m *mr) RKey() uint32            { return m.rkey }
func (m *mr) Access() provider.Access { return m.access }

func (m *mr) Close() error {
	return opError("ibv_dereg_mr", fmt.Sprintf("mr %#x", m.lkey), m.close(func() error {
		if err := m.c.Dereg(); err != nil {
			return err
		}
		mrs.remove(m.token)
		m.pin.Unpin()
		m.pd.release()
		return nil
	}))
}
