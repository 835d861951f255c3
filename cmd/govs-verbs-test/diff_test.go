package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// corpus is the folder of siw's captures, with how they were made.
const corpus = "../../provider/conformance/replay/testdata/"

// wantGolden compares what a command printed with a file of testdata.
func wantGolden(t *testing.T, cmd *command, file string) {
	t.Helper()
	golden := filepath.Join("testdata", file)
	if *update {
		if err := os.WriteFile(golden, []byte(cmd.stdout.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff(string(readFile(t, golden)), cmd.stdout.String()); d != "" {
		t.Errorf("%s (-want +got):\n%s", cmd, d)
	}
}

func TestDiff(t *testing.T) {
	const one = corpus + "default-protection-write-beyond-end.pcapng"
	const other = corpus + "crc-protection-write-beyond-end.pcapng"
	start(t, "diff", one, one).want(t, exitPassed, parts("the same: 6 messages\n"), nil)
	cmd := start(t, "diff", one, other)
	cmd.want(t, exitFailed, nil, nil)
	wantGolden(t, cmd, "crc.diff")
	// Another session, and messages that only one of the two has.
	cmd = start(t, "diff", corpus+"p2p-write-zero.pcapng", corpus+"default-protection-read-no-right.pcapng")
	cmd.want(t, exitFailed, nil, nil)
	wantGolden(t, cmd, "sessions.diff")
	all := start(t, "diff", "--all", one, one)
	all.want(t, exitPassed, parts("  --> MPA Request Frame rev 2 S IRD 16 ORD 16\n", "the same: 6 messages\n"), nil)
}

func TestDiffJSON(t *testing.T) {
	cmd := start(t, "diff", "--json", corpus+"default-send-solicited.pcapng", corpus+"default-send-unsignalled.pcapng")
	cmd.want(t, exitFailed, nil, nil)
	var d diffed
	decodeJSON(t, cmd, &d)
	if d.Same || d.Messages < 7 || len(d.Rows) == 0 || len(d.Rows[0].Fields) == 0 {
		t.Errorf("%+v", d)
	}
	same := start(t, "diff", "--json", corpus+"default-send-solicited.pcapng", corpus+"default-send-solicited.pcapng")
	same.want(t, exitPassed, nil, nil)
	var raw map[string]any
	if err := json.Unmarshal([]byte(same.stdout.String()), &raw); err != nil ||
		raw["same"] != true || len(raw["rows"].([]any)) != 0 {
		t.Errorf("%v, %v", raw, err)
	}
}

// TestDiffPorts picks connections of a file with three: one of rping, two of ib_send_bw.
func TestDiffPorts(t *testing.T) {
	const file = "../../provider/conformance/wire/testdata/siw-6.1.192-rping-and-send-bw.pcap"
	start(t, "diff", "--port", "7174", file, file).want(t, exitPassed, parts("the same: 39 messages"), nil)
	start(t, "diff", "--port", "7174,18515", file, file).want(t, exitFailed,
		parts("connection:extra: (nothing) | request, send, "), nil)
}

func TestDiffFailures(t *testing.T) {
	const one = corpus + "default-send-solicited.pcapng"
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no capture"), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, "diff", one, "none.pcap").want(t, exitUsage, nil, parts("none.pcap: no such file"))
	start(t, "diff", text, one).want(t, exitUsage, nil, parts("text: neither a pcap nor a pcapng file"))
	start(t, "diff", one, one, "--port", "9").want(t, exitUsage, nil,
		parts("no iWARP to compare: none of 0 TCP connections"))
	start(t, "diff", one, one, "--port", "1,2,3").want(t, exitUsage, nil,
		parts("--port: 3 ports for two files: give one for both"))
	start(t, "diff", one).want(t, exitUsage, nil, parts("the argument <b> is missing"))
}
