package engine

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

var e2eSeed = flag.Uint64("e2e.seed", 0, "seed of the simulated network and of random work requests; 0 draws one for each test")

// An e2eWire is a way to connect two devices for the end-to-end tests.
type e2eWire struct {
	name    string
	real    bool // TCP, in real time; otherwise memnet in a bubble of synctest
	net     memnet.Options
	noCRC   bool
	markers bool // in both directions
	rdmac   bool // of the RDMA Consortium's version, which has markers and CRC
	rtr     bool // the responder may send only after the initiator's RTR indication
}

// e2eWires are what every kind of operation is tried on: the ways in which the data
// path differs.
var e2eWires = []e2eWire{
	{name: "memory"},
	{name: "memory, cut and delayed", net: memnet.Options{Cut: true, MinDelay: time.Microsecond, MaxDelay: time.Millisecond}, rtr: true},
	{name: "memory, no CRC", noCRC: true, net: memnet.Options{MSS: 9000}},
	{name: "memory, no CRC, cut", noCRC: true, net: memnet.Options{MSS: 60000, Cut: true}},
	{name: "memory, long FPDUs", net: memnet.Options{MSS: 60000}},
	{name: "memory, long FPDUs, cut", net: memnet.Options{MSS: 60000, Cut: true}},
	{name: "memory, markers", markers: true, rtr: true},
	{name: "memory, markers, cut", markers: true, net: memnet.Options{Cut: true, MSS: 512}},
	{name: "memory, markers, no CRC", markers: true, noCRC: true},
	{name: "memory, RDMAC", markers: true, rdmac: true},
	{name: "memory, RDMAC, cut", markers: true, rdmac: true, net: memnet.Options{Cut: true}},
	{name: "TCP", real: true},
	{name: "TCP, no CRC", real: true, noCRC: true, rtr: true},
	{name: "TCP, markers", real: true, markers: true},
	{name: "TCP, RDMAC", real: true, markers: true, rdmac: true},
}

// onWires runs f on each of the wires that use picks (nil: all).
func onWires(t *testing.T, use func(w e2eWire) bool, f func(t *testing.T, w e2eWire)) {
	for _, w := range e2eWires {
		if use == nil || use(w) {
			t.Run(w.name, func(t *testing.T) { w.run(t, f) })
		}
	}
}

// plain picks a plain wire of each kind.
func plain(w e2eWire) bool { return w.name == "memory" || w.name == "TCP" }

// long picks those whose FPDUs may have nearly 64 KiB.
func long(w e2eWire) bool { return w.net.MSS == 60000 }

// simulated picks those that run in a bubble.
func simulated(w e2eWire) bool { return !w.real }

func (w e2eWire) run(t *testing.T, f func(t *testing.T, w e2eWire)) {
	w.net.Seed = *e2eSeed
	if w.net.Seed == 0 {
		w.net.Seed = rand.Uint64()
	}
	t.Logf("repeat with -e2e.seed=%#x", w.net.Seed)
	if w.real {
		f(t, w)
		return
	}
	synctest.Test(t, func(t *testing.T) { f(t, w) })
}

// network makes the network of one test, and says where to listen.
func (w e2eWire) network() (transport.Network, netip.AddrPort) {
	if w.real {
		return transport.NewTCP(nil), netip.MustParseAddrPort("127.0.0.1:0")
	}
	return memnet.New(&w.net), netip.MustParseAddrPort("192.0.2.1:7471")
}

// An e2eEnd is one side of a connection with what a program makes on it.
type e2eEnd struct {
	t   testing.TB
	dev *device
	pd  *pd
	ch  *compChannel
	scq *cq
	rcq *cq
	q   *qp

	down chan error // of the connection
}

// e2eSetup says how to make a pair of ends. Zero values are defaults.
type e2eSetup struct {
	cap   provider.QPCap
	cqe   int
	depth int // IRD and ORD of both
	opts  Options
	sig   bool // SQSigAll
	srq   bool // QPs take receives from an SRQ each
}

