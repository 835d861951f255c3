package replay

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// program uses the provider as the capture's program did.
type program struct {
	listener *rdmacm.Listener
	conn     *rdmacm.Conn
	result   chan error    // of Dial or Accept
	prepared chan struct{} // regions and receives are there
	ready    sync.Once
	over     chan struct{} // the call has returned
	opened   []io.Closer   // by prepare

	memory map[*region]*ibverbs.MR
	out    *ibverbs.MR   // where Sends and Writes come from, one after another
	in     []*ibverbs.MR // one for each receive

	polled []ibverbs.WC // completions of send work that poll has taken

	posted int // send work
	sent   int // octets of out
}

func (p *program) listen(s *session, at netip.AddrPort) (netip.AddrPort, error) {
	l, err := rdmacm.Listen(s.ctx, s.ep.Context, at, nil)
	if err != nil {
		return at, fmt.Errorf("the provider can't listen: %w", err)
	}
	p.listener = l
	return l.Addr(), nil
}

// connect dials the peer, or accepts its connection, in the background.
func (p *program) connect(s *session, peer netip.AddrPort) {
	p.result, p.prepared = make(chan error, 1), make(chan struct{})
	p.memory = make(map[*region]*ibverbs.MR)
	cfg := p.config(s)
	p.over = make(chan struct{})
	go func() {
		defer close(p.over)
		var err error
		if s.peers == wire.ToInitiator {
			_, err = rdmacm.Dial(s.ctx, s.ep.Context, peer, cfg)
		} else {
			var req *rdmacm.Request
			if req, err = p.listener.Accept(s.ctx); err == nil {
				_, err = req.Accept(s.ctx, cfg)
			}
		}
		p.result <- err
	}()
}

// again closes what was prepared for another connection, because Dial makes a new one if it has
// to try another local port.
func (p *program) again(c *rdmacm.Conn) {
	for _, o := range slices.Backward(p.opened) {
		_ = o.Close()
	}
	if p.conn != nil && p.conn != c {
		_ = p.conn.Close()
	}
	p.conn, p.opened, p.in = c, nil, nil
}

// close closes what the program has opened. The connection comes last, because its PD has the
// memory.
func (p *program) close() {
	if p.over != nil {
		<-p.over
	}
	p.again(nil)
	if p.listener != nil {
		_ = p.listener.Close()
	}
}

// config is how the capture's side connected.
func (p *program) config(s *session) *rdmacm.ConnConfig {
	own := s.conn.Reply
	if s.peers == wire.ToInitiator {
		own = s.conn.Request
	}
	cfg := &rdmacm.ConnConfig{NoOpeningWrite: true, PrivateData: own.PrivateData}
	if e, rest, err := own.SplitPrivateData(); err == nil && own.UsesEnhanced() {
		cfg.PrivateData = rest
		cfg.ResponderResources, cfg.InitiatorDepth = depth(e.IRD), depth(e.ORD)
	}
	cfg.Cap = ibverbs.QPCap{MaxSendWR: max(s.posts, 1), MaxRecvWR: max(len(s.receives), 1),
		MaxSendSGE: 1, MaxRecvSGE: 1}
	cfg.Prepare = func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
		p.again(c)
		err := p.prepare(s, c)
		if err == nil {
			p.ready.Do(func() { close(p.prepared) })
		}
		return err
	}
	return cfg
}

// depth is an IRD or ORD as ConnConfig takes it.
func depth(n uint16) int {
	if n == 0 || n == mpa.NotNegotiated {
		return -1
	}
	return int(n)
}

// register registers memory at an address.
func (p *program) register(pd *ibverbs.PD, buf []byte, at uint64,
	right ibverbs.Access) (*ibverbs.MR, error) {
	mr, err := pd.RegMRIova(buf, at, right)
	if err != nil {
		return nil, err
	}
	p.opened = append(p.opened, mr)
	return mr, nil
}

// prepare registers the memory and posts the receives.
func (p *program) prepare(s *session, c *rdmacm.Conn) error {
	for _, r := range s.regions {
		pd := c.PD()
		if r.other {
			var err error
			if pd, err = s.ep.Context.AllocPD(); err != nil {
				return err
			}
			p.opened = append(p.opened, pd)
		}
		mr, err := p.register(pd, r.first, r.from, r.access)
		if err != nil {
			return fmt.Errorf("the region of STag %#08x: %w", r.stag, err)
		}
		p.memory[r], s.tags[r.stag] = mr, mr.RKey()
	}
	out, err := p.register(c.PD(), make([]byte, max(s.payload, 1)), 0, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	p.out = out
	for i, r := range s.receives {
		mr, err := p.register(c.PD(), make([]byte, max(len(r.octets), 1)), 0,
			ibverbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		p.in = append(p.in, mr)
		sge := ibverbs.SGE{Addr: 0, Length: uint32(len(r.octets)), LKey: mr.LKey()}
		wr := ibverbs.RecvWR{WRID: uint64(i), SGList: []ibverbs.SGE{sge}}
		if err := c.QP().PostRecv(wr); err != nil {
			return err
		}
	}
	return nil
}

// poll takes completions of send work until there are none.
func (p *program) poll() error {
	var wcs [16]ibverbs.WC
	for {
		n, err := p.conn.SendCQ().Poll(wcs[:])
		if err != nil || n == 0 {
			return err
		}
		p.polled = append(p.polled, wcs[:n]...)
	}
}

// post posts what made a message of the capture.
func (p *program) post(s *session, m *message) error {
	wr := ibverbs.SendWR{WRID: uint64(p.posted), Flags: ibverbs.SendSignaled}
	switch op := m.opcode(); {
	case op == rdmap.OpReadRequest:
		r := m.first.Read
		wr.Opcode, wr.RemoteAddr, wr.RKey = ibverbs.WRRDMARead, r.SourceTO, r.SourceSTag
		if sink := s.find(r.SinkSTag); sink != nil {
			wr.SGList = []ibverbs.SGE{{Addr: r.SinkTO, Length: r.Size, LKey: p.memory[sink].LKey()}}
		}
	case op == rdmap.OpWrite:
		wr.Opcode, wr.RemoteAddr, wr.RKey = ibverbs.WRRDMAWrite, m.first.Header.TO, m.first.Header.STag
	case op.IsSend():
		wr.Opcode = ibverbs.WRSend
		if op.Invalidates() {
			wr.Opcode, wr.InvalidateRKey = ibverbs.WRSendWithInv, m.first.Header.ULP32
		}
		if op.Solicited() {
			wr.Flags |= ibverbs.SendSolicited
		}
	default:
		return nil // the provider sends it without a work request
	}
	if wr.Opcode != ibverbs.WRRDMARead {
		copy(p.out.Bytes()[p.sent:], m.octets)
		sge := ibverbs.SGE{Addr: uint64(p.sent), Length: uint32(len(m.octets)), LKey: p.out.LKey()}
		wr.SGList = []ibverbs.SGE{sge}
		p.sent += len(m.octets)
	}
	p.posted++
	return p.conn.QP().PostSend(wr)
}
