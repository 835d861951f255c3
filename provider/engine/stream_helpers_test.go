package engine

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// patience is how long a test waits for what must happen, however slow and busy the machine is.
// Under synctest it is fake time.
const patience = 2 * time.Minute

// side is a QP with all that it needs.
type side struct {
	t    testing.TB
	dev  *device
	pd   *pd
	cq   *cq          // of both queues
	ch   *compChannel // of the CQs, nil for none
	qp   *qp
	down chan error // of onDown

	recvCQ *cq // of the receive queue if it has one of its own, nil if not

	wc [16]provider.WC // for spin, which must not allocate
}

// sideOptions says what a side is like; zero values are the defaults below.
type sideOptions struct {
	cap provider.QPCap
	cqe int
	all bool // SQSigAll

	events      bool // the CQ has a channel
	separateCQs bool // receives complete on a CQ of their own

	sink provider.CompletionSink // of the CQ
}

// newSide makes a device and a QP on it. All of it is closed when the test ends.
func newSide(t testing.TB, opts Options, so sideOptions) *side {
	t.Helper()
	if so.cap == (provider.QPCap{}) {
		so.cap = provider.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}
	}
	if so.cqe == 0 {
		so.cqe = 1024
	}
	s := &side{t: t, down: make(chan error, 8)}
	s.dev = testkit.Must(New(&opts).Open(""))(t).(*device)
	s.pd = testkit.Must(s.dev.AllocPD())(t).(*pd)
	init := provider.CQInitAttr{CQE: so.cqe, Sink: so.sink}
	if so.events {
		s.ch = testChannel(t, s.dev)
		init.Channel = s.ch
	}
	s.cq = testkit.Must(s.dev.CreateCQ(init))(t).(*cq)
	if so.separateCQs {
		s.recvCQ = testkit.Must(s.dev.CreateCQ(init))(t).(*cq)
	}
	s.qp = s.newQP(so)
	t.Cleanup(func() {
		testkit.OK(t, s.qp.Close())
		testkit.OK(t, s.cq.Close())
		if so.separateCQs {
			testkit.OK(t, s.recvCQ.Close())
		}
		if s.ch != nil {
			testkit.OK(t, s.ch.Close())
		}
		testkit.OK(t, s.pd.Close())
		testkit.OK(t, s.dev.Close())
	})
	return s
}

func (s *side) newQP(so sideOptions) *qp {
	s.t.Helper()
	recvCQ := s.cq
	if s.recvCQ != nil {
		recvCQ = s.recvCQ
	}
	return testkit.Must(newQP(s.pd, provider.QPInitAttr{SendCQ: s.cq, RecvCQ: recvCQ, Cap: so.cap,
		SQSigAll: so.all, Cookie: "cookie"}))(s.t)
}

// reg registers n bytes in the middle of a larger buffer of 0xa5, so that bytes
// outside of the region can be looked at, too.
func (s *side) reg(n int, access provider.Access) *region {
	s.t.Helper()
	const guard = 64
	r := &region{t: s.t, whole: make([]byte, n+2*guard)}
	freshen(r.whole)
	r.b = r.whole[guard : guard+n : guard+n]
	r.m = testkit.Must(s.pd.RegMR(r.b, access))(s.t).(*memory.Region)
	s.t.Cleanup(func() { r.m.Close() })
	return r
}

// region is a registered region with canaries around it.
type region struct {
	t     testing.TB
	m     *memory.Region
	b     []byte
	whole []byte
}

func (r *region) sge(off, n int) provider.SGE {
	return provider.SGE{Addr: r.m.Addr() + uint64(off), Length: uint32(n), LKey: r.m.STag()}
}

// to is the address of byte off.
func (r *region) to(off int) uint64 { return r.m.Addr() + uint64(off) }

// untouched fails the test unless all bytes outside of [from, to) are 0xa5.
func (r *region) untouched(from, to int) {
	r.t.Helper()
	const guard = 64
	if isFresh(r.whole[:guard+from]) && isFresh(r.whole[guard+max(from, to):]) {
		return
	}
	for i, c := range r.whole {
		if at := i - guard; (at < from || at >= to) && c != freshOctet {
			r.t.Fatalf("byte %d of a region of %d was written: %#02x", at, len(r.b), c)
		}
	}
}

// connect makes a connection of network between two new ends.
func connectTransport(t testing.TB, network transport.Network, addr string) (dialed, accepted transport.Conn) {
	t.Helper()
	l := testkit.Must(network.Listen(netip.MustParseAddrPort(addr), 1))(t)
	defer l.Close()
	got := make(chan transport.Conn, 1)
	go func() {
		c, err := l.Accept(context.Background())
		if err != nil {
			t.Error(err)
		}
		got <- c
	}()
	dialed = testkit.Must(network.Dial(t.Context(), netip.AddrPort{}, l.Addr()))(t)
	return dialed, <-got
}

// params returns the parameters of an initiator with read depths of 4.
func params(crc bool) mpa.Params {
	return mpa.Params{Revision: 2, Enhanced: true, CRC: crc, IRD: 4, ORD: 4}
}

func (s *side) start(c transport.Conn, p mpa.Params) {
	s.t.Helper()
	testkit.OK(s.t, s.qp.start(c, p, s.ended))
}

// ended is what the engine calls at the end of a connection.
func (s *side) ended(err error) { s.down <- err }

// pair connects two sides; a is the initiator. p is a's parameters.
func pair(t testing.TB, network transport.Network, addr string, opts Options, so sideOptions, p mpa.Params) (a, b *side) {
	t.Helper()
	opts.Network = network
	a, b = newSide(t, opts, so), newSide(t, opts, so)
	a.join(b, network, addr, p)
	return a, b
}

