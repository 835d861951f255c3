package remote

import (
	"context"
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// farProvider is a provider of the agent.
type farProvider struct {
	c       *Session
	name    string
	options []string
}

// Name implements provider.Provider.
func (p *farProvider) Name() string { return p.name }

// Devices implements provider.Provider.
func (p *farProvider) Devices() ([]provider.DeviceInfo, error) {
	return do[[]provider.DeviceInfo](context.Background(), &far{c: p.c}, nil, "ibv_get_device_list",
		openArgs{Provider: p.name, Options: p.options})
}

// Open implements provider.Provider.
func (p *farProvider) Open(name string) (provider.Device, error) {
	c := p.c
	if err := c.usable(); err != nil {
		return nil, err
	}
	d := &Device{far: far{c: c}, memory: memory{slot: c.freeSlot()}}
	r, err := do[opened](context.Background(), &d.far, nil, "ibv_open_device",
		openArgs{p.name, name, p.options, d.memory.slot})
	if err != nil {
		return nil, err
	}
	d.h, d.name, d.transport = r.Handle, r.Name, r.Transport
	d.mem, d.memory.device = &d.memory, d.h
	c.mem.Lock()
	c.devices[d] = true
	c.mem.Unlock()
	return d, nil
}

// freeSlot returns a slot that no open device has. If all are taken, the agent refuses the one that
// it returns.
func (c *Session) freeSlot() uint16 {
	c.mem.Lock()
	defer c.mem.Unlock()
	taken := map[uint16]bool{0: true} // 0 is no slot
	for d := range c.devices {
		taken[d.memory.slot] = true
	}
	for range math.MaxUint16 {
		if c.lastSlot++; !taken[c.lastSlot] {
			break
		}
	}
	return c.lastSlot
}

// far is an object of the agent.
type far struct {
	c   *Session
	h   uint32
	mem *memory // the memory of its device
}

// usable returns an error if the object does not belong to a device that Open has made.
func (f *far) usable() error {
	if f == nil || f.c == nil {
		return fmt.Errorf("nil or zero remote.Device, which Open of Session.Provider makes: %w",
			syscall.EINVAL)
	}
	return nil
}

// plain calls a verb without a result. Memory changes go with the call.
func (f *far) plain(verb string, args any) error {
	if err := f.usable(); err != nil {
		return err
	}
	_, err := do[none](context.Background(), f, f.mem, verb, args)
	return err
}

// destroy calls a verb that closes the object. After that, the session ignores its events.
func (f *far) destroy(verb string) error {
	err := f.plain(verb, none{})
	if err == nil {
		f.c.unregister(f.h)
	}
	return err
}

// quiet calls a verb that is a query: no memory changes go with it.
func quiet[R any](f *far, verb string, args any) (r R, err error) {
	if err := f.usable(); err != nil {
		return r, err
	}
	return do[R](context.Background(), f, nil, verb, args)
}

// loud calls a verb with a result. Memory changes go with the call.
func loud[R any](f *far, verb string, args any) (R, error) {
	return do[R](context.Background(), f, f.mem, verb, args)
}

// post calls a verb that posts n work requests, and returns how many were posted.
func (f *far) post(verb string, n int, args any) (int, error) {
	r, err := loud[posted](f, verb, args)
	if r.N < 0 || r.N > n {
		return 0, f.c.fail(fmt.Errorf("%w: %s of %d work requests posts %d", errFrame, verb, n, r.N))
	}
	return r.N, err
}

// Device is a device of an agent, made by Open of [Session.Provider].
type Device struct {
	far
	memory    memory
	name      string
	transport provider.TransportType
}

// part returns the fields that all objects of the device have, or nil if d is nil.
func (d *Device) part() *far {
	if d == nil {
		return nil
	}
	return &d.far
}

// Push copies the program's changes of memory to the agent. It makes the same call as Pull, so it
// also copies the device's changes back.
func (d *Device) Push() error { return d.part().plain(verbPull, none{}) }

// Pull copies the program's changes to the agent, and the device's changes back to the program's
// memory.
func (d *Device) Pull() error { return d.part().plain(verbPull, none{}) }

// Intact returns an error that names the first changed byte beside one of the agent's copies.
// Nothing may change these bytes.
func (d *Device) Intact() error { return d.part().plain(verbIntact, none{}) }

// Name implements provider.Device.
func (d *Device) Name() string {
	if d == nil {
		return ""
	}
	return d.name
}

// Transport implements provider.Device.
func (d *Device) Transport() provider.TransportType {
	if d == nil {
		return provider.TransportUnknown
	}
	return d.transport
}

// Query implements provider.Device.
func (d *Device) Query() (provider.DeviceAttr, error) {
	return quiet[provider.DeviceAttr](d.part(), "ibv_query_device", none{})
}

// QueryPort implements provider.Device.
func (d *Device) QueryPort(port uint8) (provider.PortAttr, error) {
	return quiet[provider.PortAttr](d.part(), "ibv_query_port", portArgs{Port: port})
}

// QueryGID implements provider.Device.
func (d *Device) QueryGID(port uint8, index int) (provider.GID, error) {
	return quiet[provider.GID](d.part(), "ibv_query_gid", portArgs{port, index})
}

// QueryGIDTable implements provider.Device.
func (d *Device) QueryGIDTable() ([]provider.GIDEntry, error) {
	return quiet[[]provider.GIDEntry](d.part(), "ibv_query_gid_table", none{})
}

// QueryPkey implements provider.Device.
func (d *Device) QueryPkey(port uint8, index int) (uint16, error) {
	return quiet[uint16](d.part(), "ibv_query_pkey", portArgs{port, index})
}

// AllocPD implements provider.Device.
func (d *Device) AllocPD() (provider.PD, error) {
	r, err := quiet[made](d.part(), "ibv_alloc_pd", none{})
	if err != nil {
		return nil, err
	}
	return &pd{d.of(r.Handle), d}, nil
}

// of returns the common fields for object h of the device.
func (d *Device) of(h uint32) far { return far{d.c, h, d.mem} }

// CreateCompChannel implements provider.Device.
func (d *Device) CreateCompChannel() (provider.CompChannel, error) {
	r, err := quiet[made](d.part(), "ibv_create_comp_channel", none{})
	if err != nil {
		return nil, err
	}
	return &compChannel{d.of(r.Handle)}, nil
}

// CreateCQ implements provider.Device.
func (d *Device) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	const op = "ibv_create_cq"
	if err := d.part().usable(); err != nil {
		return nil, err
	}
	args := cqArgs{CQE: init.CQE, Vector: init.CompVector}
	if init.Sink != nil {
		return nil, lacks("a sink for completions")
	}
	if init.Channel != nil {
		ch, ok := init.Channel.(*compChannel)
		if !ok || ch.c != d.c {
			return nil, foreign(op, "completion channel")
		}
		args.Channel = ch.h
	}
	r, err := quiet[made](d.part(), op, args)
	if err != nil {
		return nil, err
	}
	q := &cq{d.of(r.Handle), init.Cookie}
	d.c.register(q.h, q)
	return q, nil
}