func (s *e2eSetup) complete() {
	setDefault(&s.cap, provider.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 128})
	setDefault(&s.cqe, 256)
	setDefault(&s.depth, 4)
}

// newE2EEnd opens a device on network and makes what a program makes.
func newE2EEnd(t testing.TB, w e2eWire, network transport.Network, s e2eSetup) *e2eEnd {
	t.Helper()
	s.complete()
	s.opts.Network = network
	dev := testkit.Must(New(&s.opts).Open(""))(t).(*device)
	t.Cleanup(func() { closeAll(t, "device", dev) })
	e := &e2eEnd{t: t, dev: dev}
	e.pd = testkit.Must(dev.AllocPD())(t).(*pd)
	t.Cleanup(func() { closeAll(t, "PD", e.pd) })
	e.ch = testkit.Must(dev.CreateCompChannel())(t).(*compChannel)
	t.Cleanup(func() { closeAll(t, "channel", e.ch) })
	e.scq = testkit.Must(dev.CreateCQ(provider.CQInitAttr{CQE: s.cqe, Channel: e.ch}))(t).(*cq)
	e.rcq = testkit.Must(dev.CreateCQ(provider.CQInitAttr{CQE: s.cqe, Channel: e.ch}))(t).(*cq)
	t.Cleanup(func() { closeAll(t, "CQ", e.scq, e.rcq) })
	e.q = e.newQP(s)
	return e
}

// newQP makes one more QP on the end.
func (e *e2eEnd) newQP(s e2eSetup) *qp {
	e.t.Helper()
	s.complete()
	init := provider.QPInitAttr{SendCQ: e.scq, RecvCQ: e.rcq, Cap: s.cap, SQSigAll: s.sig}
	if s.srq {
		init.SRQ = testSRQ(e.t, e.pd, s.cap.MaxRecvWR, s.cap.MaxRecvSGE)
	}
	q := testkit.Must(e.pd.CreateQP(init))(e.t).(*qp)
	e.t.Cleanup(func() { closeAll(e.t, "QP", q) })
	return q
}

func closeAll(t testing.TB, what string, objects ...io.Closer) {
	for _, o := range objects {
		if err := o.Close(); err != nil {
			t.Errorf("closing the %s: %v", what, err)
		}
	}
}

// newE2EPair makes two connected ends: a dialled b.
func newE2EPair(t testing.TB, w e2eWire, s e2eSetup) (a, b *e2eEnd) {
	t.Helper()
	s.complete()
	network, addr := w.network()
	a, b = newE2EEnd(t, w, network, s), newE2EEnd(t, w, network, s)
	a.down, b.down = make(chan error, 1), make(chan error, 1)
	e2eConnect(t, w, s, network, addr, a.q, b.q, a.down, b.down)
	return a, b
}

// e2eConnect connects two QPs as if they had agreed on what w and s say.
func e2eConnect(t testing.TB, w e2eWire, s e2eSetup, network transport.Network, addr netip.AddrPort, a, b *qp, aDown, bDown chan error) {
	t.Helper()
	ac, bc := connectTransport(t, network, addr.String())
	p := mpa.Params{Revision: 2, Enhanced: true, CRC: !w.noCRC, RDMAC: w.rdmac, MarkersRx: w.markers, MarkersTx: w.markers,
		IRD: s.depth, ORD: s.depth, PeerToPeer: w.rtr, RTR: mpa.RTRWrite}
	testkit.OK(t, a.start(ac, p, func(err error) { aDown <- err }))
	p.WaitFirstFPDU = w.rtr
	testkit.OK(t, b.start(bc, p, func(err error) { bDown <- err }))
}

// guarded is registered memory between canaries.
type guarded struct {
	*memory.Region
	all []byte
}

const canaryOctets = 64

