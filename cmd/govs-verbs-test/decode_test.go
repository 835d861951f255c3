//go:build !race

package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/tshark"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// captures are the files in testdata, where capture documents how they were made.
var captures = []string{"rping-server.pcapng", "rping-client.pcap"}

// TestDecodeAgrees makes tshark decode the captures, so that the golden ladders do not rest on our
// decoder alone.
func TestDecodeAgrees(t *testing.T) {
	if !tshark.Available() {
		vmtest.Need(t, "witnesses")
	}
	for _, file := range captures {
		path := filepath.Join("testdata", file)
		ours, err := wire.ReadFile(path, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range tshark.Witness(t.Context(), []conformance.Exhibit{{File: path, Ours: ours}}) {
			if !w.Asked || !w.Agrees || w.Frames != ours.Count() {
				t.Errorf("%s: tshark: %+v", file, w)
			}
		}
	}
}

func TestDecode(t *testing.T) {
	for _, file := range captures {
		cmd := start(t, "decode", filepath.Join("testdata", file))
		cmd.want(t, exitPassed, nil, nil)
		golden := filepath.Join("testdata", strings.TrimSuffix(file, filepath.Ext(file))+".ladder")
		if *update {
			if err := os.WriteFile(golden, []byte(cmd.stdout.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), cmd.stdout.String()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

func TestDecodeJSON(t *testing.T) {
	cmd := start(t, "decode", "--json", "testdata/rping-client.pcap")
	cmd.want(t, exitPassed, nil, nil)
	var d decoded
	decodeJSON(t, cmd, &d)
	if len(d.Conns) != 1 || len(d.Notes) != 0 {
		t.Fatalf("%d connections, notes %q", len(d.Conns), d.Notes)
	}
	c := d.Conns[0]
	if !strings.HasPrefix(c.Initiator, "192.0.2.1:") || c.Responder != "192.0.2.1:7175" || !c.CRC || len(c.Notes) != 0 {
		t.Errorf("connection: %+v", c)
	}
	var kinds []string
	for _, f := range c.Frames {
		kinds = append(kinds, f.Kind)
		if f.Error != "" {
			t.Errorf("frame: %+v", f)
		}
	}
	want := strings.Fields("startup startup fpdu fpdu fpdu fpdu fpdu fpdu fpdu fin fin")
	if diff := cmp.Diff(want, kinds); diff != "" {
		t.Errorf("kinds of frames (-want +got):\n%s", diff)
	}
	// The message of rping, and what siw and the engine put around it.
	first := decodedFrame{Seconds: c.Frames[2].Seconds, Direction: "to-responder", Kind: "fpdu", Offset: 24, Length: 40, Text: "Send L QN 0 MSN 1 MO 0 length 16 CRC ok"}
	if diff := cmp.Diff(first, c.Frames[2]); diff != "" {
		t.Errorf("first Send (-want +got):\n%s", diff)
	}
}

// TestDecodeJSONNotes: the JSON also has the faults of a file, and is whole even if there is
// nothing to list.
func TestDecodeJSONNotes(t *testing.T) {
	whole := readFile(t, "testdata/rping-client.pcap")
	for _, c := range []struct {
		octets, conns, status int
	}{{850, 1, exitPassed}, {300, 0, exitFailed}} {
		file := filepath.Join(t.TempDir(), "cut.pcap")
		if err := os.WriteFile(file, whole[:c.octets], 0o644); err != nil {
			t.Fatal(err)
		}
		cmd := start(t, "decode", "--json", file)
		cmd.want(t, c.status, nil, nil)
		var d decoded
		decodeJSON(t, cmd, &d)
		if len(d.Conns) != c.conns || len(d.Notes) != 1 || !strings.Contains(d.Notes[0], "cannot be read beyond packet") {
			t.Errorf("the first %d bytes: %d connections, notes %q", c.octets, len(d.Conns), d.Notes)
		}
	}
}

func TestDecodeFailures(t *testing.T) {
	dir := t.TempDir()
	whole, err := os.ReadFile("testdata/rping-client.pcap")
	if err != nil {
		t.Fatal(err)
	}
	file := func(name string, b []byte) string {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		args   []string
		status int
		stdout []string
		stderr []string
	}{
		"no such file":        {[]string{filepath.Join(dir, "none")}, exitUsage, nil, parts("no such file or directory")},
		"a folder":            {[]string{dir}, exitUsage, nil, parts(dir)},
		"an empty file":       {[]string{file("empty", nil)}, exitUsage, nil, parts("empty", "not a capture file")},
		"text":                {[]string{file("text", []byte("neither of them\n"))}, exitUsage, nil, parts("text", "neither a pcap nor a pcapng file")},
		"only a header":       {[]string{file("header", whole[:24])}, exitFailed, nil, parts("header: no iWARP", "there is no TCP connection in it")},
		"cut in the header":   {[]string{file("cut-header", whole[:20])}, exitUsage, nil, parts("cut-header")},
		"cut in a packet":     {[]string{file("cut", whole[:850])}, exitPassed, parts("MPA Request Frame", "note: the file cannot be read beyond packet"), nil},
		"nothing on the port": {[]string{"--port", "1", "testdata/rping-client.pcap"}, exitFailed, nil, parts("no iWARP: there is no TCP connection with port 1 in it")},
		"the port":            {[]string{"--port", "7175", "testdata/rping-client.pcap"}, exitPassed, parts("MPA Request Frame"), nil},
		"all":                 {[]string{"--all", "testdata/rping-client.pcap"}, exitPassed, parts("MPA Request Frame"), nil},
	} {
		t.Run(name, func(t *testing.T) {
			start(t, append([]string{"decode"}, c.args...)...).want(t, c.status, c.stdout, c.stderr)
		})
	}
}

// TestDecodeLive: frames are printed while two connections come and go, until a signal or until the
// number of --count.
func TestDecodeLive(t *testing.T) {
	testkit.NeedRoot(t, "packet sockets need root or CAP_NET_RAW")
	_, addr := serve(t, "127.0.0.1:0", "--persistent", "--provider", "engine")
	_, port, err := net.SplitHostPort(addr)
	testkit.OK(t, err)
	decode := func(args ...string) *command {
		c := start(t, append([]string{"decode", "-i", "lo", "--port", port}, args...)...)
		c.stderr.await(t, "decoding port "+port+" on lo\n")
		return c
	}
	ping := func() { start(t, "ping", addr, "--provider", "engine", "-C", "1").want(t, exitPassed, nil, nil) }
	whole := ` 127\.0\.0\.1:\d+ -> ` + addr + `\n.*--> MPA Request.*<-- MPA Reply.*` +
		`--> Send L.*<-- RDMA Read Request.*FIN\n.*FIN\n`

	all, two, none := decode(), decode("--count", "2"), decode()
	none.stop()
	none.want(t, exitFailed, nil, parts("lo: no iWARP passed at port "+port))
	ping()
	all.stdout.await(t, `(?s)connection 1:`+whole)
	ping()
	all.stdout.await(t, `(?s)connection 2:`+whole)
	all.stop()
	all.want(t, exitPassed, nil, nil)
	if text := all.stdout.String(); strings.Contains(text, "!!") || !strings.Contains(text, "CRC ok") {
		t.Errorf("a frame is wrong, or none has a CRC:\n%s", text)
	}
	two.want(t, exitPassed, parts("connection 1: ", "--> MPA Request", "<-- MPA Reply"), nil)
	if n := lines(&two.stdout); n != 3 {
		t.Errorf("%d lines with --count 2, want 3:\n%s", n, &two.stdout)
	}
}

// TestCapturesOfDocument runs the commands of docs/operate.md that capture and decode, on lo.
func TestCapturesOfDocument(t *testing.T) {
	testkit.NeedRoot(t, "packet sockets need root or CAP_NET_RAW")
	if _, err := exec.LookPath("dumpcap"); err != nil {
		vmtest.Need(t, "witnesses")
	}
	_, addr := serve(t, "127.0.0.1:0", "--persistent", "--provider", "engine")
	_, port, err := net.SplitHostPort(addr)
	testkit.OK(t, err)
	file := filepath.Join(t.TempDir(), "out.pcap")
	_, text, _ := strings.Cut(string(testkit.Must(os.ReadFile("../../docs/operate.md"))(t)), "\n## Captures\n")
	text, _, _ = strings.Cut(text, "\n```") // what decode prints
	text = strings.NewReplacer("eth0", "lo", "7471", port, "out.pcap", file).Replace(text)
	lines := regexp.MustCompile(`(?m)^    ([^#\n]*[^# \n])`).FindAllStringSubmatch(text, -1)
	if len(lines) != 3 {
		t.Fatalf("commands %q, want dumpcap, decode of a file and of an interface", lines)
	}
	decode := func(line string) *command { return start(t, words(strings.TrimPrefix(line, name+" "))...) }

	capturing := startProgram(t, "bash", "-c", "exec "+lines[0][1])
	live := decode(lines[2][1])
	live.stderr.await(t, "decoding port "+port+" on lo\n")
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		// dumpcap makes the file when it captures.
		if info, err := os.Stat(file); err == nil && info.Size() > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s makes no file: %s", capturing, &capturing.stderr)
		}
	}
	start(t, "ping", addr, "--provider", "engine", "-C", "1").want(t, exitPassed, nil, nil)
	const whole = `(?s)--> MPA Request.*<-- MPA Reply.*--> Send L.*<-- RDMA Read Request.*FIN\n.*FIN\n`
	live.stdout.await(t, whole)
	live.stop()
	live.want(t, exitPassed, nil, nil)
	for deadline := time.Now().Add(patience); ; time.Sleep(100 * time.Millisecond) {
		c := decode(lines[1][1]) // dumpcap writes what it has captured after a while
		if c.wait(t) == exitPassed && regexp.MustCompile(whole).MatchString(c.stdout.String()) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: no whole connection:\n%s%s", c, &c.stdout, &c.stderr)
		}
	}
}

// TestDecodeLiveDown: an interface that is down ends the command with an error that says so. lo of
// a new network namespace is down.
func TestDecodeLiveDown(t *testing.T) {
	code, out := decodeElsewhere(t, syscall.CLONE_NEWUSER|syscall.CLONE_NEWNET)
	if code != exitUsage {
		t.Errorf("status %d, want %d", code, exitUsage)
	}
	wantText(t, "the output", out, parts("decode: interface lo: is down", "removed", "network is down"))
}

// TestDecodeLiveForbidden: a process in a user namespace of its own has no rights in the network
// namespace, and the error names the missing right.
func TestDecodeLiveForbidden(t *testing.T) {
	code, out := decodeElsewhere(t, syscall.CLONE_NEWUSER)
	if code != exitUsage {
		t.Errorf("status %d, want %d", code, exitUsage)
	}
	wantText(t, "the output", out, parts("operation not permitted", "need root or CAP_NET_RAW"))
}

// decodeElsewhere decodes on lo as root of new namespaces, and returns the status and the output.
func decodeElsewhere(t *testing.T, namespaces uintptr) (status int, out string) {
	t.Helper()
	cmd := self(t, "decode", "-i", "lo", "--port", "7471")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
	text, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), string(text)
}
