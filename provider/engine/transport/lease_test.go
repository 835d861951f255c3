//go:build linux

package transport

import (
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// lease has goroutines hold p's lease for so long.
func lease(p *tcpPoller, long time.Duration) {
	p.polls.Store(policy.LeasePolls)
	p.polled.Store(int64(time.Since(epoch) + long - policy.LeaseTime))
}

// TestLeaseBegins: enough polls with nobody about to sleep in between are a lease.
func TestLeaseBegins(t *testing.T) {
	p, _ := watched(t, &calls{})
	for round := range 2 {
		for range policy.LeasePolls - 1 {
			p.Poll()
		}
		if p.leased() || p.polled.Load() != 0 {
			t.Errorf("round %d: a lease after %d polls", round, policy.LeasePolls-1)
		}
		if p.Poll(); p.polled.Load() == 0 {
			t.Errorf("round %d: no lease after %d polls", round, policy.LeasePolls)
		}
		if p.BeforeSleep(); p.leased() {
			t.Errorf("round %d: a lease after one was about to sleep", round)
		}
	}
}

// slow is a handler that takes longer than a lease lasts.
type slow struct{ Handler }

func (s slow) ReadyTurn(bool, bool, int) (used int, more bool) {
	time.Sleep(2 * policy.LeaseTime)
	return 1, false
}

// TestLongPollsKeepTheLease: the end of a poll that took long renews the lease. What Serve does is
// no poll.
func TestLongPollsKeepTheLease(t *testing.T) {
	p, a := watched(t, slow{&calls{}})
	testkit.Must(a.Writev([][]byte{{1}}))(t)
	for start := time.Now(); p.Serve() == 0; {
		if time.Since(start) > patience {
			t.Fatal("what was sent did not arrive")
		}
	}
	if n := p.polls.Load(); n != 0 {
		t.Errorf("Serve counts as %d polls", n)
	}
	lease(p, 0)
	began := time.Since(epoch)
	p.Poll() // the byte is still there
	if at := time.Duration(p.polled.Load()); at < began+2*policy.LeaseTime {
		t.Errorf("the lease is from %v after the beginning of a poll that took %v", at-began, 2*policy.LeaseTime)
	}
}

// TestYieldSeesEndLease: the sockets are not left to one that has been about to sleep since.
func TestYieldSeesEndLease(t *testing.T) {
	p, _ := watched(t, &calls{})
	lease(p, patience)
	if !p.yield() || !p.yielding.Load() {
		t.Error("the sockets are not left to the holder of a lease")
	}
	p.BeforeSleep()
	if p.yield() || p.yielding.Load() {
		t.Error("the sockets are left to one that is about to sleep")
	}
}

// TestWaitLeavesStreamsToTheLease: although a socket is readable, Wait does not return while there
// is a lease, and then it does.
func TestWaitLeavesStreamsToTheLease(t *testing.T) {
	p, a := watched(t, &calls{})
	testkit.Must(a.Writev([][]byte{{1}}))(t)
	testkit.OK(t, p.Wait(t.Context())) // it has arrived
	const long = 20 * policy.LeaseTime
	start := time.Now()
	lease(p, long)
	testkit.OK(t, p.Wait(t.Context()))
	if took := time.Since(start); took < long {
		t.Errorf("Wait returned after %v of a lease of %v", took, long)
	}
}

// TestArrivalsAreForTheLease: a Wait that was parked before the lease began does not return for
// what arrives during it.
func TestArrivalsAreForTheLease(t *testing.T) {
	p, a := watched(t, &calls{})
	parked := make(chan error)
	go func() { parked <- p.Wait(t.Context()) }()
	time.Sleep(20 * policy.LeaseTime) // most often it has parked then; if not, it finds the lease
	lease(p, patience)
	testkit.Must(a.Writev([][]byte{{1}}))(t)
	for end := time.Now().Add(patience); !p.yielding.Load(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the sockets are not left to the holder of the lease")
		}
	}
	select {
	case err := <-parked:
		t.Fatalf("Wait has returned %v", err)
	default:
	}
	p.BeforeSleep()
	testkit.OK(t, <-parked)
	if p.yielding.Load() || p.leased() {
		t.Errorf("yielding is %v, leased %v", p.yielding.Load(), p.leased())
	}
}

// watched returns a poller that serves one end of a connection with h, and the other end.
func watched(t *testing.T, h Handler) (*tcpPoller, Conn) {
	t.Helper()
	p := testkit.Must(NewTCP(nil).NewPoller())(t).(*tcpPoller)
	t.Cleanup(func() { _ = p.Close() })
	return p, also(t, p, h)
}

// also has p serve one end of another connection with h, and returns the other end.
func also(t *testing.T, p *tcpPoller, h Handler) Conn {
	t.Helper()
	network := NewTCP(nil)
	l := testkit.Must(network.Listen(loopback, 0))(t)
	defer l.Close()
	a := testkit.Must(network.Dial(t.Context(), loopback, l.Addr()))(t)
	t.Cleanup(func() { _ = a.Close() })
	b := testkit.Must(l.Accept(t.Context()))(t)
	t.Cleanup(func() { _ = b.Close() })
	testkit.OK(t, p.Add(b, h))
	return a
}
