//go:build linux && !race

// Without the race detector: the program of one-sided calls looks at memory that its peer writes.

package engine

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

var tracesRecord = flag.Bool("traces.record", false, "write the recorded traces to testdata/traces")

// traced is something that a program of a trace did, or that came to it.
type traced struct {
	at   time.Duration // when it began, since the trace did
	what string        // post, poll, sleep or came
	// args are of a post whether it is signalled, its bytes, and the completions until then; of
	// polls in a row how many they took (one), how many found nothing, and the ns that all took.
	args [3]uint32
}

// trace is what a program with one QP did. Its peer notes what comes.
type trace struct {
	began time.Time

	mu     sync.Mutex
	events []traced
}

func (tr *trace) add(at time.Time, what string, args ...uint32) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	e := traced{at: at.Sub(tr.began), what: what}
	copy(e.args[:], args)
	if n := len(tr.events); n > 0 && what == "poll" && e.args[0] == 0 {
		if last := &tr.events[n-1]; last.what == "poll" && last.args[0] == 0 {
			last.args[1]++
			last.args[2] = uint32(e.at-last.at) + e.args[2]
			return
		}
	}
	tr.events = append(tr.events, e)
}

// post posts a Write of one byte or an empty Send, and notes that it did.
func (tr *trace) post(p *oneSided, wr provider.SendWR) {
	p.a.qp.sq.mu.Lock()
	reports := p.a.qp.sq.free.reports()
	p.a.qp.sq.mu.Unlock()
	signaled, octets := uint32(0), uint32(policy.FPDUCost)
	if wr.Flags&provider.SendSignaled != 0 {
		signaled = 1
	}
	if wr.Opcode == provider.WRRDMAWrite {
		wr.SGList, wr.RemoteAddr, wr.RKey = []provider.SGE{p.src.sge(0, 1)}, p.dst.to(0), p.dst.m.STag()
		octets++
	}
	tr.add(time.Now(), "post", signaled, octets, reports)
	p.a.send(wr)
}

// poll polls once, and notes it.
func (tr *trace) poll(p *oneSided, wc []provider.WC) int {
	var empty uint32
	if p.a.cq.seen.Load() == 0 {
		empty = 1
	}
	began := time.Now()
	n := testkit.Must(p.a.cq.Poll(wc))(p.a.t)
	tr.add(began, "poll", uint32(n), empty, uint32(time.Since(began)))
	return n
}

// traces are the programs, each with what has to hold of every trace of it, and how much it does.
var traces = []struct {
	name  string
	run   func(t *testing.T, tr *trace)
	holds func(j judgement) bool
}{
	{"64 Writes outstanding", func(t *testing.T, tr *trace) {
		p := newOneSided(t, Options{}, nil)
		write := provider.SendWR{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled}
		outstanding := 0
		for wc := make([]provider.WC, 16); len(tr.events) < 600; outstanding -= tr.poll(p, wc) {
			for ; outstanding < 64; outstanding++ {
				tr.post(p, write)
			}
		}
	}, func(j judgement) bool { return j.calls < j.posts/2 }},
	{"one-sided calls", func(t *testing.T, tr *trace) {
		p := newOneSided(t, Options{}, nil)
		write := provider.SendWR{Opcode: provider.WRRDMAWrite}
		for i := range 64 {
			p.src.b[0]++
			write.Flags = 0
			if i%8 == 7 {
				write.Flags = provider.SendSignaled
			}
			for tr.post(p, write); p.dst.b[0] != p.src.b[0]; {
				runtime.Gosched()
			}
			for wc := make([]provider.WC, 1); write.Flags != 0 && tr.poll(p, wc) == 0; {
			}
		}
	}, func(j judgement) bool { return j.ended[3] <= 2 }}, // the pause bounds them
	{"answers, spinning", func(t *testing.T, tr *trace) {
		answered(t, tr, false)
	}, func(j judgement) bool { return j.calls == j.posts && j.program > 0 }},
	{"answers, sleeping", func(t *testing.T, tr *trace) {
		answered(t, tr, true)
	}, func(j judgement) bool { return j.calls == j.posts && j.program == 0 }},
}

// answered sends messages, each after the answer to the last one has come.
func answered(t *testing.T, tr *trace, sleeps bool) {
	network := transport.NewTCP(nil)
	a, b := pair(t, network, tcpAddr, Options{}, sideOptions{events: true}, params(true))
	p := &oneSided{a: a}
	const messages = 40
	a.recv(make([]provider.RecvWR, messages)...)
	b.recv(make([]provider.RecvWR, messages)...)
	var peer sync.WaitGroup
	defer peer.Wait()
	peer.Go(func() {
		for range messages {
			b.spin(1)
			b.send(provider.SendWR{Opcode: provider.WRSend})
			tr.add(time.Now(), "came")
		}
	})
	for range messages {
		tr.post(p, provider.SendWR{Opcode: provider.WRSend})
		for wc := make([]provider.WC, 1); tr.poll(p, wc) == 0; {
			if !sleeps {
				continue
			}
			tr.add(time.Now(), "sleep")
			testkit.OK(t, a.cq.ReqNotify(false))
			if tr.poll(p, wc) > 0 {
				break
			}
			testkit.Must(a.ch.Next(t.Context()))(t)
		}
	}
}

