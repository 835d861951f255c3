package policy

import (
	"fmt"
	"testing"
	"time"
)

const us = time.Microsecond

// program plays a program to the deferral of its QP.
type program struct {
	t       *testing.T
	d       Deferral
	run     Run
	now     time.Duration
	reports uint32
	asked   int // the clock
}

func (p *program) clock() time.Duration { p.asked++; return p.now }

// complete has n signalled work requests complete.
func (p *program) complete(n uint32) { p.reports += n }

// take takes completions.
func (p *program) take() {
	p.now++
	p.run = Took(p.now)
}

// empty finds the CQ empty: what waits is transmitted.
func (p *program) empty() {
	p.run = p.run.Found()
	p.d.Sent(true)
}

// post posts as often as want has elements, a short message each time.
func (p *program) post(what string, want ...Due) {
	p.t.Helper()
	for i, w := range want {
		p.list(fmt.Sprintf("%s: post %d", what, i+1), Post{1, 576}, w)
	}
}

func (p *program) list(what string, l Post, want Due) {
	p.t.Helper()
	waited := p.d.Waits()
	got := p.d.Post(l, p.run, p.reports, p.clock)
	if got != want {
		p.t.Fatalf("%s is due %d, want %d", what, got, want)
	}
	if p.d.Waits() != (got != Now) || (got == First) == waited && got != Now {
		p.t.Fatalf("%s is due %d, and waits are %t before, %t after", what, got, waited, p.d.Waits())
	}
}

// TestRun: a run begins when completions are taken, and ends with time, or when the CQ is found
// empty twice.
func TestRun(t *testing.T) {
	for _, epoch := range []time.Duration{-time.Hour, 0, time.Hour} {
		var none Run
		if none.In(epoch) || none.Found() != none {
			t.Error("a program that has taken nothing is in a run")
		}
		r := Took(epoch)
		once := r.Found()
		twice := once.Found()
		for _, tc := range []struct {
			name  string
			r     Run
			after time.Duration
			in    bool
		}{
			{"at once", r, 0, true}, {"just before the end", r, RunTime - 1, true},
			{"at the end", r, RunTime + 1, false},
			{"empty once", once, 10 * us, true}, {"empty once, at the end", once, RunTime + 1, false},
			{"empty twice", twice, 0, false}, {"empty for the third time", twice.Found(), 0, false},
		} {
			if got := tc.r.In(epoch + tc.after); got != tc.in {
				t.Errorf("%s: in a run %t", tc.name, got)
			}
		}
		if Took(epoch).Found().In(epoch) != true || Took(epoch) != r {
			t.Error("completions do not begin a run anew")
		}
	}
}

// TestDeferral: a program posts as many work requests as have completed. The last of them is when
// all are due.
func TestDeferral(t *testing.T) {
	t.Run("one for each completion", func(t *testing.T) {
		p := &program{t: t}
		p.post("nothing is known of the program", Now, Now, Now, Now)
		p.complete(4)
		p.take()
		p.post("four have completed", First, Next, Next, Now)
		p.complete(4)
		for i := range 3 { // it takes them one by one
			p.take()
			p.post("each is answered", []Due{First, Next, Next}[i])
		}
		p.take()
		p.post("the last", Now)
		p.post("one more than before", Now)
	})
	t.Run("one message, one answer", func(t *testing.T) {
		p := &program{t: t}
		for range 100 {
			p.post("a round trip", Now)
			p.complete(1)
			p.take()
			p.now += 10 * us
		}
	})
	t.Run("a message, an answer, and every eighth message is signalled", func(t *testing.T) {
		p := &program{t: t}
		for i := range 100 {
			p.list("a round trip", Post{Octets: 576}, Now)
			if i%8 == 7 {
				p.complete(1)
			}
			p.take() // of the answer
		}
	})
	t.Run("unsignalled posts", func(t *testing.T) {
		p := &program{t: t}
		unsignalled := func(due Due, n int) {
			t.Helper()
			for range n {
				p.list("a post", Post{Octets: 576}, due)
			}
		}
		unsignalled(Now, 100) // nothing is known
		for range 3 {
			p.complete(1)
			p.take()
			unsignalled(First, 1) // as many as before the last completion
			unsignalled(Next, 98)
			unsignalled(Now, 1)
		}
	})
	t.Run("the CQ is empty", func(t *testing.T) {
		p := &program{t: t}
		p.complete(8)
		p.take()
		p.post("eight have completed", First)
		p.empty()
		p.post("after an empty poll", Now) // nothing is owed
		p.complete(8)
		p.take()
		p.empty()
		p.post("eight more, and the CQ is empty once", First, Next)
		p.empty()
		p.complete(9)
		p.post("nine have, and it has found the CQ empty twice", Now)
	})
	t.Run("enough", func(t *testing.T) {
		p := &program{t: t}
		p.complete(200)
		p.take()
		const short = (MostOctets - 1) / 576 // that wait
		p.complete(2 * short)
		p.take()
		p.post("short posts", First)
		for range short - 1 {
			p.post("short posts", Next)
		}
		p.post("as many as are enough", Now)
		for range 3 {
			p.list("64 KiB", Post{1, 64 << 10}, First)
			p.list("64 KiB", Post{1, 64 << 10}, Next)
			p.list("64 KiB", Post{1, 64 << 10}, Next)
			p.list("256 KiB", Post{1, 64 << 10}, Now)
		}
		p.list("a post that is enough alone", Post{1, MostOctets}, Now)
	})
	t.Run("lists", func(t *testing.T) {
		p := &program{t: t}
		p.complete(8)
		p.take()
		p.list("a list takes the place of all that have completed", Post{8, 4096}, Now)
		p.now += us
		p.complete(8)
		p.take()
		p.list("the first of two", Post{4, 2048}, First)
		p.list("the second", Post{4, 2048}, Now)
	})
	t.Run("transmitted for another reason", func(t *testing.T) {
		p := &program{t: t}
		p.complete(4)
		p.take()
		p.post("four have completed", First, Next)
		p.d.Sent(false)
		p.post("the other two", First, Now)
	})
	t.Run("another connection", func(t *testing.T) {
		p := &program{t: t}
		p.complete(4)
		p.take()
		p.post("four have completed", First)
		p.complete(3)
		p.d.Forget(p.reports)
		p.post("they were of the connection before", Now)
	})
}

