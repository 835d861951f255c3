// Package fake is a provider for tests of packages ibverbs and rdmacm alone. It does what a test
// sets, completes posted work, and records each call. It does not enforce the provider contract's
// rules about closing, so that a test sees whether the packages do.
package fake

import (
	"context"
	"io"
	"os"
	"slices"
	"sync"

	"github.com/govs-rdma/govs/provider"
)

// Provider is the fake, and the state of everything that is made from it.
type Provider struct {
	DeviceName string

	mu    sync.Mutex
	calls []string
	fail  map[string]error

	// PostSend, if not nil, is called instead of completing work at once.
	PostSend func(qp *QP, wrs []provider.SendWR) (int, error)

	// OnCM is called within each call of a CM id.
	OnCM func(id *ID, call string)

	// BoundTo, if not empty, is the device that ids are bound to.
	BoundTo string

	// Transport is the device's transport; unknown if it is not set.
	Transport provider.TransportType

	// Cause is the cause of each connection's end (QP.Cause). New sets io.EOF: the peer has closed
	// it.
	Cause error

	Async chan provider.AsyncEvent
}

// New makes a fake with one device.
func New() *Provider {
	return &Provider{
		DeviceName: "fake0", fail: make(map[string]error), Cause: io.EOF,
		Async: make(chan provider.AsyncEvent, 8),
	}
}

// Fail makes call fail with err, or succeed again if err is nil.
func (p *Provider) Fail(call string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fail[call] = err
}

// Calls returns the calls so far, and clears the record.
func (p *Provider) Calls() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	calls := p.calls
	p.calls = nil
	return calls
}

// Count returns how often call is among the calls so far.
func (p *Provider) Count(call string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for _, c := range p.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (p *Provider) called(call string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.calls = append(p.calls, call)
	return p.failureOf(call)
}

// failure is called for calls of the data path, which are not recorded.
func (p *Provider) failure(call string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.failureOf(call)
}

func (p *Provider) failureOf(call string) error {
	if err := p.fail[call]; err != nil {
		return &provider.Error{Op: call, Err: err}
	}
	return nil
}

// Name implements provider.Provider.
func (p *Provider) Name() string { return "fake" }

// Devices implements provider.Provider.
func (p *Provider) Devices() ([]provider.DeviceInfo, error) {
	return []provider.DeviceInfo{{Name: p.DeviceName, Provider: "fake"}}, p.called("devices")
}

// Open implements provider.Provider.
func (p *Provider) Open(string) (provider.Device, error) {
	return &device{p: p}, p.called("open")
}

type device struct{ p *Provider }

func (d *device) Name() string                      { return d.p.DeviceName }
func (d *device) Transport() provider.TransportType { return d.p.Transport }
func (d *device) Query() (provider.DeviceAttr, error) {
	return provider.DeviceAttr{MaxQPWR: 4096, MaxQPRdAtom: 8, MaxQPInitRdAtom: 4}, d.p.called("query")
}

func (d *device) QueryPort(uint8) (provider.PortAttr, error) {
	return provider.PortAttr{State: provider.PortActive}, d.p.called("query port")
}

func (d *device) QueryGID(uint8, int) (provider.GID, error) {
	return provider.GID{1}, d.p.called("query gid")
}

func (d *device) QueryGIDTable() ([]provider.GIDEntry, error) {
	return []provider.GIDEntry{{GID: provider.GID{1}, Port: 1}}, d.p.called("query gid table")
}

func (d *device) QueryPkey(uint8, int) (uint16, error) { return 0xffff, d.p.called("query pkey") }

func (d *device) AllocPD() (provider.PD, error) { return &pd{d.p}, d.p.called("alloc pd") }

func (d *device) CreateCompChannel() (provider.CompChannel, error) {
	return &compChannel{p: d.p, events: make(chan *CQ, 64), closed: make(chan struct{})}, d.p.called("create comp channel")
}

func (d *device) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	cq := &CQ{p: d.p, init: init}
	if init.Channel != nil {
		cq.ch = init.Channel.(*compChannel)
	}
	return cq, d.p.called("create cq")
}

