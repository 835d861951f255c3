package remote

import (
	"context"
	"io"

	"github.com/govs-rdma/govs/provider"
)

// Beside wraps near, a provider of this host, so that a program sees the memory of the session's
// devices in order with near's operations. It calls Push before each post to a send queue, so an
// RDMA Read that is posted here finds the program's latest bytes at the agent. It calls Pull before
// it returns completions and CM events, so the bytes that caused them at the agent are in the
// program's memory. Everything else is passed to near. Beside(nil) returns nil.
func (c *Session) Beside(near provider.Provider) provider.Provider {
	if near == nil {
		return nil
	}
	return &nearProvider{near, c}
}

// push does Device.Push for all devices. It sends no request if nothing has changed since the last
// changes that the agent has acknowledged. Another call's changes may still be on their way; the
// agent has them when it answers a later request.
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

// pull does Device.Pull for all devices. It returns no error, because Session.Err reports a lost
// agent.
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

// plainInit replaces the CQs of a QP by the provider's own.
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

// plainPD returns the provider's own PD for a wrapped one.
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

// nearMR unwraps PDs before it passes them to the provider.
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

// HoldEnd implements provider.EndHolder. It does nothing if the QP has no such limit.
func (q *nearQP) HoldEnd() (release func()) {
	if h, ok := q.QP.(provider.EndHolder); ok {
		return h.HoldEnd()
	}
	return func() {}
}

// ReadsUnderWay implements provider.ReadCounter. It returns 0 for a QP without that method, because
// nobody has to wait for its Reads.
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

// Next wraps an event's ids. Except for the new id of a CONNECT_REQUEST, the program recognises
// them only by their cookies, because each event wraps them again.
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
