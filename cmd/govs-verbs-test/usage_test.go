//go:build !race

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args   string
		status int
		want   []string
	}{
		{"", exitUsage, parts("Usage: govs-verbs-test <command>", "Exit status: 0 if all passed", "ping")},
		{"--help", exitPassed, parts("Usage: govs-verbs-test <command>")},
		{"help", exitPassed, parts("Usage: govs-verbs-test <command>")},
		{"help run", exitPassed, parts("Usage: govs-verbs-test run [flags]")},
		{"help link add", exitPassed, parts("--netdev=NETDEV")},
		{"devices --help", exitPassed, parts("--json", "--provider=PROVIDER")},
		{"link --help", exitPassed, parts("link list", "link add", "link delete")},
		{"link add --help", exitPassed, parts("--netdev=NETDEV", "--type=TYPE")},
		{"list --help", exitPassed, parts("--only=GLOB", "--json")},
		{"run --help", exitPassed, parts("--initiator=PROVIDER", "--responder=PROVIDER", "--matrix", "--only=GLOB", "--require-siw",
			"--report=DIR", "--json=FILE", "--junit=FILE", "--seed=N", "--target=HOST:PORT", "--target-offers=WHAT")},
		{"agent --help", exitPassed, parts("--listen=ADDR:PORT", "--secret-file=FILE", "run --peer")},
		{"compare --help", exitPassed, parts("<dir> ...", "--report=DIR")},
		{"compare --help", exitPassed, parts("--profile=FILE")},
		{"diff --help", exitPassed, parts("<a> <b>", "--port=PORT[,PORT]", "CRC32")},
		{"replay --help", exitPassed, parts("<file>", "--play=SIDE", "--record=FILE", "STags")},
		{"fuzz --help", exitPassed, parts("--targets=NAME", "--seed=N", "--replay=FILE", "--vm", "kernel-notes")},
		{"profile --help", exitPassed, parts("profile list", "profile show", "profile check", "docs/profiles.md")},
		{"vm --help", exitPassed, parts("--siw=VARIANT", "--rxe", "--memory=MIB", "--cpus=N", "--timeout=TIME", "--install",
			"go test -exec 'govs-verbs-test vm --'", " $VM_OUT", "docs/ci.md", "Exit status: COMMAND's own")},
		{"decode --help", exitPassed, parts("<file>", "--json", "STag", "--interface=NAME", "--count=N")},
		{"stream --help", exitPassed, parts("--listen=ADDR:PORT", "--provider=PROVIDER", "--bench", "--size=N|all",
			"rstream -s 192.0.2.1")},
		{"ping --help", exitPassed, parts("--listen=ADDR:PORT", "--provider=PROVIDER", "--count=N", "--size=N", "--verbose",
			"--persistent")},
	} {
		cmd := start(t, strings.Fields(c.args)...)
		cmd.want(t, c.status, c.want, nil)
		if cmd.stderr.String() != "" {
			t.Errorf("%s: stderr %q", cmd, &cmd.stderr)
		}
	}
}