func (d *device) CreateEventChannel() (provider.EventChannel, error) {
	return &eventChannel{p: d.p, events: make(chan provider.CMEvent, 64), closed: make(chan struct{})}, d.p.called("create event channel")
}

func (d *device) AsyncEvent(ctx context.Context) (provider.AsyncEvent, error) {
	select {
	case e := <-d.p.Async:
		return e, nil
	case <-ctx.Done():
		return provider.AsyncEvent{}, ctx.Err()
	}
}

func (d *device) Close() error { return d.p.called("close device") }

type pd struct{ p *Provider }

func (x *pd) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	return &mr{p: x.p, n: uint64(len(buf)), access: access}, x.p.called("reg mr")
}

func (x *pd) RegMRIova(buf []byte, _ uint64, access provider.Access) (provider.MR, error) {
	return &mr{p: x.p, n: uint64(len(buf)), access: access}, x.p.called("reg mr iova")
}

func (x *pd) RegObject(_ io.ReaderAt, size uint64, access provider.Access) (provider.MR, error) {
	return &mr{p: x.p, n: size, access: access}, x.p.called("reg object")
}

func (x *pd) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	return &QP{p: x.p, Init: init}, x.p.called("create qp")
}

func (x *pd) CreateSRQ(init provider.SRQInitAttr) (provider.SRQ, error) {
	return &SRQ{p: x.p, Init: init}, x.p.called("create srq")
}

func (x *pd) AllocMW(t provider.MWType) (provider.MW, error) {
	return &mw{p: x.p, t: t, rkey: RKey}, x.p.called("alloc mw")
}

func (x *pd) AllocFastRegMR(uint64) (provider.FastRegMR, error) {
	return &mr{p: x.p}, x.p.called("alloc fast reg mr")
}

func (x *pd) Close() error { return x.p.called("close pd") }

type mw struct {
	p    *Provider
	t    provider.MWType
	rkey uint32
}

func (w *mw) Type() provider.MWType { return w.t }
func (w *mw) RKey() uint32          { return w.rkey }
func (w *mw) Close() error          { return w.p.called("close mw") }

// SRQ is the fake's SRQ.
type SRQ struct {
	p    *Provider
	Init provider.SRQInitAttr
}

// PostRecv implements provider.SRQ.
func (s *SRQ) PostRecv(wrs []provider.RecvWR) (int, error) {
	if err := s.p.called("post srq recv"); err != nil {
		return 0, err
	}
	return len(wrs), nil
}

// Modify implements provider.SRQ.
func (s *SRQ) Modify(attr provider.SRQAttr, _ provider.SRQAttrMask) error {
	s.Init.Attr.Limit = attr.Limit
	return s.p.called("modify srq")
}

// Query implements provider.SRQ. It grants one more of everything.
func (s *SRQ) Query() (provider.SRQAttr, error) {
	a := s.Init.Attr
	a.MaxWR++
	a.MaxSGE++
	return a, s.p.called("query srq")
}

// Cookie implements provider.SRQ.
func (s *SRQ) Cookie() any { return s.Init.Cookie }

// Close implements provider.SRQ.
func (s *SRQ) Close() error { return s.p.called("close srq") }

type mr struct {
	p      *Provider
	n      uint64
	access provider.Access
}

// The address and keys of every region of the fake.
const (
	Addr = 0x10000
	LKey = 0x1200
	RKey = 0x3400
)

func (m *mr) Addr() uint64            { return Addr }
func (m *mr) Len() uint64             { return m.n }
func (m *mr) LKey() uint32            { return LKey }
func (m *mr) RKey() uint32            { return RKey }
func (m *mr) Access() provider.Access { return m.access }
func (m *mr) Close() error            { return m.p.called("close mr") }

func (m *mr) Rereg(_ provider.ReregFlags, _ provider.PD, buf []byte, access provider.Access) (provider.MR, error) {
	return &mr{p: m.p, n: uint64(len(buf)), access: access}, m.p.called("rereg mr")
}

func (m *mr) Map(buf []byte) error {
	m.n = uint64(len(buf))
	return m.p.called("map mr")
}

