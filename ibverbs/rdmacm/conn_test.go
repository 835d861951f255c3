package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// device opens the device for a test, and checks at its end that nothing on it is still open.
func device(t testing.TB) (*ibverbs.Context, netip.AddrPort) {
	t.Helper()
	vctx, addr := open()
	t.Cleanup(func() {
		err := vctx.Close()
		// The kernel frees connections that were given up only after some time.
		for began := time.Now(); onKernel() && errors.Is(err, syscall.EBUSY) && time.Since(began) < patience; {
			time.Sleep(10 * time.Millisecond)
			err = vctx.Close()
		}
		if err != nil {
			t.Errorf("at the end of the test: %v", err)
		}
	})
	return vctx, addr
}

// pair connects two Conns. Their configurations may be nil.
func pair(t testing.TB, dial, accept *rdmacm.ConnConfig) (client, server *rdmacm.Conn) {
	t.Helper()
	client, server = pairOf(t, timeout(t), dial, accept)
	t.Cleanup(func() {
		testkit.OK(t, client.Close())
		testkit.OK(t, server.Close())
	})
	return client, server
}

// pairOf connects two Conns while ctx lasts. The caller closes the Conns.
func pairOf(t testing.TB, ctx context.Context, dial, accept *rdmacm.ConnConfig) (client, server *rdmacm.Conn) {
	t.Helper()
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			server, err = req.Accept(ctx, accept)
		}
		accepted <- err
	}()
	client = testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), dial))(t)
	testkit.OK(t, <-accepted)
	return client, server
}

// receiver is a Prepare that posts n receives of size bytes each from one region, with the
// receive's number as WRID.
type receiver struct {
	n, size int
	mr      *ibverbs.MR
}

func (r *receiver) prepare(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
	r.mr, err = c.PD().AllocMR(r.n*r.size, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	wrs := make([]ibverbs.RecvWR, r.n)
	for i := range wrs {
		sge, err := r.mr.SGE(i*r.size, r.size)
		if err != nil {
			return err
		}
		wrs[i] = ibverbs.RecvWR{WRID: uint64(i), SGList: []ibverbs.SGE{sge}}
	}
	return c.QP().PostRecv(wrs...)
}

// close closes the region, if prepare has made it.
func (r *receiver) close() {
	if r.mr != nil {
		_ = r.mr.Close()
	}
}

// get returns the next message.
func (r *receiver) get(ctx context.Context, c *rdmacm.Conn) ([]byte, error) {
	var wc [1]ibverbs.WC
	if _, err := c.RecvCQ().PollWait(ctx, wc[:]); err != nil {
		return nil, err
	}
	if err := wc[0].Err(); err != nil {
		return nil, err
	}
	return r.mr.Bytes()[int(wc[0].WRID)*r.size:][:wc[0].ByteLen], nil
}

// The peer's first message may be on its way before Accept has returned.
func TestConnReceivesPostedInPrepare(t *testing.T) {
	for range 20 {
		func() {
			ctx := timeout(t)
			r := &receiver{n: 4, size: 16}
			client, server := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxInlineData: 16}}, &rdmacm.ConnConfig{Prepare: r.prepare})
			defer r.mr.Close()
			for i := range 4 {
				testkit.OK(t, client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: []byte{byte(i)}}))
			}
			for i := range 4 {
				msg, err := r.get(ctx, server)
				if err != nil || !bytes.Equal(msg, []byte{byte(i)}) {
					t.Fatalf("message %d: %x, %v", i, msg, err)
				}
			}
			testkit.OK(t, client.Shutdown(ctx))
			testkit.OK(t, server.Wait(ctx))
		}()
	}
}

