package auto

import (
	"context"
	"net/netip"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// fake is a provider whose devices fail where a test wants them to. It counts open objects.
type fake struct {
	devices []fakeDevice
	err     error // of Devices
	open    int
}

// fakeDevice has the methods that try calls.
type fakeDevice struct {
	provider.Device
	name      string
	transport provider.TransportType
	state     provider.PortState
	fails     map[string]error // by C call
	leadsTo   string           // device that addresses resolve to; empty if they do not resolve
	fake      *fake
}

// usable returns a device without faults.
func usable(name string) fakeDevice {
	return fakeDevice{name: name, transport: provider.TransportIWARP, state: provider.PortActive, leadsTo: name}
}

func (*fake) Name() string { return "fake" }

func (f *fake) Devices() ([]provider.DeviceInfo, error) {
	var infos []provider.DeviceInfo
	for _, d := range f.devices {
		infos = append(infos, provider.DeviceInfo{Name: d.name, Provider: "fake", Transport: d.transport})
	}
	return infos, f.err
}

func (f *fake) Open(name string) (provider.Device, error) {
	for i := range f.devices {
		if d := &f.devices[i]; d.name == name {
			d.fake = f
			_, err := d.object("ibv_open_device")
			return d, err
		}
	}
	return nil, &provider.Error{Op: "ibv_open_device", Object: name, Err: syscall.ENODEV}
}

func (d *fakeDevice) Name() string { return d.name }
func (d *fakeDevice) Close() error { return fakeObject{d}.Close() }

func (d *fakeDevice) QueryPort(uint8) (provider.PortAttr, error) {
	return provider.PortAttr{State: d.state}, d.fails["ibv_query_port"]
}

func (d *fakeDevice) AllocPD() (provider.PD, error) {
	o, err := d.object("ibv_alloc_pd")
	return fakePD{fakeObject: o}, err
}

func (d *fakeDevice) CreateCompChannel() (provider.CompChannel, error) {
	o, err := d.object("ibv_create_comp_channel")
	return fakeCompChannel{fakeObject: o}, err
}

func (d *fakeDevice) CreateCQ(provider.CQInitAttr) (provider.CQ, error) {
	o, err := d.object("ibv_create_cq")
	return fakeCQ{fakeObject: o}, err
}

func (d *fakeDevice) CreateEventChannel() (provider.EventChannel, error) {
	o, err := d.object("rdma_create_event_channel")
	return fakeEventChannel{o}, err
}

// object makes an open object, or returns the error of the call that makes it.
func (d *fakeDevice) object(call string) (fakeObject, error) {
	if err := d.fails[call]; err != nil {
		return fakeObject{}, &provider.Error{Op: call, Err: err}
	}
	d.fake.open++
	return fakeObject{d}, nil
}

type fakeObject struct{ d *fakeDevice }

func (o fakeObject) Close() error {
	o.d.fake.open--
	return nil
}

type (
	pdIface          = provider.PD
	compChannelIface = provider.CompChannel
	cqIface          = provider.CQ
	qpIface          = provider.QP
	idIface          = provider.ID
)

type fakePD struct {
	pdIface
	fakeObject
}

func (p fakePD) Close() error { return p.fakeObject.Close() }

func (p fakePD) CreateQP(provider.QPInitAttr) (provider.QP, error) {
	o, err := p.d.object("ibv_create_qp")
	return fakeQP{fakeObject: o}, err
}

type fakeCompChannel struct {
	compChannelIface
	fakeObject
}

func (c fakeCompChannel) Close() error { return c.fakeObject.Close() }

type fakeCQ struct {
	cqIface
	fakeObject
}

func (c fakeCQ) Close() error { return c.fakeObject.Close() }

type fakeQP struct {
	qpIface
	fakeObject
}

func (q fakeQP) Close() error { return q.fakeObject.Close() }

type fakeEventChannel struct{ fakeObject }

func (c fakeEventChannel) CreateID(any) (provider.ID, error) {
	o, err := c.d.object("rdma_create_id")
	return fakeID{fakeObject: o}, err
}

func (c fakeEventChannel) Next(context.Context) (provider.CMEvent, error) {
	if c.d.leadsTo == "" {
		return provider.CMEvent{Type: provider.CMAddrError, Status: -int(syscall.ETIMEDOUT)}, nil
	}
	return provider.CMEvent{Type: provider.CMAddrResolved}, nil
}

type fakeID struct {
	idIface
	fakeObject
}

func (i fakeID) Close() error       { return i.fakeObject.Close() }
func (i fakeID) DeviceName() string { return i.d.leadsTo }

func (i fakeID) ResolveAddr(_, _ netip.AddrPort, _ time.Duration) error {
	return i.d.fails["rdma_resolve_addr"]
}
