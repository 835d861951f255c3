//go:build cgo && linux && !nokernel

package kernel

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

func testPrivateData(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	a.resolve(l.LocalAddr())
	a.createQP()
	question, answer := make([]byte, 251), make([]byte, 200)
	fill(question, 1)
	fill(answer, 2)
	if err := a.id.Connect(provider.ConnParam{PrivateData: question, ResponderResources: 2, InitiatorDepth: 8}); err != nil {
		t.Fatal(err)
	}
	req := p.want("at the listener", provider.CMConnectRequest)
	if !bytes.Equal(req.Param.PrivateData, question) {
		t.Errorf("the request has %d bytes of private data, want %d", len(req.Param.PrivateData), len(question))
	}
	// The limits for Accept: the initiator's outbound depth is our inbound one.
	if req.Param.ResponderResources != 8 || req.Param.InitiatorDepth != 2 {
		t.Errorf("the request offers IRD %d, ORD %d", req.Param.ResponderResources, req.Param.InitiatorDepth)
	}
	if req.ID.Cookie() != p {
		t.Error("the new id has not its listener's cookie")
	}
	req.ID.SetCookie("new")
	if req.ID.Cookie() != "new" || l.Cookie() != p {
		t.Error("SetCookie of the new id")
	}
	if got := req.ID.LocalAddr(); got != l.LocalAddr() {
		t.Errorf("the new id is on %s, its listener on %s", got, l.LocalAddr())
	}
	if got := req.ID.RemoteAddr(); got != a.id.LocalAddr() || got.Port() == 0 {
		t.Errorf("the new id's peer is %s, the initiator is %s", got, a.id.LocalAddr())
	}
	if req.ID.DeviceName() != p.dev.Name() || a.id.RemoteAddr() != l.LocalAddr() {
		t.Errorf("device %q, the initiator's peer %s", req.ID.DeviceName(), a.id.RemoteAddr())
	}
	p.id = req.ID
	p.createQP()
	if err := p.id.Accept(provider.ConnParam{PrivateData: answer, ResponderResources: 8, InitiatorDepth: 2}); err != nil {
		t.Fatal(err)
	}
	if ev := a.want("after Connect", provider.CMEstablished); !bytes.Equal(ev.Param.PrivateData, answer) || ev.ID != a.id || ev.ListenID != nil {
		t.Errorf("ESTABLISHED: id %v, listener %v, private data % x", ev.ID, ev.ListenID, ev.Param.PrivateData)
	}
	p.want("after Accept", provider.CMEstablished)
	closeAll(t, a.qp, p.qp, a.id, p.id, l)
}

// Private data may be in a struct with pointers.
func testPrivateDataInAStruct(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	a.resolve(l.LocalAddr())
	a.createQP()
	header := &struct {
		next *int
		text [5]byte
	}{next: new(int), text: [5]byte([]byte("hello"))}
	if err := a.id.Connect(provider.ConnParam{PrivateData: header.text[:]}); err != nil {
		t.Fatal(err)
	}
	req := p.want("at the listener", provider.CMConnectRequest)
	if string(req.Param.PrivateData) != "hello" {
		t.Errorf("the request has %q", req.Param.PrivateData)
	}
	if err := req.ID.Reject(header.text[:]); err != nil {
		t.Fatal(err)
	}
	if ev := a.want("after Reject", provider.CMRejected); string(ev.Param.PrivateData) != "hello" {
		t.Errorf("the rejection has %q", ev.Param.PrivateData)
	}
	wantErrno(t, "256 bytes", req.ID.Reject(make([]byte, 256)), syscall.EINVAL)
	closeAll(t, a.qp, a.id, req.ID, l)
}