// CreateEventChannel implements provider.Device.
func (d *Device) CreateEventChannel() (provider.EventChannel, error) {
	r, err := quiet[made](d.part(), "rdma_create_event_channel", none{})
	if err != nil {
		return nil, err
	}
	return &eventChannel{d.of(r.Handle), d}, nil
}

// AsyncEvent implements provider.Device.
func (d *Device) AsyncEvent(ctx context.Context) (provider.AsyncEvent, error) {
	if err := d.part().usable(); err != nil {
		return provider.AsyncEvent{}, err
	}
	for {
		e, err := do[asyncEvent](ctx, &d.far, nil, "ibv_get_async_event", none{})
		if err != nil {
			return provider.AsyncEvent{}, err
		}
		ev := provider.AsyncEvent{Type: e.Type, Port: e.Port}
		gone := false
		if e.QP != 0 {
			q := object[*qp](d.c, e.QP)
			ev.QP, gone = q, q == nil
		}
		if e.CQ != 0 {
			q := object[*cq](d.c, e.CQ)
			ev.CQ, gone = q, q == nil
		}
		if e.SRQ != 0 {
			s := object[*srq](d.c, e.SRQ)
			ev.SRQ, gone = s, s == nil
		}
		if !gone { // otherwise the event is for an object that is closed on this side
			return ev, nil
		}
	}
}

