package mutants

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/provider"
)

// verbsFault changes what goes through the calls of the verbs. Each field may be zero. Functions
// may be called concurrently.
type verbsFault struct {
	query    func(*provider.DeviceAttr)
	createCQ func(*provider.CQInitAttr) error // may change it, or refuse
	createQP func(*provider.QPInitAttr) error // the same
	regMR    func() error
	clings   bool              // PDs and CQs close only at the second attempt
	failed   func(error) error // replaces the error of a QP's failed call

	access  func(provider.Access) provider.Access
	margin  int  // octets before and after every region that belong to it
	early   int  // more octets before every region that belong to it
	keepMRs bool // deregistered regions stay until their PD closes
	onePD   bool // every PD is the same

	poll     func(q *brokenCQ, wc []provider.WC) int // returns how many are left
	notify   func(solicitedOnly bool) bool
	unheard  func() bool                 // reports whether an event of a completion channel is lost
	postSend func(wrs []provider.SendWR) // may change them: they are copies
	postRecv func(wrs []provider.RecvWR) // as postSend
	posted   func(n, all int, err error) (int, error)

	bind          func(*provider.MWBindInfo) // may change it
	windowsForAll bool                       // a region stands for every window of type 2

	// These replace a call; do makes the call with attr and mask as they then are.
	modify func(attr *provider.QPAttr, mask *provider.QPAttrMask, do func() error) error
	iova   func(p *brokenPD, buf []byte, iova uint64, access provider.Access) (provider.MR, error)
	rereg  func(m *brokenMR, change provider.ReregFlags, pd provider.PD, buf []byte, access provider.Access) (provider.MR, error)

	srqPost   func(wrs []provider.RecvWR) []provider.RecvWR // returns what is posted instead
	srqModify func(*provider.SRQAttr)                       // may change it

	event func(e *provider.CMEvent) (deliver bool)
	param func(p *provider.ConnParam) // of Connect and Accept
}

// before returns how many octets before it belong to every region.
func (f *verbsFault) before() int { return f.margin + f.early }

// brokenProvider is a provider with a fault.
type brokenProvider struct {
	provider.Provider
	fault   verbsFault
	world   *world
	network *network
}

// Open implements provider.Provider.
func (p *brokenProvider) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	if err != nil {
		return nil, err
	}
	return &brokenDevice{
		Device: d, fault: &p.fault, world: p.world, network: p.network,
		cqs: make(map[provider.CQ]*brokenCQ), qps: make(map[provider.QP]*brokenQP), ids: make(map[provider.ID]*brokenID),
	}, nil
}

// brokenDevice finds the broken object around each of the engine's objects, for calls that return
// one.
type brokenDevice struct {
	provider.Device
	fault   *verbsFault
	world   *world
	network *network

	mu  sync.Mutex
	cqs map[provider.CQ]*brokenCQ
	qps map[provider.QP]*brokenQP
	ids map[provider.ID]*brokenID
	pd  provider.PD // with onePD
	pds int         // how many brokenPDs wrap it
}

// Query implements provider.Device.
func (d *brokenDevice) Query() (provider.DeviceAttr, error) {
	attr, err := d.Device.Query()
	if f := d.fault.query; f != nil && err == nil {
		f(&attr)
	}
	return attr, err
}

// Close implements provider.Device.
func (d *brokenDevice) Close() error {
	err := d.Device.Close()
	if err == nil {
		d.network.release()
	}
	return err
}

// refusal replaces the error of a QP's failed call.
func (d *brokenDevice) refusal(err error) error {
	if f := d.fault.failed; f != nil && err != nil {
		return f(err)
	}
	return err
}

// AllocPD implements provider.Device.
func (d *brokenDevice) AllocPD() (provider.PD, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fault.onePD && d.pd != nil {
		d.pds++
		return &brokenPD{PD: d.pd, dev: d}, nil
	}
	pd, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	if d.fault.onePD {
		d.pd, d.pds = pd, 1
	}
	return &brokenPD{PD: pd, dev: d}, nil
}

// CreateCompChannel implements provider.Device.
func (d *brokenDevice) CreateCompChannel() (provider.CompChannel, error) {
	ch, err := d.Device.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	return &brokenChannel{ch, d}, nil
}

// CreateCQ implements provider.Device.
func (d *brokenDevice) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	if ch, ok := init.Channel.(*brokenChannel); ok {
		init.Channel = ch.CompChannel
	}
	if f := d.fault.createCQ; f != nil {
		if err := f(&init); err != nil {
			return nil, err
		}
	}
	cq, err := d.Device.CreateCQ(init)
	if err != nil {
		return nil, err
	}
	b := &brokenCQ{CQ: cq, dev: d}
	d.mu.Lock()
	d.cqs[cq] = b
	d.mu.Unlock()
	return b, nil
}

// CreateEventChannel implements provider.Device.
func (d *brokenDevice) CreateEventChannel() (provider.EventChannel, error) {
	ch, err := d.Device.CreateEventChannel()
	if err != nil {
		return nil, err
	}
	return &brokenEvents{ch, d}, nil
}

