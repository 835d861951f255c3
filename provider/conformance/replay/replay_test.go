package replay_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/replay"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

var update = flag.Bool("update", false, "write the golden file anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// corpus returns the captures of siw that are replayed: the captures of testdata, and the capture
// of package wire.
func corpus(t *testing.T) []string {
	t.Helper()
	files := testkit.Must(filepath.Glob("testdata/*.pcap*"))(t)
	if len(files) < 20 {
		t.Fatalf("%d captures in testdata", len(files))
	}
	return append(files, "../wire/testdata/siw-6.1.192-rping-and-send-bw.pcap")
}

// engineSide opens engines.
func engineSide() onengine.Side {
	return onengine.Side{Name: "engine", Addr: onengine.ProcessAddr()}
}

// play replays one side of a connection.
func play(t *testing.T, conn *wire.Conn, side conformance.Role, wait time.Duration,
	to onengine.Side) (*replay.Result, error) {
	t.Helper()
	return replay.Run(t.Context(), replay.Config{Conn: conn, Play: side, Wait: wait,
		Open: to.Opener()})
}

// waitFor is how long each answer may take.
const waitFor = time.Minute

// told is what a replay has shown, on a few lines.
func told(r *replay.Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d FPDUs, %d messages, %d octets\n", r.Played, r.Answered, r.Compared)
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "    %s\n", p)
	}
	for _, row := range r.Rows {
		for _, d := range row.Differences {
			fmt.Fprintf(&b, "    %s: %s | %s\n", d.Key, d.Reference, d.Got)
		}
	}
	return b.String()
}

// TestCorpus plays both sides of each capture of siw to the engine. The golden file has all
// differences: how siw fills in a Terminate, and the messages that it offers to open peer-to-peer
// connections.
func TestCorpus(t *testing.T) {
	const golden = "testdata/corpus.golden"
	var all strings.Builder
	for _, file := range corpus(t) {
		trace := testkit.Must(wire.ReadFile(file, 0))(t)
		if len(trace.Notes) > 0 || len(trace.IWARP().Conns) == 0 {
			t.Errorf("%s: %d connections, notes %q", file, len(trace.Conns), trace.Notes)
		}
		for i, conn := range trace.IWARP().Conns {
			for _, side := range []conformance.Role{conformance.RoleInitiator,
				conformance.RoleResponder} {
				name := fmt.Sprintf("%s %d %s", filepath.Base(file), i+1, side)
				r, err := play(t, conn, side, waitFor, engineSide())
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				fmt.Fprintf(&all, "%s: %s", name, told(r))
			}
		}
	}
	if *update {
		testkit.OK(t, os.WriteFile(golden, []byte(all.String()), 0o644))
	}
	if d := cmp.Diff(string(testkit.Must(os.ReadFile(golden))(t)), all.String()); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// capture returns the only connection of a capture of testdata.
func capture(t *testing.T, name string) *wire.Conn {
	t.Helper()
	trace := testkit.Must(wire.ReadFile(filepath.Join("testdata", name), 0))(t).IWARP()
	if len(trace.Conns) != 1 {
		t.Fatalf("%s: %d connections", name, len(trace.Conns))
	}
	return trace.Conns[0]
}

// readNoRight has a Read that siw answers in one segment of 1000 octets.
const readNoRight = "default-protection-read-no-right.pcapng"

// splitAnswer makes two segments of the answer to the capture's Read.
func splitAnswer(t *testing.T, c *wire.Conn) {
	t.Helper()
	_, answer := readAt(t, c)
	first, last := c.Frames[answer], c.Frames[answer]
	n := len(first.Payload) / 2
	first.Payload, first.Header.Last = first.Payload[:n], false
	last.Payload, last.Header.TO = last.Payload[n:], last.Header.TO+uint64(n)
	c.Frames = slices.Replace(c.Frames, answer, answer+1, first, last)
}

// TestFaults replays captures to broken engines. The results have to show the faults.
func TestFaults(t *testing.T) {
	for _, tc := range []struct {
		mutant, capture string
		side            conformance.Role
		want            string
	}{
		{"arrivals-flipped", "default-send-unsignalled.pcapng", conformance.RoleInitiator,
			"the message of receive 1: octet 0"},
		{"arrivals-flipped", "rstream.pcap.gz", conformance.RoleInitiator, "the memory of STag"},
		{"first-segments-lost", readNoRight, conformance.RoleResponder, "the memory of STag"},
		{"short-responses-garbled", "crc-read-short-across-pages.pcapng",
			conformance.RoleInitiator, "rdma-read-response:octets"},
		{"out-of-bounds-dropped", "default-protection-write-beyond-end.pcapng",
			conformance.RoleInitiator, "to-initiator:terminate:missing"},
		{"unknown-key-dropped", "default-protection-write-wrong-key-octet.pcapng",
			conformance.RoleInitiator, "to-initiator:terminate:missing"},
		{"pd-ignored", "default-protection-write-other-pd.pcapng", conformance.RoleInitiator,
			"to-initiator:terminate:missing"},
		{"invalidate-ignored", "default-send-with-invalidate.pcapng", conformance.RoleInitiator,
			"to-initiator:terminate:missing"},
		{"send-without-receive-dropped", "default-protection-no-receive.pcapng",
			conformance.RoleInitiator, "to-initiator:terminate:missing"},
		{"empty-write-checked", "p2p-write-zero.pcapng", conformance.RoleInitiator,
			"to-initiator:terminate:extra"},
	} {
		t.Run(tc.mutant+" "+tc.capture, func(t *testing.T) {
			t.Parallel() // some wait for messages that do not come
			m := mutants.Find(tc.mutant)
			side := engineSide()
			side.New = m.New
			c := capture(t, tc.capture)
			if tc.capture == readNoRight {
				splitAnswer(t, c)
			}
			r, err := play(t, c, tc.side, 500*time.Millisecond, side)
			if err != nil {
				t.Fatal(err)
			}
			if r.Same() || !strings.Contains(told(r), tc.want) {
				t.Errorf("%s %s: the result is\n%s\nwithout %q", tc.capture, m.What, told(r),
					tc.want)
			}
		})
	}
}

// TestRefused lists what can't be replayed, and why.
func TestRefused(t *testing.T) {
	for want, change := range map[string]func(*wire.Conn){
		"lacks the MPA Request or " +
			"Reply": func(c *wire.Conn) { c.Reply = nil },
		"the connection was " +
			"rejected": func(c *wire.Conn) { c.Reply.Reject = true },
		"connections of the RDMA Consortium's " +
			"version": func(c *wire.Conn) { c.Reply.Revision, c.Reply.Markers = 0, true },
		"markers in one direction " +
			"only": func(c *wire.Conn) { c.Request.Markers = true },
		"frame 3 can't be decoded: it is " +
			"cut": func(c *wire.Conn) { c.Frames[2] = wire.Frame{Kind: wire.KindUndecoded, Err: errors.New("it is cut")} },
		"frame 3 is a RDMA Read Request: messages of RFC " +
			"7306": func(c *wire.Conn) { c.Frames[2].Atomic = &rdmap.AtomicRequest{} },
		"frame 4 is nothing that a provider can be made to " +
			"send": func(c *wire.Conn) { c.Frames[3].Err = errors.New("it is wrong") },
		"a RDMA Read Response of the provider has no " +
			"last": func(c *wire.Conn) { c.Frames[3].Header.Last = false },
		"STag 0x00000007 is used " +
			"over": func(c *wire.Conn) { c.Frames[2].Read.Size = 1 << 30; c.Frames[2].Read.SourceSTag = 7 },
	} {
		conn := capture(t, readNoRight)
		change(conn)
		if r, err := play(t, conn, conformance.RoleInitiator, waitFor, engineSide()); err == nil ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, %+v; want %q", err, r, want)
		}
	}
}

