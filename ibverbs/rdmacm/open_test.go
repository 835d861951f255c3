package rdmacm_test

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// TestConnAcceptingSideFirst: the accepting side posts first, and its message arrives and
// completes, while the program that dialled posts nothing.
func TestConnAcceptingSideFirst(t *testing.T) {
	ctx := timeout(t)
	r := &receiver{n: 1, size: 8}
	client, server := pair(t, &rdmacm.ConnConfig{Prepare: r.prepare, SQSigAll: true}, nil)
	defer r.close()
	testkit.OK(t, server.QP().PostSend(ibverbs.SendWR{WRID: 5, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled}))
	wc := make([]ibverbs.WC, 4)
	n := testkit.Must(server.SendCQ().PollWait(ctx, wc))(t)
	testkit.OK(t, server.Err(&wc[0]))
	if n != 1 || wc[0].WRID != 5 {
		t.Errorf("the accepting side has %d completions, the first is %v", n, wc[0])
	}
	_, err := r.get(ctx, client)
	testkit.OK(t, err)
	if n, err := client.SendCQ().Poll(wc); n != 0 || err != nil {
		t.Errorf("Dial left %d completions (%v), %v", n, wc[0], err)
	}
	testkit.OK(t, server.Shutdown(ctx))
}

// TestConnDialLeavesAllPlaces: Dial's own Write occupies no place of send queue and CQ when Dial
// returns.
func TestConnDialLeavesAllPlaces(t *testing.T) {
	const places = 4
	ctx := timeout(t)
	vctx, addr := device(t)
	cq := testkit.Must(vctx.CreateCQ(places, nil))(t)
	defer cq.Close()
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn)
	go func() {
		req, err := l.Accept(ctx)
		var c *rdmacm.Conn
		if err == nil {
			c, err = req.Accept(ctx, nil)
		}
		if err != nil {
			t.Error(err)
		}
		accepted <- c
	}()
	c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{
		SendCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: places},
	}))(t)
	server := <-accepted
	for i := range places {
		testkit.OK(t, c.QP().PostSend(ibverbs.SendWR{WRID: uint64(i), Opcode: ibverbs.WRRDMAWrite,
			Flags: ibverbs.SendSignaled}))
	}
	wc := make([]ibverbs.WC, 1)
	for i := 0; i < places; {
		n := testkit.Must(cq.Poll(wc))(t)
		if n == 0 {
			time.Sleep(time.Millisecond)
			testkit.OK(t, ctx.Err())
			continue
		}
		if wc[0].WRID != uint64(i) || wc[0].Status != ibverbs.WCSuccess {
			t.Errorf("completion %d is %v", i, wc[0])
		}
		i++
	}
	soon, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	for {
		ev, err := vctx.AsyncEvent(soon)
		if err != nil {
			break
		}
		if ev.Type == ibverbs.EventCQErr {
			t.Error(ev)
		}
	}
	testkit.OK(t, c.Shutdown(ctx))
	testkit.OK(t, c.Close())
	testkit.OK(t, server.Close())
}

// TestOpeningWrite checks on a fake whether Dial posts its Write, and which Write it is.
func TestOpeningWrite(t *testing.T) {
	write := provider.SendWR{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled}
	for name, tc := range map[string]struct {
		transport provider.TransportType
		cfg       rdmacm.ConnConfig
		want      []provider.SendWR
	}{
		"iWARP":   {provider.TransportIWARP, rdmacm.ConnConfig{}, []provider.SendWR{write}},
		"opt-out": {provider.TransportIWARP, rdmacm.ConnConfig{NoOpeningWrite: true}, nil},
		"RoCE":    {provider.TransportIB, rdmacm.ConnConfig{}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			f, vctx := newFake(t, goodDial())
			f.Transport = tc.transport
			var posted []provider.SendWR
			f.PostSend = func(qp *fake.QP, wrs []provider.SendWR) (int, error) {
				for _, wr := range wrs {
					qp.Init.SendCQ.(*fake.CQ).Complete(provider.WC{WRID: wr.WRID, QPN: fake.QPN})
					wr.WRID = 0
					posted = append(posted, wr)
				}
				return len(wrs), nil
			}
			c := testkit.Must(rdmacm.Dial(timeout(t), vctx, somewhere, &tc.cfg))(t)
			same := func(a, b provider.SendWR) bool {
				return a.Opcode == b.Opcode && a.Flags == b.Flags && len(a.SGList)+len(b.SGList) == 0
			}
			if !slices.EqualFunc(posted, tc.want, same) {
				t.Errorf("posted %v, want %v", posted, tc.want)
			}
			if n, err := c.SendCQ().Poll(make([]ibverbs.WC, 1)); n != 0 || err != nil {
				t.Errorf("%d completions, %v", n, err)
			}
			testkit.OK(t, c.QP().Drain(t.Context()))
			if len(posted) != len(tc.want) {
				t.Error("Drain takes the opening Write for work of the program")
			}
			testkit.OK(t, c.Close())
		})
	}
}

// TestOpeningWriteFails: if the Write fails because the connection has ended, Dial does not fail.
// If it does not complete, Dial ends with its context.
func TestOpeningWriteFails(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	f.Transport = provider.TransportIWARP
	f.PostSend = func(qp *fake.QP, wrs []provider.SendWR) (int, error) {
		qp.Init.SendCQ.(*fake.CQ).Complete(provider.WC{WRID: wrs[0].WRID, QPN: fake.QPN,
			Status: provider.WCWRFlushErr})
		return 1, nil
	}
	c := testkit.Must(rdmacm.Dial(timeout(t), vctx, somewhere, nil))(t)
	if n, err := c.SendCQ().Poll(make([]ibverbs.WC, 1)); n != 0 || err != nil {
		t.Errorf("%d completions, %v", n, err)
	}
	testkit.OK(t, c.Close())

	ctx, cancel := context.WithCancel(timeout(t))
	f.PostSend = func(_ *fake.QP, wrs []provider.SendWR) (int, error) {
		cancel()
		return len(wrs), nil
	}
	_, err := rdmacm.Dial(ctx, vctx, somewhere, nil)
	wantErr(t, "Dial", err, context.Canceled, "rdma_connect "+somewhere.String(),
		"before the opening Write had completed")
	testkit.OK(t, vctx.Close())
}

// TestConnBusyContext: the EBUSY of a context names the Listener, Request and Conns that are open.
func TestConnBusyContext(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	busy := func(words ...string) {
		t.Helper()
		wantErr(t, "Close", vctx.Close(), syscall.EBUSY, words...)
	}
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	busy("open on it: 1 Listener;")
	dialled := dialLater(ctx, vctx, l.Addr())
	req := testkit.Must(l.Accept(ctx))(t)
	busy("1 Conn, 1 Listener, 1 PD, 1 Request")
	testkit.OK(t, req.Reject(nil))
	<-dialled

	client, server := pairAt(t, ctx, vctx, l)
	busy("1 Listener, 2 Conns,")
	testkit.OK(t, l.Close())
	testkit.OK(t, client.Close())
	busy("1 Conn,")
	testkit.OK(t, server.Close())
	testkit.OK(t, vctx.Close())
}
