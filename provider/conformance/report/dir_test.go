package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// written is what WriteDir leaves of the synthetic report.
var written = []string{
	"index.html", "junit.xml", "mpa-crc-wrong.pcapng", "mpa-reply-cut.pcapng", "queue-receive-empty.pcapng", "report.json", "send-one.pcapng",
}

func TestWriteDir(t *testing.T) {
	for _, same := range []bool{false, true} {
		captures := t.TempDir()
		dir := filepath.Join(t.TempDir(), "new", "report")
		if same {
			dir = captures
		}
		rep := synthetic(t, captures)
		if err := WriteDir(dir, rep, captures); err != nil {
			t.Fatal(err)
		}
		if got := files(t, dir); !slices.Equal(got, written) {
			t.Errorf("same folder %v: files are %q, want %q", same, got, written)
		}
		if left := len(files(t, captures)); !same && left != 9 {
			t.Errorf("%d files are left of the 9 captures in their own folder", left)
		}
		for i := range rep.Results {
			res := &rep.Results[i]
			if len(res.Ladder) == 0 {
				if res.Capture != "" {
					t.Errorf("%s %s has no ladder, and capture %s", res.Scenario, pairingOf(res), res.Capture)
				}
				continue
			}
			if want := strings.ReplaceAll(res.Scenario, "/", "-") + ".pcapng"; res.Capture != want || res.Interface != pairingOf(res) {
				t.Errorf("%s %s: capture %s, interface %s", res.Scenario, pairingOf(res), res.Capture, res.Interface)
			}
			trace, err := wire.ReadFile(filepath.Join(dir, res.Capture), res.Port)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(res.Ladder, trace.Ladder()); d != "" {
				t.Errorf("%s %s: the capture's ladder is not the report's:\n%s", res.Scenario, pairingOf(res), d)
			}
		}
		data, err := os.ReadFile(filepath.Join(dir, "report.json"))
		if err != nil {
			t.Fatal(err)
		}
		var back conformance.Report
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(rep, &back); d != "" {
			t.Errorf("report.json is not the report (-want +got):\n%s", d)
		}
		if strings.Contains(string(data), `\u003c`) {
			t.Error("report.json escapes what only HTML needs escaped")
		}
	}
}

// A second report in the same folder replaces the first, and does not touch files of
// others.
func TestWriteDirAgain(t *testing.T) {
	dir, captures := t.TempDir(), t.TempDir()
	if err := WriteDir(dir, synthetic(t, captures), captures); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(dir, "mine.pcapng")
	if err := os.WriteFile(foreign, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	rep := synthetic(t, captures)
	rep.Results = rep.Results[:4]
	if err := WriteDir(dir, rep, captures); err != nil {
		t.Fatal(err)
	}
	want := []string{"index.html", "junit.xml", "mine.pcapng", "queue-receive-empty.pcapng", "report.json"}
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("files are %q, want %q", got, want)
	}
}

// A capture that can't be read does not keep the rest from being written.
func TestWriteDirWithABadCapture(t *testing.T) {
	dir, captures := t.TempDir(), t.TempDir()
	rep := synthetic(t, captures)
	if err := os.Remove(filepath.Join(captures, "send-one.engine-kernel.pcapng")); err != nil {
		t.Fatal(err)
	}
	err := WriteDir(dir, rep, captures)
	if err == nil || !strings.Contains(err.Error(), "captures of send/one") {
		t.Errorf("the error is %v", err)
	}
	want := slices.DeleteFunc(slices.Clone(written), func(s string) bool { return s == "send-one.pcapng" })
	if got := files(t, dir); !slices.Equal(got, want) {
		t.Errorf("files are %q, want %q", got, want)
	}
	for i := range rep.Results {
		if res := &rep.Results[i]; res.Scenario == "send/one" && (res.Capture != "" || res.Interface != "") {
			t.Errorf("%s names capture %q, which is not there", pairingOf(res), res.Capture)
		}
	}
}

func TestOldReportNamesOnlyItsOwn(t *testing.T) {
	name := filepath.Join(t.TempDir(), "report.json")
	for content, want := range map[string][]string{
		`{"schema":"govs-report/2","results":[{"capture":"a.pcapng"},{"capture":"../b.pcapng"},{"capture":"/etc/c.pcapng"},{"capture":"d.txt"},{"capture":"a.pcapng"}]}`: {"a.pcapng"},
		`{"schema":"other/1","results":[{"capture":"a.pcapng"}]}`: nil,
		`not JSON`: nil,
	} {
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := capturesNamedBy(name); !slices.Equal(got, want) {
			t.Errorf("%s: names %q, want %q", content, got, want)
		}
	}
}

func TestReadCollection(t *testing.T) {
	name := filepath.Join(t.TempDir(), "sub", "collection.json")
	want := &conformance.Collection{
		Schema: conformance.CollectionSchema, Version: "v1", Require: []string{"kernel"},
		Outcomes: []conformance.Outcome{{Scenario: "a/b", Pairing: conformance.Pairing{Initiator: "x", Responder: "y"}, Seed: 1<<64 - 1}},
	}
	if err := WriteJSON(name, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadCollection(name)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if _, err := ReadCollection(name + "x"); err == nil {
		t.Error("a collection that is not there can be read")
	}
	if err := os.WriteFile(name, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadCollection(name); err == nil || !strings.Contains(err.Error(), "not a collection") {
		t.Errorf("the error is %v", err)
	}
	twice := *want
	twice.Outcomes = append(twice.Outcomes, twice.Outcomes[0])
	outside, far := *want, *want
	outside.Outcomes = []conformance.Outcome{{Scenario: "a/b", Capture: "../x.pcapng"}}
	far.Outcomes = []conformance.Outcome{{Scenario: "a/b", CaptureAtPeer: "/etc/x.pcapng"}}
	for wrong, c := range map[string]*conformance.Collection{
		"it has the run a/b x->y twice": &twice, `"../x.pcapng"`: &outside, `"/etc/x.pcapng"`: &far,
	} {
		if err := WriteJSON(name, c); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadCollection(name); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("the error is %v, want %s", err, wrong)
		}
	}
}
