//go:build linux

package transport

import (
	"context"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// TestSpinning: what counts as spinning by programs that have much to do.
func TestSpinning(t *testing.T) {
	for _, c := range []struct {
		name          string
		long          time.Duration // since the count began
		polls, served uint32
		work, attends uint32
		quiet         time.Duration
		want, begun   bool // begun: the next count has begun
	}{
		{name: "nothing", quiet: time.Hour},
		{name: "few polls so far", polls: policy.PollsLeast - 1, work: policy.WorkLeast, quiet: time.Hour},
		{name: "little work so far", polls: policy.PollsLeast,
			work: policy.WorkLeast - policy.PollsLeast - 1, quiet: time.Hour},
		{
			name: "enough of both", polls: policy.PollsLeast,
			work: policy.WorkLeast - policy.PollsLeast, quiet: time.Hour,
			want: true, begun: true,
		},
		{
			name: "few polls, which serve many streams", polls: policy.PollsLeast / 2,
			served: policy.PollsLeast / 2 * policy.ServedPerPoll, work: policy.WorkLeast,
			quiet: time.Hour, want: true, begun: true,
		},
		{
			name: "one stream less", polls: policy.PollsLeast / 2, served: policy.PollsLeast/2*policy.ServedPerPoll - 1,
			work: policy.WorkLeast, quiet: time.Hour,
		},
		{
			name: "one poll that serves as many as it may", polls: 1, served: policy.Round, work: policy.WorkLeast,
			quiet: time.Hour,
		},
		{name: "many polls", polls: policy.WorkLeast, quiet: time.Hour, want: true, begun: true},
		{name: "the same, but one slept not long ago", polls: policy.WorkLeast},
		{name: "one is about to sleep", polls: 100, attends: 1, quiet: time.Hour, begun: true},
		{name: "few for that long", polls: 10 * policy.WorkLeast, long: time.Hour, quiet: 2 * time.Hour, begun: true},
		{name: "nothing for long", long: time.Hour, quiet: 2 * time.Hour, begun: true},
		{
			name: "large counts", polls: 1<<32 - 1, served: 1<<32 - 1, work: 1<<32 - 1,
			quiet: time.Hour, want: true, begun: true,
		},
	} {
		var g gate
		g.polls.Store(c.polls)
		g.served.Store(c.served)
		g.work.Store(c.work)
		g.attends.Store(c.attends)
		began := time.Now().Add(-c.long)
		g.counted.at, g.quietSince = began, time.Now().Add(-c.quiet)
		got, begun := g.spinning(), g.counted.at != began
		if time.Since(began) > c.long+policy.LookEvery/2 {
			continue // the machine stood still
		}
		if got != c.want || begun != c.begun {
			t.Errorf("%s: spinning is %v, the next count has begun: %v", c.name, got, begun)
		}
		if c.begun && g.spinning() {
			t.Errorf("%s: what was counted counts again", c.name)
		}
	}
}

// TestSpinningCountsOn: the counts begin again at 0 after 2^32 - 1.
func TestSpinningCountsOn(t *testing.T) {
	var g gate
	began := counted{polls: 1<<32 - 1, served: 1<<32 - 1, work: 1<<32 - 1, at: time.Now()}
	g.quietSince = time.Now().Add(-time.Hour)
	for _, c := range []struct {
		polls, served, work uint32 // more than at the beginning
		want                bool
	}{
		{policy.PollsLeast, 0, policy.WorkLeast, true},
		{policy.PollsLeast - 1, policy.ServedPerPoll, policy.WorkLeast, true},
		{policy.PollsLeast - 1, policy.ServedPerPoll - 1, policy.WorkLeast, false},
		{0, 0, policy.WorkLeast, false},
	} {
		g.counted = began
		g.counted.at = time.Now().Add(time.Hour) // it does not take policy.LookEvery, however slow the machine
		g.polls.Store(began.polls + c.polls)
		g.served.Store(began.served + c.served)
		g.work.Store(began.work + c.work)
		if got := g.spinning(); got != c.want {
			t.Errorf("%d polls, %d streams and %d pieces of work: spinning is %v", c.polls, c.served, c.work, got)
		}
	}
}

// TestYieldSeesAttend: one that calls attend between the count and the yielding has not seen that
// the sockets are left to it.
func TestYieldSeesAttend(t *testing.T) {
	var g gate
	if err := g.yield(0); err != nil || !g.yielding.Load() {
		t.Errorf("yielding is %v, %v", g.yielding.Load(), err)
	}
	g.attends.Add(1)
	if err := g.yield(0); err != nil || g.yielding.Load() {
		t.Error("the sockets are left to one that is about to sleep")
	}
}

// TestWaitLeavesStreamsToWork: although a socket is readable, Wait does not return before
// policy.LookEvery where a program has been at work, and then it does, because the work has ended.
func TestWaitLeavesStreamsToWork(t *testing.T) {
	p, a := watched(t, &calls{})
	testkit.Must(a.Writev([][]byte{{1}}))(t)
	testkit.OK(t, p.Wait(t.Context())) // it has arrived
	start := time.Now()
	p.gate.counted.at = start
	p.gate.polls.Add(1 << 20) // enough for a machine that stands still for minutes
	p.gate.work.Add(1 << 22)
	testkit.OK(t, p.Wait(t.Context()))
	if took := time.Since(start); took < policy.LookEvery {
		t.Errorf("Wait returned after %v beside a program at work, want %v at least", took, policy.LookEvery)
	}
}

// TestAttendEndsYielding: a goroutine that is about to sleep wakes the one that waits, and the
// sockets are no longer left to others.
func TestAttendEndsYielding(t *testing.T) {
	p := testkit.Must(NewTCP(nil).NewPoller())(t).(*tcpPoller)
	defer p.Close()
	p.gate.yielding.Store(true)
	p.Attend()
	if p.gate.yielding.Load() || p.gate.attends.Load() != 1 {
		t.Errorf("yielding is %v, after %d calls", p.gate.yielding.Load(), p.gate.attends.Load())
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Wait(ctx); err != nil {
		t.Errorf("the one that waits was not woken: %v", err)
	}
}

// TestServeIsNoSpinning: what the goroutine that waits serves itself does not count.
func TestServeIsNoSpinning(t *testing.T) {
	p, a := watched(t, mover{&calls{}, 1 << 20})
	testkit.Must(a.Writev([][]byte{{1}}))(t)
	for start := time.Now(); p.Serve() == 0; {
		if time.Since(start) > patience {
			t.Fatal("what was sent did not arrive")
		}
	}
	count := func() [3]uint32 { return [3]uint32{p.gate.polls.Load(), p.gate.served.Load(), p.gate.work.Load()} }
	if n := count(); n != [3]uint32{} {
		t.Errorf("Serve counts as %d polls, %d streams and %d pieces of work", n[0], n[1], n[2])
	}
	p.Poll() // the octet is still there
	p.Spin(3)
	if n, want := count(), [3]uint32{1, 1, 3 + 1<<20/policy.SpinOctets}; n != want {
		t.Errorf("a Poll and Spin(3) count as %d, want %d", n, want)
	}
}

// mover is a handler that moves so many octets in each turn.
type mover struct {
	Handler
	octets int
}

func (m mover) ReadyTurn(bool, bool, int) (used int, more bool) { return m.octets, false }

// TestWhatAPollMovesIsWork: a poll that moves much counts for more than one that finds nothing.
func TestWhatAPollMovesIsWork(t *testing.T) {
	p, a := watched(t, mover{&calls{}, 1 << 20})
	p.Poll()
	if n := p.gate.work.Load(); n != 0 {
		t.Errorf("a poll that found nothing counts as %d pieces of work", n)
	}
	testkit.Must(a.Writev([][]byte{{1}}))(t)
	for start := time.Now(); p.Poll() == 0; {
		if time.Since(start) > patience {
			t.Fatal("what was sent did not arrive")
		}
	}
	if n, want := p.gate.work.Load(), uint32(1<<20/policy.SpinOctets); n != want {
		t.Errorf("a turn of 1 MiB counts as %d pieces of work, want %d", n, want)
	}
	if n := p.gate.served.Load(); n != 1 {
		t.Errorf("%d streams are counted, want 1", n)
	}
}

// TestCount: streams beyond those of one round do not count, so that one poll is not as good as
// policy.PollsLeast.
func TestCount(t *testing.T) {
	var g gate
	for _, c := range []struct {
		served, spent          int
		wantServed, wantPieces uint32
	}{
		{3, policy.SpinOctets - 1, 3, 0},
		{policy.Round, policy.SpinOctets, policy.Round, 1},
		{3 * policy.Round, 5*policy.SpinOctets + 1, policy.Round, 5},
	} {
		g.served.Store(0)
		g.work.Store(0)
		g.count(c.served, c.spent)
		if served, work := g.served.Load(), g.work.Load(); served != c.wantServed || work != c.wantPieces {
			t.Errorf("%d streams and %d octets count as %d and %d, want %d and %d",
				c.served, c.spent, served, work, c.wantServed, c.wantPieces)
		}
	}
}

// TestPollCountsItsStreams: each of the streams that a poll serves counts.
func TestPollCountsItsStreams(t *testing.T) {
	p, a := watched(t, mover{&calls{}, 1})
	b := also(t, p, mover{&calls{}, 1})
	for _, c := range []Conn{a, b} {
		testkit.Must(c.Writev([][]byte{{1}}))(t)
	}
	for start := time.Now(); p.Serve() < 2; {
		if time.Since(start) > patience {
			t.Fatal("what was sent did not arrive")
		}
	}
	p.Poll() // the octets are still there
	if n := p.gate.served.Load(); n != 2 {
		t.Errorf("%d streams are counted, want 2", n)
	}
}

// watched returns a poller that serves one end of a connection with h, and the other end. No
// goroutine has slept for long.
func watched(t *testing.T, h Handler) (*tcpPoller, Conn) {
	t.Helper()
	p := testkit.Must(NewTCP(nil).NewPoller())(t).(*tcpPoller)
	t.Cleanup(func() { _ = p.Close() })
	p.gate.quietSince = time.Now().Add(-time.Hour)
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
