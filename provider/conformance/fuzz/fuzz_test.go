package fuzz

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestGenerateIsDeterministic: a seed and an index give one sequence, and a scenario file has all
// of it.
func TestGenerateIsDeterministic(t *testing.T) {
	seen := map[string]bool{}
	for i := range 2000 {
		s := Generate(7, i)
		if !reflect.DeepEqual(s, Generate(7, i)) {
			t.Fatalf("index %d gives two sequences", i)
		}
		var file bytes.Buffer
		if err := s.Write(&file); err != nil {
			t.Fatal(err)
		}
		seen[file.String()] = true
		read, err := Read(&file)
		if err != nil {
			t.Fatalf("index %d: %v", i, err)
		}
		if strings.TrimSpace(read.About) != s.About {
			t.Fatalf("index %d: %q is read back as %q", i, s.About, read.About)
		}
		read.About = s.About
		for k := range s.Frames { // no difference between nil and empty
			s.Frames[k].Refs = append([]Ref{}, s.Frames[k].Refs...)
			read.Frames[k].Refs = append([]Ref{}, read.Frames[k].Refs...)
		}
		if !reflect.DeepEqual(s, read) {
			t.Fatalf("index %d: read back as\n%+v\nnot\n%+v", i, read, s)
		}
	}
	if len(seen) != 2000 {
		t.Errorf("%d different sequences of 2000", len(seen))
	}
}

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "no line request",
		"request 00\nbarrier":                "there is none",
		"request 0":                          "line 1: encoding/hex",
		"request":                            "line 1: request has no value",
		"hello 1":                            `no line begins with "hello"`,
		"reads 3":                            "from 0 to 2",
		"cuts 1 x":                           `"x"`,
		"request 00\n\nfpdu 0011 1:4=window": `line 3: "1:4=window" is no place`,
		"fpdu 00112233 0:4=nothing":          "is no place",
		"fpdu 0011 crc^x":                    "line 1",
	} {
		if _, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, not %q", text, err, want)
		}
	}
}

// openEngine opens a target of an engine, or of a mutant of it.
func openEngine(t *testing.T, open func(*engine.Options) provider.Provider) *Target {
	t.Helper()
	addr := netip.MustParseAddr("127.0.0.1")
	ep := testkit.Must(onengine.Side{Name: "engine", Addr: addr, New: open}.Opener()(nil))(t)
	target := testkit.Must(Open(ep))(t)
	t.Cleanup(target.Close)
	return target
}

// differ plays a sequence to two targets, to the second in one write, and returns what differs.
func differ(t *testing.T, a, b *Target, s *Sequence) (d []Difference) {
	t.Helper()
	for _, quiet := range []time.Duration{20 * time.Millisecond, 2 * time.Second} {
		a.Quiet, b.Quiet = quiet, quiet
		x := testkit.Must(a.Play(t.Context(), s))(t)
		y := testkit.Must(b.Play(t.Context(), s.Whole()))(t)
		if d = Compare(x, y); len(d) == 0 {
			break
		}
	}
	return d
}

// TestCutsDoNotMatter: the engine does the same with a stream in one write.
func TestCutsDoNotMatter(t *testing.T) {
	a, b := openEngine(t, nil), openEngine(t, nil)
	for i := range 400 {
		if d := differ(t, a, b, Generate(11, i)); d != nil {
			t.Errorf("%s: %q", Generate(11, i).About, d)
		}
	}
}

// TestOutcome: a valid sequence is taken whole.
func TestOutcome(t *testing.T) {
	target := openEngine(t, nil)
	for i := 0; ; i++ {
		s := Generate(5, i)
		if !strings.HasSuffix(s.About, ": valid") || s.Reads != 2 || !s.Barrier || !s.names(Window) {
			continue
		}
		target.Quiet = time.Minute
		o := testkit.Must(target.Play(t.Context(), s))(t)
		if !o.Taken() || o.text("terminate") != "-" || o.text("read 2") != "IBV_WC_RDMA_READ 64" ||
			o.text("memory sink") == "-" {
			t.Errorf("%q", o)
		}
		return
	}
}

// TestUnanswered: silence is wrong if each FPDU has come whole and the barrier asks for an answer.
func TestUnanswered(t *testing.T) {
	s := &Sequence{Barrier: true, Frames: []Frame{frame(rawpeer.SendMessage(1, []byte("1234")))}}
	cut := s.clone()
	cut.Frames[0].Bytes[1] += 4 // of the length
	without := s.clone()
	without.Barrier = false
	silence, end := Outcome{{"end", "silence"}}, Outcome{{"end", "FIN"}}
	if !s.Unanswered(silence) || s.Unanswered(end) || cut.Unanswered(silence) || without.Unanswered(silence) {
		t.Errorf("%v %v %v %v", s.Unanswered(silence), s.Unanswered(end), cut.Unanswered(silence),
			without.Unanswered(silence))
	}
}