func TestWrongUsage(t *testing.T) {
	t.Setenv("REQUIRE_SIW", "")
	dir := t.TempDir()
	for _, c := range []struct {
		args string
		want string
	}{
		{"frobnicate", "unexpected argument frobnicate"},
		{"devices --frobnicate", "unknown flag --frobnicate"},
		{"devices --json -v", "--json and --verbose can't be used together"},
		{"devices extra", "unexpected argument extra"},
		{"devices --provider infiniband", `--provider must be one of "auto","engine","kernel"`},
		{"link add siw0", "missing flags: --netdev"},
		{"link add --netdev d0", "the argument <name> is missing; usage: govs-verbs-test link add --netdev=NETDEV <name>"},
		{"link delete", "the argument <name> is missing; usage: govs-verbs-test link delete (del) <name>"},
		{"list --only [", "syntax error in pattern"},
		{"list --only no-such-scenario", `no scenario matches "no-such-scenario"`},
		{"run --only no/such", `no scenario matches "no/such"`},
		{"run --only conn/[", "syntax error in pattern"},
		{"run --initiator mutant", `--initiator must be one of "engine","kernel","bridge" but got "mutant"`},
		{"run --matrix --providers engine,mutant", `--providers must be one of "engine","kernel","bridge"`},
		{"run --matrix --providers engine,engine", "--providers engine,engine: each has to be given once"},
		{"run --providers engine,bridge", "--providers are those of --matrix: add it"},
		{"run --initiator bridge --responder kernel", "bridge and kernel can't be in one run: in a process with"},
		{"run --matrix --providers kernel,bridge", "bridge and kernel can't be in one run"},
		{"run --initiator bridge --require-siw", "--require-siw: siw takes no part in a run with the bridge"},
		{"run --matrix --with bridge", "add --matrix --providers engine,bridge, or --initiator"},
		{"run --responder engine@peer", "--responder engine@peer: add --peer, the address of the agent"},
		{"run --peer 192.0.2.1", "--peer 192.0.2.1: an IP address or a name, and a port are needed"},
		{"run --peer-addr 192.0.2.1", "--peer-addr is for --peer"},
		{"run --target 192.0.2.1", "--target 192.0.2.1: an IP address or a name, and a port are needed"},
		{"run --target-offers accept", "--target-offers is for --target"},
		{"run --target-stack kernel", "--target-stack is for --target"},
		{"run --target 192.0.2.1:1 --target-stack rnic", `--target-stack must be one of "engine","kernel","bridge"`},
		{"run --target 192.0.2.1:1 --matrix", "--matrix does not go with --target"},
		{"run --target 192.0.2.1:1 --peer 192.0.2.1:1", "--peer does not go with --target"},
		{"run --target 192.0.2.1:1 --only send", "--target runs scenarios of the scripted peer, and --only selects none"},
		{"ping 192.0.2.1:7174 --persistent", "--persistent is for --listen"},
		{"ping --listen 192.0.2.1:7174 --persistent --json", "--persistent has no single result"},
		{"run --secret-file x", "--secret-file is for --peer"},
		{"run --peer 192.0.2.1:1 --initiator kernel", "--peer takes no part in kernel->engine: name a provider of it"},
		{"run --peer 192.0.2.1:1 --initiator engine@peer --responder engine@peer", "one side has to be on this host"},
		{"run --peer 192.0.2.1:1 --require-siw", "--require-siw is about this host's siw"},
		{"agent", "missing flags: --listen=ADDR:PORT"},
		{"agent --listen 127.0.0.1:0 --provider mutant", "--provider mutant: each of engine, kernel, bridge"},
		{"agent --listen 127.0.0.1:0 --provider kernel,bridge", "bridge and kernel can't be in one process"},
		{"run --matrix --initiator kernel", "--matrix takes all pairings"},
		{"run --matrix --responder engine", "--matrix takes all pairings"},
		{"run --collect a --report b", "--collect only runs"},
		{"run --with kernel", "--with kernel: kernel takes no part in engine->engine: add --matrix, "},
		{"run --with kernel,engine", "--with kernel,engine: none of the pairings engine->engine is of these: add --matrix"},
		{"run --scale 0", "--scale 0: has to be above 0"},
		{"run --scale=-1", "--scale -1: has to be above 0"},
		{"run --scale -1", "--scale -1: has to be above 0"},
		{"run --scale -.5", "--scale -0.5: has to be above 0"},
		{"run --no-tshark -5", "unknown flag -5"},
		{"run --scale NaN", "--scale NaN: has to be above 0"},
		{"run --seed -1", "--seed -1: has to be a positive number"},
		{"run --seed 0", "--seed 0: has to be above 0"},
		{"run --only=", "--only is empty"},
		{"list --only=", "--only is empty"},
		{"run --addr localhost", "--addr"},
		{"run --interface no-such-netdev", "--interface no-such-netdev"},
		{"compare", "the argument <dir> ... is missing; usage: govs-verbs-test compare <dir> ..."},
		{"compare " + dir, "is not a folder that run --collect wrote"},
		{"compare --no-tshark --require-tshark " + dir, "can't be used together"},
		{"decode", "give either a capture file, or --interface NAME with --port PORT"},
		{"decode -i lo --port 1 x.pcap", "give either a capture file, or --interface NAME with --port PORT"},
		{"decode -i lo", "--interface needs --port"},
		{"decode -i lo --port 1 --json", "--json is for a file"},
		{"decode -i lo --port 1 --count=-1", "--count -1: has to be above 0"},
		{"decode -i no-such-netdev --port 1", "decode: interface no-such-netdev: "},
		{"decode --count 1 x.pcap", "--count is for --interface"},
		{"decode --port 65536 x.pcap", "--port 65536: has to be a number from 0 to 65535"},
		{"ping 192.0.2.1:7174 --size many", "--size many: has to be a number"},
		{"decode " + dir, "is a directory"},
		{"ping", "give either ADDR:PORT to ping, or --listen ADDR:PORT"},
		{"ping 192.0.2.1:7174 --listen 192.0.2.1:7174", "give either ADDR:PORT to ping, or --listen ADDR:PORT"},
		{"ping 192.0.2.1", "an IP address or a name, and a port are needed"},
		{"ping 192.0.2.1", "an IP address or a name, and a port are needed"},
		{"stream --listen localhost", "localhost:7471; 0.0.0.0, [::] or no host is all addresses"},
		{"ping localhost:no-such-service", "the port has to be a number up to 65535 or the name of a service"},
		{"ping localhost:rping", "unknown port"},
		{"ping localhost:0", "port 0 can't be listened on"},
		{"ping --listen 127.0.0.1:0 --count 3", "--count and --size: the client decides them"},
		{"ping --listen 127.0.0.1:0 -S 30", "--count and --size: the client decides them"},
		{"ping 192.0.2.1:0", "port 0 can't be listened on: name a port from 1 to 65535"},
		{"run --addr 203.0.113.7", "--addr 203.0.113.7 has to be an address of this machine"},
		{"run --report /proc/none", "--report: "},
		{"run --json " + dir, "--json: " + dir + " is a folder"},
		{"run --junit " + dir + "/none/junit.xml", "--junit: no file can be made in " + dir + "/none"},
		{"ping --listen 7174", "an IP address or a name, and a port are needed"},
		{"ping 192.0.2.1:7174 --size 22", "--size 22: rping takes 23 to 65535 bytes"},
		{"ping 192.0.2.1:7174 --size -5", "--size -5: rping takes 23 to 65535 bytes"},
		{"ping 192.0.2.1:7174 -C -5", "--count -5: has to be at least 1"},
		{"ping 192.0.2.1:7174 --size 65536", "--size 65536: rping takes 23 to 65535 bytes"},
		{"ping 192.0.2.1:7174 --count 0", "--count 0: has to be at least 1"},
		{"ping 192.0.2.1:7174 --timeout 0s", "--timeout 0s: has to be above 0"},
		{"ping 192.0.2.1:7174 --timeout soon", "--timeout"},
		{"vm", "the argument <command> ... is missing; usage: govs-verbs-test vm <command> ..."},
		{"vm --", "vm: no program is given; usage: govs-verbs-test vm [flags] [--] COMMAND"},
		{"vm --colour -- true", "vm: unknown flag --colour"},
		{"vm --siw fast -- true", `--siw must be one of "default","crc","p2p","mended","mended-p2p"`},
		{"vm --accel turbo -- true", `--accel must be one of "tcg","kvm","auto"`},
		{"vm --timeout 0s -- true", "--timeout 0s: has to be a whole number of seconds, from 1s"},
		{"vm --timeout 1500ms -- true", "--timeout 1.5s: has to be a whole number of seconds, from 1s"},
		{"vm --memory 8 -- true", "--memory 8: has to be at least 256, in MiB"},
		{"vm --env =x -- true", "--env =x: NAME=VALUE is needed, or NAME"},
		{"vm --env NO_SUCH_VARIABLE -- true", "--env NO_SUCH_VARIABLE: the variable is not set here"},
	} {
		cmd := start(t, strings.Fields(c.args)...)
		cmd.want(t, exitUsage, nil, parts(name+": ", c.want))
		if cmd.stdout.String() != "" {
			t.Errorf("%s: stdout %q", cmd, &cmd.stdout)
		}
	}
	cmd := start(t, "frobnicate")
	cmd.want(t, exitUsage, nil, parts(hint))
}

