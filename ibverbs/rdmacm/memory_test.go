package rdmacm_test

import (
	"math"
	"os"
	"regexp"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestIdleConnsAreSmall: memory for the start-up is freed when the connection is established, and
// memory for data is allocated by the first post.
func TestIdleConnsAreSmall(t *testing.T) {
	vctx, _ := device(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	cq := testkit.Must(vctx.CreateCQ(64, nil))(t)
	cfg := &rdmacm.ConnConfig{
		PD: pd, SendCQ: cq, RecvCQ: cq, PrivateData: make([]byte, 200), NoOpeningWrite: true,
	}
	if both := cost(t, vctx, cfg, nil); both > 2*3200 { // the peer's private data is 200 of each
		t.Errorf("%d bytes per connection, both ends together", both)
	}
	testkit.OK(t, cq.Close())
	testkit.OK(t, pd.Close())
}

// TestDefaultConnCost compares the memory of a Conn of the default configuration with the
// documentation of ConnConfig.
func TestDefaultConnCost(t *testing.T) {
	if testkit.Race {
		t.Skip("600 connections that wait: ci/test has them without the race detector")
	}
	text := string(testkit.Must(os.ReadFile("config.go"))(t))
	figures := `needs (\d+) KiB of\s+//\s+memory when it was accepted and (\d+) when it was dialled, and (\d+)`
	said := regexp.MustCompile(figures).FindStringSubmatch(text)
	if said == nil {
		t.Fatal("config.go does not say what a Conn costs")
	}
	compare := func(what string, octets uint64, said string) {
		t.Helper()
		kib := testkit.Must(strconv.Atoi(said))(t)
		t.Logf("%s: %d bytes; the documentation says %d KiB", what, octets, kib)
		if n := float64(octets) / 1024; n > float64(kib)*1.1+0.5 || n < float64(kib)*0.9-0.5 {
			t.Errorf("%s: %.1f KiB; the documentation says %d", what, n, kib)
		}
	}
	vctx, _ := device(t)
	accepted := cost(t, vctx, &rdmacm.ConnConfig{NoOpeningWrite: true}, nil) / 2
	compare("accepted", accepted, said[1])
	compare("dialled", cost(t, vctx, nil, nil)-accepted, said[2])
	compare("used", cost(t, vctx, nil, func(c *rdmacm.Conn) error {
		if err := c.QP().PostRecv(ibverbs.RecvWR{}); err != nil {
			return err
		}
		return c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled})
	})/2, said[3])
}

// TestDefaultConnSizes: a QP has the default sizes, and its CQs have room for a full queue and
// Drain's work request.
func TestDefaultConnSizes(t *testing.T) {
	client, server := pair(t, nil, nil)
	for _, c := range []*rdmacm.Conn{client, server} {
		_, init, err := c.QP().Query()
		testkit.OK(t, err)
		want := ibverbs.QPCap{
			MaxSendWR: rdmacm.DefaultSendWR, MaxRecvWR: rdmacm.DefaultRecvWR,
			MaxSendSGE: rdmacm.DefaultSGE, MaxRecvSGE: rdmacm.DefaultSGE,
		}
		if init.Cap != want {
			t.Errorf("the QP has %+v, want %+v", init.Cap, want)
		}
		if s, r := c.SendCQ().CQE(), c.RecvCQ().CQE(); s <= want.MaxSendWR || r < want.MaxRecvWR {
			t.Errorf("the CQs hold %d and %d completions", s, r)
		}
	}
}

// cost returns how many bytes of memory both ends of a connection need together, with cfg and after
// use. It fails t if they need goroutines. It returns the least of three measurements, because the
// device allocates and keeps buffers when more connections than before move data at the same time.
func cost(t *testing.T, vctx *ibverbs.Context, cfg *rdmacm.ConnConfig,
	use func(c *rdmacm.Conn) error) uint64 {
	t.Helper()
	least := measuredCost(t, vctx, cfg, use)
	for range 2 {
		least = min(least, measuredCost(t, vctx, cfg, use))
	}
	return least
}

func measuredCost(t *testing.T, vctx *ibverbs.Context, cfg *rdmacm.ConnConfig,
	use func(c *rdmacm.Conn) error) uint64 {
	t.Helper()
	const n = 100
	ctx := timeout(t)
	_, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
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
		c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), cfg))(t)
		for _, c := range []*rdmacm.Conn{c, <-accepted} {
			if conns = append(conns, c); use != nil {
				testkit.OK(t, use(c))
			}
		}
	}
	connect()
	goroutines, before := runtime.NumGoroutine(), heap()
	for range n {
		connect()
	}
	each := (max(heap(), before) - before) / n
	if more := runtime.NumGoroutine() - goroutines; more > n/10 {
		t.Errorf("%d goroutines for %d idle connections", more, n)
	}
	for _, c := range conns {
		testkit.OK(t, c.Close())
	}
	testkit.OK(t, l.Close())
	return each
}

// heap returns how much memory is in use, after the engine has had time to finish. On a loaded
// machine the other side may not have read the opening Write yet.
func heap() uint64 {
	var m runtime.MemStats
	least, same := uint64(math.MaxUint64), 0
	for same < 3 {
		runtime.GC() // the second collection frees the contents of pools
		runtime.ReadMemStats(&m)
		if m.HeapAlloc+10_000 < least {
			least, same = m.HeapAlloc, 0
		}
		same++
		time.Sleep(20 * time.Millisecond)
	}
	return least
}
