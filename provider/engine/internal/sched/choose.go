//go:build schedules

package sched

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
)

// Search enumerates all schedules with at most Preemptions switches away from an actor that could
// have gone on. Most faults need one or two.
type Search struct {
	Preemptions int

	path  []decision
	at    int // in path, of the run under way
	spent int // preemptions of the run under way
}

type decision struct{ pick, options int }

func (s *Search) choose(options int, mayGoOn bool) int {
	if mayGoOn && s.spent >= s.Preemptions {
		options = 1 // no decision, but recorded, so that the path can be replayed
	}
	if s.at == len(s.path) {
		s.path = append(s.path, decision{0, options})
	}
	pick := s.path[s.at].pick
	s.at++
	if mayGoOn && pick > 0 {
		s.spent++
	}
	return pick
}

// Next prepares the next schedule. It returns false when there is none left. The first schedule
// needs no call.
func (s *Search) Next() bool {
	s.path = s.path[:s.at]
	s.at, s.spent = 0, 0
	for n := len(s.path); n > 0; n-- {
		if d := &s.path[n-1]; d.pick+1 < d.options {
			d.pick++
			s.path = s.path[:n]
			return true
		}
	}
	return false
}

// String returns the schedule of the last run, for Replay.
func (s *Search) String() string {
	picks := make([]int, s.at)
	for i := range picks {
		picks[i] = s.path[i].pick
	}
	return format(picks)
}

// Random draws a schedule from a seed.
type Random struct {
	rnd   *rand.Rand
	every int // one in so many steps
	picks []int
}

// NewRandom returns the schedule of seed.
func NewRandom(seed uint64) *Random {
	r := &Random{rnd: rand.New(rand.NewPCG(seed, 0x676f7673))}
	r.every = 1 << (1 + r.rnd.IntN(5))
	return r
}

func (r *Random) choose(options int, mayGoOn bool) int {
	pick := 0
	if !mayGoOn || r.rnd.IntN(r.every) == 0 {
		pick = r.rnd.IntN(options)
	}
	r.picks = append(r.picks, pick)
	return pick
}

// String returns the schedule, for Replay.
func (r *Random) String() string { return format(r.picks) }

// Replay repeats a schedule.
type Replay struct {
	picks []int
	at    int
}

// NewReplay returns the schedule that a String of Search or Random shows.
func NewReplay(schedule string) (*Replay, error) {
	r := new(Replay)
	for part := range strings.SplitSeq(schedule, ".") {
		text, times, repeated := strings.Cut(part, "x")
		pick, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("schedule: %w", err)
		}
		n := 1
		if repeated {
			if n, err = strconv.Atoi(times); err != nil {
				return nil, fmt.Errorf("schedule: %w", err)
			}
		}
		for range n {
			r.picks = append(r.picks, pick)
		}
	}
	return r, nil
}

func (r *Replay) choose(options int, _ bool) int {
	if r.at == len(r.picks) {
		return 0
	}
	r.at++
	return min(r.picks[r.at-1], options-1)
}

// String returns the schedule.
func (r *Replay) String() string { return format(r.picks) }

// format writes picks with runs of the same shortened: 0x17.1.0x3.
func format(picks []int) string {
	var b strings.Builder
	for i := 0; i < len(picks); {
		n := 1
		for i+n < len(picks) && picks[i+n] == picks[i] {
			n++
		}
		if i > 0 {
			b.WriteByte('.')
		}
		b.WriteString(strconv.Itoa(picks[i]))
		if n > 1 {
			fmt.Fprintf(&b, "x%d", n)
		}
		i += n
	}
	return b.String()
}
