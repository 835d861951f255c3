package policy

import (
	"math/bits"
	"time"
)

// A Run is what is known of a program that takes the completions of a CQ: when it last took some,
// and how often it has found the CQ empty since, at most twice. The zero value means that it has
// taken none.
type Run int64

// Took returns the Run of a program that takes completions now.
func Took(now time.Duration) Run { return Run(now+1) << 2 }

// Found returns r after the program has found the CQ empty.
func (r Run) Found() Run {
	if r.over() {
		return r
	}
	return r + 1
}

// over reports whether r has ended, regardless of the time.
func (r Run) over() bool { return r == 0 || r&3 == 2 }

// In reports whether the program is in the middle of a run.
func (r Run) In(now time.Duration) bool {
	return !r.over() && now-time.Duration(r>>2) < RunTime
}

// Due says when a post is transmitted.
type Due uint8

// When a post is transmitted.
const (
	Now   Due = iota // in the call that posts it, with all deferred posts
	First            // deferred: it is the first
	Next             // deferred, after others
)

// A Post is a list of work requests: how many are signalled, and their bytes, counted as in a
// budget.
type Post struct{ Signaled, Octets uint32 }

// A Deferral decides for one QP which posts are deferred. The zero value is for a QP without posts.
type Deferral struct {
	took    Run    // the Run's time at the last post
	reports uint32 // the argument of Post then
	more    uint32 // signalled work requests that the program is expected to post
	rest    uint32 // posts that it is expected to make: as many as it made before it took
	burst   uint32 // posts since it took
	posts   uint32 // deferred posts
	octets  uint32 // their bytes
	since   time.Duration
	late    time.Duration // when a deferral last ended by time, 0 for never
	pause   time.Duration // no post is deferred before this time, if it is not 0
}

// Waits reports whether posts are deferred.
func (d *Deferral) Waits() bool { return d.posts > 0 }

// Post decides when p is transmitted. run is of the QP's send CQ, reports counts the completions of
// the QP's work requests, and clock returns the time. Post calls clock for the first, second,
// fourth, eighth and so on deferred post, because a call takes about a tenth of a short post.
func (d *Deferral) Post(p Post, run Run, reports uint32, clock func() time.Duration) Due {
	if took := run &^ 3; took != d.took {
		d.more += reports - d.reports
		d.rest = d.burst
		d.took, d.reports, d.burst = took, reports, 0
	}
	d.burst++
	d.more -= min(d.more, max(p.Signaled, 1))
	d.rest -= min(d.rest, 1)
	if run.over() {
		d.more, d.rest = 0, 0
	}
	waits := max(d.more, d.rest) > 0 && d.octets+p.Octets < MostOctets
	switch {
	case !waits:
	case d.posts == 0:
		now := clock()
		if waits = run.In(now) && (d.pause == 0 || now >= d.pause); waits {
			d.since = now
		}
	case bits.OnesCount32(d.posts+1) == 1:
		waits = !d.Overdue(clock())
	}
	if !waits {
		d.posts, d.octets = 0, 0
		return Now
	}
	d.posts++
	d.octets += p.Octets
	if d.posts == 1 {
		return First
	}
	return Next
}

// Overdue reports whether a post has been deferred for WaitMost; the caller then transmits it.
// Overdue records that time has ended the deferral, and that the program posts nothing more for
// what has completed.
func (d *Deferral) Overdue(now time.Duration) bool {
	if d.posts == 0 || now-d.since < WaitMost {
		return false
	}
	if d.late != 0 && now-d.late < LatePause {
		d.pause = now + LatePause
	}
	d.late, d.more, d.rest = now, 0, 0
	return true
}

// Sent is called when deferred posts are transmitted for another reason than a post. With none, the
// program is expected to post nothing more for what has completed.
func (d *Deferral) Sent(none bool) {
	d.posts, d.octets = 0, 0
	if none {
		d.more, d.rest = 0, 0
	}
}

// Forget resets d for another connection. reports is as for Post.
func (d *Deferral) Forget(reports uint32) { *d = Deferral{reports: reports} }