// AsyncEvent implements provider.Device.
func (d *brokenDevice) AsyncEvent(ctx context.Context) (provider.AsyncEvent, error) {
	e, err := d.Device.AsyncEvent(ctx)
	e.CQ, e.QP = d.cq(e.CQ), d.qp(e.QP)
	return e, err
}

// cq returns the brokenCQ of an engine's CQ.
func (d *brokenDevice) cq(cq provider.CQ) provider.CQ {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := d.cqs[cq]; b != nil {
		return b
	}
	return cq
}

// qp returns the brokenQP of an engine's QP.
func (d *brokenDevice) qp(qp provider.QP) provider.QP {
	d.mu.Lock()
	defer d.mu.Unlock()
	if b := d.qps[qp]; b != nil {
		return b
	}
	return qp
}

type brokenChannel struct {
	provider.CompChannel
	dev *brokenDevice
}

// Next implements provider.CompChannel.
func (c *brokenChannel) Next(ctx context.Context) (provider.CQ, error) {
	for {
		cq, err := c.CompChannel.Next(ctx)
		if err != nil {
			return nil, err
		}
		if f := c.dev.fault.unheard; f == nil || !f() {
			return c.dev.cq(cq), nil
		}
	}
}

type brokenPD struct {
	provider.PD
	dev    *brokenDevice
	tried  atomic.Bool   // with clings
	closed bool          // with onePD; the device's mu guards it
	kept   []provider.MR // with keepMRs or windowsForAll; the same
}

// Close implements provider.PD.
func (p *brokenPD) Close() error {
	d := p.dev
	if d.fault.clings && !p.tried.Swap(true) {
		return syscall.EBUSY
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, mr := range p.kept {
		if err := mr.Close(); err != nil {
			return err
		}
		d.world.remove(mr.RKey())
	}
	p.kept = nil
	if !d.fault.onePD {
		return p.PD.Close()
	}
	if p.closed {
		return nil
	}
	if d.pds == 1 {
		if err := p.PD.Close(); err != nil {
			return err
		}
		d.pd = nil
	}
	p.closed = true
	d.pds--
	return nil
}

// RegMR implements provider.PD.
func (p *brokenPD) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	f := p.dev.fault
	if f.regMR != nil {
		if err := f.regMR(); err != nil {
			return nil, err
		}
	}
	if f.access != nil {
		access = f.access(access)
	}
	if before := f.before(); before > 0 && len(buf) > 0 {
		// The suite's buffers have a page of canaries on either side.
		start := unsafe.Add(unsafe.Pointer(unsafe.SliceData(buf)), -before)
		buf = unsafe.Slice((*byte)(start), before+len(buf)+f.margin)
	}
	mr, err := p.PD.RegMR(buf, access)
	if err != nil {
		return nil, err
	}
	if f.windowsForAll {
		p.dev.world.lend(mr, p, buf)
	}
	return p.enter(mr, buf), nil
}

// keep keeps mr until the PD closes.
func (p *brokenPD) keep(mr provider.MR) {
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	p.kept = append(p.kept, mr)
}

// CreateQP implements provider.PD.
func (p *brokenPD) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	return p.dev.createQP(init, p.PD.CreateQP)
}

// createQP makes a QP with create, and wraps it in a brokenQP.
func (d *brokenDevice) createQP(init provider.QPInitAttr, create func(provider.QPInitAttr) (provider.QP, error)) (provider.QP, error) {
	if f := d.fault.createQP; f != nil {
		if err := f(&init); err != nil {
			return nil, err
		}
	}
	qp, err := create(own(init))
	if err != nil {
		return nil, err
	}
	b := &brokenQP{qp, d}
	d.mu.Lock()
	d.qps[qp] = b
	d.mu.Unlock()
	return b, nil
}

// own replaces the broken CQs and the broken SRQ by the engine's own.
func own(init provider.QPInitAttr) provider.QPInitAttr {
	for _, cq := range []*provider.CQ{&init.SendCQ, &init.RecvCQ} {
		if b, ok := (*cq).(*brokenCQ); ok {
			*cq = b.CQ
		}
	}
	if b, ok := init.SRQ.(*brokenSRQ); ok {
		init.SRQ = b.SRQ
	}
	return init
}

type brokenMR struct {
	provider.MR
	pd  *brokenPD
	buf []byte
}

// Addr implements provider.MR.
func (m *brokenMR) Addr() uint64 { return m.MR.Addr() + uint64(m.pd.dev.fault.before()) }

// Len implements provider.MR.
func (m *brokenMR) Len() uint64 {
	f := m.pd.dev.fault
	return m.MR.Len() - uint64(f.before()+f.margin)
}

// Close implements provider.MR.
func (m *brokenMR) Close() error {
	d := m.pd.dev
	if d.fault.keepMRs {
		m.pd.keep(m.MR)
		return nil
	}
	err := m.MR.Close()
	if err == nil {
		d.world.remove(m.RKey())
	}
	return err
}
