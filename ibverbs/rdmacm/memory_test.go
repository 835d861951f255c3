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
	vctx, _ := device(t)
	pd := must[*ibverbs.PD](t)(vctx.AllocPD())
	cq := must[*ibverbs.CQ](t)(vctx.CreateCQ(64, nil))
	cfg := &rdmacm.ConnConfig{
		PD: pd, SendCQ: cq, RecvCQ: cq, PrivateData: make([]byte, 200), NoOpeningWrite: true,
	}
	if both := cost(t, vctx, cfg, nil); both > 2*3200 { // the peer's private data is 200 of each
		t.Errorf("%d octets per connection, both ends together", both)
	}
	ok(t, cq.Close())
	ok(t, pd.Close())
}

// cost returns how many octets of memory both ends of a connection need together, with cfg and
// after use. It fails t if they need goroutines.
func cost(t *testing.T, vctx *ibverbs.Context, cfg *rdmacm.ConnConfig, use func(c *rdmacm.Conn) error) uint64 {
	t.Helper()
	const n = 100
	ctx := timeout(t)
	_, addr := device(t)
	l := must[*rdmacm.Listener](t)(rdmacm.Listen(ctx, vctx, addr, nil))
	conns, accepted := make([]*rdmacm.Conn, 0, 2*n+2), make(chan *rdmacm.Conn)
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
		c := must[*rdmacm.Conn](t)(rdmacm.Dial(ctx, vctx, l.Addr(), cfg))
		for _, c := range []*rdmacm.Conn{c, <-accepted} {
			if conns = append(conns, c); use != nil {
				ok(t, use(c))
			}
		}
	}
	connect()
	goroutines, before := runtime.NumGoroutine(), heap()
	for range n {
		connect()
	}
	each := (heap() - before) / n
	if more := runtime.NumGoroutine() - goroutines; more > n/10 {
		t.Errorf("%d goroutines for %d idle connections", more, n)
	}
	for _, c := range conns {
		ok(t, c.Close())
	}
	ok(t, l.Close())
	return each
}

// heap returns how much memory is in use.
func heap() uint64 {
	var m runtime.MemStats
	for range 3 { // what pools keep goes with the second
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
