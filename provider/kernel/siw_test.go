//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider"
)

// siwAddr is the guest's address on the interface under siw0.
var siwAddr = netip.MustParseAddr("192.0.2.1")

// patience limits the duration of a step; a guest without acceleration is slow.
const patience = 2 * time.Minute

// TestSiw tests the contract on a live siw, with two ids of one process connected to each other. It
// runs in the guest of ci/vm, or directly if GOVS_SIW_ADDR names an address on an interface with a
// siw link.
func TestSiw(t *testing.T) {
	if addr := os.Getenv("GOVS_SIW_ADDR"); addr != "" {
		siwAddr = netip.MustParseAddr(addr)
	} else if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{})
		return
	}
	for _, c := range []struct {
		name string
		f    func(*testing.T)
	}{
		{"device", testDevice},
		{"no counters", testNoCounters},
		{"the peer disconnects under Reads", testEndsUnderReads},
		{"async events go to the device whose object it is", testAsyncEvents},
		{"send", testSend},
		{"send with invalidate", testSendWithInvalidate},
		{"write and read", testWriteAndRead},
		{"zero length", testZeroLength},
		{"inline", testInline},
		{"batches beyond one crossing", testBatches},
		{"posting and polling do not allocate", testNoAllocations},
		{"bad lkey", testBadLKey},
		{"post errors", testPostErrors},
		{"posts before the connection", testPostsBeforeConnection},
		{"posts after the connection", testPostsAfterConnection},
		{"event for a late post", testLateEvent},
		{"receives are flushed after a fault in a Read", testFlushAfterReadFault},
		{"requests that siw would get stuck at", testStuck},
		{"what siw does with them", testStuckWithoutHelp},
		{"no read depth", testNoReadDepth},
		{"completion channel", testCompChannel},
		{"private data", testPrivateData},
		{"private data in a struct", testPrivateDataInAStruct},
		{"rejection", testRejection},
		{"connection refused", testConnectionRefused},
		{"a bad Reply", testBadReply},
		{"an FPDU before accept has ended", testFirstFPDU},
		{"disconnect and flush", testDisconnect},
		{"calls in the wrong state", testWrongState},
		{"QP of a PD", testExternalQP},
		{"migrate", testMigrate},
		{"event of a closed id", testEventOfClosedID},
		{"abandoned connect", testAbandonedConnect},
		{"signals during connect", testSignals},
		{"lifetimes", testLifetimes},
		{"registration", testRegistration},
		{"memory lock limit", testMemlock},
		{"a thread with other credentials", testCredentials},
		{"forgotten region", testForgottenRegion},
		{"why a device can't be opened", testWhyNoDevice},
		{"many connections", testManyConnections},
		{"many queues", testManyQueues},
		{"forty connection ends", func(t *testing.T) { testEnds(t, 20) }},
		{"no receive queue", testNoReceiveQueue},
		{"shared receive queue", testSRQ},
		{"what libsiw does with a shared receive queue", testSRQWithoutHelp},
		{"no event for the last receive of an SRQ", testNoLastWQE},
		{"waiters", testWaiters},
	} {
		before := openFiles(t)
		passed := t.Run(c.name, c.f)
		if after := openFiles(t); passed && after > before {
			t.Errorf("%s: %d descriptors open before, %d after", c.name, before, after)
		}
	}
}

// openFiles counts the descriptors of the process. librdmacm opens some permanently when it is
// first used, so openFiles uses it first.
func openFiles(t *testing.T) int {
	t.Helper()
	dev, err := New().Open("")
	if err != nil {
		t.Fatal(err)
	}
	ec, err := dev.CreateEventChannel()
	if err != nil {
		t.Fatal(err)
	}
	closeAll(t, ec, dev)
	dir, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(dir)
}

type closer interface{ Close() error }

func closeAll(t *testing.T, objects ...closer) {
	t.Helper()
	for _, o := range objects {
		if err := o.Close(); err != nil {
			t.Errorf("Close of %T: %v", o, err)
		}
	}
}

// side is one end of a connection with all its objects.
type side struct {
	t   *testing.T
	dev provider.Device
	pd  provider.PD
	ch  provider.CompChannel
	cq  provider.CQ
	ec  provider.EventChannel
	id  provider.ID
	qp  provider.QP
	srq provider.SRQ // of the QP; may be nil
	buf []byte
	mr  provider.MR
}

const allRights = provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead

// newSide opens everything but the id and its QP; the test closes it at its end.
func newSide(t *testing.T) *side {
	t.Helper()
	s := &side{t: t, buf: make([]byte, 1<<20)}
	s.dev = testkit.Must(New().Open(""))(t)
	s.pd = testkit.Must(s.dev.AllocPD())(t)
	s.ch = testkit.Must(s.dev.CreateCompChannel())(t)
	s.cq = testkit.Must(s.dev.CreateCQ(provider.CQInitAttr{CQE: 256, Channel: s.ch, Cookie: s}))(t)
	s.ec = testkit.Must(s.dev.CreateEventChannel())(t)
	s.mr = testkit.Must(s.pd.RegMR(s.buf, allRights))(t)
	t.Cleanup(func() { closeAll(t, s.mr, s.cq, s.ch, s.pd, s.ec, s.dev) })
	return s
}

func (s *side) qpInit() provider.QPInitAttr {
	return provider.QPInitAttr{
		SendCQ: s.cq,
		RecvCQ: s.cq,
		SRQ:    s.srq,
		Cap:    provider.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64},
		Cookie: s,
	}
}

