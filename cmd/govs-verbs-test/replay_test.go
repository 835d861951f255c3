package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
)

func TestReplay(t *testing.T) {
	cmd := start(t, "replay", corpus+"rstream.pcap.gz")
	cmd.want(t, exitPassed, nil, nil)
	wantGolden(t, cmd, "rstream.replay")
	// siw fills its Terminate differently from the engine. STags differ from run to run, and are
	// not printed.
	start(t, "replay", "--play", "initiator",
		corpus+"default-protection-write-beyond-end.pcapng").want(t, exitFailed, parts(
		"initiator played: 1 FPDUs sent, 1 messages answered, 999 bytes compared: not as in the capture\n- <-- Terminate DDP error 1/1/0x01",
		"\n+ <-- Terminate DDP error 1/1/0x01", "\n      to-initiator:terminate:layout: siw | RFC\n"), nil)

	const three = "../../provider/conformance/wire/testdata/siw-6.1.192-rping-and-send-bw.pcap"
	record := filepath.Join(t.TempDir(), "replayed.pcapng")
	one := start(t, "replay", three, "--connection", "2", "--play", "responder", "--record", record)
	one.want(t, exitPassed,
		parts("connection 2: 192.0.2.1:32903 -> 192.0.2.1:18515\n"+
			"  responder played: 11 FPDUs sent, 11 messages answered, "), nil)
	cmd = start(t, "diff", "--json", three, record)
	cmd.want(t, exitFailed, nil, nil) // the file has two more connections
	var d diffed
	decodeJSON(t, cmd, &d)
	for _, r := range d.Rows {
		if len(r.Fields) != 1 || r.Fields[0].Key != "connection:missing" {
			t.Errorf("the recording of connection 2 differs: %+v", r)
		}
	}
}

func TestReplayFailures(t *testing.T) {
	const one = corpus + "default-send-solicited.pcapng"
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, "replay", "none.pcap").want(t, exitUsage, nil, parts("none.pcap: no such file"))
	start(t, "replay", empty).want(t, exitUsage, nil, parts("not a capture file"))
	start(t, "replay", one, "--port", "9").want(t, exitUsage, nil, parts("no iWARP to replay"))
	start(t, "replay", one, "--connection", "2").want(t, exitUsage, nil, parts("--connection 2: ", " has 1"))
	start(t, "replay", one, "--connection", "-1").want(t, exitUsage, nil,
		parts("--connection -1: they are counted from 1"))
	start(t, "replay", one, "--record", "x.pcapng").want(t, exitUsage, nil,
		parts("add --play initiator or --play responder"))
	start(t, "replay", one, "--wait", "0s").want(t, exitUsage, nil, parts("--wait 0s: has to be above 0"))
	start(t,
		"replay", "../../provider/conformance/wire/testdata/siw-6.1.192-rping-and-send-bw.pcap",
		"--play", "initiator", "--record", "x.pcapng").
		want(t, exitUsage, nil, parts("has 3 connections: choose one"))
	start(t, "replay", one, "--addr", "192.0.2.77", "--play", "initiator").want(t, exitUsage,
		parts("not replayed: "), parts("nothing could be replayed"))
}

// TestReplayInPart: a capture with one connection that can't be replayed has not passed, and the
// faults of a file are reported.
func TestReplayInPart(t *testing.T) {
	withoutSiw(t)
	dir := t.TempDir()
	start(t, "run", "--only", "conn/reject,send/zero", "--addr", onengine.ProcessAddr().String(),
		"--collect", dir).want(t, exitPassed, nil, nil)
	both := filepath.Join(dir, "both.pcapng")
	testkit.OK(t, capture.Merge(both, "",
		capture.Part{File: filepath.Join(dir, "send-zero.engine-engine.pcapng"), Interface: "a"},
		capture.Part{File: filepath.Join(dir, "conn-reject.engine-engine.pcapng"), Interface: "b"}))
	start(t, "replay", both).want(t, exitUsage, parts("as in the capture", "not replayed: ", "was rejected"),
		parts("2 of 4 replays could not be made; --connection and --play choose others"))

	whole := readFile(t, filepath.Join(dir, "send-zero.engine-engine.pcapng"))
	cut := filepath.Join(dir, "cut.pcapng")
	testkit.OK(t, os.WriteFile(cut, whole[:len(whole)-5], 0o644))
	start(t, "replay", cut, "--play", "initiator").want(t, exitPassed, nil,
		parts("note: "+cut+": the file cannot be read beyond packet "))
}
