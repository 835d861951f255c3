package mutants

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/provider"
)

// verbsFault changes what goes through the calls of the verbs. Each may be nil.
type verbsFault struct {
	regMR    func(buf []byte, access provider.Access) ([]byte, provider.Access)
	closeMR  func(provider.MR) error
	onePD    bool // every PD is the same
	poll     func(q *brokenCQ, wc []provider.WC) int
	notify   func(solicitedOnly bool) bool
	postSend func(wrs []provider.SendWR)
	posted   func(n, all int, err error) (int, error)
	event    func(e *provider.CMEvent) (deliver bool)
}

// brokenProvider is a provider with a fault.
type brokenProvider struct {
	provider.Provider
	fault *verbsFault
}

// Open implements provider.Provider.
func (p *brokenProvider) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	if err != nil {
		return nil, err
	}
	return &brokenDevice{Device: d, fault: p.fault}, nil
}

type brokenDevice struct {
	provider.Device
	fault *verbsFault

	mu  sync.Mutex
	pd  provider.PD // with onePD
	pds int
	ids map[provider.ID]*brokenID
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
	d.pd, d.pds = pd, d.pds+1
	return &brokenPD{PD: pd, dev: d}, nil
}

// CreateCQ implements provider.Device.
func (d *brokenDevice) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	cq, err := d.Device.CreateCQ(init)
	if err != nil {
		return nil, err
	}
	return &brokenCQ{CQ: cq, fault: d.fault}, nil
}

// CreateEventChannel implements provider.Device.
func (d *brokenDevice) CreateEventChannel() (provider.EventChannel, error) {
	ch, err := d.Device.CreateEventChannel()
	if err != nil {
		return nil, err
	}
	return &brokenEvents{EventChannel: ch, dev: d}, nil
}

type brokenPD struct {
	provider.PD
	dev    *brokenDevice
	closed bool
}

// Close implements provider.PD.
func (p *brokenPD) Close() error {
	p.dev.mu.Lock()
	defer p.dev.mu.Unlock()
	if !p.dev.fault.onePD {
		return p.PD.Close()
	}
	if p.closed {
		return nil
	}
	if p.dev.pds == 1 {
		if err := p.PD.Close(); err != nil {
			return err
		}
		p.dev.pd = nil
	}
	p.closed = true
	p.dev.pds--
	return nil
}

// RegMR implements provider.PD.
func (p *brokenPD) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	if f := p.dev.fault.regMR; f != nil {
		buf, access = f(buf, access)
	}
	mr, err := p.PD.RegMR(buf, access)
	if err != nil {
		return nil, err
	}
	return &brokenMR{mr, p.dev.fault}, nil
}

// CreateQP implements provider.PD.
func (p *brokenPD) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	qp, err := p.PD.CreateQP(own(init))
	if err != nil {
		return nil, err
	}
	return &brokenQP{qp, p.dev.fault}, nil
}

// own puts the engine's own CQs where the brokenCQs are.
func own(init provider.QPInitAttr) provider.QPInitAttr {
	for _, cq := range []*provider.CQ{&init.SendCQ, &init.RecvCQ} {
		if b, ok := (*cq).(*brokenCQ); ok {
			*cq = b.CQ
		}
	}
	return init
}

type brokenMR struct {
	provider.MR
	fault *verbsFault
}

// Close implements provider.MR.
func (m *brokenMR) Close() error {
	if f := m.fault.closeMR; f != nil {
		return f(m.MR)
	}
	return m.MR.Close()
}

type brokenCQ struct {
	provider.CQ
	fault *verbsFault
	seen  int
}

// Poll implements provider.CQ.
func (q *brokenCQ) Poll(wc []provider.WC) (int, error) {
	n, err := q.CQ.Poll(wc)
	if f := q.fault.poll; f != nil && n > 0 {
		n = f(q, wc[:n])
	}
	return n, err
}

// ReqNotify implements provider.CQ.
func (q *brokenCQ) ReqNotify(solicitedOnly bool) error {
	if f := q.fault.notify; f != nil {
		solicitedOnly = f(solicitedOnly)
	}
	return q.CQ.ReqNotify(solicitedOnly)
}

type brokenQP struct {
	provider.QP
	fault *verbsFault
}

// PostSend implements provider.QP.
func (q *brokenQP) PostSend(wrs []provider.SendWR) (int, error) {
	if f := q.fault.postSend; f != nil {
		f(wrs)
	}
	n, err := q.QP.PostSend(wrs)
	if f := q.fault.posted; f != nil {
		return f(n, len(wrs), err)
	}
	return n, err
}

type brokenEvents struct {
	provider.EventChannel
	dev *brokenDevice
}

// CreateID implements provider.EventChannel.
func (c *brokenEvents) CreateID(cookie any) (provider.ID, error) {
	id, err := c.EventChannel.CreateID(cookie)
	if err != nil {
		return nil, err
	}
	return c.dev.broken(id), nil
}