// Close implements provider.Device.
func (d *Device) Close() error {
	if err := d.part().plain("ibv_close_device", none{}); err != nil {
		return err
	}
	d.c.forget(d)
	return nil
}

// lacks returns the error for a feature that package remote does not have.
func lacks(what string) error {
	return &provider.UnsupportedError{Feature: what,
		Reason: "it is an object of this process, which an agent on another host can't call"}
}

// foreign returns the error for an object that does not belong to the device.
func foreign(op, what string) error {
	return &provider.Error{Op: op,
		Err: fmt.Errorf("the %s is not the agent's: %w", what, syscall.EINVAL)}
}

// pd is a PD of the agent.
type pd struct {
	far
	dev *Device
}

// span returns a reference to a buffer for the agent, and the buffer's block.
func (f *far) span(op string, buf []byte) (span, *block, error) {
	if len(buf) == 0 {
		return span{Nil: buf == nil}, nil, nil
	}
	b, off, err := f.c.place(f.mem, buf)
	if err != nil {
		return span{}, nil, &provider.Error{Op: op, Err: err}
	}
	return span{Block: b.number, Off: off, Len: uint64(len(buf))}, b, nil
}

// RegMR implements provider.PD.
func (p *pd) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	return p.register("ibv_reg_mr", buf, regArgs{Access: access})
}

// RegMRIova implements provider.PD.
func (p *pd) RegMRIova(buf []byte, iova uint64, access provider.Access) (provider.MR, error) {
	return p.register("ibv_reg_mr_iova", buf, regArgs{Access: access, Iova: &iova})
}

func (p *pd) register(op string, buf []byte, args regArgs) (provider.MR, error) {
	var b *block
	var err error
	if args.Span, b, err = p.span(op, buf); err != nil {
		return nil, err
	}
	r, err := loud[region](&p.far, op, args)
	if err != nil {
		p.c.release(p.mem, b)
		return nil, err
	}
	return &mr{far: p.dev.of(r.Handle), dev: p.dev, r: r, block: b}, nil
}

// RegObject implements provider.PD.
func (p *pd) RegObject(io.ReaderAt, uint64, provider.Access) (provider.MR, error) {
	return nil, lacks("a region over an io.ReaderAt")
}

// AllocFastRegMR implements provider.PD.
func (p *pd) AllocFastRegMR(maxLen uint64) (provider.FastRegMR, error) {
	r, err := quiet[region](&p.far, "ib_alloc_mr", fastArgs{maxLen})
	if err != nil {
		return nil, err
	}
	return &fastMR{far: p.dev.of(r.Handle)}, nil
}

// AllocMW implements provider.PD.
func (p *pd) AllocMW(t provider.MWType) (provider.MW, error) {
	r, err := quiet[made](&p.far, "ibv_alloc_mw", mwArgs{t})
	if err != nil {
		return nil, err
	}
	return &mw{p.dev.of(r.Handle), t}, nil
}

// CreateQP implements provider.PD.
func (p *pd) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	return p.dev.createQP(&p.far, "ibv_create_qp", 0, init)
}

// CreateSRQ implements provider.PD.
func (p *pd) CreateSRQ(init provider.SRQInitAttr) (provider.SRQ, error) {
	if init.Recvs != nil {
		return nil, lacks("a source of receives")
	}
	r, err := quiet[made](&p.far, "ibv_create_srq", srqArgs{Attr: init.Attr})
	if err != nil {
		return nil, err
	}
	s := &srq{p.dev.of(r.Handle), init.Cookie}
	p.c.register(s.h, s)
	return s, nil
}

// Close implements provider.PD.
func (p *pd) Close() error { return p.plain("ibv_dealloc_pd", none{}) }