// TestMutants: a provider that breaks a rule differs from the engine in a sequence that is about
// the rule, and not in valid ones.
func TestMutants(t *testing.T) {
	if testkit.Race {
		t.Skip("make test runs it without the race detector: it makes some thousand connections")
	}
	for _, c := range []struct{ name, about string }{
		{"queue-unchecked", ": QN"},
		{"msn-unchecked", ": MSN"},
		{"mo-unchecked", ": MO"},
		{"rights-ignored", ": STag of region source"},
		{"pd-ignored", ": STag of region foreign"},
		{"key-octet-unchecked", ": key of the STag"},
		{"read-request-lenient", ": a ULPDU of"},
		{"ddp-version-unchecked", ": control bit"},
		{"rdmap-version-unchecked", ": control bit"},
		{"opcode-unchecked", ": opcode"},
		{"terminate-other-code", ": MO"},
		{"runts-dropped", ": a ULPDU of"},
		{"out-of-bounds-dropped", ": TO"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad, good := openEngine(t, mutants.Find(c.name).New), openEngine(t, nil)
			valid := 0
			for i := range 20000 {
				s := Generate(1, i)
				switch {
				case strings.HasSuffix(s.About, ": valid"):
					if valid++; valid > 20 {
						continue
					}
					if d := differ(t, bad, good, s); d != nil {
						t.Fatalf("%s: %q", s.About, d)
					}
				case strings.Contains(s.About, c.about) && !strings.Contains(s.About, "CRC"):
					if d := differ(t, bad, good, s); d != nil {
						t.Logf("%s: %s", s.About, d[0].Key)
						return
					}
				}
			}
			t.Error("no sequence differs")
		})
	}
}

func TestMinimise(t *testing.T) {
	for i := range 200 {
		s := Generate(3, i)
		if len(s.Frames) < 4 {
			continue
		}
		keep := s.Frames[2].Bytes[:atSTag]
		has := func(c *Sequence) bool {
			return slices.ContainsFunc(c.Frames, func(f Frame) bool { return bytes.HasPrefix(f.Bytes, keep) })
		}
		small := Minimise(s, has)
		if len(small.Frames) != 1 || len(small.Cuts) != 0 || small.Reads != 0 || !has(small) {
			t.Errorf("index %d: %d frames, cuts %v, %d Reads are left", i, len(small.Frames),
				small.Cuts, small.Reads)
		}
		if reflect.DeepEqual(s, small) || !reflect.DeepEqual(s, Generate(3, i)) {
			t.Errorf("index %d: the sequence itself has changed", i)
		}
	}
}

// TestWithoutNumbers: the messages after one that is left out get its MSN.
func TestWithoutNumbers(t *testing.T) {
	s := &Sequence{Cuts: []int{5, 60}}
	for msn := range uint32(3) {
		s.Frames = append(s.Frames, frame(rawpeer.SendMessage(msn+1, nil))) // 24 bytes each
	}
	s = s.without(0)
	if len(s.Frames) != 2 || s.Frames[0].get(atMSN, 4) != 1 || s.Frames[1].get(atMSN, 4) != 2 {
		t.Errorf("%v", s.Frames)
	}
	if !slices.Equal(s.Cuts, []int{0, 36}) {
		t.Errorf("cuts %v", s.Cuts)
	}
}

// TestNotesExist: the table of rules names notes that are there.
func TestNotesExist(t *testing.T) {
	for _, r := range rules {
		if _, err := os.Stat(filepath.Join("..", "..", "..", "kernel-notes", r.note+".md")); err != nil {
			t.Error(err)
		}
	}
}

// TestExplain: a note explains what it is about, and nothing else.
func TestExplain(t *testing.T) {
	find := func(about string) *Sequence {
		for i := range 20000 {
			if s := Generate(1, i); strings.HasSuffix(s.About, about) && s.Barrier && len(s.Cuts) == 0 {
				return s
			}
		}
		t.Fatalf("no sequence: %s", about)
		return nil
	}
	for _, c := range []struct {
		s    *Sequence
		d    Difference
		want string
	}{
		{find(": valid"), Difference{"terminate", "1/2/0x05", "1/2/0x02"}, "siw-error-reports"},
		{find(": valid"), Difference{"terminate", "1/2/0x05", "1/2/0x03"}, ""},
		{find(": valid"), Difference{"memory window", "", "0:00"}, ""},
		{find(": a bit of the CRC"), Difference{"memory window", "", "0:00"}, "siw-places-before-crc"},
		{find(": Request: revision 3"), Difference{"reply", "", "FIN"}, "siw-start-up"},
		{find(": STag of region window"), Difference{"receive 1", flushed, general}, "siw-error-reports"},
	} {
		if got := Explain(c.s, []Difference{c.d}); got[0] != c.want {
			t.Errorf("%s: %v is explained by %q, not %q", c.s.About, c.d, got[0], c.want)
		}
	}
}

// TestAnswersBeforeAnEnd: which Reads were answered before a fault is no difference.
func TestAnswersBeforeAnEnd(t *testing.T) {
	end := Value{"end", "FIN"}
	one, two := Value{"answer", "response 1"}, Value{"answer", "response 2"}
	for _, c := range []struct {
		a, b Outcome
		same bool
	}{
		{Outcome{one, two, end}, Outcome{one, end}, true},
		{Outcome{end}, Outcome{one, end}, true},
		{Outcome{two, end}, Outcome{one, end}, false},
		{Outcome{one, two, {"end", "barrier 00"}}, Outcome{one, {"end", "barrier 00"}}, false},
	} {
		if d := Compare(c.a, c.b); (len(d) == 0) != c.same {
			t.Errorf("%q and %q: %q", c.a, c.b, d)
		}
	}
}