// join connects s to b; s is the initiator. p is its parameters.
func (s *side) join(b *side, network transport.Network, addr string, p mpa.Params) {
	s.t.Helper()
	ca, cb := connectTransport(s.t, network, addr)
	s.start(ca, p)
	p.WaitFirstFPDU = true
	p.MarkersTx, p.MarkersRx = p.MarkersRx, p.MarkersTx
	p.IRD, p.ORD = p.ORD, p.IRD
	b.start(cb, p)
}

const (
	memAddr = "192.0.2.1:7471"
	tcpAddr = "127.0.0.1:0"
)

// poll waits for one completion.
func (s *side) poll() provider.WC {
	s.t.Helper()
	var wc [1]provider.WC
	for end := time.Now().Add(patience); ; {
		n := testkit.Must(s.cq.Poll(wc[:]))(s.t)
		if n == 1 {
			return wc[0]
		}
		if time.Now().After(end) {
			s.t.Fatal("no completion")
		}
		time.Sleep(10 * time.Microsecond)
	}
}

// wantWC waits for a completion and compares what matters in it.
func (s *side) wantWC(what string, want provider.WC) provider.WC {
	s.t.Helper()
	got := s.poll()
	want.QPN = s.qp.qpn
	if want.Status != provider.WCSuccess {
		want.Opcode = got.Opcode // not valid then
	}
	if got != want {
		s.t.Fatalf("%s: completion\n%+v, want\n%+v", what, got, want)
	}
	return got
}

// noWC checks that nothing completes for a while.
func (s *side) noWC(what string) {
	s.t.Helper()
	time.Sleep(20 * time.Millisecond)
	var wc [1]provider.WC
	if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
		s.t.Fatalf("%s: completion %+v, error %v", what, wc[0], err)
	}
}

func (s *side) send(wrs ...provider.SendWR) {
	s.t.Helper()
	if n, err := s.qp.PostSend(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

// wantRefused posts a work request that is refused, with an error that says words.
func (s *side) wantRefused(what string, wr provider.SendWR, want error, words string) {
	s.t.Helper()
	n, err := s.qp.PostSend([]provider.SendWR{wr})
	if n != 0 || !errors.Is(err, want) || !strings.Contains(err.Error(), words) {
		s.t.Errorf("%s, %s: %d posted, %v", wr.Opcode, what, n, err)
	}
}

func (s *side) recv(wrs ...provider.RecvWR) {
	s.t.Helper()
	if n, err := s.qp.PostRecv(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("posted %d of %d: %v", n, len(wrs), err)
	}
}

// wantDown waits for the end of the connection.
func (s *side) wantDown(what string) error {
	s.t.Helper()
	select {
	case err := <-s.down:
		return err
	case <-time.After(patience):
		s.t.Fatalf("%s: the connection did not end", what)
		return nil
	}
}

// wantTerm waits for the end of the connection by a Terminate.
func (s *side) wantTerm(what string, remote bool, layer, etype, code uint8) {
	s.t.Helper()
	err := s.wantDown(what)
	var term *provider.TerminateError
	if !errors.As(err, &term) {
		s.t.Fatalf("%s: connection ended with %v", what, err)
	}
	if term.Remote != remote || term.Layer != layer || term.EType != etype || term.ECode != code {
		s.t.Fatalf("%s: %v, want remote=%v %d/%d/%#02x", what, term, remote, layer, etype, code)
	}
	if cause := s.qp.Cause(); cause != err {
		s.t.Fatalf("%s: cause %v, but the connection ended with %v", what, cause, err)
	}
}

// wantEvent waits for an asynchronous event of the QP.
func (s *side) wantEvent(what string, want provider.AsyncEventType) {
	s.t.Helper()
	s.wantEventOf(what, provider.AsyncEvent{Type: want, QP: s.qp})
}

// wantEventOf waits for an asynchronous event of any object.
func (s *side) wantEventOf(what string, want provider.AsyncEvent) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	if e, err := s.dev.AsyncEvent(ctx); err != nil || e != want {
		s.t.Fatalf("%s: event %v, QP %p, SRQ %p, error %v; want %v, QP %p, SRQ %p", what, e.Type, e.QP, e.SRQ, err,
			want.Type, want.QP, want.SRQ)
	}
}

// arrives waits until n completions lie in the side's CQ, without looking for them.
func (s *side) arrives(n int64) {
	s.t.Helper()
	for end := time.Now().Add(patience); s.cq.seen.Load() != n; time.Sleep(100 * time.Microsecond) {
		if time.Now().After(end) {
			s.t.Fatalf("%d completions without anybody looking for them, want %d", s.cq.seen.Load(), n)
		}
	}
}

// tcpPair connects two sides over TCP on loopback.
func tcpPair(t testing.TB, opts Options, crc bool, so sideOptions) (a, b *side) {
	t.Helper()
	cubic := Options{TCP: transport.TCPOptions{CongestionControl: "cubic"}}
	return pair(t, testkit.Must(tcpNetwork(cubic))(t), tcpAddr, opts, so, params(crc))
}

// spin polls until n completions have come, all of them successes.
func (s *side) spin(n int) {
	wc := &s.wc
	for n > 0 {
		k, err := s.cq.Poll(wc[:min(n, len(wc))])
		if err != nil {
			s.t.Fatal(err)
		}
		for i := range wc[:k] {
			if wc[i].Status != provider.WCSuccess {
				s.t.Fatalf("completion %+v, the connection: %v", wc[i], s.qp.Cause())
			}
		}
		n -= k
	}
}
