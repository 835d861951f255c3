package figures

import (
	"errors"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestPathOfARun measures over links of the path. If a link can't be made, the report says why.
func TestPathOfARun(t *testing.T) {
	testkit.NeedRoot(t, "network namespaces need root")
	rep := run(t, small(t, "path-*-write-64k*,path-*-rtt-spin"))
	for _, l := range links {
		for _, id := range []string{"write-64k", "write-64k-nocrc", "write-64k-qp64", "rtt-spin"} {
			f := wanted(t, rep, "path-"+l.name+"-"+id).Value
			if l.delay > 0 && strings.Contains(f.Missing, "netem") {
				continue // a kernel without netem
			}
			if f.Rounds != 2 || f.Median <= 0 {
				t.Errorf("%v, %s: %+v", l, id, f)
				continue
			}
			// A round trip takes at least the link's delay.
			if id == "rtt-spin" && min(f.Of, f.To) < 2*micros(l.delay) {
				t.Errorf("%v: round trips of %g and %g us", l, f.Of, f.To)
			}
		}
	}
}

var errNoPath = errors.New("no namespaces")

// TestPathWithoutNamespaces: each figure of the path has the reason, and others are measured.
func TestPathWithoutNamespaces(t *testing.T) {
	c := small(t, "path-1500-rtt-spin,write-4k")
	ctx := t.Context()
	p := testkit.Must(startPair(ctx, c, false))(t)
	defer func() { testkit.OK(t, p.close()) }()
	r := newRunner(c)
	r.pair, r.path = p, &pathPair{err: errNoPath}
	for _, m := range chosen(c) {
		if s := r.once(ctx, m); (s.Error == errNoPath.Error()) != (m.Device.Link != "") {
			t.Errorf("%s: %+v", m.Name, s)
		}
	}
}

// TestPathTable: the path comes first, a missing link is one line, and goals are shown.
func TestPathTable(t *testing.T) {
	figure := func(median float64) Figure {
		return Figure{Median: median, Min: median / 2, Max: median * 2, Rounds: 3, Of: median, To: 1}
	}
	lines := []Line{
		{rowOf(t, "path-1500-write-1m"), figure(0.5), figure(1.7)},
		{rowOf(t, "path-1500-write-1m-sleep"), figure(0.9), figure(2)},
		{rowOf(t, "path-9000-rtt-spin"), figure(1.05), figure(3)},
	}
	for _, w := range allRows {
		if w.link == "1500-delay" {
			lines = append(lines, Line{row: w, Value: Figure{Missing: "no\nnetem"}})
		}
	}
	lines = append(lines, Line{rowOf(t, "write-64k"), figure(3), figure(1)})
	rep := &Report{Lines: lines, Heading: "The loopback"}
	var b strings.Builder
	testkit.OK(t, rep.Markdown(&b))
	want := "| MTU 1500 | Writes of 1 MiB | 0.500 / 1.00 GB/s | 0.500 | 0.250 to 1.00 | >=0.6 missed" +
		" | 1.70 / 1.00 s | 1.70 | <=1.8 |\n" +
		"| MTU 1500 | Writes of 1 MiB, ends that sleep / net.Conn | 0.900 / 1.00 GB/s | 0.900 |" +
		" 0.450 to 1.80 |  | 2.00 / 1.00 s | 2.00 | <=1.8 missed |\n" +
		"| MTU 9000 | round trip of 64 bytes, spinning | 1.05 / 1.00 us | 1.05 | 0.525 to 2.10 | <=1.1 |" +
		" 3.00 / 1.00 us | 3.00 |  |\n" +
		"| MTU 1500, 0.1 ms each way | all | missing: no netem | | | | | | |\n\n## The loopback\n\n"
	if text := b.String(); !strings.HasPrefix(text, "## The path\n\nTwo network namespaces") ||
		!strings.Contains(text, want) || strings.Count(text, "| Writes of 64 KiB / raw TCP |") != 1 {
		t.Errorf("want %s\nin %s", want, text)
	}
}
