package remote

import (
	"context"
	"io"

	"github.com/govs-rdma/govs/provider"
)

// Beside returns near, a provider of this host, such that the session's devices are part of what
// its programs see in order: each post to a send queue is preceded by a Push, so that an RDMA Read
// that is posted here finds at the agent what the program has put into memory that is registered
// there; and completions and CM events are returned after a Pull, so that what has led to them
// there is in the program's memory. All else is near's own. Beside nil there is nil.
func (c *Session) Beside(near provider.Provider) provider.Provider {
	if near == nil {
		return nil
	}
	return &nearProvider{near, c}
}

// push is Device.Push of all devices. It asks nothing of the agent if nothing has changed since
// the last changes that it has answered to. Those that another call sends may still be on their
// way: the agent has them when it answers to what is sent after them.
func (c *Session) push() error {
	if err := c.usable(); err != nil {
		return err
	}
	c.mem.Lock()
	var changed []*Device
	for d := range c.devices {
		for _, b := range d.memory.blocks {
			if !b.made || !same(b.now, b.agreed) {
				changed = append(changed, d)
				break
			}
		}
	}
	onTheWay := c.carried > c.answered
	c.mem.Unlock()
	if onTheWay && len(changed) == 0 {
		if _, err := c.call(context.Background(), nil, verbClock, 0, none{}); err != nil {
			return err
		}
	}
	for _, d := range changed {
		if err := d.Push(); err != nil {
			return err
		}
	}
	return nil
}

// pull is Device.Pull of all devices. That an agent can't be reached is Session.Err's to say.
func (c *Session) pull() {
	if c.usable() != nil {
		return
	}
	c.mem.Lock()
	var all []*Device
	for d := range c.devices {
		if len(d.memory.blocks) > 0 {
			all = append(all, d)
		}
	}
	c.mem.Unlock()
	for _, d := range all {
		_ = d.Pull()
	}
}

type nearProvider struct {
	provider.Provider
	c *Session
}

func (p *nearProvider) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	if err != nil {
		return nil, err
	}
	return &nearDevice{d, p.c}, nil
}

type nearDevice struct {
	provider.Device
	c *Session
}

func (d *nearDevice) AllocPD() (provider.PD, error) {
	p, err := d.Device.AllocPD()
	if err != nil {
		return nil, err
	}
	return &nearPD{p, d.c}, nil
}

func (d *nearDevice) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	q, err := d.Device.CreateCQ(init)
	if err != nil {
		return nil, err
	}
	return &nearCQ{q, d.c}, nil
}

func (d *nearDevice) CreateEventChannel() (provider.EventChannel, error) {
	ch, err := d.Device.CreateEventChannel()
	if err != nil {
		return nil, err
	}
	return &nearChannel{ch, d.c}, nil
}

type nearCQ struct {
	provider.CQ
	c *Session
}

func (q *nearCQ) Poll(wc []provider.WC) (int, error) {
	n, err := q.CQ.Poll(wc)
	if n > 0 {
		q.c.pull()
	}
	return n, err
}

// Stats implements provider.CQStater.
func (q *nearCQ) Stats() (provider.CQStats, error) {
	if s, ok := q.CQ.(provider.CQStater); ok {
		return s.Stats()
	}
	return provider.CQStats{}, &provider.UnsupportedError{Feature: "counters of a CQ",
		Reason: "the provider has none"}
}

// plainInit has the CQs of a QP be as the provider knows them.
func plainInit(init provider.QPInitAttr) provider.QPInitAttr {
	for _, q := range []*provider.CQ{&init.SendCQ, &init.RecvCQ} {
		if n, ok := (*q).(*nearCQ); ok {
			*q = n.CQ
		}
	}
	return init
}

type nearPD struct {
	provider.PD
	c *Session
}

// plainPD is the provider's own PD of one that was handed out.
func plainPD(p provider.PD) provider.PD {
	if n, ok := p.(*nearPD); ok {
		return n.PD
	}
	return p
}

func (p *nearPD) region(m provider.MR, err error) (provider.MR, error) {
	if err != nil {
		return nil, err
	}
	return &nearMR{m, p}, nil
}

func (p *nearPD) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	return p.region(p.PD.RegMR(buf, access))
}