func TestConnPrivateData(t *testing.T) {
	sizes, padded := []int{0, 1, 3, 4, 5, 64, 251}, func(b []byte, _ int) []byte { return b }
	if onRxe() { // RoCE pads both messages to a fixed length
		sizes, padded = []int{0, 1, 3, 4, 5, 56}, func(b []byte, n int) []byte { return append(b, make([]byte, n-len(b))...) }
	}
	for _, n := range sizes {
		private := func(c byte) []byte { return bytes.Repeat([]byte{c}, n) }
		ctx := timeout(t)
		client, server := pair(t, &rdmacm.ConnConfig{PrivateData: private('c')}, &rdmacm.ConnConfig{PrivateData: private('s')})
		if got := server.PrivateData(); !bytes.Equal(got, padded(private('c'), 56)) {
			t.Errorf("the server got %q of %d bytes", got, n)
		}
		if got := client.PrivateData(); !bytes.Equal(got, padded(private('s'), 196)) {
			t.Errorf("the client got %q of %d bytes", got, n)
		}
		if client.LocalAddr() != server.RemoteAddr() || client.RemoteAddr() != server.LocalAddr() {
			t.Errorf("client %v to %v, server %v to %v", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
		}
		testkit.OK(t, client.Shutdown(ctx))
	}
}

// Shutdown right after a queue full of unsignalled work loses none of it.
func TestConnShutdownDelivers(t *testing.T) {
	const messages, size = 32, 100_000
	ctx := timeout(t)
	r := &receiver{n: messages, size: size}
	sender := &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: messages, MaxSendSGE: 1}}
	client, server := pair(t, sender, &rdmacm.ConnConfig{Prepare: r.prepare})
	defer r.mr.Close()
	mr := testkit.Must(client.PD().AllocMR(messages*size, 0))(t)
	defer mr.Close()
	wrs := make([]ibverbs.SendWR, messages)
	for i := range wrs {
		sge := testkit.Must(mr.SGE(i*size, size-i))(t)
		for j := range size {
			mr.Bytes()[i*size+j] = byte(i + j)
		}
		wrs[i] = ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}
	}
	testkit.OK(t, client.QP().PostSend(wrs...))
	testkit.OK(t, client.Shutdown(ctx))
	for i := range messages {
		msg, err := r.get(ctx, server)
		if err != nil {
			t.Fatalf("message %d: %v", i, err)
		}
		if !bytes.Equal(msg, mr.Bytes()[i*size:][:size-i]) {
			t.Fatalf("message %d of %d bytes is not what was sent", i, len(msg))
		}
	}
	if n, err := client.SendCQ().Poll(make([]ibverbs.WC, 1)); n != 0 || err != nil {
		t.Errorf("unsignalled work left %d completions, %v", n, err)
	}
	testkit.OK(t, server.Wait(ctx))
}

func TestConnShutdownFromBothSides(t *testing.T) {
	for range 10 {
		ctx := timeout(t)
		r := &receiver{n: 8, size: 8}
		client, server := pair(t, nil, &rdmacm.ConnConfig{Prepare: r.prepare})
		testkit.OK(t, client.QP().PostSend(make4Sends()...))
		_, err := r.get(ctx, server) // from here on the server may send, too
		testkit.OK(t, err)
		errs := make(chan error, 2)
		for _, c := range []*rdmacm.Conn{client, server} {
			go func() { errs <- c.Shutdown(ctx) }()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		}
		testkit.OK(t, client.Shutdown(ctx)) // again, when the peer has gone
		testkit.OK(t, r.mr.Close())
	}
}

func make4Sends() []ibverbs.SendWR {
	wrs := make([]ibverbs.SendWR, 4)
	for i := range wrs {
		wrs[i].Opcode = ibverbs.WRSend
	}
	return wrs
}