// region registers n bytes that are 0xa5 at first; 0 are not possible, and
// become 1.
func (e *e2eEnd) region(n int, access provider.Access) *guarded {
	e.t.Helper()
	return e.register(n, access, func([]byte) {})
}

// filled is a region with n bytes that follow from seed. They are written
// before the region is there, as a peer may read it from then on.
func (e *e2eEnd) filled(n int, access provider.Access, seed uint64) *guarded {
	e.t.Helper()
	return e.register(n, access, func(b []byte) { pattern(b, int(seed)) })
}

func (e *e2eEnd) register(n int, access provider.Access, fill func([]byte)) *guarded {
	e.t.Helper()
	n = max(n, 1)
	r := &guarded{all: bytes.Repeat([]byte{0xa5}, n+2*canaryOctets)}
	inside := r.all[canaryOctets : canaryOctets+n]
	fill(inside)
	r.Region = testkit.Must(e.pd.RegMR(inside, access))(e.t).(*memory.Region)
	e.t.Cleanup(func() { closeAll(e.t, "MR", r) })
	return r
}

// untouched reports whether all bytes but those from off to off+n are as at
// first.
func (r *guarded) untouched(off, n int) bool {
	at := canaryOctets + off
	return isFresh(r.all[:at]) && isFresh(r.all[at+n:])
}

// split cuts the n bytes at off of m into k SGEs of uneven length, in order.
func split(m *memory.Region, off, n, k int) []provider.SGE {
	var sges []provider.SGE
	for ; k > 1; k-- {
		part := n / (k + 1)
		sges = append(sges, sge(m, off, part))
		off, n = off+part, n-part
	}
	return append(sges, sge(m, off, n))
}

// send posts send WRs, recv one receive. They fail the test if refused.
func (e *e2eEnd) send(wrs ...provider.SendWR) {
	e.t.Helper()
	testkit.Must(e.q.PostSend(wrs))(e.t)
}

func (e *e2eEnd) recv(id uint64, sges ...provider.SGE) {
	e.t.Helper()
	testkit.Must(e.q.PostRecv([]provider.RecvWR{{WRID: id, SGList: sges}}))(e.t)
}

// wait returns the next n completions of c, waiting for events.
func (e *e2eEnd) wait(c *cq, n int) []provider.WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	got, err := e.collect(ctx, c, n)
	if err != nil {
		e.t.Fatalf("%d of %d completions, then %v (QP %s: %v)", len(got), n, err, e.q.getState(), e.q.Cause())
	}
	return got
}

func (e *e2eEnd) collect(ctx context.Context, c *cq, n int) ([]provider.WC, error) {
	got := make([]provider.WC, n)
	have := 0
	for {
		if err := c.ReqNotify(false); err != nil {
			return got[:have], err
		}
		for {
			k, err := c.Poll(got[have:])
			if err != nil {
				return got[:have], err
			}
			have += k
			if have == n {
				return got, nil
			}
			if k == 0 {
				break
			}
		}
		if _, err := e.ch.Next(ctx); err != nil {
			return got[:have], err
		}
	}
}

// one waits for the next completion of c, which must be want.
func (e *e2eEnd) one(c *cq, want provider.WC) {
	e.t.Helper()
	want.QPN = e.q.qpn
	if got := e.wait(c, 1)[0]; got != want {
		e.t.Fatalf("completion %+v\nwant %+v", got, want)
	}
}

// none fails the test if c has a completion.
func (e *e2eEnd) none(c *cq) {
	e.t.Helper()
	var wc [1]provider.WC
	if n, _ := c.Poll(wc[:]); n != 0 {
		e.t.Fatalf("unexpected completion %+v", wc[0])
	}
}

