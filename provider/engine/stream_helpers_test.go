package engine

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
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
		testkit.OK(s.t, err)
		for i := range wc[:k] {
			if wc[i].Status != provider.WCSuccess {
				s.t.Fatalf("completion %+v, the connection: %v", wc[i], s.qp.Cause())
			}
		}
		n -= k
	}
}

// raw is a scripted peer: it sends whatever the test says, and says in English
// what it expects.
type raw struct {
	t      testing.TB
	c      transport.Conn
	framer mpa.Framer
	d      mpa.Receiver
	in     []byte
	buf    []byte // of reads
	eof    bool
	err    error

	sendMSN, readMSN uint32
}

// story plays a scenario between a QP and a scripted peer, in a bubble of its
// own, where waiting costs nothing. p is the QP's parameters.
func story(t *testing.T, opts Options, p mpa.Params, script func(s *side, r *raw)) {
	t.Helper()
	storyOn(t, memnet.Options{}, opts, p, sideOptions{}, script)
}

func storyOn(t *testing.T, net memnet.Options, opts Options, p mpa.Params, so sideOptions,
	script func(s *side, r *raw)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts.Network = memnet.New(&net)
		s := newSide(t, opts, so)
		r := newRaw(t, s.qp, opts.Network, memAddr, p, s.ended)
		defer r.c.Close()
		script(s, r)
	})
}

// newRaw connects q, whose parameters are p, to a scripted peer, which is closed with the test.
func newRaw(t testing.TB, q *qp, network transport.Network, addr string, p mpa.Params, onDown func(error)) *raw {
	t.Helper()
	mine, theirs := connectTransport(t, network, addr)
	t.Cleanup(func() { theirs.Close() })
	testkit.OK(t, q.start(mine, p, onDown))
	return rawOn(t, theirs, p)
}

// rawOn is the peer of a QP with parameters p, on the other end of its connection.
func rawOn(t testing.TB, c transport.Conn, p mpa.Params) *raw {
	return &raw{t: t, c: c, framer: mpa.NewFramer(p.MarkersRx, p.CRC),
		d: mpa.NewReceiver(p.MarkersTx, p.CRC), sendMSN: 1, readMSN: 1}
}

// connectRaw connects the side's QP to a scripted peer.
func (s *side) connectRaw(network transport.Network) *raw {
	s.t.Helper()
	return newRaw(s.t, s.qp, network, memAddr, params(true), s.ended)
}

// write sends bytes as they are.
func (r *raw) write(b []byte) {
	r.t.Helper()
	for end := time.Now().Add(patience); len(b) > 0; {
		n, err := r.c.Writev([][]byte{b})
		b = b[n:]
		switch {
		case errors.Is(err, transport.ErrWouldBlock) && time.Now().Before(end):
			time.Sleep(time.Millisecond)
		case err != nil:
			r.t.Fatalf("the peer's write: %v", err)
		}
	}
}

// fpdu frames a segment.
func (r *raw) fpdu(h ddp.Header, payload []byte) []byte {
	r.t.Helper()
	return testkit.Must(r.framer.AppendFPDU(nil, h.AppendTo(nil), payload))(r.t)
}

// send sends a segment.
func (r *raw) send(h ddp.Header, payload []byte) {
	r.t.Helper()
	r.write(r.fpdu(h, payload))
}

// read waits for more bytes. It reports false at the end of the stream.
func (r *raw) read(wait time.Duration) bool {
	r.t.Helper()
	buf := r.buffer()[:64<<10]
	for end := time.Now().Add(wait); ; {
		n, err := r.c.Readv([][]byte{buf})
		switch {
		case n > 0:
			r.in = append(r.in, buf[:n]...)
			return true
		case errors.Is(err, io.EOF):
			r.eof = true
			return false
		case !errors.Is(err, transport.ErrWouldBlock):
			r.err = err
			return false
		case time.Now().After(end):
			return false
		}
		time.Sleep(time.Millisecond)
	}
}

