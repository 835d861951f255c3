package engine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
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
		if n := count(); n != [loops]int{each, each, each, each} {
			t.Fatalf("connections of each loop: %v", n)
		}
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
	if _, err := first.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the first one was refused: %v", err)
	}
	if n := told.Load(); n > 0 {
		t.Errorf("progress goroutines were told %d times, by 20 strangers", n)
	}
}