// want waits for an event of the type and returns it.
func (s *side) want(what string, typ provider.CMEventType) provider.CMEvent {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ev, err := s.ec.Next(ctx)
	if err != nil {
		s.t.Fatalf("%s: waiting for %s: %v", what, typ, err)
	}
	if ev.Type != typ {
		s.t.Fatalf("%s: %s (status %d), want %s", what, ev.Type, ev.Status, typ)
	}
	return ev
}

// resolve makes the id and resolves address and route, so that Connect may be called.
func (s *side) resolve(dst netip.AddrPort) {
	s.t.Helper()
	s.id = s.newID()
	if err := s.id.ResolveAddr(netip.AddrPort{}, dst, patience); err != nil {
		s.t.Fatal(err)
	}
	s.want("after ResolveAddr", provider.CMAddrResolved)
	if err := s.id.ResolveRoute(patience); err != nil {
		s.t.Fatal(err)
	}
	s.want("after ResolveRoute", provider.CMRouteResolved)
}

func (s *side) newID() provider.ID {
	s.t.Helper()
	return testkit.Must(s.ec.CreateID(s))(s.t)
}

// mostPorts limits how many ports of the kernel's choice are tried, because TCP may already use the
// one that siw chose (kernel-notes/siw-port-zero.md).
const mostPorts = 8

// listen makes a listener on a free port.
func (s *side) listen() provider.ID {
	s.t.Helper()
	var l provider.ID
	for port := 1; ; port++ {
		l = s.newID()
		if err := l.BindAddr(netip.AddrPortFrom(siwAddr, 0)); err != nil {
			s.t.Fatal(err)
		}
		err := l.Listen(8)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) || port == mostPorts {
			s.t.Fatal(err)
		}
		closeAll(s.t, l)
	}
	if l.LocalAddr().Port() == 0 || l.LocalAddr().Addr() != siwAddr {
		s.t.Fatalf("listening on %s", l.LocalAddr())
	}
	return l
}

func (s *side) createQP() {
	s.t.Helper()
	s.qp = testkit.Must(s.id.CreateQP(s.pd, s.qpInit()))(s.t)
}

var depth = provider.ConnParam{ResponderResources: 4, InitiatorDepth: 4}

// connected returns two ends of a connection.
func connected(t *testing.T) (active, passive *side) {
	t.Helper()
	active, passive = newSide(t), newSide(t)
	establish(t, active, passive)
	t.Cleanup(func() { closeAll(t, active.qp, passive.qp, active.id, passive.id) })
	return active, passive
}

// establish connects two sides; the caller closes the QPs and the ids.
func establish(t *testing.T, active, passive *side) {
	t.Helper()
	l := passive.listen()
	for port := 1; ; port++ {
		active.resolve(l.LocalAddr())
		active.createQP()
		err := active.id.Connect(depth)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) || port == mostPorts {
			t.Fatal(err)
		}
		closeAll(t, active.qp, active.id)
	}
	req := passive.want("at the listener", provider.CMConnectRequest)
	if req.ListenID != l || req.ID == nil || req.ID == l {
		t.Fatalf("CONNECT_REQUEST with ListenID %v and ID %v", req.ListenID, req.ID)
	}
	passive.id = req.ID
	passive.createQP()
	if err := passive.id.Accept(depth); err != nil {
		t.Fatal(err)
	}
	// In this order, because on InfiniBand and RoCE librdmacm at the active end answers the
	// acceptance when its event is fetched from the channel.
	active.want("after Connect", provider.CMEstablished)
	passive.want("after Accept", provider.CMEstablished)
	closeAll(t, l)
}

// poll waits for n completions.
func (s *side) poll(n int) []provider.WC {
	s.t.Helper()
	all := make([]provider.WC, n)
	got := 0
	for end := time.Now().Add(patience); got < n; {
		k, err := s.cq.Poll(all[got:])
		if err != nil {
			s.t.Fatal(err)
		}
		if got += k; k == 0 {
			if time.Now().After(end) {
				s.t.Fatalf("%d of %d completions after %s: %+v", got, n, patience, all[:got])
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	return all
}

// idle checks that no completion arrives.
func (s *side) idle(what string) {
	s.t.Helper()
	time.Sleep(50 * time.Millisecond)
	wc := make([]provider.WC, 4)
	if n, err := s.cq.Poll(wc); n != 0 || err != nil {
		s.t.Errorf("%s: %+v, %v", what, wc[:n], err)
	}
}

func (s *side) sge(off, n int) provider.SGE {
	return provider.SGE{Addr: s.mr.Addr() + uint64(off), Length: uint32(n), LKey: s.mr.LKey()}
}

func (s *side) send(wrs ...provider.SendWR) {
	s.t.Helper()
	if n, err := s.qp.PostSend(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("PostSend: %d of %d, %v", n, len(wrs), err)
	}
}

func (s *side) recv(wrs ...provider.RecvWR) {
	s.t.Helper()
	if n, err := s.qp.PostRecv(wrs); n != len(wrs) || err != nil {
		s.t.Fatalf("PostRecv: %d of %d, %v", n, len(wrs), err)
	}
}

// wantErrno checks that a call failed with the errno, in the form that the contract requires.
func wantErrno(t *testing.T, what string, err error, want syscall.Errno) {
	t.Helper()
	var e *provider.Error
	if !errors.As(err, &e) || provider.Errno(err) != want {
		t.Errorf("%s: %v, want a *provider.Error with %v", what, err, want)
	}
}

// fill writes a pattern that depends on seed.
func fill(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + seed)
	}
}
