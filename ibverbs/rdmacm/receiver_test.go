package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestConnReceiver: many more messages than there are receives, taken by several goroutines, each
// once. The sender waits for credit, as iWARP requires.
func TestConnReceiver(t *testing.T) {
	ctx := timeout(t)
	const receives, count, takers = 4, 100, 3
	a, b := pair(t, nil, messages(receives, 32))
	credit := make(chan struct{}, receives)
	for range receives {
		credit <- struct{}{}
	}
	var mu sync.Mutex
	var got []string
	var all sync.WaitGroup
	for range takers {
		all.Go(func() {
			for {
				m, err := b.Receive(ctx)
				if err != nil {
					if !errors.Is(err, ibverbs.ErrFlushed) && !errors.Is(err, syscall.ENOTCONN) {
						t.Errorf("the end: %v", err)
					}
					return
				}
				mu.Lock()
				got = append(got, string(m.Data))
				mu.Unlock()
				testkit.OK(t, m.Release())
				credit <- struct{}{}
			}
		})
	}
	here, _ := memory(t, a, 32)
	var want []string
	for i := range count {
		<-credit
		text := fmt.Sprintf("message %03d", i)
		n := copy(here.Bytes(), text)
		testkit.OK(t, a.Send(ctx, sge(t, here, 0, n)))
		want = append(want, text)
	}
	for range receives {
		<-credit // all have been received
	}
	testkit.OK(t, b.Disconnect())
	all.Wait()
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("received %q", got)
	}
}

// TestConnReceiverEnds: the connection's end ends every call of Receive. This holds even if there
// are more calls than receives, and all receives hold messages, so that none is flushed.
func TestConnReceiverEnds(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, messages(1, 16))
	here, _ := memory(t, a, 16)
	testkit.OK(t, a.Send(ctx, sge(t, here, 0, 3)))
	m := testkit.Must(b.Receive(ctx))(t)
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() {
			_, err := b.Receive(ctx)
			ended <- err
		}()
	}
	brief, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err := b.Receive(brief)
	wantErr(t, "a context that ends first", err, context.DeadlineExceeded, "Receive")
	testkit.OK(t, a.Disconnect())
	for range cap(ended) {
		err := <-ended
		if ctx.Err() != nil || !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("at the connection's end: %v, want ENOTCONN", err)
		}
	}
	if string(m.Data) != string(here.Bytes()[:3]) {
		t.Error("the message that was held has changed")
	}
}

// TestConnReceiverOfSRQ: connections that share their receives.
func TestConnReceiverOfSRQ(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	defer ch.Close()
	cq := testkit.Must(vctx.CreateCQ(64, &ibverbs.CQOptions{Channel: ch}))(t)
	defer cq.Close()
	srq := testkit.Must(pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 8,
		MaxSGE: 1}}))(t)
	defer srq.Close()
	in := testkit.Must(rdmacm.NewSRQReceiver(srq, cq, 8, 16))(t)
	defer in.Close()
	const clients = 3
	accepted := make(chan *rdmacm.Conn, clients)
	go func() {
		for range clients {
			req, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			c, err := req.Accept(ctx, &rdmacm.ConnConfig{SRQ: srq, RecvCQ: cq})
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}
	}()
	from := make(map[uint32]string)
	var conns []*rdmacm.Conn
	for i := range clients {
		c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), nil))(t)
		s := <-accepted
		conns = append(conns, c, s)
		mr := testkit.Must(c.PD().AllocMR(16, ibverbs.AccessLocalWrite))(t)
		defer mr.Close()
		n := copy(mr.Bytes(), fmt.Sprintf("from %d", i))
		from[s.QP().QPN()] = fmt.Sprintf("from %d", i)
		testkit.OK(t, c.Send(ctx, sge(t, mr, 0, n)))
	}
	for range clients {
		m := testkit.Must(in.Receive(ctx))(t)
		if want := from[m.WC.QPN]; want == "" || string(m.Data) != want {
			t.Errorf("qp %d: received %q, want %q", m.WC.QPN, m.Data, want)
		}
		delete(from, m.WC.QPN)
		testkit.OK(t, m.Release())
	}
	for _, c := range conns {
		testkit.OK(t, c.Close())
	}
}

// TestConnReceiverFaults: invalid calls.
func TestConnReceiverFaults(t *testing.T) {
	shared := newShared(t, 4)
	for _, c := range [][2]int{{0, 1}, {1, 0}, {-1, 5}} {
		in, err := rdmacm.NewSRQReceiver(shared.srq, shared.cq, c[0], c[1])
		wantErr(t, fmt.Sprint(c), err, syscall.EINVAL, "at least 1")
		if in != nil {
			t.Errorf("%v: a Receiver comes with the error", c)
		}
	}
	_, err := rdmacm.NewSRQReceiver(nil, shared.cq, 1, 1)
	wantErr(t, "no SRQ", err, syscall.EINVAL)
	wantErr(t, "no message", new(rdmacm.Message).Release(), syscall.EINVAL, "the message is zero")
}

// TestConnUntilEnd: the context ends with the parent, by its cancel, and with the connection, whose
// end it then gives as the cause.
func TestConnUntilEnd(t *testing.T) {
	a, b := pair(t, nil, nil)
	parent, stop := context.WithCancel(timeout(t))
	first, cancel := a.UntilEnd(parent)
	defer cancel()
	second, cancelSecond := a.UntilEnd(timeout(t))
	third, cancel := a.UntilEnd(timeout(t))
	defer cancel()
	stop()
	<-first.Done()
	if second.Err() != nil || third.Err() != nil {
		t.Fatal("one that ended with its parent ended the others")
	}
	cancelSecond()
	<-second.Done()
	testkit.OK(t, b.Disconnect())
	<-third.Done()
	if cause := context.Cause(third); cause == nil || errors.Is(cause, context.Canceled) {
		t.Errorf("the connection's end: cause %v", cause)
	}
	late, cancel := a.UntilEnd(timeout(t))
	defer cancel()
	<-late.Done()
}