// QP is the fake's QP. Its number is always 7.
type QP struct {
	p    *Provider
	Init provider.QPInitAttr
}

// QPN is the number of all QPs.
const QPN = 7

// PostSend implements provider.QP. Signalled work completes at once.
func (q *QP) PostSend(wrs []provider.SendWR) (int, error) {
	if f := q.p.PostSend; f != nil {
		return f(q, wrs)
	}
	for i := range wrs {
		if wrs[i].Flags&provider.SendSignaled != 0 || q.Init.SQSigAll {
			q.Init.SendCQ.(*CQ).Complete(provider.WC{WRID: wrs[i].WRID, QPN: QPN})
		}
	}
	return len(wrs), nil
}

// BindMW implements provider.QP.
func (q *QP) BindMW(w provider.MW, _ uint64, _ provider.SendFlags, _ provider.MWBindInfo) error {
	w.(*mw).rkey++
	return q.p.called("bind mw")
}

// PostRecv implements provider.QP.
func (q *QP) PostRecv(wrs []provider.RecvWR) (int, error) { return len(wrs), nil }

// QPN implements provider.QP.
func (q *QP) QPN() uint32 { return QPN }

// Modify implements provider.QP.
func (q *QP) Modify(provider.QPAttr, provider.QPAttrMask) error { return q.p.called("modify qp") }

// Query implements provider.QP. It grants one more of everything.
func (q *QP) Query() (provider.QPAttr, provider.QPInitAttr, error) {
	init := q.Init
	init.Cap.MaxSendWR++
	init.Type = provider.QPTypeRC
	return provider.QPAttr{State: provider.QPRTS}, init, q.p.called("query qp")
}

// Cause implements provider.QP.
func (q *QP) Cause() error { return q.p.Cause }

// Cookie implements provider.QP.
func (q *QP) Cookie() any { return q.Init.Cookie }

// Close implements provider.QP.
func (q *QP) Close() error { return q.p.called("close qp") }

// CQ is the fake's CQ.
type CQ struct {
	p    *Provider
	init provider.CQInitAttr
	ch   *compChannel

	mu     sync.Mutex
	wcs    []provider.WC
	polled int // of wcs
	armed  bool
	closed bool
}

// Complete puts a completion into the CQ and fires it if armed.
func (c *CQ) Complete(wc provider.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wcs = append(c.wcs, wc)
	if c.armed && c.ch != nil {
		c.armed = false
		c.ch.events <- c
	}
}

// Poll implements provider.CQ. It doesn't allocate.
func (c *CQ) Poll(wc []provider.WC) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return 0, &provider.Error{Op: "ibv_poll_cq", Err: os.ErrClosed}
	}
	if err := c.p.failure("poll cq"); err != nil {
		return 0, err
	}
	n := copy(wc, c.wcs[c.polled:])
	if c.polled += n; 2*c.polled >= len(c.wcs) {
		c.wcs, c.polled = slices.Delete(c.wcs, 0, c.polled), 0
	}
	return n, nil
}

// ReqNotify implements provider.CQ.
func (c *CQ) ReqNotify(bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
	return c.p.failure("req notify")
}

// CQE implements provider.CQ.
func (c *CQ) CQE() int { return c.init.CQE }

// Resize implements provider.CQ.
func (c *CQ) Resize(cqe int) error {
	c.init.CQE = cqe
	return c.p.called("resize cq")
}

// Cookie implements provider.CQ.
func (c *CQ) Cookie() any { return c.init.Cookie }

// Close implements provider.CQ.
func (c *CQ) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	return c.p.called("close cq")
}

type compChannel struct {
	p      *Provider
	events chan *CQ
	once   sync.Once
	closed chan struct{}
}

func (c *compChannel) Next(ctx context.Context) (provider.CQ, error) {
	select {
	case cq := <-c.events:
		return cq, nil
	case <-c.closed:
		return nil, &provider.Error{Op: "ibv_get_cq_event", Err: os.ErrClosed}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (c *compChannel) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.p.called("close comp channel")
}
