package rdmacm_test

import (
	"runtime"
	"testing"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestIdleConnsAreSmall: what a connection needs to come about is gone when it is
// there, and what it needs to move data comes with the first post.
func TestIdleConnsAreSmall(t *testing.T) {
	const n = 100
	ctx := timeout(t)
	vctx, addr := device(t)
	pd := must[*ibverbs.PD](t)(vctx.AllocPD())
	cq := must[*ibverbs.CQ](t)(vctx.CreateCQ(64, nil))
	cfg := &rdmacm.ConnConfig{PD: pd, SendCQ: cq, RecvCQ: cq, PrivateData: make([]byte, 200)}
	l := must[*rdmacm.Listener](t)(rdmacm.Listen(ctx, vctx, addr, nil))
	conns := make([]*rdmacm.Conn, 0, 2*n+2)
	accepted := make(chan *rdmacm.Conn)
	connect := func() {
		go func() {
			req, err := l.Accept(ctx)
			var c *rdmacm.Conn
			if err == nil {
				c, err = req.Accept(ctx, cfg)
			}
			if err != nil {
				t.Error(err)
			}
			accepted <- c
		}()
		c, err := rdmacm.Dial(ctx, vctx, l.Addr(), cfg)
		if err != nil {
			t.Error(err)
		}
		conns = append(conns, c, <-accepted)
	}
	heap := func() (octets, objects uint64) {
		var m runtime.MemStats
		for range 3 { // what pools keep goes with the second
			runtime.GC()
		}
		runtime.ReadMemStats(&m)
		return m.HeapAlloc, m.HeapObjects
	}
	connect()
	octetsBefore, objectsBefore := heap()
	goroutines := runtime.NumGoroutine()
	for range n {
		connect()
	}
	octets, objects := heap()
	octets, objects = (octets-octetsBefore)/(2*n), (objects-objectsBefore)/(2*n)
	t.Logf("%d octets in %d allocations per end of an idle connection", octets, objects)
	if octets > 3072 { // the peer's private data is 200 of them
		t.Errorf("%d octets per end of an idle connection", octets)
	}
	if more := runtime.NumGoroutine() - goroutines; more > n/10 {
		t.Errorf("%d goroutines for %d idle connections", more, n)
	}
	for _, c := range conns {
		ok(t, c.Close())
	}
	ok(t, l.Close())
	ok(t, cq.Close())
	ok(t, pd.Close())
}
