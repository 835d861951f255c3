package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
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
		wantErr(t, fmt.Sprint(c), err, syscall.EINVAL, "at least one")
		if in != nil {
			t.Errorf("%v: a Receiver comes with the error", c)
		}
	}
	_, err := rdmacm.NewSRQReceiver(nil, shared.cq, 1, 1)
	wantErr(t, "no SRQ", err, syscall.EINVAL)
	wantErr(t, "no message", new(rdmacm.Message).Release(), syscall.EINVAL, "does not come from Receive")
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
