package load

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

func TestHistogramAgainstSorting(t *testing.T) {
	const seed = 1
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	var h Histogram
	if h.Latency() != nil {
		t.Error("an empty histogram has a latency")
	}
	var all []time.Duration
	var sum time.Duration
	for range 20_000 {
		d := time.Duration(r.ExpFloat64() * 50_000)
		all = append(all, d)
		sum += d
		h.Add(d)
	}
	slices.Sort(all)
	l := h.Latency()
	if l.Min != all[0] || l.Max != all[len(all)-1] || l.Mean != sum/time.Duration(len(all)) {
		t.Errorf("%+v, want min %v max %v mean %v", l, all[0], all[len(all)-1], sum/time.Duration(len(all)))
	}
	for _, q := range []struct {
		share float64
		got   time.Duration
	}{{0.5, l.Median}, {0.99, l.P99}, {0.999, l.P999}} {
		want := all[int(q.share*float64(len(all)))]
		if diff := (q.got - want).Abs(); float64(diff) > float64(want)/histSub+1 {
			t.Errorf("%v: %v, want %v", q.share, q.got, want)
		}
	}
	h.Reset()
	if h.Latency() != nil {
		t.Error("a histogram that was reset has a latency")
	}
}

func TestHistogramBuckets(t *testing.T) {
	var h Histogram
	h.Add(-1)
	h.Add(0)
	if h.max != 0 || h.counts[0] != 2 {
		t.Errorf("max %v, %d zeros", h.max, h.counts[0])
	}
	for shift := range 63 {
		for _, v := range []uint64{1 << shift, 1<<shift + 1, 1<<(shift+1) - 1} {
			if got := uint64(middleOf(bucketOf(v))); got > v+v/histSub || got+v/histSub < v {
				t.Errorf("%d is counted as %d", v, got)
			}
		}
	}
}

func TestPattern(t *testing.T) {
	for _, n := range []int{0, 1, 7, 8, 9, 100, 4096} {
		b := make([]byte, n)
		fillPattern(b, 5)
		if at := hasPattern(b, 5); at >= 0 {
			t.Errorf("%d bytes differ at %d", n, at)
		}
		for at := range b {
			b[at] ^= 0x10
			if got := hasPattern(b, 5); got != at {
				t.Errorf("%d bytes, %d is wrong: found %d", n, at, got)
			}
			b[at] ^= 0x10
		}
	}
	b, cleared := make([]byte, 64), make([]byte, 64)
	fillPattern(b, 5)
	if hasPattern(b, ^uint64(5)) < 0 || hasPattern(cleared, 5) < 0 || hasPattern(cleared, 0) < 0 {
		t.Error("two patterns, or one and none, are the same")
	}
}

func TestPeak(t *testing.T) {
	var p Peak
	p.Add(time.Millisecond, 1e9)
	if p.Best() != 0 {
		t.Errorf("of less than %v: %v", peakWindow, p.Best())
	}
	p.Add(20*time.Millisecond, 1e6) // 1.001e9 in 20 ms
	p.Add(30*time.Millisecond, 1e6) // 1e6 in 10 ms
	if got := p.Best(); got < 5.004e10 || got > 5.006e10 {
		t.Errorf("best %v, want 1.001e9 bytes in 20 ms", got)
	}
	// Completions that come all at once, after others were posted for long, are no peak.
	p = Peak{Least: 4e6}
	p.Add(time.Second, 0)
	p.Add(1010*time.Millisecond, 1e6)
	if got := p.Best(); got != 0 {
		t.Errorf("best %v of less than the least", got)
	}
	p.Add(1500*time.Millisecond, 3e6)
	if got := p.Best(); got < 2.6e6 || got > 2.7e6 {
		t.Errorf("best %v, want 4e6 bytes in 1.5 s", got)
	}
}

func TestDataPrivate(t *testing.T) {
	b := dataPrivate(1<<63|5, 1000)
	if s, n, ok := parseDataPrivate(b); !ok || s != 1<<63|5 || n != 1000 {
		t.Errorf("session %d, QP %d, %v", s, n, ok)
	}
	for n := range b {
		if _, _, ok := parseDataPrivate(b[:n]); ok {
			t.Errorf("%d bytes of %d are taken", n, len(b))
		}
	}
}

// TestRefusal shows that the text of another program's refusal is printed, and other bytes
// are not.
func TestRefusal(t *testing.T) {
	for data, want := range map[string]string{
		"":            "a server of perf is needed there (the same command with --listen): ",
		busyText:      "the server is busy with another client",
		"no such key": `the server says "no such key", and has to be one of perf: `,
		"\x00\xff":    "rejected",
	} {
		err := refusal(&rdmacm.RejectedError{PrivateData: []byte(data)})
		if !strings.Contains(err.Error(), want) || data == "\x00\xff" && strings.Contains(err.Error(), "says") {
			t.Errorf("%q: %v, want %q in it", data, err, want)
		}
	}
}

func TestCPUOfBothEnds(t *testing.T) {
	r := Result{
		Ops: 1000, Octets: 4 << 30,
		Client: Usage{User: time.Second, Sys: 2 * time.Second}, Server: Usage{User: 3 * time.Second, Sys: 4 * time.Second},
	}
	if got := r.CPUPerGiB(); got != 2500*time.Millisecond {
		t.Errorf("%v for a GiB, want 2.5s", got)
	}
	if got := r.CPUPerOp(); got != 10*time.Millisecond {
		t.Errorf("%v for an operation, want 10ms", got)
	}
	if r = (Result{Client: Usage{User: 1}}); r.CPUPerGiB() != 0 || r.CPUPerOp() != 0 {
		t.Errorf("of nothing: %v, %v", r.CPUPerGiB(), r.CPUPerOp())
	}
}
