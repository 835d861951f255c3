package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/turns"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestProgressGoroutinesByDefault: a device has one for each P, and one on a network of the
// program's.
func TestProgressGoroutinesByDefault(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []struct {
		procs int
		o     Options
		want  int
	}{
		{1, Options{}, 1}, {2, Options{}, 2}, {40, Options{}, policy.MostLoops},
		{2, Options{ProgressGoroutines: 5}, 5}, {4, Options{Network: noNetwork{}}, 1},
	} {
		runtime.GOMAXPROCS(c.procs)
		testkit.OK(t, c.o.complete())
		testkit.Equal(t, fmt.Sprintf("progress goroutines for GOMAXPROCS %d", c.procs),
			c.o.ProgressGoroutines, c.want)
	}
}

// loopNumber is the loop of a QP's stream.
func loopNumber(d *device, q *qp) int {
	for i, l := range d.poller.all {
		if q.stream.Load().loop == l {
			return i
		}
	}
	return -1
}

// link connects two QPs, of which a is the initiator, and closes them when the test ends.
func link(t *testing.T, network transport.Network, a, b *qp) {
	t.Helper()
	ca, cb := connectTransport(t, network, memAddr)
	testkit.OK(t, a.start(ca, params(true), func(error) {}))
	testkit.OK(t, b.start(cb, responder(true), func(error) {}))
	t.Cleanup(func() { closeAll(t, "QP", a, b) })
}

// TestConnectionsAreSpread: connections are spread over the loops, those that end make room in
// theirs, and the others stay where they are.
func TestConnectionsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		const loops, each = 4, 3
		h := newSide(t, Options{Network: network, ProgressGoroutines: loops}, sideOptions{})
		other := newSide(t, Options{Network: network}, sideOptions{})
		var qps []*qp
		connect := func() *qp {
			q, peer := h.newQP(sideOptions{cap: loopQP}), other.newQP(sideOptions{cap: loopQP})
			link(t, network, q, peer)
			return q
		}
		count := func() (n [loops]int) {
			for _, q := range qps {
				n[loopNumber(h.dev, q)]++
			}
			return n
		}
		for range loops * each {
			qps = append(qps, connect())
		}
		testkit.Equal(t, "the connections of each loop", count(), [loops]int{each, each, each, each})
		const emptied = 2
		was := make(map[*qp]int)
		rest := qps[:0:0]
		for _, q := range qps {
			if k := loopNumber(h.dev, q); k == emptied {
				q.abort(errDestroyed)
			} else {
				rest, was[q] = append(rest, q), k
			}
		}
		qps = rest
		for range each {
			q := connect()
			testkit.Equal(t, "the loop of a new connection, when one is empty",
				loopNumber(h.dev, q), emptied)
			qps = append(qps, q)
		}
		for q, k := range was {
			testkit.Equal(t, "the loop of an old connection", loopNumber(h.dev, q), k)
		}
	})
}

var loopQP = provider.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}

// stuck is a network whose first poller stands still in a Poll while the test holds it, as one does
// that moves much data for a peer.
type stuck struct {
	transport.Network
	hold chan struct{} // of capacity 1: the goroutine that has put a value in holds the poller
	n    *int          // pollers so far
}

type stuckPoller struct {
	transport.Poller
	hold chan struct{}
}

func (n stuck) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	if *n.n++; *n.n == 1 {
		p = stuckPoller{p, n.hold}
	}
	return p, err
}

func (p stuckPoller) Serve() int {
	p.hold <- struct{}{}
	defer func() { <-p.hold }()
	return p.Poller.Serve()
}

// TestLoopsDoNotWait: while the progress goroutine of one loop is busy, the others serve their
// connections. A waiter sleeps at once, so it serves nothing itself.
func TestLoopsDoNotWait(t *testing.T) {
	for _, n := range []int{1, 2, 8} {
		synctest.Test(t, func(t *testing.T) {
			net := stuck{memnet.New(nil), make(chan struct{}, 1), new(int)}
			b := newSide(t, Options{Network: net, ProgressGoroutines: n, BusyWait: -1},
				sideOptions{events: true})
			a := newSide(t, Options{Network: net.Network, BusyWait: -1}, sideOptions{})
			served := 0
			for i := range n {
				q, peer := b.newQP(sideOptions{cap: loopQP}), a.newQP(sideOptions{cap: loopQP})
				link(t, net.Network, q, peer)
				testkit.Must(q.PostRecv([]provider.RecvWR{{WRID: uint64(i)}, {WRID: uint64(i)}}))(t)
				testkit.Must(peer.PostRecv([]provider.RecvWR{{}}))(t)
				// So that peer may send.
				testkit.Must(q.PostSend([]provider.SendWR{{Opcode: provider.WRSend}}))(t)
				synctest.Wait()
				testkit.OK(t, b.cq.ReqNotify(false))
				net.hold <- struct{}{}
				testkit.Must(peer.PostSend([]provider.SendWR{{Opcode: provider.WRSend}}))(t)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if _, err := b.ch.Next(ctx); err == nil {
					served++
				}
				cancel()
				<-net.hold
				b.ch.pace.brief.Store(false)
				synctest.Wait()
				for testkit.Must(b.cq.Poll(make([]provider.WC, 8)))(t) > 0 {
				}
			}
			if served != n-1 {
				t.Errorf("%d progress goroutines, one of them stuck: %d connections were served, want %d",
					n, served, n-1)
			}
		})
	}
}

// toldNetwork counts what has progress goroutines think that somebody polls, or stops.
type toldNetwork struct {
	transport.Network
	told *atomic.Int64
}

type toldPoller struct {
	transport.Poller
	told *atomic.Int64
}

func (n toldNetwork) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	return toldPoller{p, n.told}, err
}

func (p toldPoller) Poll() int    { p.told.Add(1); return p.Poller.Poll() }
func (p toldPoller) BeforeSleep() { p.told.Add(1); p.Poller.BeforeSleep() }

// TestStrangersSayNothing: those who connect, and are refused at once, don't keep progress
// goroutines from leaving the streams to a program that spins.
func TestStrangersSayNothing(t *testing.T) {
	told := new(atomic.Int64)
	tcp := toldNetwork{testkit.Must(tcpNetwork(Options{}))(t), told}
	b := newCMSide(t, tcp, Options{MaxPendingPerPeer: 1, ProgressGoroutines: 2, StartupTimeout: patience})
	id := b.id()
	testkit.OK(t, id.BindAddr(netip.MustParseAddrPort(tcpAddr)))
	testkit.OK(t, id.Listen(64))
	addr := id.LocalAddr().String()
	first := testkit.Must(net.Dial("tcp", addr))(t)
	defer first.Close() // it stays, until there have been others
	waitFor(t, "the first one counts as silent", func() bool {
		return cm.Silent(id.(*cm.ID)) == 1
	})
	for i := range 19 {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			continue // it was refused at once
		}
		defer c.Close()
		testkit.OK(t, c.SetReadDeadline(time.Now().Add(patience)))
		if _, err := c.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatalf("stranger %d was not refused: %v", i+2, err)
		}
	}
	testkit.OK(t, first.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	testkit.WantErr(t, "the first one", errOf(first.Read(make([]byte, 1))), os.ErrDeadlineExceeded)
	testkit.Equal(t, "how often progress goroutines were told, by 20 strangers", told.Load(), 0)
}

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
			testkit.OK(t, q.Cause())
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