// readAt returns the index of the capture's Read Request and of the answer's last segment.
func readAt(t *testing.T, c *wire.Conn) (request, answer int) {
	t.Helper()
	request = slices.IndexFunc(c.Frames, func(f wire.Frame) bool { return f.Read != nil })
	for i := range c.Frames {
		if f := &c.Frames[i]; f.Kind == wire.KindFPDU && f.Dir == wire.ToInitiator && f.Header.Last {
			answer = i
		}
	}
	if request < 0 || answer < request {
		t.Fatal("the capture has no Read with its answer")
	}
	return request, answer
}

// TestEmptyReadAnywhere: a Read of no octets may name any tagged offset, even one outside of the
// offsets that others use with the STag.
func TestEmptyReadAnywhere(t *testing.T) {
	for what, by := range map[string]uint64{"after": 1 << 20, "before": ^uint64(1<<20 - 1)} {
		c := capture(t, readNoRight)
		request, answer := readAt(t, c)
		again, empty := c.Frames[request], c.Frames[answer]
		read := *again.Read
		read.Size, read.SourceTO = 0, read.SourceTO+by
		again.Read, again.Payload = &read, read.AppendTo(nil)
		again.Header.MSN++
		empty.Payload, empty.Header.TO = nil, read.SinkTO
		c.Frames = slices.Insert(c.Frames, answer+1, again, empty)
		r := testkit.Must(play(t, c, conformance.RoleInitiator, waitFor, engineSide()))(t)
		if !r.Same() {
			t.Errorf("%s: %s", what, told(r))
		}
	}
}

// TestSegmentsOfAnswer: it makes no difference in how many segments a Read is answered.
func TestSegmentsOfAnswer(t *testing.T) {
	c := capture(t, readNoRight)
	splitAnswer(t, c)
	for _, side := range []conformance.Role{conformance.RoleInitiator, conformance.RoleResponder} {
		if r := testkit.Must(play(t, c, side, waitFor, engineSide()))(t); !r.Same() {
			t.Errorf("%s: %s", side, told(r))
		}
	}
}

// TestOffsetsWrap: memory that would end beyond the last tagged offset is refused.
func TestOffsetsWrap(t *testing.T) {
	c := capture(t, readNoRight)
	request, _ := readAt(t, c)
	c.Frames[request].Read.SourceTO = ^uint64(0) - 8
	if r, err := play(t, c, conformance.RoleInitiator, waitFor, engineSide()); err == nil {
		t.Errorf("it is replayed: %s", told(r))
	}
}