// TestReceiverHoldsMessages: messages that are not released leave no receive for the next one, and
// the error says so.
func TestReceiverHoldsMessages(t *testing.T) {
	ctx := timeout(t)
	const held = 4
	client, server := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxInlineData: 16}}, messages(held, 8))
	send := func() error {
		return client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend,
			Flags:  ibverbs.SendInline | ibverbs.SendSignaled,
			Inline: []byte("message")})
	}
	for range held {
		testkit.OK(t, send())
		_ = testkit.Must(server.Receive(ctx))(t)
	}
	testkit.OK(t, send())
	_, err := server.Receive(ctx)
	if onKernel() {
		wantErr(t, "a message too many", err, err) // siw does not say why a connection ends
		return
	}
	wantErr(t, "a message too many", err, err, "no buffer available", "until Message.Release")
}

// TestBindOfASend: a Bind that would be ignored is refused, after the work requests before it are
// posted.
func TestBindOfASend(t *testing.T) {
	client, _ := pair(t, nil, nil)
	write := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendInline}
	bad := ibverbs.SendWR{WRID: 7, Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Bind: &ibverbs.MWBindInfo{}}
	err := client.QP().PostSend(write, bad, write)
	wantErr(t, "a Send with a Bind", err, err, ", work request 1: ", "an IBV_WR_SEND has no Bind")
	if post, ok := err.(*ibverbs.PostError); !ok || post.Posted != 1 { //nolint:errorlint // PostSend's own
		t.Errorf("%#v, want that one is posted", err)
	}
	err = client.Do(timeout(t), write, bad, write)
	wantErr(t, "Do of a Send with a Bind", err, err, ", work request 1: ", "an IBV_WR_SEND has no Bind")
}

// TestReceiverHoldsNothing: a peer with too many Reads ends the connection with the Terminate for a
// message without a receive. The error does not recommend more receives.
func TestReceiverHoldsNothing(t *testing.T) {
	ctx := timeout(t)
	opts := &engine.Options{Conformance: engine.Conformance{ManualIRD: true, ManualORD: true}}
	vctx := testkit.Must(ibverbs.Open(engine.New(opts), ""))(t)
	l := testkit.Must(rdmacm.ListenName(ctx, vctx, "127.0.0.1:0", nil))(t)
	const size = 1 << 20
	var region *ibverbs.MR
	accepted := make(chan error, 1)
	var server *rdmacm.Conn
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			server, err = req.Accept(ctx, &rdmacm.ConnConfig{ResponderResources: 1,
				Receives: 4, ReceiveSize: 8,
				Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
					region, err = c.PD().AllocMR(size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
					return err
				}})
		}
		accepted <- err
	}()
	client := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{InitiatorDepth: 8}))(t)
	testkit.OK(t, <-accepted)
	sink := testkit.Must(client.PD().AllocMR(size, ibverbs.AccessReadSink))(t)
	read := ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{testkit.Must(sink.SGE(0, size))(t)},
		RemoteAddr: region.Addr(), RKey: region.RKey()}
	testkit.OK(t, client.QP().PostSend(read, read, read, read, read, read, read, read))
	_, err := server.Receive(ctx)
	wantErr(t, "a Read too many", err, err, "negotiated IRD")
	if strings.Contains(err.Error(), "Release") {
		t.Errorf("a Read too many: %v", err)
	}
	testkit.OK(t, errors.Join(client.Close(), server.Close(), sink.Close(), region.Close(), l.Close(), vctx.Close()))
}

// TestConnReceiverOfWritesWithImm: the peer's Write with immediate data takes a receive and puts
// nothing into it, however long the Write is. WC.ByteLen is the length of the Write.
func TestConnReceiverOfWritesWithImm(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	if !onKernel() {
		vctx = testkit.Must(ibverbs.Open(engine.New(&engine.Options{Extensions: true}), ""))(t)
		defer func() { testkit.OK(t, vctx.Close()) }()
	}
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		req, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		c, err := req.Accept(ctx, messages(4, 64))
		testkit.OK(t, err)
		accepted <- c
	}()
	a := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), nil))(t)
	defer a.Close()
	b := <-accepted
	defer b.Close()
	here := testkit.Must(a.PD().AllocMR(4096, allRights))(t)
	defer here.Close()
	mr := testkit.Must(b.PD().AllocMR(4096, allRights))(t)
	defer mr.Close()
	there := testkit.Must(mr.Remote(0, 4096))(t)
	for _, n := range []int{4096, 8, 0} {
		testkit.OK(t, a.Do(ctx, ibverbs.NewWriteWithImm(there, 7, sge(t, here, 0, n))))
		m := testkit.Must(b.Receive(ctx))(t)
		if len(m.Data) != 0 || m.WC.Opcode != ibverbs.WCRecvRDMAWithImm || m.WC.Imm != 7 ||
			int(m.WC.ByteLen) != n {
			t.Errorf("a Write of %d bytes: %d bytes of data, %+v", n, len(m.Data), m.WC)
		}
		testkit.OK(t, m.Release())
	}
}