// TestIdleProgram: a single post leaves at once after a run, which RunTime ends, or two polls of an
// empty CQ, whatever has completed (E1 of an earlier reading: it waited for a timer).
func TestIdleProgram(t *testing.T) {
	for _, tc := range []struct {
		name string
		idle func(p *program)
	}{
		{"time", func(p *program) { p.now += RunTime + us }},
		{"two empty polls", func(p *program) { p.empty(); p.empty() }},
		{"many empty polls, and time", func(p *program) {
			for range 1000 {
				p.empty()
			}
			p.now += 3 * time.Millisecond
		}},
	} {
		p := &program{t: t, now: time.Second}
		for range 4 {
			p.complete(4)
			p.take()
			p.post(tc.name+", before", First, Next, Next, Now)
		}
		p.complete(4)
		p.take()
		tc.idle(p)
		p.post(tc.name, Now, Now, Now)
	}
}

// TestLate: where time ends the wait of posts twice in LatePause, the next ones do not wait for as
// long; once does nothing.
func TestLate(t *testing.T) {
	p := &program{t: t, now: time.Hour}
	late := func(by time.Duration) {
		t.Helper()
		p.complete(3)
		p.take()
		p.post("three have completed", First)
		p.now += by
	}
	late(WaitMost - 1)
	p.post("just in time", Next, Now)
	late(WaitMost)
	p.post("late once", Now)
	late(WaitMost)
	if !p.d.Overdue(p.now) {
		t.Fatal("nothing is overdue")
	}
	p.d.Sent(false)
	end := p.now + LatePause
	for p.now < end {
		p.complete(3)
		p.take()
		p.post("after the second time", Now, Now, Now)
		p.now += 10 * time.Millisecond
	}
	p.now = end
	late(WaitMost)
	p.post("late once, after the pause", Now)
	p.now += LatePause
	late(WaitMost)
	p.post("late once, long after that", Now)
	late(0)
	p.post("posts wait", Next, Now)
}

// TestClock: the clock is asked for the first post that waits, and for few others.
func TestClock(t *testing.T) {
	p := &program{t: t}
	p.post("nothing is known", Now, Now, Now)
	if p.asked != 0 {
		t.Errorf("the clock was asked %d times for posts that do not wait", p.asked)
	}
	p.complete(64)
	p.take()
	p.post("the first", First)
	for range 62 {
		p.post("others", Next)
	}
	if p.asked != 6 {
		t.Errorf("the clock was asked %d times for 63 posts that wait, want 6", p.asked)
	}
}

// TestEveryProgram plays all short programs: whatever they do, a post that leaves later than in its
// call does so in a run, with others that are expected.
func TestEveryProgram(t *testing.T) {
	const steps = 8
	acts := []func(p *program){
		func(p *program) { p.complete(3) },
		func(p *program) { p.take() },
		func(p *program) { p.empty() },
		func(p *program) { p.now += 60 * us },
		func(p *program) { p.d.Overdue(p.now) },
	}
	var play func(p program, left int)
	plays := 0
	play = func(p program, left int) {
		if left == 0 {
			plays++
			return
		}
		for _, act := range acts {
			next := p
			act(&next)
			play(next, left-1)
		}
		before := p
		got := p.d.Post(Post{1, 576}, p.run, p.reports, p.clock)
		expected := max(before.reports-before.d.reports+before.d.more, before.d.burst, before.d.rest)
		switch {
		case got == Now && p.d.Waits(), got != Now && !p.d.Waits():
			t.Fatalf("due %d: %+v", got, p.d)
		case got == First && (before.d.Waits() || !p.run.In(p.now)), got == Next && !before.d.Waits():
			t.Fatalf("due %d before %+v, run %d at %v", got, before.d, p.run, p.now)
		case got != Now && expected < 2:
			t.Fatalf("a post waits for none: %+v", before.d)
		}
		play(p, left-1)
	}
	play(program{t: t, now: time.Hour}, steps)
	if want := 1679616; plays != want { // six acts, eight times
		t.Errorf("%d programs, want %d", plays, want)
	}
}