// judgement is what the policy does with a trace.
type judgement struct {
	posts, calls int           // of the transport, to transmit them
	ended        [4]int        // waits: by a post, an empty CQ, a program about to sleep, time
	longest      time.Duration // wait
	leases       int           // that began
	program      int           // messages that came while the program held the lease
	progress     int           // other messages: the progress goroutine's
}

func (j judgement) String() string {
	return fmt.Sprintf("%d posts in %d calls, longest wait %v; waits ended by a post %d, an empty CQ %d, "+
		"sleep %d, time %d; leases %d, messages to the program %d, to the progress goroutine %d",
		j.posts, j.calls, j.longest,
		j.ended[0], j.ended[1], j.ended[2], j.ended[3], j.leases, j.program, j.progress)
}

// judge plays a trace to the policy.
func judge(events []traced) (j judgement) {
	var (
		d             policy.Deferral
		run           policy.Run
		since, polled time.Duration
		direct, polls uint64
	)
	end := func(by int, now time.Duration) {
		if d.Waits() {
			j.calls++
			j.ended[by]++
			j.longest = max(j.longest, now-since)
		}
	}
	late := func(now time.Duration) {
		if waited := now - since; d.Waits() && waited >= policy.WaitMost {
			end(3, now)
			d.Overdue(now)
			d.Sent(false)
		}
	}
	for _, e := range events {
		if e.at-since >= policy.WaitTimer {
			late(since + policy.WaitTimer)
		}
		switch e.what {
		case "post":
			waited := d.Waits()
			due := d.Post(policy.Post{Signaled: e.args[0], Octets: e.args[1]}, run, e.args[2],
				func() time.Duration { return e.at })
			j.posts++
			switch {
			case due == policy.First:
				since = e.at
			case due == policy.Now:
				j.calls++
				if waited {
					j.ended[0]++
					j.longest = max(j.longest, e.at-since)
				}
			}
		case "poll":
			over := e.at + time.Duration(e.args[2])
			if e.args[1] == 0 {
				late(e.at)
			} else {
				if end(1, e.at); d.Waits() {
					d.Sent(true)
				}
			}
			for range e.args[1] {
				run = run.Found()
				if direct++; direct%policy.SomeMost == 0 {
					if polls++; polls == policy.LeasePolls {
						j.leases++
					}
					if polls >= policy.LeasePolls {
						polled = over
					}
				}
			}
			if e.args[0] > 0 {
				run = policy.Took(over)
			}
		case "sleep":
			end(2, e.at)
			d.Sent(false)
			polls, polled = 0, 0
		case "came":
			if policy.Leased(polled, e.at) {
				j.program++
			} else {
				j.progress++
			}
		}
	}
	return j
}

// TestTraces plays what programs did, recorded on two CPUs beside other work, to the policy: it has
// to decide as is written at the head of each trace. Then it records each program anew, of which
// less is certain. With -traces.record the new traces take the place of the old.
func TestTraces(t *testing.T) {
	for _, tc := range traces {
		t.Run(tc.name, func(t *testing.T) {
			name := strings.NewReplacer(" ", "-", ",", "").Replace(tc.name)
			file := filepath.Join("testdata", "traces", name)
			testkit.Once(t, func() error {
				tr := &trace{began: time.Now()}
				tc.run(t, tr)
				j := judge(tr.events)
				if !tc.holds(j) {
					return fmt.Errorf("recorded now: %v", j)
				}
				if *tracesRecord {
					var b bytes.Buffer
					fmt.Fprintln(&b, j)
					for _, e := range tr.events {
						fmt.Fprintln(&b, int64(e.at), e.what, e.args[0], e.args[1], e.args[2])
					}
					testkit.OK(t, os.WriteFile(file, b.Bytes(), 0o644))
				}
				return nil
			})
			want, rest, _ := strings.Cut(string(testkit.Must(os.ReadFile(file))(t)), "\n")
			var events []traced
			for line := range strings.Lines(rest) {
				var e traced
				testkit.Must(fmt.Sscan(line, (*int64)(&e.at), &e.what, &e.args[0], &e.args[1], &e.args[2]))(t)
				events = append(events, e)
			}
			if j := judge(events); !tc.holds(j) || j.String() != want {
				t.Errorf("%v, want\n%s", j, want)
			}
		})
	}
}