// buffer is what reads read into: 1 MiB, which takes long to make under the race detector.
func (r *raw) buffer() []byte {
	if r.buf == nil {
		r.buf = make([]byte, 1<<20)
	}
	return r.buf
}

// next waits for a segment.
func (r *raw) next(what string) (ddp.Header, []byte) {
	r.t.Helper()
	for {
		span, need, err := r.d.Next(r.in, nil)
		if err != nil {
			r.t.Fatalf("%s: %v", what, err)
		}
		if need == 0 {
			r.in = bytes.Clone(r.in[span.Len:])
			h, payload, err := ddp.Parse(bytes.Clone(span.ULPDU))
			testkit.OK(r.t, err)
			return h, payload
		}
		if !r.read(patience) {
			r.t.Fatalf("%s: got %d bytes of an FPDU, end of stream %v, error %v", what, len(r.in), r.eof, r.err)
		}
	}
}

// want waits for a segment with a certain header.
func (r *raw) want(what string, want ddp.Header) []byte {
	r.t.Helper()
	h, payload := r.next(what)
	if h != want {
		r.t.Fatalf("%s: header\n%+v, want\n%+v", what, h, want)
	}
	return payload
}

// wantIdle checks that the QP sends nothing for a while.
func (r *raw) wantIdle(what string) {
	r.t.Helper()
	if len(r.in) > 0 || r.read(100*time.Millisecond) {
		r.t.Fatalf("%s: % x", what, r.in)
	}
	if r.eof || r.err != nil {
		r.t.Fatalf("%s: end of stream %v, error %v", what, r.eof, r.err)
	}
}

// wantFIN waits for the end of the stream, in order and with nothing before it.
func (r *raw) wantFIN(what string) {
	r.t.Helper()
	if !r.eof && (len(r.in) > 0 || r.read(patience)) {
		r.t.Fatalf("%s: % x", what, r.in)
	}
	if !r.eof {
		r.t.Fatalf("%s: no end of stream, error %v", what, r.err)
	}
}

// wantReset waits for a connection reset.
func (r *raw) wantReset(what string) {
	r.t.Helper()
	if len(r.in) > 0 || r.read(patience) || r.err == nil {
		r.t.Fatalf("%s: no reset but % x, end of stream %v", what, r.in, r.eof)
	}
}

// fault is what a Terminate reports.
type fault struct {
	layer iwarp.Layer
	etype iwarp.EType
	code  iwarp.Code
}

// wantTerminate waits for a Terminate. With a nil header it must have none
// attached, with a nil Read Request none of that.
func (r *raw) wantTerminate(what string, f fault, h *ddp.Header, payloadLen int, read *rdmap.ReadRequest) {
	r.t.Helper()
	payload := r.want(what, rdmap.TerminateHeader())
	want := rdmap.Terminate{Layer: f.layer, EType: f.etype, Code: f.code}
	if h != nil {
		want.M, want.D, want.DDP = true, true, *h
		want.SegmentLength = uint16(h.Len() + payloadLen)
	}
	if read != nil {
		want.R, want.Read = true, *read
	}
	got := testkit.Must(rdmap.ParseTerminate(payload, rdmap.PhaseAfterFirstFPDU))(r.t)
	if got.Terminate != want || !bytes.Equal(payload, want.AppendTo(nil)) {
		r.t.Fatalf("%s: Terminate\n%+v, want\n%+v", what, got.Terminate, want)
	}
}

// sendMsg sends a Send message of one segment.
func (r *raw) sendMsg(payload []byte) {
	r.t.Helper()
	r.send(rdmap.SendHeader(rdmap.OpSend, 0, r.sendMSN, 0, true), payload)
	r.sendMSN++
}

// readReq sends a Read Request.
func (r *raw) readReq(q rdmap.ReadRequest) ddp.Header {
	r.t.Helper()
	h := rdmap.ReadRequestHeader(r.readMSN)
	r.send(h, q.AppendTo(nil))
	r.readMSN++
	return h
}
