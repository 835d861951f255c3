package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReplay(t *testing.T) {
	cmd := start(t, "replay", corpus+"rstream.pcap.gz")
	cmd.want(t, exitPassed, nil, nil)
	wantGolden(t, cmd, "rstream.replay")
	// siw's Terminate is not filled in as ours is. STags differ from run to run, and are not printed.
	start(t, "replay", "--play", "initiator",
		corpus+"default-protection-write-beyond-end.pcapng").want(t, exitFailed, parts(
		"initiator played: 1 FPDUs sent, 1 messages answered, 999 octets compared: not as in the capture\n- <-- Terminate DDP error 1/1/0x01",
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
