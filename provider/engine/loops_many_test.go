package engine

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/turns"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// supply is a network whose connections bring the same bytes again and again, as long as on is
// true. Its pollers share their turns as TCP's do, and always have something ready then.
type supply struct {
	transport.Network
	on      atomic.Bool
	cost    time.Duration       // of serving a connection once, in simulated time
	arrived func(c *supplyConn) // called when a connection's bytes have been taken
}

// supplyConn is one of its connections.
type supplyConn struct {
	transport.Conn
	net    *supply
	octets []byte
	next   int // bytes taken of them
	since  time.Time
	waits  []time.Duration
	came   int64
}

func (c *supplyConn) Readv(bufs [][]byte) (int, error) {
	if !c.net.on.Load() {
		return 0, transport.ErrWouldBlock
	}
	n := copy(bufs[0], c.octets[c.next:])
	if c.next += n; c.next == len(c.octets) {
		c.next = 0
		c.net.arrived(c)
	}
	return n, nil
}

func (c *supplyConn) Writev(bufs [][]byte) (n int, err error) {
	for _, b := range bufs {
		n += len(b)
	}
	return n, nil
}

func (c *supplyConn) CloseWrite() error          { return nil }
func (c *supplyConn) Close() error               { return nil }
func (c *supplyConn) Abort() error               { return nil }
func (c *supplyConn) MSS() int                   { return 65483 }
func (c *supplyConn) LocalAddr() netip.AddrPort  { return netip.AddrPort{} }
func (c *supplyConn) RemoteAddr() netip.AddrPort { return netip.AddrPort{} }

type supplyPoller struct {
	*noPoller
	net     *supply
	sharing turns.Sharing
	mu      sync.Mutex
	queue   []*supplyEntry
}

type supplyEntry struct {
	sharer transport.Sharer
	state  turns.State
}

func (n *supply) NewPoller() (transport.Poller, error) {
	p, err := noNetwork{}.NewPoller()
	return &supplyPoller{noPoller: p.(*noPoller), net: n}, err
}

func (p *supplyPoller) Add(_ transport.Conn, h transport.Handler) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue = append(p.queue, &supplyEntry{sharer: h.(transport.Sharer)})
	return nil
}

func (p *supplyPoller) Remove(transport.Conn)                {}
func (p *supplyPoller) WantRead(transport.Conn, bool) error  { return nil }
func (p *supplyPoller) WantWrite(transport.Conn, bool) error { return nil }

func (p *supplyPoller) Wait(ctx context.Context) error {
	if p.net.on.Load() {
		return ctx.Err()
	}
	return p.noPoller.Wait(ctx)
}

func (p *supplyPoller) Poll() int { return p.Serve() }

// Serve serves those first whose turn is longest ago.
func (p *supplyPoller) Serve() (served int) {
	if !p.net.on.Load() {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var round turns.Round
	round.Begin(&p.sharing)
	n := min(len(p.queue), policy.Round)
	batch := slices.Clone(p.queue[:n])
	for _, e := range batch {
		round.Add(&e.state)
	}
	var had [policy.Round]bool
	for i, budget := round.Next(); i >= 0; i, budget = round.Next() {
		if p.net.cost > 0 {
			time.Sleep(p.net.cost)
		}
		used, more := batch[i].sharer.ReadyTurn(true, false, budget)
		round.Done(i, used, more)
		had[i] = true
		served++
	}
	rest := slices.Clone(p.queue[n:])
	for _, last := range []bool{false, true} {
		for i, e := range batch {
			if had[i] == last {
				rest = append(rest, e)
			}
		}
	}
	p.queue = rest
	return served
}

// supplied opens a device with n progress goroutines and conns connections, each of which gets
// Writes of size bytes. It returns what has them come until there were total, and waits for that.
// They are counted in batches, of which total is a multiple.
func supplied(t testing.TB, net *supply, n, conns, size int, batch int64) (
	all []*supplyConn, run func(total int64),
) {
	t.Helper()
	s := newSide(t, Options{Network: net, ProgressGoroutines: n}, sideOptions{})
	framer := mpa.NewFramer(false, true)
	for range conns {
		dst := s.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
		h := rdmap.WriteHeader(dst.m.STag(), dst.to(0), true)
		c := &supplyConn{net: net}
		c.octets = testkit.Must(framer.AppendFPDU(nil, h.AppendTo(nil), dst.b))(t)
		q := s.newQP(sideOptions{cap: loopQP})
		testkit.OK(t, q.start(c, params(true), func(error) {}))
		t.Cleanup(func() {
			if cause := q.Cause(); cause != nil {
				t.Error(cause)
			}
			closeAll(t, "QP", q)
		})
		all = append(all, c)
	}
	run = func(total int64) {
		done := make(chan struct{})
		var came atomic.Int64
		net.arrived = func(c *supplyConn) {
			if net.cost > 0 {
				c.waits = append(c.waits, time.Since(c.since))
				c.since = time.Now()
			}
			if c.came++; c.came%batch == 0 && came.Add(batch) == total {
				net.on.Store(false)
				close(done)
			}
		}
		for _, c := range all {
			c.since = time.Now()
		}
		net.on.Store(true)
		for _, l := range s.dev.poller.all {
			l.poller.Wake()
		}
		<-done
	}
	return all, run
}

// TestManyLoops simulates 1,000 connections that are busy all the time, on as many CPUs as there
// are progress goroutines: serving a connection takes 10 us, and the goroutines do it at the same
// time. The time of all of them together is divided by the number of goroutines, and so is the
// 99th percentile of how long each connection waits.
func TestManyLoops(t *testing.T) {
	const conns, rounds, cost = 1000, 10, 10 * time.Microsecond
	for _, n := range []int{1, 2, 4, 8, 32} {
		synctest.Test(t, func(t *testing.T) {
			net := &supply{cost: cost}
			all, run := supplied(t, net, n, conns, 64, 1)
			began := time.Now()
			run(conns * rounds)
			took := time.Since(began)
			synctest.Wait() // others may still be at a connection, and note how long it waited
			least, most := time.Hour, time.Duration(0)
			for _, c := range all {
				slices.Sort(c.waits)
				p99 := c.waits[len(c.waits)*99/100]
				least, most = min(least, p99), max(most, p99)
			}
			t.Logf("%2d goroutines: %v, the connections' p99 from %v to %v", n, took, least, most)
			if limit := conns * rounds * cost / time.Duration(n) * 11 / 10; took > limit {
				t.Errorf("%d goroutines took %v, want %v at most", n, took, limit)
			}
			if limit := conns * cost / time.Duration(n) * 13 / 10; most > limit {
				t.Errorf("%d goroutines: p99 of a connection is %v, want %v at most", n, most, limit)
			}
		})
	}
}
