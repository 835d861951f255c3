package rdmacm_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// shared is a server's SRQ, the CQ of its connections, and its clients.
type shared struct {
	vctx *ibverbs.Context
	l    *rdmacm.Listener
	srq  *ibverbs.SRQ
	cq   *ibverbs.CQ
}

func newShared(t *testing.T, receives int) *shared {
	t.Helper()
	vctx, addr := device(t)
	s := &shared{vctx: vctx}
	s.l = testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	s.cq = testkit.Must(vctx.CreateCQ(64, &ibverbs.CQOptions{Channel: ch}))(t)
	s.srq = testkit.Must(pd.CreateSRQ(&ibverbs.SRQInitAttr{
		Attr: ibverbs.SRQAttr{MaxWR: receives, MaxSGE: 1}}))(t)
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{s.l, s.srq, s.cq, ch, pd} {
			testkit.OK(t, c.Close())
		}
	})
	return s
}

// connect makes a connection, and memory for its client.
func (s *shared) connect(t *testing.T) (client, server *rdmacm.Conn, mr *ibverbs.MR) {
	t.Helper()
	ctx := timeout(t)
	accepted := make(chan error, 1)
	go func() {
		req, err := s.l.Accept(ctx)
		if err == nil {
			server, err = req.Accept(ctx, &rdmacm.ConnConfig{SRQ: s.srq, RecvCQ: s.cq})
		}
		accepted <- err
	}()
	client = testkit.Must(rdmacm.Dial(ctx, s.vctx, s.l.Addr(), nil))(t)
	testkit.OK(t, <-accepted)
	mr = testkit.Must(client.PD().AllocMR(4096, ibverbs.AccessLocalWrite))(t)
	t.Cleanup(func() {
		testkit.OK(t, client.Close())
		testkit.OK(t, server.Close())
		testkit.OK(t, mr.Close())
	})
	return client, server, mr
}

// TestConnReceiverOutlivesBadPeers: peers whose messages are too long end their own connections.
// Each has taken a receive, which is posted again because the others need it.
func TestConnReceiverOutlivesBadPeers(t *testing.T) {
	ctx := timeout(t)
	const receives, size = 2, 16
	s := newShared(t, receives)
	in := testkit.Must(rdmacm.NewSRQReceiver(s.srq, s.cq, receives, size))(t)
	t.Cleanup(func() { testkit.OK(t, in.Close()) })
	for range 3 * receives {
		client, _, mr := s.connect(t)
		_ = client.Send(ctx, sge(t, mr, 0, 2*size)) // too long
		_, err := in.Receive(ctx)
		if failed := new(ibverbs.WCError); !errors.As(err, &failed) {
			t.Fatalf("%d bytes for a receive of %d: %v, want a WCError", 2*size, size, err)
		}
	}
	client, _, mr := s.connect(t)
	for range 2 * receives {
		copy(mr.Bytes(), "good")
		testkit.OK(t, client.Send(ctx, sge(t, mr, 0, 4)))
		m, err := in.Receive(ctx)
		if err != nil {
			t.Fatalf("a good peer after bad ones: %v", err)
		}
		if string(m.Data) != "good" {
			t.Errorf("received %q", m.Data)
		}
		testkit.OK(t, m.Release())
	}
}

// TestConnReceiverTooManyForTheSRQ: a Receiver that could not be made leaves nothing in the SRQ.
func TestConnReceiverTooManyForTheSRQ(t *testing.T) {
	ctx := timeout(t)
	s := newShared(t, 4)
	places := testkit.Must(s.srq.Query())(t).MaxWR
	in, err := rdmacm.NewSRQReceiver(s.srq, s.cq, places+1, 16)
	wantErr(t, "more receives than the SRQ holds", err, syscall.ENOMEM)
	if in != nil {
		t.Error("a Receiver comes with the error")
	}
	in = testkit.Must(rdmacm.NewSRQReceiver(s.srq, s.cq, places, 16))(t)
	t.Cleanup(func() { testkit.OK(t, in.Close()) })
	client, _, mr := s.connect(t)
	testkit.OK(t, client.Send(ctx, sge(t, mr, 0, 4)))
	m, err := in.Receive(ctx)
	testkit.OK(t, err)
	testkit.OK(t, m.Release())
}

// TestConnReceiverClosesUnderWaiting: Close of a Receiver with an SRQ ends waiting calls, although
// no connection has ended.
func TestConnReceiverClosesUnderWaiting(t *testing.T) {
	ctx := timeout(t)
	s := newShared(t, 4)
	in := testkit.Must(rdmacm.NewSRQReceiver(s.srq, s.cq, 4, 16))(t)
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() {
			_, err := in.Receive(ctx)
			ended <- err
		}()
	}
	time.Sleep(20 * time.Millisecond)
	testkit.OK(t, in.Close())
	for range cap(ended) {
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Errorf("a Receive under Close: %v, want os.ErrClosed", err)
		}
	}
	_, err := in.Receive(ctx)
	wantErr(t, "Receive after Close", err, os.ErrClosed)
}