func testRejection(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	a.resolve(l.LocalAddr())
	a.createQP()
	a.recv(provider.RecvWR{WRID: 5, SGList: []provider.SGE{a.sge(0, 8)}})
	if err := a.id.Connect(depth); err != nil {
		t.Fatal(err)
	}
	req := p.want("at the listener", provider.CMConnectRequest)
	wantErrno(t, "256 bytes of private data", req.ID.Reject(make([]byte, 256)), syscall.EINVAL)
	if err := req.ID.Reject([]byte("come back tomorrow")); err != nil {
		t.Fatal(err)
	}
	ev := a.want("after Connect", provider.CMRejected)
	if string(ev.Param.PrivateData) != "come back tomorrow" || ev.Status == 0 {
		t.Errorf("REJECTED with status %d and private data %q", ev.Status, ev.Param.PrivateData)
	}
	closeAll(t, a.qp, a.id, req.ID, l)
}

func testConnectionRefused(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	addr := l.LocalAddr()
	closeAll(t, l)
	a.resolve(addr)
	a.createQP()
	wantErrno(t, "a port where nobody listens", a.id.Connect(depth), syscall.ECONNREFUSED)
	closeAll(t, a.qp, a.id)
}

// siw reports EINVAL for every fault in a Reply; the event explains it.
func testBadReply(t *testing.T) {
	l := testkit.Must(net.ListenTCP("tcp4", net.TCPAddrFromAddrPort(netip.AddrPortFrom(siwAddr, 0))))(t)
	defer l.Close()
	answered, ended := make(chan error, 1), make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			_, err = io.ReadFull(c, make([]byte, mpa.FrameHeaderLen))
		}
		if err == nil {
			f := mpa.Frame{Kind: mpa.KindReply, Revision: 3}
			_, err = c.Write(f.AppendTo(nil))
		}
		answered <- err
		if err == nil {
			_, _ = io.Copy(io.Discard, c) // until siw closes
		}
	}()
	a := newSide(t)
	a.resolve(l.Addr().(*net.TCPAddr).AddrPort())
	a.createQP()
	testkit.OK(t, a.id.Connect(depth))
	testkit.OK(t, <-answered)
	ev := a.want("after a Reply of revision 3", provider.CMConnectError)
	if ev.Status != -int(syscall.EINVAL) || ev.Cause == nil || !strings.Contains(ev.Cause.Error(), "MPA Reply") {
		t.Errorf("status %d, cause %v", ev.Status, ev.Cause)
	}
	closeAll(t, a.qp, a.id)
	<-ended // its descriptor is closed
}

func testDisconnect(t *testing.T) {
	a, p := connected(t)
	for _, s := range []*side{a, p} {
		s.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{s.sge(0, 8)}}, provider.RecvWR{WRID: 2, SGList: []provider.SGE{s.sge(0, 8)}})
	}
	if err := a.id.Disconnect(); err != nil {
		t.Fatal(err)
	}
	for _, s := range []*side{p, a} { // on rxe, fetching p's event answers a
		if ev := s.want("after Disconnect", provider.CMDisconnected); ev.ID != s.id {
			t.Errorf("DISCONNECTED of %v", ev.ID)
		}
		for i, wc := range s.poll(2) {
			if wc.WRID != uint64(i+1) || wc.Status != provider.WCWRFlushErr || !errors.Is(wc.Err(), provider.ErrFlushed) {
				t.Errorf("flushed receive: %+v", wc)
			}
		}
		if s.qp.Cause() != nil {
			t.Errorf("Cause: %v", s.qp.Cause())
		}
	}
	if err := a.qp.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState); err != nil {
		t.Errorf("to the error state: %v", err)
	}
	want := provider.QPErr
	if a.dev.(*device).siw && !siwTellsState() {
		want = provider.QPUnknown
	}
	if attr, _, err := a.qp.Query(); err != nil || attr.State != want {
		t.Errorf("Query: state %s, %v", attr.State, err)
	}
}