func TestVersion(t *testing.T) {
	for _, arg := range []string{"--version", "version"} {
		start(t, arg).want(t, exitPassed, parts(name+" "+version()+"\n"), nil)
	}
	for _, c := range []struct{ module, stamped, want string }{
		{"v1.2.3", "", "v1.2.3"},
		{"v0.0.0-20261121004000-2208e2000000+dirty", "2208e20000", "v0.0.0-20261121004000-2208e2000000+dirty"},
		{"(devel)", "2208e20000-dirty", "devel 2208e20000-dirty"},
		{"(devel)", "", "devel"},
		{"", "", "devel"},
	} {
		if got := versionOf(c.module, c.stamped); got != c.want {
			t.Errorf("%q, %q: %q, want %q", c.module, c.stamped, got, c.want)
		}
	}
	for want, stamp := range map[string][]debug.BuildSetting{
		"":                   {{Key: "GOOS", Value: "linux"}, {Key: "vcs.modified", Value: "true"}},
		"2208e2000000":       {{Key: "vcs.modified", Value: "false"}, {Key: "vcs.revision", Value: "2208e2000000aaaaaaaaaaaaaaaaaaaaaaaaaaaa"}},
		"2208e2000000-dirty": {{Key: "vcs.revision", Value: "2208e2000000aaaaaaaaaaaaaaaaaaaaaaaaaaaa"}, {Key: "vcs.modified", Value: "true"}},
	} {
		if got := revisionOf(stamp); got != want {
			t.Errorf("%v: %q, want %q", stamp, got, want)
		}
	}
}

