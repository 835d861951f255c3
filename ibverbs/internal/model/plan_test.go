package model

import (
	"fmt"
	"strings"

	"pgregory.net/rapid"
)

// dice gives the numbers of one step; the same seed gives the same ones
// (splitmix64).
type dice struct{ x uint64 }

func (d *dice) next() uint64 {
	d.x += 0x9e3779b97f4a7c15
	z := d.x
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// pick is a number from 0 to n-1.
func (d *dice) pick(n int) int { return int(d.next() % uint64(n)) }

// in is a number from lo to hi, both included.
func (d *dice) in(lo, hi int) int { return lo + d.pick(hi-lo+1) }

// oneIn is true once in n times.
func (d *dice) oneIn(n int) bool { return d.pick(n) == 0 }

func (d *dice) octets(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(d.next())
	}
	return b
}

// one picks an element of a list, the zero value if it has none.
func one[T any](d *dice, list []T) (v T) {
	if len(list) > 0 {
		v = list[d.pick(len(list))]
	}
	return v
}

// size is a message's length: mostly short, sometimes around what a segment holds,
// sometimes long.
func (d *dice) size(most int) int {
	n := 0
	switch d.pick(8) {
	case 0:
	case 1, 2, 3:
		n = d.in(1, 64)
	case 4, 5:
		n = d.in(65, 1200)
	case 6:
		n = d.in(1380, 1470)
	case 7:
		n = d.in(1, 9000)
	}
	return min(n, most)
}

// A plan is what rapid draws and shrinks. A step of 0 does nothing, so that what is
// left of a plan that fails is short.
type plan struct {
	setup uint64
	steps []uint64
}

func drawPlan(t *rapid.T, steps int) plan {
	return plan{
		setup: rapid.Uint64().Draw(t, "setup"),
		steps: rapid.SliceOfN(rapid.Uint64(), steps/2, steps).Draw(t, "steps"),
	}
}

// stop is what a run panics with to end: because something is wrong.
type stop struct{ error }

// run does a plan. The error says what was wrong, and what led to it.
func (w *world) run(p plan) (err error) {
	r := newRun(w, p)
	defer func() {
		if v := recover(); v != nil {
			s, ok := v.(stop)
			if !ok {
				panic(v)
			}
			err = fmt.Errorf("%s: %w\n%s\nwhich is: %s", w.name, s.error, strings.Join(r.trace, "\n"), s.Error())
			r.abandon()
			if w.stubborn {
				r.abandon()
			}
		}
	}()
	r.begin()
	for i, seed := range p.steps {
		if seed != 0 {
			r.step = i
			r.take(&dice{seed})
		}
	}
	r.finish()
	return nil
}

// kinds are the steps, each as often as the others in its list.
var kinds = []struct {
	weight int
	do     func(r *run, d *dice)
}{
	{26, (*run).stepSend},
	{14, (*run).stepReceive},
	{6, (*run).stepBoth},
	{8, (*run).stepPoll},
	{4, (*run).stepWait},
	{4, (*run).stepSettle},
	{5, (*run).stepStore},
	{5, (*run).stepRegister},
	{3, (*run).stepDeregister},
	{3, (*run).stepReregister},
	{9, (*run).stepConnect},
	{5, (*run).stepEnd},
	{7, (*run).stepFault},
	{2, (*run).stepReset},
	{3, (*run).stepArm},
	{3, (*run).stepBadPost},
	{3, (*run).stepBadCall},
	{2, (*run).stepFill},
	{2, (*run).stepLoner},
	{3, (*run).stepQueues},
	{4, (*run).stepShared},
	{8, (*run).stepWindow},
}

func (r *run) take(d *dice) {
	sum := 0
	for _, k := range kinds {
		sum += k.weight
	}
	n := d.pick(sum)
	for _, k := range kinds {
		if n -= k.weight; n < 0 {
			k.do(r, d)
			return
		}
	}
}

// seen counts what random plans have to get to.
func (r *run) seen(what string) {
	if r.w.reached != nil {
		r.w.reached[what]++
	}
}

func (r *run) note(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf("%3d  ", r.step)+fmt.Sprintf(format, args...))
}

func (r *run) fail(format string, args ...any) {
	panic(stop{fmt.Errorf(format, args...)})
}

// need ends the run if a call that has to succeed doesn't.
func (r *run) need(what string, err error) {
	if err != nil {
		r.fail("%s: %w", what, err)
	}
}