// ended waits for the end of the connection and returns its cause.
func (e *e2eEnd) ended() error {
	e.t.Helper()
	select {
	case err := <-e.down:
		if cause := e.q.Cause(); !errors.Is(err, cause) && !errors.Is(cause, err) {
			e.t.Errorf("down with %v, QP.Cause says %v", err, cause)
		}
		testkit.Equal(e.t, "the QP's state at the end", e.q.getState(), provider.QPErr)
		return err
	case <-time.After(patience):
		e.t.Fatalf("the connection does not end (QP %s)", e.q.getState())
		return nil
	}
}

// flushed takes n completions from c, which must be flushes of ids from first on.
func (e *e2eEnd) flushed(c *cq, first uint64, n int) {
	e.t.Helper()
	for i, wc := range e.wait(c, n) {
		if wc.Status != provider.WCWRFlushErr || wc.WRID != first+uint64(i) {
			e.t.Errorf("completion %+v, want the flush of %d", wc, first+uint64(i))
		}
	}
	e.none(c)
}

// terminated checks that err is a Terminate with these codes.
func terminated(t testing.TB, err error, remote bool, layer, etype, code uint8) {
	t.Helper()
	var te *provider.TerminateError
	if !errors.As(err, &te) {
		t.Fatalf("%v, want a Terminate", err)
	}
	got := fmt.Sprintf("%d/%d/%#02x remote %v", te.Layer, te.EType, te.ECode, te.Remote)
	testkit.Equal(t, "the Terminate, "+te.Text, got,
		fmt.Sprintf("%d/%d/%#02x remote %v", layer, etype, code, remote))
}

// mulpdu is the length of the longest ULPDU that the end sends.
func (e *e2eEnd) mulpdu() int {
	s := e.q.stream.Load()
	return mpa.MULPDU(s.conn.MSS(), s.params.MarkersTx)
}

// edges are message lengths around what the wire cuts them into.
func (e *e2eEnd) edges() []int {
	m := e.mulpdu()
	return []int{0, 1, 3, m - 19, m - 18, m - 17, m - 15, m - 14, m - 13, 2 * m, 65537, 1 << 20}
}

// TestE2EAllocs: once the pooled objects have been made, nothing is allocated from post to
// completion, on either side, with receives from the QP or from an SRQ.
func TestE2EAllocs(t *testing.T) {
	onWires(t, func(w e2eWire) bool { return w.real }, func(t *testing.T, w e2eWire) {
		for _, n := range []int{0, 64, 4096, 200000} {
			for _, srq := range []bool{false, true} {
				a, b := newE2EPair(t, w, e2eSetup{srq: srq})
				postRecv := b.q.PostRecv
				if r := b.q.srq(); r != nil {
					postRecv = r.PostRecv
				}
				src := a.filled(n, provider.AccessLocalWrite, 1)
				dst := b.region(n, allRights)
				sges, into := []provider.SGE{sge(src.Region, 0, n)}, []provider.SGE{sge(dst.Region, 0, n)}
				var inline [64]byte
				wrs := []provider.SendWR{
					{Opcode: provider.WRRDMAWrite, SGList: sges, RemoteAddr: dst.Addr(), RKey: dst.RKey()},
					{Opcode: provider.WRRDMARead, SGList: sges, RemoteAddr: dst.Addr(), RKey: dst.RKey()},
					{Opcode: provider.WRRDMAWrite, Inline: inline[:min(n, 64)], Flags: provider.SendInline,
						RemoteAddr: dst.Addr(), RKey: dst.RKey()},
					{Opcode: provider.WRSend, SGList: sges, Flags: provider.SendSignaled | provider.SendFence},
				}
				recvs := []provider.RecvWR{{SGList: into}}
				round := func() {
					if _, err := postRecv(recvs); err != nil {
						t.Fatal(err)
					}
					if _, err := a.q.PostSend(wrs); err != nil {
						t.Fatal(err)
					}
					pollBoth(t, 2, a.scq, b.rcq)
				}
				wantNoAllocs(t, round)
			}
		}
	})
}