// failingWriter is a full disk.
type failingWriter struct{}

func (failingWriter) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestOutputThatCannotBeWritten(t *testing.T) {
	var stderr transcript
	if status := run(t.Context(), []string{"list"}, failingWriter{}, &stderr); status != exitFailed {
		t.Errorf("status %d, want %d", status, exitFailed)
	}
	wantText(t, "stderr", stderr.String(), parts("no space left on device"))
}

func TestList(t *testing.T) {
	all := start(t, "list")
	byName := 0
	for _, s := range scenarios.Suite().All() {
		if s.OnlyByName != "" {
			byName++
		}
	}
	all.want(t, exitPassed, parts("SCENARIO", "KIND", "LEVEL", "WHAT IS RIGHT", "  verbs  ", "  raw    "),
		parts(fmt.Sprintf("%d scenarios, of which run without --only leaves out %d\n", len(scenarios.Suite().All()), byName)))
	one := start(t, "list", "--only", "conn/*")
	one.want(t, exitPassed, parts("conn/"), nil)
	if a, o := lines(&all.stdout), lines(&one.stdout); o <= 1 || o >= a {
		t.Errorf("%d lines for all scenarios, %d for conn/*", a, o)
	}
	asJSON := start(t, "list", "--json")
	asJSON.want(t, exitPassed, nil, nil)
	var rows []scenarioRow
	decodeJSON(t, asJSON, &rows)
	if len(rows) != lines(&all.stdout)-1 {
		t.Errorf("%d scenarios in JSON, %d in the table", len(rows), lines(&all.stdout)-1)
	}
	for _, r := range rows {
		if r.Slug == "" || r.Title == "" || r.Level == "" || r.Kind != "verbs" && r.Kind != "raw" {
			t.Errorf("incomplete: %+v", r)
		}
	}
}