// Calls in which librdmacm would crash, or that the kernel refuses.
func testWrongState(t *testing.T) {
	s := newSide(t)
	id := s.newID()
	wantErrno(t, "ResolveRoute before ResolveAddr", id.ResolveRoute(time.Second), syscall.EINVAL)
	wantErrno(t, "Connect before ResolveAddr", id.Connect(depth), syscall.EINVAL)
	wantErrno(t, "Accept of nothing", id.Accept(depth), syscall.EINVAL)
	wantErrno(t, "Disconnect of nothing", id.Disconnect(), syscall.EINVAL)
	wantErrno(t, "a depth that is no byte", id.Accept(provider.ConnParam{InitiatorDepth: 256}), syscall.EINVAL)
	wantErrno(t, "a negative depth", id.Connect(provider.ConnParam{ResponderResources: -1}), syscall.EINVAL)
	wantErrno(t, "BindAddr without an address", id.BindAddr(netip.AddrPort{}), syscall.EINVAL)
	wantErrno(t, "ResolveAddr without an address", id.ResolveAddr(netip.AddrPort{}, netip.AddrPort{}, time.Second), syscall.EINVAL)
	wantErrno(t, "an address of nobody's", id.BindAddr(netip.MustParseAddrPort("203.0.113.1:0")), syscall.EADDRNOTAVAIL)
	_, err := id.CreateQP(s.pd, s.qpInit())
	wantErrno(t, "CreateQP before ResolveAddr", err, syscall.EINVAL)
	_, err = id.CreateQP(nil, s.qpInit())
	wantErrno(t, "CreateQP without a PD", err, syscall.EINVAL)
	_, err = s.pd.CreateQP(provider.QPInitAttr{})
	wantErrno(t, "CreateQP without CQs", err, syscall.EINVAL)
	wantErrno(t, "Migrate to nothing", id.Migrate(nil), syscall.EINVAL)
	if id.LocalAddr().IsValid() || id.RemoteAddr().IsValid() || id.DeviceName() != "" {
		t.Errorf("an id that is not bound: %s, %s, %q", id.LocalAddr(), id.RemoteAddr(), id.DeviceName())
	}
	closeAll(t, id)

	// A QP that is not in RTS.
	qp := testkit.Must(s.pd.CreateQP(s.qpInit()))(t)
	n, err := qp.PostSend([]provider.SendWR{{Opcode: provider.WRSend, SGList: []provider.SGE{s.sge(0, 8)}}})
	wantErrno(t, "PostSend before the connection", err, syscall.EINVAL)
	if n != 0 {
		t.Errorf("PostSend before the connection: %d posted", n)
	}
	wantErrno(t, "to RTS without a connection", qp.Modify(provider.QPAttr{State: provider.QPRTS}, provider.QPAttrState), syscall.EINVAL)
	closeAll(t, qp)
}

func testExternalQP(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	a.resolve(l.LocalAddr())
	a.qp = testkit.Must(a.pd.CreateQP(a.qpInit()))(t)
	param := depth
	param.QP = a.qp
	if err := a.id.Connect(param); err != nil {
		t.Fatal(err)
	}
	p.id = p.want("at the listener", provider.CMConnectRequest).ID
	p.qp = testkit.Must(p.pd.CreateQP(p.qpInit()))(t)
	param.QP = p.qp
	if err := p.id.Accept(param); err != nil {
		t.Fatal(err)
	}
	a.want("after Connect", provider.CMEstablished)
	p.want("after Accept", provider.CMEstablished)
	p.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{p.sge(0, 8)}})
	a.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, SGList: []provider.SGE{a.sge(0, 8)}})
	if wc := p.poll(1)[0]; wc.Status != provider.WCSuccess {
		t.Errorf("receive: %+v", wc)
	}
	// The id does not own the QP, so either may be closed first.
	closeAll(t, a.id, a.qp, p.qp, p.id, l)
}

