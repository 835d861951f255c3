package rdmacm_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// shared is a server's SRQ, the CQ of its connections, and who connects to it.
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
	s.l = must[*rdmacm.Listener](t)(rdmacm.Listen(timeout(t), vctx, addr, nil))
	pd := must[*ibverbs.PD](t)(vctx.AllocPD())
	ch := must[*ibverbs.CompChannel](t)(vctx.CreateCompChannel())
	s.cq = must[*ibverbs.CQ](t)(vctx.CreateCQ(64, &ibverbs.CQOptions{Channel: ch}))
	s.srq = must[*ibverbs.SRQ](t)(pd.CreateSRQ(&ibverbs.SRQInitAttr{
		Attr: ibverbs.SRQAttr{MaxWR: receives, MaxSGE: 1}}))
	t.Cleanup(func() {
		for _, c := range []interface{ Close() error }{s.l, s.srq, s.cq, ch, pd} {
			ok(t, c.Close())
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
	client = must[*rdmacm.Conn](t)(rdmacm.Dial(ctx, s.vctx, s.l.Addr(), nil))
	ok(t, <-accepted)
	mr = must[*ibverbs.MR](t)(client.PD().AllocMR(4096, ibverbs.AccessLocalWrite))
	t.Cleanup(func() {
		ok(t, client.Close())
		ok(t, server.Close())
		ok(t, mr.Close())
	})
	return client, server, mr
}

// TestConnReceiverTooManyForTheSRQ: nothing stays in the SRQ of a Receiver that could not be made.
func TestConnReceiverTooManyForTheSRQ(t *testing.T) {
	ctx := timeout(t)
	s := newShared(t, 4)
	places := must[ibverbs.SRQAttr](t)(s.srq.Query()).MaxWR
	in, err := rdmacm.NewSRQReceiver(s.srq, s.cq, places+1, 16)
	wantErr(t, "more receives than the SRQ holds", err, syscall.ENOMEM)
	if in != nil {
		t.Error("a Receiver comes with the error")
	}
	in = must[*rdmacm.Receiver](t)(rdmacm.NewSRQReceiver(s.srq, s.cq, places, 16))
	t.Cleanup(func() { ok(t, in.Close()) })
	client, _, mr := s.connect(t)
	ok(t, client.Send(ctx, sge(t, mr, 0, 4)))
	m, err := in.Receive(ctx)
	ok(t, err)
	ok(t, m.Release())
}

// TestConnReceiverOutlivesBadPeers: peers whose messages are too long end their own connections. Each
// has taken a receive, which the others need.
func TestConnReceiverOutlivesBadPeers(t *testing.T) {
	ctx := timeout(t)
	const receives, size = 2, 16
	s := newShared(t, receives)
	in := must[*rdmacm.Receiver](t)(rdmacm.NewSRQReceiver(s.srq, s.cq, receives, size))
	t.Cleanup(func() { ok(t, in.Close()) })
	for range 3 * receives {
		client, server, mr := s.connect(t)
		_ = client.Send(ctx, sge(t, mr, 0, 2*size)) // too long
		ok(t, server.Wait(ctx))
		// Whether the receive completes, with which status, and when, is the device's affair.
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		if m, err := in.Receive(soon); err == nil {
			t.Fatalf("received %d octets into %d", len(m.Data), size)
		} else {
			t.Log(err)
		}
		cancel()
	}
	client, _, mr := s.connect(t)
	for range 2 * receives {
		copy(mr.Bytes(), "good")
		ok(t, client.Send(ctx, sge(t, mr, 0, 4)))
		m, err := in.Receive(ctx)
		if err != nil {
			t.Fatalf("a good peer after bad ones: %v", err)
		}
		if string(m.Data) != "good" {
			t.Errorf("received %q", m.Data)
		}
		ok(t, m.Release())
	}
}