func (p *nearPD) RegMRIova(buf []byte, iova uint64, access provider.Access) (provider.MR, error) {
	return p.region(p.PD.RegMRIova(buf, iova, access))
}

func (p *nearPD) RegObject(object io.ReaderAt, size uint64,
	access provider.Access) (provider.MR, error) {
	return p.region(p.PD.RegObject(object, size, access))
}

func (p *nearPD) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	q, err := p.PD.CreateQP(plainInit(init))
	return nearQPOf(p.c, q, err)
}

// nearMR hands PDs on as the provider knows them.
type nearMR struct {
	provider.MR
	pd *nearPD
}

func (m *nearMR) Rereg(change provider.ReregFlags, pd provider.PD, buf []byte,
	access provider.Access) (provider.MR, error) {
	return m.pd.region(m.MR.Rereg(change, plainPD(pd), buf, access))
}

type nearQP struct {
	provider.QP
	c *Session
}

func nearQPOf(c *Session, q provider.QP, err error) (provider.QP, error) {
	if err != nil {
		return nil, err
	}
	return &nearQP{q, c}, nil
}

func (q *nearQP) PostSend(wrs []provider.SendWR) (int, error) {
	if err := q.c.push(); err != nil {
		return 0, err
	}
	return q.QP.PostSend(wrs)
}

// HoldEnd implements provider.EndHolder. A QP that is none has no limit that could be held.
func (q *nearQP) HoldEnd() (release func()) {
	if h, ok := q.QP.(provider.EndHolder); ok {
		return h.HoldEnd()
	}
	return func() {}
}

// ReadsUnderWay implements provider.ReadCounter. For a QP that is none, nobody has to wait.
func (q *nearQP) ReadsUnderWay() int {
	if r, ok := q.QP.(provider.ReadCounter); ok {
		return r.ReadsUnderWay()
	}
	return 0
}

// Stats implements provider.QPStater.
func (q *nearQP) Stats() (provider.QPStats, error) {
	if s, ok := q.QP.(provider.QPStater); ok {
		return s.Stats()
	}
	return provider.QPStats{}, &provider.UnsupportedError{Feature: "counters of a QP",
		Reason: "the provider has none"}
}

type nearChannel struct {
	provider.EventChannel
	c *Session
}

func (ch *nearChannel) CreateID(cookie any) (provider.ID, error) {
	id, err := ch.EventChannel.CreateID(cookie)
	if err != nil {
		return nil, err
	}
	return &nearID{id, ch.c}, nil
}

// Next has an event's ids be of this kind. Others than the new one of a CONNECT_REQUEST are
// equal to those that were handed out only by their cookies, which is what they are known by.
func (ch *nearChannel) Next(ctx context.Context) (provider.CMEvent, error) {
	e, err := ch.EventChannel.Next(ctx)
	if err != nil {
		return e, err
	}
	ch.c.pull()
	if e.ID != nil {
		e.ID = &nearID{e.ID, ch.c}
	}
	return e, nil
}

type nearID struct {
	provider.ID
	c *Session
}

func (id *nearID) CreateQP(pd provider.PD, init provider.QPInitAttr) (provider.QP, error) {
	q, err := id.ID.CreateQP(plainPD(pd), plainInit(init))
	return nearQPOf(id.c, q, err)
}

func (id *nearID) Connect(param provider.ConnParam) error {
	return id.ID.Connect(plainParam(param))
}

func (id *nearID) Accept(param provider.ConnParam) error {
	return id.ID.Accept(plainParam(param))
}

func plainParam(param provider.ConnParam) provider.ConnParam {
	if q, ok := param.QP.(*nearQP); ok {
		param.QP = q.QP
	}
	return param
}

func (id *nearID) Migrate(to provider.EventChannel) error {
	if ch, ok := to.(*nearChannel); ok {
		to = ch.EventChannel
	}
	return id.ID.Migrate(to)
}

// ListenerStats implements provider.ListenerStater.
func (id *nearID) ListenerStats() (provider.ListenerStats, error) {
	if s, ok := id.ID.(provider.ListenerStater); ok {
		return s.ListenerStats()
	}
	return provider.ListenerStats{}, &provider.UnsupportedError{Feature: "counters of a listener",
		Reason: "the provider has none"}
}