// wantNoAllocs checks that round allocates nothing once the pooled objects have been made. Under
// the race detector, which allocates, it runs round once.
func wantNoAllocs(t *testing.T, round func()) {
	t.Helper()
	if testkit.Race {
		round()
		return
	}
	for range 50 {
		round()
	}
	testkit.Equal(t, "allocations per round", testing.AllocsPerRun(200, round), 0)
}

// pollBoth polls two CQs until n completions have come: neither end gets on without the other.
func pollBoth(t *testing.T, n int, cqs ...*cq) {
	t.Helper()
	var wc [1]provider.WC
	for left := n; left > 0; {
		for _, c := range cqs {
			k, err := c.Poll(wc[:])
			if err != nil || k > 0 && wc[0].Status != provider.WCSuccess {
				t.Fatalf("%+v: %v", wc[0], err)
			}
			left -= k
		}
	}
}

// cmSide is what a program has of the connection manager.
type cmSide struct {
	*e2eEnd
	ec provider.EventChannel
}

func newCMSide(t testing.TB, network transport.Network, opts Options) *cmSide {
	t.Helper()
	s := e2eSetup{opts: opts}
	e := newE2EEnd(t, e2eWire{}, network, s)
	c := &cmSide{e2eEnd: e, ec: testkit.Must(e.dev.CreateEventChannel())(t)}
	t.Cleanup(func() { closeAll(t, "event channel", c.ec) })
	return c
}

// event returns the next event, which must be of this type.
func (c *cmSide) event(want provider.CMEventType) provider.CMEvent {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e := testkit.Must(c.ec.Next(ctx))(c.t)
	if e.Type != want || e.Status != 0 {
		c.t.Fatalf("event %s, status %d; want %s", e.Type, e.Status, want)
	}
	return e
}

func (c *cmSide) id() provider.ID {
	c.t.Helper()
	id := testkit.Must(c.ec.CreateID(nil))(c.t)
	c.t.Cleanup(func() { closeAll(c.t, "id", id) })
	return id
}

// listen listens on addr and returns where.
func (c *cmSide) listen(addr netip.AddrPort) netip.AddrPort {
	c.t.Helper()
	id := c.id()
	testkit.OK(c.t, id.BindAddr(addr))
	testkit.OK(c.t, id.Listen(64))
	return id.LocalAddr()
}

// resolve makes id ready to connect to dst.
func (c *cmSide) resolve(id provider.ID, dst netip.AddrPort) {
	c.t.Helper()
	testkit.OK(c.t, id.ResolveAddr(netip.AddrPort{}, dst, patience))
	c.event(provider.CMAddrResolved)
	testkit.OK(c.t, id.ResolveRoute(patience))
	c.event(provider.CMRouteResolved)
}

// cmConnect connects a's QP to b's, through the connection manager of both. Events report the
// version to both programs.
func cmConnect(t testing.TB, a, b *cmSide, dst netip.AddrPort, depth int) (aid, bid provider.ID) {
	t.Helper()
	aid = a.id()
	a.resolve(aid, dst)
	testkit.OK(t, aid.Connect(provider.ConnParam{QP: a.q, ResponderResources: depth,
		InitiatorDepth: depth, PrivateData: []byte("hello")}))
	req := b.event(provider.CMConnectRequest)
	testkit.Equal(t, "private data", string(req.Param.PrivateData), "hello")
	bid = req.ID
	b.t.Cleanup(func() { closeAll(b.t, "id", bid) })
	// Revision 1 knows no depths: the programs have to agree by other means.
	testkit.OK(t, bid.Accept(provider.ConnParam{QP: b.q, ResponderResources: depth,
		InitiatorDepth: depth, PrivateData: []byte("welcome")}))
	there, here := b.event(provider.CMEstablished), a.event(provider.CMEstablished)
	if p := here.Param; string(p.PrivateData) != "welcome" ||
		depth > 0 && (p.ResponderResources != depth || p.InitiatorDepth != depth) {
		t.Errorf("established with %+v", p)
	}
	if req.RDMAC != there.RDMAC || there.RDMAC != here.RDMAC || here.RDMAC != a.q.stream.Load().params.RDMAC {
		t.Errorf("the events report %v, %v and %v", req.RDMAC, there.RDMAC, here.RDMAC)
	}
	return aid, bid
}