func TestDevicesOfTheEngine(t *testing.T) {
	start(t, "devices", "--provider", "engine").want(t, exitPassed, parts("DEVICE", "govs0   engine", "IBV_PORT_ACTIVE"), nil)
	cmd := start(t, "devices", "--provider", "engine", "--json")
	cmd.want(t, exitPassed, nil, nil)
	var rows []deviceRow
	decodeJSON(t, cmd, &rows)
	if len(rows) != 1 || rows[0].Name != "govs0" || rows[0].Attr == nil || rows[0].Attr.MaxQP == 0 || rows[0].Attr.PhysPortCnt != 1 {
		t.Errorf("devices: %+v", rows)
	}
}

// TestDevicesVerbose compares the lines of devices -v with the device's attributes. In the guest it
// compares them with ibv_devinfo's.
func TestDevicesVerbose(t *testing.T) {
	cmd := start(t, "devices", "--provider", "engine", "-v")
	cmd.want(t, exitPassed, parts(
		"hca_id:\tgovs0\n\ttransport:\t\t\tiWARP (1)\n\tfw_ver:\t\t\t\t", "\tnode_guid:\t\t\t0067:6fff:fe76:7300\n",
		"\tmax_qp:\t\t\t\t102400\n", "\tmax_qp_wr:\t\t\t32768\n", "\t\t\t\t\tCURR_QP_STATE_MOD\n", "\tmax_qp_init_rd_atom:\t\t128\n",
		"\tatomic_cap:\t\t\tATOMIC_", "\tnum_comp_vectors:\t\t1\n\t\tport:\t1\n\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n\t\t\tmax_mtu:\t\t4096 (5)\n",
		"\t\t\tmax_msg_sz:\t\t0xffffffff\n", "\t\t\tpkey_tbl_len:\t\t0\n\t\t\tgid_tbl_len:\t\t1\n",
		"\t\t\tGID[  0]:\t\t0267:6f76:7300:0000:0000:0000:0000:0000\n",
	), nil)
}

// TestDevices shows the list of both providers, which does not fail if one has no
// devices.
func TestDevices(t *testing.T) {
	cmd := start(t, "devices")
	cmd.want(t, exitPassed, parts("govs0   engine"), parts("auto takes "))
}

func TestRemoveCollection(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("mine.pcapng", "keep")
	write("old.pcapng", "remove")
	if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	write("sub/other.pcapng", "keep")
	const outcomes = `{"schema":"govs-collection/1","outcomes":[` +
		`{"scenario":"a","capture":"old.pcapng"},{"scenario":"b","capture":"gone.pcapng"}`
	write(collectionFile, outcomes+`,{"scenario":"c","capture":"sub/other.pcapng"}]}`)
	if err := removeCollection(dir); err == nil || !strings.Contains(err.Error(), "sub/other.pcapng") {
		t.Errorf("a capture outside of the folder: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "old.pcapng")); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	write(collectionFile, outcomes+`]}`)
	if err := removeCollection(dir); err != nil {
		t.Fatal(err)
	}
	for file, stays := range map[string]bool{"mine.pcapng": true, "sub/other.pcapng": true, "old.pcapng": false, collectionFile: false} {
		if _, err := os.Stat(filepath.Join(dir, file)); (err == nil) != stays {
			t.Errorf("%s: %v, is to stay: %v", file, err, stays)
		}
	}
	if err := removeCollection(dir); err != nil {
		t.Errorf("a folder without a collection: %v", err)
	}
	write(collectionFile, "something else")
	if err := removeCollection(dir); err == nil {
		t.Error("a file that is no collection was removed")
	}
}