// TestConnReceiverClosedWithMessages: Close comes while the program has a message, and another
// message has not been received.
func TestConnReceiverClosedWithMessages(t *testing.T) {
	ctx := timeout(t)
	s := newShared(t, 4)
	in := testkit.Must(rdmacm.NewSRQReceiver(s.srq, s.cq, 4, 16))(t)
	client, server, mr := s.connect(t)
	copy(mr.Bytes(), "still here")
	testkit.OK(t, client.Send(ctx, sge(t, mr, 0, 10)))
	testkit.OK(t, client.Send(ctx, sge(t, mr, 0, 10)))
	m := testkit.Must(in.Receive(ctx))(t)
	testkit.OK(t, client.Shutdown(ctx))
	testkit.OK(t, server.Wait(ctx))
	testkit.OK(t, in.Close())
	if string(m.Data) != "still here" {
		t.Errorf("after Close the message is %q", m.Data)
	}
	wantErr(t, "Release after Close", m.Release(), os.ErrClosed)
	_, err := in.Receive(ctx)
	wantErr(t, "Receive after Close", err, os.ErrClosed)
	testkit.OK(t, in.Close())
}

// TestConnReceivesClosedByConn: a program whose Dial fails after Prepare has no Conn to close, and
// may not have noticed a second attempt with another Conn.
func TestConnReceivesClosedByConn(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	no := errors.New("no")
	var failed *rdmacm.Conn
	cfg := messages(2, 16)
	cfg.Prepare = func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
		failed = c
		return no
	}
	_, err := rdmacm.Dial(ctx, vctx, l.Addr(), cfg)
	wantErr(t, "a Dial that fails", err, no)
	_, err = failed.Receive(ctx)
	wantErr(t, "Receive", err, os.ErrClosed)
	testkit.OK(t, l.Close()) // then device closes the device: EBUSY with memory registered
}

// TestConnReceiverReleasesOnce: releasing a copy of a message does not post its receive a second
// time.
func TestConnReceiverReleasesOnce(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, messages(2, 16))
	here, _ := memory(t, a, 16)
	var old []rdmacm.Message
	for round := range 4 {
		testkit.OK(t, a.Send(ctx, sge(t, here, 0, 16)))
		m := testkit.Must(b.Receive(ctx))(t)
		old = append(old, m)
		testkit.OK(t, m.Release())
		wantErr(t, "a message twice", m.Release(), syscall.EINVAL, a.LocalAddr().String(), "released already")
		for i := range old {
			again := old[i]
			wantErr(t, "a copy of a released message", again.Release(), syscall.EINVAL)
		}
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

// TestConnReceiverBesideOthers: completions of the program's own receives are errors of Receive,
// not messages.
func TestConnReceiverBesideOthers(t *testing.T) {
	ctx := timeout(t)
	cfg := messages(1, 16)
	cfg.Cap.MaxRecvWR = 4
	a, b := pair(t, nil, cfg)
	here, _ := memory(t, a, 16)
	own := testkit.Must(b.PD().AllocMR(16, ibverbs.AccessLocalWrite))(t)
	t.Cleanup(func() { testkit.OK(t, own.Close()) })
	for _, wrid := range []uint64{0, 99} {
		testkit.OK(t, b.QP().PostRecv(ibverbs.RecvWR{WRID: wrid, SGList: []ibverbs.SGE{sge(t, own, 0, 16)}}))
		testkit.OK(t, a.Send(ctx, sge(t, here, 0, 1)))
		m := testkit.Must(b.Receive(ctx))(t)
		testkit.OK(t, a.Send(ctx, sge(t, here, 0, 1)))
		_, err := b.Receive(ctx)
		wantErr(t, "a receive of the program's own", err, syscall.EINVAL, "WRID",
			"Conn.Receive "+b.RemoteAddr().String())
		testkit.OK(t, m.Release())
	}
}

// TestConnReceiverCloseRace: Receive goes on with a message that it has just taken while the Conn
// is closed.
func TestConnReceiverCloseRace(t *testing.T) {
	ctx := timeout(t)
	rounds := 20
	if onKernel() {
		rounds = 5
	}
	for range rounds {
		a, b := pair(t, nil, messages(8, 16))
		here := testkit.Must(a.PD().AllocMR(16, ibverbs.AccessLocalWrite))(t)
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				for {
					m, err := b.Receive(ctx)
					if err != nil {
						return
					}
					_ = m.Release()
				}
			})
		}
		all.Go(func() {
			for range 8 {
				if a.Send(ctx, ibverbs.SGE{Addr: here.Addr(), Length: 1, LKey: here.LKey()}) != nil {
					return
				}
			}
		})
		testkit.OK(t, b.Close())
		all.Wait()
		testkit.OK(t, a.Close())
		testkit.OK(t, here.Close())
	}
}