// broken returns the one brokenID of an id.
func (d *brokenDevice) broken(id provider.ID) provider.ID {
	if id == nil {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.ids == nil {
		d.ids = make(map[provider.ID]*brokenID)
	}
	b := d.ids[id]
	if b == nil {
		b = &brokenID{ID: id, dev: d}
		d.ids[id] = b
	}
	return b
}

// Next implements provider.EventChannel.
func (c *brokenEvents) Next(ctx context.Context) (provider.CMEvent, error) {
	for {
		e, err := c.EventChannel.Next(ctx)
		if err != nil {
			return e, err
		}
		e.ID, e.ListenID = c.dev.broken(e.ID), c.dev.broken(e.ListenID)
		if f := c.dev.fault.event; f == nil || f(&e) {
			return e, nil
		}
	}
}

type brokenID struct {
	provider.ID
	dev *brokenDevice
}

// CreateQP implements provider.ID.
func (i *brokenID) CreateQP(pd provider.PD, init provider.QPInitAttr) (provider.QP, error) {
	if b, ok := pd.(*brokenPD); ok {
		pd = b.PD
	}
	qp, err := i.ID.CreateQP(pd, own(init))
	if err != nil {
		return nil, err
	}
	return &brokenQP{qp, i.dev.fault}, nil
}

// Migrate implements provider.ID.
func (i *brokenID) Migrate(ch provider.EventChannel) error {
	if b, ok := ch.(*brokenEvents); ok {
		ch = b.EventChannel
	}
	return i.ID.Migrate(ch)
}

func verbsMutants() []*Mutant {
	success := func(from provider.WCStatus) func(*brokenCQ, []provider.WC) int {
		return func(_ *brokenCQ, wc []provider.WC) int {
			for k := range wc {
				if wc[k].Status == from {
					wc[k].Status = provider.WCSuccess
				}
			}
			return len(wc)
		}
	}
	return []*Mutant{
		{
			Name: "rights-ignored", What: "gives every region all rights", CaughtBy: "protection/write-no-right",
			verbs: &verbsFault{regMR: func(buf []byte, a provider.Access) ([]byte, provider.Access) {
				return buf, a | provider.AccessLocalWrite | provider.AccessRemoteRead | provider.AccessRemoteWrite
			}},
		},
		{
			Name: "bounds-loose", What: "lets regions end 64 octets too late", CaughtBy: "protection/write-beyond-end",
			verbs: &verbsFault{regMR: func(buf []byte, a provider.Access) ([]byte, provider.Access) {
				// The suite's buffers have a page of canaries behind them.
				return unsafe.Slice(unsafe.SliceData(buf), len(buf)+64), a
			}},
		},
		{
			Name: "pd-ignored", What: "has one protection domain for all", CaughtBy: "protection/write-other-pd",
			verbs: &verbsFault{onePD: true},
		},
		{
			Name: "deregistration-ignored", What: "keeps regions that were deregistered", CaughtBy: "protection/write-closed-region",
			verbs: &verbsFault{closeMR: func(provider.MR) error { return nil }},
		},
		{
			Name: "completion-lost", What: "loses a completion in fifty", CaughtBy: "order/many-sends",
			verbs: &verbsFault{poll: func(q *brokenCQ, wc []provider.WC) int {
				kept := 0
				for _, c := range wc {
					if q.seen++; q.seen%50 != 0 {
						wc[kept] = c
						kept++
					}
				}
				return kept
			}},
		},
		{
			Name: "completions-reversed", What: "reports completions that are there together in reverse", CaughtBy: "queue/flush-in-order",
			verbs: &verbsFault{poll: func(_ *brokenCQ, wc []provider.WC) int {
				for a, b := 0, len(wc)-1; a < b; a, b = a+1, b-1 {
					wc[a], wc[b] = wc[b], wc[a]
				}
				return len(wc)
			}},
		},
		{
			Name: "length-wrong", What: "reports one octet too many", CaughtBy: "send/one-octet",
			verbs: &verbsFault{poll: func(_ *brokenCQ, wc []provider.WC) int {
				for k := range wc {
					wc[k].ByteLen++
				}
				return len(wc)
			}},
		},
		{
			Name: "flush-succeeds", What: "reports flushed work as done", CaughtBy: "conn/disconnect-initiator",
			verbs: &verbsFault{poll: success(provider.WCWRFlushErr)},
		},
		{
			Name: "local-error-hidden", What: "reports work with a bad key as done", CaughtBy: "protection/local-bad-key",
			verbs: &verbsFault{poll: success(provider.WCLocProtErr)},
		},
		{
			Name: "solicited-arms-all", What: "gives an event for every completion when armed for solicited ones", CaughtBy: "send/solicited",
			verbs: &verbsFault{notify: func(bool) bool { return false }},
		},
		{
			Name: "fence-ignored", What: "does not wait for Reads before a fenced Send", CaughtBy: "order/fence",
			verbs: &verbsFault{postSend: func(wrs []provider.SendWR) {
				for k := range wrs {
					wrs[k].Flags &^= provider.SendFence
				}
			}},
		},
		{
			Name: "full-queue-hidden", What: "says that work was posted which a full queue refused", CaughtBy: "queue/send-queue-full",
			verbs: &verbsFault{posted: func(n, all int, err error) (int, error) {
				if errors.Is(err, syscall.ENOMEM) {
					return all, nil
				}
				return n, err
			}},
		},
		{
			Name: "end-untold", What: "does not tell that a connection has ended", CaughtBy: "send/one-octet",
			verbs: &verbsFault{event: func(e *provider.CMEvent) bool { return e.Type != provider.CMDisconnected }},
		},
		{
			Name: "private-data-lost", What: "does not hand private data on", CaughtBy: "conn/private-data-1",
			verbs: &verbsFault{event: func(e *provider.CMEvent) bool {
				e.Param.PrivateData = nil
				return true
			}},
		},
		{
			Name: "rejection-mistold", What: "tells a rejection as a host that can't be reached", CaughtBy: "conn/reject",
			verbs: &verbsFault{event: func(e *provider.CMEvent) bool {
				if e.Type == provider.CMRejected {
					e.Type = provider.CMUnreachable
				}
				return true
			}},
		},
	}
}
