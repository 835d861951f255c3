package policy

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
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

// play plays a script. Its words are
//   - "+4": four signalled work requests complete,
//   - "t": completions are taken,
//   - "e": the CQ is found empty,
//   - "o": posts are overdue,
//   - "s": posts are transmitted for another reason,
//   - "c": the QP gets another connection,
//   - a duration, which passes,
//   - "Fn!": three posts, of which one is the first that waits, one waits, too, and one is due now.
//     Each is a short message, or what precedes a colon: "8/4096:!" is a list of eight signalled
//     work requests with 4096 bytes.
func (p *program) play(script string) {
	p.t.Helper()
	for i, word := range strings.Fields(script) {
		d, err := time.ParseDuration(word)
		switch {
		case err == nil:
			p.now += d
		case word == "t":
			p.take()
		case word == "e":
			p.empty()
		case word == "o":
			if !p.d.Overdue(p.now) {
				p.t.Fatalf("word %d: nothing is overdue", i)
			}
		case word == "s":
			p.d.Sent(false)
		case word == "c":
			p.d.Forget(p.reports)
		case word[0] == '+':
			var n uint32
			testkit.Must(fmt.Sscanf(word, "+%d", &n))(p.t)
			p.reports += n
		default:
			p.posts(i, word)
		}
	}
}

// posts makes the posts of a script's word.
func (p *program) posts(i int, word string) {
	p.t.Helper()
	post := Post{1, 576}
	list, dues, is := strings.Cut(word, ":")
	if !is {
		dues = list
	} else {
		testkit.Must(fmt.Sscanf(list, "%d/%d", &post.Signaled, &post.Octets))(p.t)
	}
	for n, due := range dues {
		want := Due(strings.IndexRune("!Fn", due))
		waited := p.d.Waits()
		got := p.d.Post(post, p.run, p.reports, p.clock)
		if got != want {
			p.t.Fatalf("word %d, post %d of %q is due %d, want %d", i, n, word, got, want)
		}
		if p.d.Waits() != (got != Now) || (got == First) == waited && got != Now {
			p.t.Fatalf("word %d, post %d of %q is due %d, and waits are %t before, %t after", i, n,
				word, got, waited, p.d.Waits())
		}
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
			testkit.Equal(t, tc.name+": in a run", tc.r.In(epoch+tc.after), tc.in)
		}
		if Took(epoch).Found().In(epoch) != true || Took(epoch) != r {
			t.Error("completions do not begin a run anew")
		}
	}
}

// TestDeferral: a program posts as many work requests as have completed. The last of them is when
// all are due.
func TestDeferral(t *testing.T) {
	const short = (MostOctets - 1) / 576 // that wait
	times := strings.Repeat
	const answered = "0/576:! t " // a message, and its answer; no completion
	hundred := " +1 t 0/576:F" + times("n", 98) + "!"
	for name, script := range map[string]string{
		"one for each completion":              "!!!! +4 t Fnn!",
		"the completions are taken one by one": "+4 t Fnn! +4 t F t n t n t !!",
		"one message, one answer":              times("! +1 t 10us ", 100),
		"every eighth message is signalled":    times(times(answered, 7)+"0/576:! +1 t ", 12),
		"unsignalled posts":                    "0/576:" + times("!", 100) + times(hundred, 3),
		"the CQ is empty":                      "+8 t F e !",
		"the CQ is empty once, and twice":      "+8 t e Fn e +9 !",
		"short posts are enough": fmt.Sprint("+200 t +", 2*short, " t F",
			times("n", short-1), "!"),
		"256 KiB are enough":             "+200 t " + times("1/65536:Fnn! ", 3),
		"a post is enough alone":         fmt.Sprint("+200 t 1/", MostOctets, ":!"),
		"lists":                          "+8 t 8/4096:! 1us +8 t 4/2048:F!",
		"transmitted for another reason": "+4 t Fn s F!",
		"another connection":             "+4 t F +3 c !",
	} {
		t.Run(name, func(t *testing.T) { (&program{t: t, now: time.Hour}).play(script) })
	}
}

// TestIdleProgram: a single post leaves at once after a run, which RunTime ends, or two polls of an
// empty CQ, whatever has completed (E1 of an earlier reading: it waited for a timer).
func TestIdleProgram(t *testing.T) {
	manyPolls := strings.Repeat("e ", 1000)
	for _, idle := range []string{fmt.Sprint(RunTime + us), "e e", manyPolls + "3ms"} {
		p := &program{t: t, now: time.Second}
		p.play(strings.Repeat("+4 t Fnn! ", 4) + "+4 t " + idle + " !!!")
	}
}

// TestLate: where time ends the wait of posts twice in LatePause, the next ones do not wait for as
// long; once does nothing.
func TestLate(t *testing.T) {
	late := func(by time.Duration) string { return fmt.Sprintf(" +3 t F %v ", by) }
	p := &program{t: t, now: time.Hour}
	p.play(late(WaitMost-1) + "n!")
	p.play(late(WaitMost) + "!" + late(WaitMost) + "o s")
	p.play(strings.Repeat("+3 t !!! 10ms ", int(LatePause/(10*time.Millisecond))))
	p.play(late(WaitMost) + "! " + LatePause.String() + late(WaitMost) + "!" + late(0) + "n!")
}

// TestClock: the clock is asked for the first post that waits, and for few others.
func TestClock(t *testing.T) {
	p := &program{t: t}
	p.play("!!!")
	testkit.Equal(t, "times that the clock was asked for posts that do not wait", p.asked, 0)
	p.play("+64 t F" + strings.Repeat("n", 62))
	testkit.Equal(t, "times that the clock was asked for 63 posts that wait", p.asked, 6)
}

// TestEveryProgram plays all short programs: whatever they do, a post that leaves later than in its
// call does so in a run, with others that are expected.
func TestEveryProgram(t *testing.T) {
	const steps = 8
	acts := []func(p *program){
		func(p *program) { p.reports += 3 },
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
	testkit.Equal(t, "programs", plays, 1679616) // six acts, eight times
}