// TestE2ENegotiated moves data over connections that the two ends set up from
// options of their own: who asks for CRC or markers, which revision of MPA, how
// bytes are placed. What one end asks for the other must deliver.
//
//rfc:5044 MPA-7.1-04 DDP endpoint bound when Full Operation starts
//rfc:5044 MPA-7.1.1-07 M is per direction (asymmetric allowed)
//rfc:5044 MPA-7.1.1-09 C=1 on either: both generate and check
func TestE2ENegotiated(t *testing.T) {
	sides := []Options{
		{},
		{CRC: CRCOff},
		{CRC: CRCOff, Conformance: Conformance{Markers: true}},
		{Conformance: Conformance{Markers: true, Revision: 1}},
		{CRC: CRCOff, Conformance: Conformance{Revision: 1}},
	}
	for i, ao := range sides {
		for j, bo := range sides {
			name := fmt.Sprintf("initiator %d, responder %d", i, j)
			t.Run("memory, "+name, func(t *testing.T) {
				w := e2eWire{net: memnet.Options{Cut: j%2 == 0, MaxDelay: time.Duration(i%2) * time.Millisecond}}
				w.run(t, func(t *testing.T, w e2eWire) { negotiatedRound(t, w, ao, bo) })
			})
			t.Run("TCP, "+name, func(t *testing.T) {
				w := e2eWire{real: true}
				w.run(t, func(t *testing.T, w e2eWire) { negotiatedRound(t, w, ao, bo) })
			})
		}
	}
}

func negotiatedRound(t *testing.T, w e2eWire, ao, bo Options) {
	network, addr := w.network()
	a, b := newCMSide(t, network, ao), newCMSide(t, network, bo)
	aid, bid := cmConnect(t, a, b, b.listen(addr), 4)
	if aid.RemoteAddr() != bid.LocalAddr() || aid.LocalAddr() != bid.RemoteAddr() {
		t.Errorf("addresses %s to %s, and %s to %s", aid.LocalAddr(), aid.RemoteAddr(), bid.LocalAddr(),
			bid.RemoteAddr())
	}
	// The initiator speaks first, because the accepted side may have to wait for that.
	for _, n := range []int{0, 1, 1000, 1459, 2 * a.mulpdu()} {
		tryOperations(t, a.e2eEnd, b.e2eEnd, n, 2)
		tryOperations(t, b.e2eEnd, a.e2eEnd, n, 1)
	}
	st := [2]*stream{a.q.stream.Load(), b.q.stream.Load()}
	crc := ao.CRC == CRCOn || bo.CRC == CRCOn
	if st[0].params.CRC != crc || st[1].params.CRC != crc {
		t.Errorf("CRC %v and %v, want %v", st[0].params.CRC, st[1].params.CRC, crc)
	}
	if st[0].params.MarkersTx != bo.Conformance.Markers || st[1].params.MarkersTx != ao.Conformance.Markers {
		t.Errorf("markers sent %v and %v", st[0].params.MarkersTx, st[1].params.MarkersTx)
	}
	for i, s := range st {
		if p := s.params; p.Enhanced != (ao.Conformance.Revision != 1) || p.WaitFirstFPDU != (i == 1) {
			t.Errorf("side %d: %+v", i, p)
		}
	}
	a.recv(7)
	b.recv(8)
	testkit.OK(t, aid.Disconnect())
	a.event(provider.CMDisconnected)
	b.event(provider.CMDisconnected)
	a.flushed(a.rcq, 7, 1)
	b.flushed(b.rcq, 8, 1)
}
