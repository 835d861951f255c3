package outside

import (
	"context"
	"errors"
	"math"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRecordedOutputs reads recorded outputs; testdata/README.md says how they were made.
func TestRecordedOutputs(t *testing.T) {
	for _, tc := range []struct {
		file string
		test Test
		want Result
	}{
		{"ucx-put-bw-64k.csv", Test{Program: UCXPutBW, Size: 65536}, Result{GBps: 579.03 * (1 << 20) / 1e9}},
		{"ucx-tag-lat-64.csv", Test{Program: UCXTagLat, Size: 64}, Result{RTT: 7480 * time.Nanosecond}},
		{"libfabric-64k.txt", Test{Program: FabricPing, Size: 65536}, Result{GBps: 1.18852, RTT: 110280 * time.Nanosecond}},
		{"perftest-write-bw-1m.txt", Test{Program: VerbsWrite, Size: 1 << 20}, Result{GBps: column(t, "perftest-write-bw-1m.txt", 3) * (1 << 20) / 1e9}},
		{"perftest-write-bw-64k-gbits.txt", Test{Program: VerbsWrite, Size: 65536}, Result{GBps: column(t, "perftest-write-bw-64k-gbits.txt", 3) / 8}},
		{"perftest-send-lat-64.txt", Test{Program: VerbsSendPP, Size: 64}, Result{RTT: 2 * micros(column(t, "perftest-send-lat-64.txt", 4))}},
	} {
		t.Run(tc.file, func(t *testing.T) {
			got, err := programs[tc.test.Program].parse(tc.test, recorded(t, tc.file))
			if err != nil {
				t.Fatal(err)
			}
			if math.Abs(got.GBps-tc.want.GBps) > 1e-9 || got.RTT != tc.want.RTT {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}

// column is a field of the row below perftest's headings, counted from 0.
func column(t *testing.T, file string, n int) float64 {
	t.Helper()
	_, rest, ok := strings.Cut(recorded(t, file), "#bytes")
	if !ok {
		t.Fatalf("%s has no row", file)
	}
	x, err := number(strings.Fields(strings.Split(rest, "\n")[1])[n])
	if err != nil || x <= 0 {
		t.Fatalf("%s: %v %v", file, x, err)
	}
	return x
}

func recorded(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRowOfTheSize: in a list of all sizes, the row of the requested size counts.
func TestRowOfTheSize(t *testing.T) {
	all := recorded(t, "libfabric-all.txt")
	for _, tc := range []struct {
		size int
		row  string
	}{{64, "64 "}, {1536, "1.5k "}, {65536, "64k "}, {1 << 20, "1m "}, {6 << 20, "6m "}} {
		r, err := parsePingpong(Test{Size: tc.size}, all)
		if err != nil {
			t.Errorf("%d: %v", tc.size, err)
			continue
		}
		var want time.Duration
		for line := range strings.Lines(all) {
			if strings.HasPrefix(line, tc.row) {
				us, err := number(strings.Fields(line)[6])
				if err != nil {
					t.Fatal(err)
				}
				want = 2 * micros(us)
			}
		}
		if r.RTT != want || want == 0 {
			t.Errorf("%d bytes: %v, want %v", tc.size, r.RTT, want)
		}
	}
	if _, err := parsePingpong(Test{Size: 65}, all); !errors.Is(err, errNoResult) {
		t.Errorf("a size that is not there: %v", err)
	}
}

// TestCutAndStrangeOutputs: an output without its last row is no result, nor is one with another
// heading.
func TestCutAndStrangeOutputs(t *testing.T) {
	for file, test := range map[string]Test{
		"ucx-put-bw-64k.csv":       {Program: UCXPutBW, Size: 65536},
		"libfabric-64k.txt":        {Program: FabricPing, Size: 65536},
		"perftest-write-bw-1m.txt": {Program: VerbsWrite, Size: 1 << 20},
		"perftest-send-lat-64.txt": {Program: VerbsSendPP, Size: 64},
	} {
		parse, text := programs[test.Program].parse, recorded(t, file)
		row := strings.LastIndex(text, "\n"+strings.Fields(lastRow(text))[0])
		for n := range row + 1 {
			if r, err := parse(test, text[:n]); err == nil {
				t.Errorf("%s: %d bytes of it are %+v", file, n, r)
			}
		}
		for _, strange := range []string{
			strings.ReplaceAll(strings.ReplaceAll(text, "usec/xfer", "ns/xfer"), "overall_bw", "bw"),
			strings.ReplaceAll(text, lastRow(text), lastRow(text)+" 1,1"),
		} {
			if strange == text || strings.HasPrefix(file, "perftest") && !strings.Contains(strange, " 1,1") {
				continue
			}
			if r, err := parse(test, strange); err == nil {
				t.Errorf("%s changed is %+v:\n%s", file, r, strange)
			}
		}
	}
}

// lastRow is the last line with digits.
func lastRow(text string) string {
	var last string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] >= '0' && line[0] <= '9' {
			last = line
		}
	}
	return last
}

func TestHeadingsOfPerftest(t *testing.T) {
	got := perftestHeadings("#bytes #iterations    t_min[usec]    t_max[usec]   99% percentile[usec]   99.9% percentile[usec] ")
	want := []string{"#bytes", "#iterations", "t_min[usec]", "t_max[usec]", "99% percentile[usec]", "99.9% percentile[usec]"}
	if strings.Join(got, "|") != strings.Join(want, "|") {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestListens(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if there, err := listens(port); !there || err != nil {
		t.Errorf("a listener at %d: %v, %v", port, there, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if there, err := listens(port); there || err != nil {
		t.Errorf("no listener at %d: %v, %v", port, there, err)
	}
}

var local = Pair{ClientCPU: -1, ServerCPU: -1, Addr: netip.MustParseAddr("127.0.0.1"), Netdev: "lo"}

func TestImpossible(t *testing.T) {
	ctx := context.Background()
	if _, err := local.Run(ctx, Test{Program: "netperf", Size: 1, Iters: 1}); err == nil {
		t.Error("a program that nobody knows")
	}
	programs["test-none"] = program{binary: "govs-no-such-program", pkg: "none"}
	programs["test-false"] = program{
		binary: "false", pkg: "coreutils",
		server: func(Pair, Test, int) []string { return nil },
		client: func(Pair, Test, int) []string { return nil },
	}
	defer delete(programs, "test-none")
	defer delete(programs, "test-false")
	if _, err := local.Run(ctx, Test{Program: "test-none", Size: 1, Iters: 1}); err == nil || !strings.Contains(err.Error(), "ci/deps") {
		t.Errorf("a program that is not installed: %v", err)
	}
	if _, err := local.Run(ctx, Test{Program: "test-false", Size: 1, Iters: 1}); err == nil || !strings.Contains(err.Error(), "server") {
		t.Errorf("a server that ends: %v", err)
	}
	if _, err := local.Run(ctx, Test{Program: "test-false", Size: 0, Iters: 1}); err == nil {
		t.Error("messages of no bytes")
	}
}

// scripted is a program whose server waits at its port and whose client is a shell script. $1 is
// the number of the client's runs.
func scripted(t *testing.T, server, client string) program {
	dir := t.TempDir()
	sh := func(script string) []string {
		return []string{"-c", "n=$(cat " + dir + "/runs 2>/dev/null || echo 0); n=$((n+1)); " + script}
	}
	return program{
		binary: "sh", pkg: "dash",
		server: func(_ Pair, _ Test, port int) []string {
			return []string{"-c", strings.ReplaceAll(server, "PORT", strconv.Itoa(port))}
		},
		client: func(Pair, Test, int) []string { return sh("echo $n > " + dir + "/runs; " + client) },
		parse:  func(_ Test, stdout string) (Result, error) { return Result{RTT: time.Duration(len(stdout))}, nil },
		early:  perftestEarly,
	}
}

// listener is the server as a shell command: this test's own binary, which listens.
func listener() string {
	return "GOVS_TEST_LISTEN=127.0.0.1:PORT exec " + os.Args[0] + " -test.run=^TestListener$"
}

// TestListener is the server of scripted; run as a test it has nothing to do.
func TestListener(t *testing.T) {
	addr := os.Getenv("GOVS_TEST_LISTEN")
	if addr == "" {
		return
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = l.Accept() // until it is killed
}

// TestClientsThatComeEarly: a client that came before its server listened is run again, with its
// server, but not forever; any other failure counts at once.
func TestClientsThatComeEarly(t *testing.T) {
	test := Test{Program: "test-early", Size: 1, Iters: 1}
	defer delete(programs, test.Program)
	run := func(client string) (Result, error) {
		programs[test.Program] = scripted(t, listener(), client)
		return local.Run(t.Context(), test)
	}
	for _, early := range []string{"kill -SEGV $$", "echo Failed to connect RDMA CM events. >&2; exit 1"} {
		r, err := run("[ $n -ge 3 ] || { " + early + "; }; echo done")
		if err != nil || r.RTT != time.Duration(len("done\n")) {
			t.Errorf("%s, twice: %+v, %v", early, r, err)
		}
		_, err = run("[ $n -le 5 ] && { " + early + "; }; echo done")
		if !errors.Is(err, errEarly) || !strings.Contains(err.Error(), "5 runs") {
			t.Errorf("%s, always: %v", early, err)
		}
	}
	_, err := run("[ $n -ge 2 ] || { echo no such device >&2; exit 1; }; echo done")
	if err == nil || errors.Is(err, errEarly) || !strings.Contains(err.Error(), "no such device") {
		t.Errorf("another failure: %v", err)
	}
}

// TestServerThatNeverListens: the wait for a server that never listens ends, and so does the
// server.
func TestServerThatNeverListens(t *testing.T) {
	defer func(d time.Duration) { listenLimit = d }(listenLimit)
	listenLimit = 50 * time.Millisecond
	test := Test{Program: "test-deaf", Size: 1, Iters: 1}
	defer delete(programs, test.Program)
	programs[test.Program] = scripted(t, "exec sleep 3600", "echo done")
	if _, err := local.Run(t.Context(), test); err == nil || !strings.Contains(err.Error(), "does not listen at port") {
		t.Errorf("it came to %v", err)
	}
}

// TestInstalledPrograms runs the installed programs, so that a new version that prints something
// else is noticed. Messages are long, because UCX prints 0.00 MB/s for short ones on a
// busy machine.
func TestInstalledPrograms(t *testing.T) {
	for _, name := range []string{UCXPutBW, UCXTagBW, UCXTagLat, FabricPing} {
		t.Run(name, func(t *testing.T) {
			if err := Usable(name); err != nil {
				if os.Getenv("REQUIRE_SIW") == "1" {
					t.Fatalf("REQUIRE_SIW=1, but %v", err)
				}
				t.Skip(err) // govs does not need these programs
			}
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
			defer cancel()
			r, err := local.Run(ctx, Test{Program: name, Size: 64 << 10, Iters: 20, Warmup: 1})
			if err != nil {
				t.Fatal(err)
			}
			if r.GBps <= 0 && r.RTT <= 0 {
				t.Errorf("it came to %+v", r)
			}
			if Version(ctx, name) == "" {
				t.Error("no version")
			}
		})
	}
}

// TestBridgedCommand: exec runs a program over the bridge, with its CRC.
func TestBridgedCommand(t *testing.T) {
	p := Pair{Addr: netip.MustParseAddr("127.0.0.1"), Exec: []string{"govs", "exec"}}
	for _, tc := range []struct {
		test Test
		want string
	}{
		{Test{Program: ExecWrite, Size: 64, Iters: 10}, "govs exec --crc preferred -- " +
			"ib_write_bw -R -F -d siw0 -p 7 -s 64 -n 10 127.0.0.1"},
		{Test{Program: ExecSendPP, Size: 64, Iters: 10, NoCRC: true}, "govs exec --crc off -- " +
			"ib_send_lat -R -F -d siw0 -p 7 -s 64 -n 10 127.0.0.1"},
	} {
		prog := programs[tc.test.Program]
		if got := strings.Join(p.command(prog, tc.test, prog.client(p, tc.test, 7)), " "); got != tc.want {
			t.Errorf("%s, want %s", got, tc.want)
		}
	}
	p.Exec = nil
	if _, err := p.Run(t.Context(), Test{Program: ExecWrite, Size: 64, Iters: 10}); err == nil {
		t.Error("a program runs over the bridge without a command for it")
	}
}