// Posting, polling and receiving allocate nothing on the whole path.
func TestConnHotPathDoesNotAllocate(t *testing.T) {
	r := &receiver{n: 8, size: 64}
	client, server := pair(t, nil, &rdmacm.ConnConfig{Prepare: r.prepare})
	defer r.mr.Close()
	mr := testkit.Must(client.PD().AllocMR(64, 0))(t)
	defer mr.Close()
	sends := []ibverbs.SendWR{{
		Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{testkit.Must(mr.SGE(0, 64))(t)},
	}}
	recvs := []ibverbs.RecvWR{{SGList: []ibverbs.SGE{testkit.Must(r.mr.SGE(0, 64))(t)}}}
	wc := make([]ibverbs.WC, 4)
	poll := func(cq *ibverbs.CQ) {
		for {
			n, err := cq.Poll(wc)
			if err != nil || n > 0 && wc[0].Status != ibverbs.WCSuccess {
				t.Fatal(wc[0], err)
			}
			if n > 0 {
				return
			}
		}
	}
	allocs := testing.AllocsPerRun(200, func() {
		if err := client.QP().PostSend(sends...); err != nil {
			t.Fatal(err)
		}
		poll(server.RecvCQ())
		poll(client.SendCQ())
		if err := server.QP().PostRecv(recvs...); err != nil {
			t.Fatal(err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations per message", allocs)
	}
}

// TestConnSendAfterPeerIsGone: work that is posted after the peer has gone is refused or completes,
// even if the program does not wait for the connection's end.
func TestConnSendAfterPeerIsGone(t *testing.T) {
	ctx := timeout(t)
	client, server := pair(t, nil, nil)
	mr := testkit.Must(client.PD().AllocMR(8, 0))(t)
	defer mr.Close()
	wr := ibverbs.NewSend(testkit.Must(mr.SGE(0, 8))(t))
	testkit.OK(t, server.Close())
	wc := make([]ibverbs.WC, 1)
	for {
		if err := client.QP().PostSend(wr); err != nil {
			t.Log(err)
			return
		}
		testkit.Must(client.SendCQ().PollWait(ctx, wc))(t)
		if err := client.Err(&wc[0]); err != nil {
			t.Log(err)
			return
		}
	}
}

// A peer that closes without Shutdown is noticed, and posted work is flushed.
func TestConnPeerCloses(t *testing.T) {
	ctx := timeout(t)
	r := &receiver{n: 3, size: 8}
	client, server := pair(t, nil, &rdmacm.ConnConfig{Prepare: r.prepare})
	defer r.mr.Close()
	testkit.OK(t, client.Close())
	testkit.OK(t, server.Wait(ctx))
	<-server.Done()
	for range r.n {
		_, err := r.get(ctx, server)
		wantErr(t, "receive that was posted", err, ibverbs.ErrFlushed)
	}
	testkit.OK(t, server.Shutdown(ctx))
}

// A peer that disconnects gets an answer, and posted work is flushed, whether the program waits for
// the connection's end or not.
func TestConnPeerDisconnectsUnasked(t *testing.T) {
	ctx := timeout(t)
	r := &receiver{n: 3, size: 8}
	client, server := pair(t, nil, &rdmacm.ConnConfig{Prepare: r.prepare})
	defer r.mr.Close()
	testkit.OK(t, client.Shutdown(ctx)) // waits for the answer
	for range r.n {
		_, err := r.get(ctx, server)
		wantErr(t, "receive that was posted", err, ibverbs.ErrFlushed)
	}
}

func TestConnNobodyThere(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	gone := l.Addr()
	testkit.OK(t, l.Close())
	_, err := rdmacm.Dial(ctx, vctx, gone, nil)
	wantErr(t, "Dial where nobody listens", err, syscall.ECONNREFUSED, gone.String())
	var call *ibverbs.Error
	if !errors.As(err, &call) {
		t.Errorf("got %#v, want an *Error", err)
	}
}

func TestConnAddressInUse(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	_, err := rdmacm.Listen(ctx, vctx, l.Addr(), nil)
	wantErr(t, "second listener", err, syscall.EADDRINUSE, l.Addr().String())
}

// A client that gives up while its request waits for an answer does no harm to the listener, and
// the answer has no effect.
func TestConnClientGivesUp(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	impatient, giveUp := context.WithCancel(ctx)
	defer giveUp()
	dialled := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(impatient, vctx, l.Addr(), nil)
		dialled <- err
	}()
	// Accept before Dial gives up, because the engine withdraws a request whose peer leaves before
	// it is fetched.
	req := testkit.Must(l.Accept(ctx))(t)
	giveUp()
	if err := <-dialled; !errors.Is(err, context.Canceled) {
		t.Errorf("Dial with no answer: %v", err)
	}
	time.Sleep(100 * time.Millisecond) // for the end of the connection to arrive
	if c, err := req.Accept(ctx, nil); err == nil {
		testkit.OK(t, c.Wait(ctx))
		testkit.OK(t, c.Close())
	}
	_, server := pairAt(t, ctx, vctx, l)
	testkit.OK(t, server.Shutdown(ctx))
}

// pairAt connects over an existing listener.
func pairAt(t *testing.T, ctx context.Context, vctx *ibverbs.Context, l *rdmacm.Listener) (client, server *rdmacm.Conn) {
	t.Helper()
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			server, err = req.Accept(ctx, nil)
		}
		accepted <- err
	}()
	client = testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), nil))(t)
	testkit.OK(t, <-accepted)
	t.Cleanup(func() {
		testkit.OK(t, client.Close())
		testkit.OK(t, server.Close())
	})
	return client, server
}

// Requests that were not accepted end with their listener.
func TestConnListenerCloses(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	dialled := dialLater(ctx, vctx, l.Addr())
	time.Sleep(100 * time.Millisecond)
	testkit.OK(t, l.Close())
	if err := <-dialled; err == nil || ctx.Err() != nil {
		t.Errorf("Dial to a listener that closes without answering: %v", err)
	}
}

// A PD and CQs that many connections share stay open when these close.
func TestConnSharedParts(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	defer ch.Close()
	cq := testkit.Must(vctx.CreateCQ(256, &ibverbs.CQOptions{Channel: ch}))(t)
	defer cq.Close()
	const conns = 3
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() {
			req, err := l.Accept(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			c, err := req.Accept(ctx, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if err := errors.Join(c.Wait(ctx), c.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	qpns := make(map[uint32]bool)
	for i := range conns {
		c, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{PD: pd, SendCQ: cq, RecvCQ: cq, Cookie: i})
		testkit.OK(t, err)
		if c.PD() != pd || c.SendCQ() != cq || c.RecvCQ() != cq || c.QP().Cookie() != i {
			t.Error("the connection is not made of what was given")
		}
		qpns[c.QP().QPN()] = true
		// An empty Write needs no memory at the peer.
		testkit.OK(t, c.QP().PostSend(ibverbs.SendWR{WRID: uint64(i), Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}))
		testkit.OK(t, c.Shutdown(ctx))
		testkit.OK(t, c.Close())
	}
	wc := make([]ibverbs.WC, 8)
	for got := 0; got < conns; {
		n, err := cq.PollWait(ctx, wc)
		testkit.OK(t, err)
		for _, c := range wc[:n] {
			if c.Status != ibverbs.WCSuccess || !qpns[c.QPN] {
				t.Errorf("completion %+v of a QP of %v", c, qpns)
			}
		}
		got += n
	}
	wg.Wait()
}