func testMigrate(t *testing.T) {
	a, p := newSide(t), newSide(t)
	l := p.listen()
	a.resolve(l.LocalAddr())
	a.createQP()
	if err := a.id.Connect(depth); err != nil {
		t.Fatal(err)
	}
	p.id = p.want("at the listener", provider.CMConnectRequest).ID
	other := testkit.Must(p.dev.CreateEventChannel())(t)
	if err := p.id.Migrate(other); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, "Close of a channel with an id", other.Close(), syscall.EBUSY)
	p.createQP()
	if err := p.id.Accept(depth); err != nil {
		t.Fatal(err)
	}
	a.want("after Connect", provider.CMEstablished)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ev, err := other.Next(ctx)
	if err != nil || ev.Type != provider.CMEstablished || ev.ID != p.id {
		t.Fatalf("on the new channel: %+v, %v", ev, err)
	}

	// Migrate back with an unfetched event, which moves too.
	closeAll(t, a.qp, a.id)
	waitReadable(t, other)
	if err := p.id.Migrate(p.ec); err != nil {
		t.Fatal(err)
	}
	p.want("after the way back", provider.CMDisconnected)
	closeAll(t, other, p.qp, p.id, l)
}

// waitReadable waits for an event on the channel without fetching it.
func waitReadable(t *testing.T, ch provider.EventChannel) {
	t.Helper()
	src := ch.(*eventChannel).source
	if err := src.f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	first := true
	if err := src.raw.Read(func(fd uintptr) bool {
		defer func() { first = false }()
		return !first || pollIn(int(fd))
	}); err != nil {
		t.Fatal(err)
	}
	if err := src.f.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// An event of an id that has been closed is dropped, and closing does not wait for a caller to
// fetch it.
func testEventOfClosedID(t *testing.T) {
	a, p := newSide(t), newSide(t)
	establish(t, a, p)
	if err := a.id.Disconnect(); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, a.ec)
	waitReadable(t, p.ec)
	closeAll(t, a.qp, a.id, p.qp, p.id)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if ev, err := a.ec.Next(ctx); err != context.DeadlineExceeded {
		t.Errorf("after Close: %+v, %v", ev, err)
	}
	// A request that no call fetches is dropped with its listener.
	l := p.listen()
	a.resolve(l.LocalAddr())
	a.createQP()
	if err := a.id.Connect(depth); err != nil {
		t.Fatal(err)
	}
	waitReadable(t, p.ec)
	closeAll(t, l)
	ctx2, cancel2 := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel2()
	if ev, err := p.ec.Next(ctx2); err != context.DeadlineExceeded {
		t.Errorf("after Close of the listener: %+v, %v", ev, err)
	}
	ev, err := a.ec.Next(context.Background())
	if err != nil || ev.Type == provider.CMEstablished {
		t.Errorf("the initiator: %+v, %v", ev, err)
	}
	closeAll(t, a.qp, a.id)
}

// The interface under siw0 answers only to its own address, so this address never answers, and the
// TCP handshake would take two minutes.
func testAbandonedConnect(t *testing.T) {
	silent := netip.AddrPortFrom(siwAddr.Next().Next(), 7471)
	for _, c := range []struct {
		name  string
		close func(s *side)
	}{
		{"by closing the QP", func(s *side) { closeAll(t, s.qp, s.id) }},
		{"by closing the id", func(s *side) { closeAll(t, s.id, s.qp) }},
	} {
		s := newSide(t)
		s.resolve(silent)
		param := depth
		if c.name == "by closing the id" {
			// An id with its own QP cannot be closed before the QP.
			s.qp = testkit.Must(s.pd.CreateQP(s.qpInit()))(t)
			param.QP = s.qp
		} else {
			s.createQP()
		}
		result := make(chan error)
		go func() { result <- s.id.Connect(param) }()
		for s.id.(*id).busy() == nil {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		wantErrno(t, "a second Connect", s.id.Connect(depth), syscall.EALREADY)
		if s.id.RemoteAddr() != silent {
			t.Errorf("RemoteAddr during Connect: %s", s.id.RemoteAddr())
		}
		start := time.Now()
		if param.QP != nil {
			wantErrno(t, "Close of a QP that Connect was given", s.qp.Close(), syscall.EBUSY)
			closeAll(t, s.id)
		} else {
			closeAll(t, s.qp)
		}
		if err := <-result; !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: Connect returned %v", c.name, err)
		}
		if took := time.Since(start); took > patience {
			t.Errorf("%s took %s", c.name, took)
		}
		c.close(s)
	}
}

// busy returns the running Connect.
func (i *id) busy() *connectCall {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.connecting
}
