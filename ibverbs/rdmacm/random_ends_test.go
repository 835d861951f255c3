package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestConnEndsAtRandom: while goroutines of both sides send, write, read and receive, with contexts
// that end, each side ends its connections at a random time in a random way. Every call returns,
// and everything can be closed afterwards.
func TestConnEndsAtRandom(t *testing.T) {
	rounds := 60
	switch {
	case testing.Short():
		rounds = 10
	case onKernel():
		rounds = 8 // librdmacm takes long for each, longest with RoCE
	}
	seed := rand.Uint64()
	t.Logf("seed %#x", seed)
	for round := range rounds {
		w := &endsWorld{t: t, rnd: rand.New(rand.NewPCG(seed, uint64(round)))}
		w.run()
		if t.Failed() {
			t.Fatalf("in round %d", round)
		}
	}
}

// endsWorld is one round: a server with one Receiver for all connections, and the server's clients.
type endsWorld struct {
	t     testing.TB
	rnd   *rand.Rand
	mu    sync.Mutex // of rnd
	calls sync.WaitGroup
}

func (w *endsWorld) draw(n int) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rnd.IntN(n)
}

// brief returns a context that ends soon, or never.
func (w *endsWorld) brief(parent context.Context) (context.Context, context.CancelFunc) {
	if w.draw(3) > 0 {
		return context.WithCancel(parent)
	}
	return context.WithTimeout(parent, time.Duration(w.draw(3000))*time.Microsecond)
}

func (w *endsWorld) run() {
	t := w.t
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	vctx, addr := device(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	srq := testkit.Must(pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 16, MaxSGE: 1}}))(t)
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	cq := testkit.Must(vctx.CreateCQ(64, &ibverbs.CQOptions{Channel: ch}))(t)
	rcv := testkit.Must(rdmacm.NewSRQReceiver(srq, cq, 16, 64))(t)
	mr := testkit.Must(pd.AllocMR(4096, allRights))(t)
	remote := testkit.Must(mr.Remote(0, 2048))(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)

	var accepting sync.WaitGroup
	var servers []*rdmacm.Conn
	accepting.Go(func() {
		for {
			req, err := l.Accept(ctx)
			if err != nil {
				return
			}
			c, err := req.Accept(ctx, &rdmacm.ConnConfig{PD: pd, SRQ: srq, RecvCQ: cq})
			if err == nil {
				servers = append(servers, c)
				w.use(c, mr, remote)
				w.calls.Go(func() { w.end(c) })
			}
		}
	})
	receiving, stop := context.WithCancel(ctx)
	var receivers sync.WaitGroup
	for range 2 {
		receivers.Go(func() {
			for {
				m, err := rcv.Receive(receiving)
				if err != nil {
					return
				}
				if err := m.Release(); !errors.Is(err, os.ErrClosed) { // Close may be first
					testkit.OK(t, err)
				}
			}
		})
	}

	var clients []*rdmacm.Conn
	for range 1 + w.draw(4) {
		c, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{PD: pd})
		if endedEarly(err) {
			continue
		}
		testkit.OK(t, err)
		clients = append(clients, c)
		w.use(c, mr, remote)
		w.calls.Go(func() { w.end(c) })
	}
	time.Sleep(time.Duration(w.draw(5000)) * time.Microsecond)
	testkit.OK(t, l.Close())
	accepting.Wait()
	returned := make(chan struct{})
	go func() {
		defer close(returned)
		w.calls.Wait()
	}()
	select {
	case <-returned:
	case <-ctx.Done():
		t.Fatal("calls have not returned after a minute")
	}
	for _, c := range append(clients, servers...) {
		testkit.OK(t, c.Close())
	}
	if w.draw(2) == 0 {
		stop()
	}
	testkit.OK(t, rcv.Close())
	receivers.Wait()
	stop()
	testkit.OK(t, mr.Close())
	testkit.OK(t, srq.Close())
	testkit.OK(t, cq.Close())
	testkit.OK(t, ch.Close())
	testkit.OK(t, pd.Close())
}

// endedEarly reports whether err is what Dial returns if the server has ended the connection
// before the client has read its Reply. siw has EINVAL for that, as for a bad Reply.
func endedEarly(err error) bool {
	var rejected *rdmacm.RejectedError
	return errors.As(err, &rejected) || errors.Is(err, syscall.ECONNRESET) ||
		onKernel() && errors.Is(err, syscall.EINVAL) && strings.Contains(err.Error(), "CONNECT_ERROR")
}

// use makes goroutines call c until a call of each fails for a reason other than its context.
func (w *endsWorld) use(c *rdmacm.Conn, mr *ibverbs.MR, remote ibverbs.RemoteRegion) {
	from := testkit.Must(mr.SGE(2048, 64))(w.t)
	to := testkit.Must(mr.SGE(3072, 64))(w.t)
	for range 1 + w.draw(3) {
		w.calls.Go(func() {
			for {
				ctx, cancel := w.brief(context.Background())
				var err error
				switch w.draw(5) {
				case 0:
					err = c.Write(ctx, remote, from)
				case 1:
					err = c.Read(ctx, to, remote)
				case 2:
					err = c.Do(ctx, ibverbs.NewWrite(remote, from), ibverbs.NewRead(remote, to))
				case 3:
					err = c.Wait(ctx)
					if err == nil {
						cancel()
						return
					}
				default:
					err = c.Send(ctx, from)
				}
				ended := ctx.Err() != nil
				cancel()
				if err != nil && !(ended && errors.Is(err, context.DeadlineExceeded)) {
					return
				}
			}
		})
	}
}

// end ends c, in one way or in two at the same time.
func (w *endsWorld) end(c *rdmacm.Conn) {
	time.Sleep(time.Duration(w.draw(8000)) * time.Microsecond)
	defer func() { _ = c.Disconnect() }() // in case a Shutdown has given up
	var both sync.WaitGroup
	defer both.Wait()
	for range 1 + w.draw(2) {
		both.Go(func() {
			switch w.draw(4) {
			case 0:
				ctx, cancel := w.brief(context.Background())
				defer cancel()
				_ = c.Shutdown(ctx)
			case 1:
				_ = c.Disconnect()
			default:
				testkit.OK(w.t, c.Close())
			}
		})
	}
}
