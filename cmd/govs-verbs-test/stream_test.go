package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rstream"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
)

// streamServer starts stream with --listen, in the test's process, and returns it with its address.
func streamServer(t *testing.T, args ...string) (*command, string) {
	t.Helper()
	server := start(t, append([]string{"stream", "--provider", "engine", "--listen"}, args...)...)
	return server, server.stderr.await(t, `listening on (\S+)\n`)[1]
}

// piped starts stream as a process with an input.
func piped(t *testing.T, input io.Reader, args ...string) *program {
	t.Helper()
	cmd := exec.Command(testkit.Must(os.Executable())(t),
		append([]string{"stream", "--provider", "engine"}, args...)...)
	cmd.Env = append(os.Environ(), asCommand+"=1")
	cmd.Stdin = input
	return startCmd(t, cmd)
}

// pipedServer starts stream with --listen and an input, at a port of its own, and returns the
// address.
func pipedServer(t *testing.T, input io.Reader, addr string) (*program, string) {
	t.Helper()
	p := piped(t, input, "--listen", addr)
	return p, p.stderr.await(t, `listening on (\S+)\n`)[1]
}

// file writes n bytes to a file and opens it.
func file(t *testing.T, n int, seed uint64) (*os.File, []byte) {
	t.Helper()
	content := make([]byte, n)
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range content {
		content[i] = byte(r.Uint32())
	}
	name := filepath.Join(t.TempDir(), "file")
	testkit.OK(t, os.WriteFile(name, content, 0o600))
	f := testkit.Must(os.Open(name))(t)
	t.Cleanup(func() { f.Close() })
	return f, content
}

// TestStreamFiles sends files both ways at once, of different lengths, one of them empty.
func TestStreamFiles(t *testing.T) {
	for i, tc := range []struct {
		addr      string
		out, back int
	}{{"127.0.0.1:0", 3_000_000, 70_001}, {"[::1]:0", 0, 400_000}, {"127.0.0.1:0", 1, 0}} {
		t.Run(fmt.Sprintf("%d and %d bytes", tc.out, tc.back), func(t *testing.T) {
			there, sent := file(t, tc.out, uint64(i))
			back, answered := file(t, tc.back, uint64(i)+100)
			server, addr := pipedServer(t, back, tc.addr)
			client := piped(t, there, addr, "--verbose")
			client.want(t, exitPassed)
			server.want(t, exitPassed)
			wantText(t, "--verbose", client.stderr.String(), parts(
				fmt.Sprintf("sent %d bytes", tc.out), fmt.Sprintf("received %d in", tc.back)))
			if got := server.stdout.String(); got != string(sent) {
				t.Errorf("%d bytes came, not the %d of the file", len(got), len(sent))
			}
			if got := client.stdout.String(); got != string(answered) {
				t.Errorf("%d bytes came back, not the %d of the file", len(got), len(answered))
			}
		})
	}
}

// openInput is an input to which a test writes.
func openInput(t *testing.T) (in, input *os.File) {
	t.Helper()
	in, input = testkit.Must2(os.Pipe())(t)
	t.Cleanup(func() {
		in.Close()
		input.Close()
	})
	return in, input
}

// TestStreamHalfClose: after the end of one input the other direction goes on.
func TestStreamHalfClose(t *testing.T) {
	in, input := openInput(t)
	server, addr := pipedServer(t, in, "127.0.0.1:0")
	client := piped(t, strings.NewReader("question\n"), addr)
	server.stdout.await(t, "question\n")
	for _, line := range []string{"one\n", "two\n"} {
		testkit.Must(io.WriteString(input, line))(t)
		client.stdout.await(t, line)
	}
	select {
	case <-client.done:
		t.Error("the client ended before the server's input did")
	case <-server.done:
		t.Error("the server ended before its input did")
	default:
	}
	testkit.OK(t, input.Close())
	client.want(t, exitPassed)
	server.want(t, exitPassed)
}

// TestStreamPeerGone: an end whose input stays open ends when the peer closes the stream, and with
// an error if the peer is killed.
func TestStreamPeerGone(t *testing.T) {
	for _, tc := range []struct {
		name   string
		leave  os.Signal
		status int
		says   []string
	}{
		{"closes", os.Interrupt, exitPassed, nil},
		{"is killed", os.Kill, exitFailed, parts("connection reset by peer")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in, _ := openInput(t)
			server, addr := pipedServer(t, in, "127.0.0.1:0")
			in, input := openInput(t)
			client := piped(t, in, addr)
			testkit.Must(io.WriteString(input, "here\n"))(t)
			server.stdout.await(t, "here\n")
			testkit.OK(t, client.cmd.Process.Signal(tc.leave))
			server.want(t, tc.status)
			wantText(t, "stderr", server.stderr.String(), tc.says)
		})
	}
}

// TestStreamLostOutput: an end whose output is closed ends. The other one, whose input was not
// read, has an error.
func TestStreamLostOutput(t *testing.T) {
	input, _ := file(t, 20_000_000, 7) // more than the rsockets have room for
	r, w := testkit.Must2(os.Pipe())(t)
	cmd := exec.Command(testkit.Must(os.Executable())(t), "stream", "--provider", "engine",
		"--listen", "127.0.0.1:0")
	cmd.Env = append(os.Environ(), asCommand+"=1")
	var stderr transcript
	cmd.Stdout, cmd.Stderr = w, &stderr
	testkit.OK(t, cmd.Start())
	testkit.OK(t, w.Close())
	addr := stderr.await(t, `listening on (\S+)\n`)[1]
	client := piped(t, input, addr)
	testkit.Must(io.ReadFull(r, make([]byte, 1000)))(t)
	testkit.OK(t, r.Close())
	if err := cmd.Wait(); err == nil {
		t.Error("an end that can't write its output ends with status 0")
	}
	client.want(t, exitFailed)
}

// TestStreamFailures: an end that can't connect reports why.
func TestStreamFailures(t *testing.T) {
	start(t, "stream", "--provider", "engine", "127.0.0.1:1").want(t, exitFailed, nil,
		parts("connecting: the server has to be ", ": dial rsocket 127.0.0.1:1", ": connection refused\n"))
	start(t, "stream", "--provider", "engine", "--listen", "203.0.113.7:7471").want(t, exitUsage, nil,
		parts("listen rsocket 203.0.113.7:7471", "cannot assign requested address"))
	start(t, "stream", "--provider", "engine", "--cong", "no-such", "127.0.0.1:1").want(t, exitUsage,
		nil, parts("--cong no-such", "this machine has"))

	// A server that does not use rsockets, and a client that does not.
	ping, addr := serve(t, "127.0.0.1:0", "--provider", "engine")
	start(t, "stream", "--provider", "engine", addr).want(t, exitFailed, nil, parts("connecting"))
	ping.stop()
	server, addr := streamServer(t, "127.0.0.1:0")
	start(t, "ping", "--provider", "engine", addr).want(t, exitFailed, nil, parts("connecting"))
	server.stderr.await(t, `refused 127\.0\.0\.1:\d+: .*rsocket`)

	// A TCP server that sends nothing.
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	silent := l.Addr().String()
	start(t, "stream", "--provider", "engine", "--timeout", "200ms", silent).want(t, exitFailed, nil,
		parts("no answer for 200ms (--timeout)"))
}

// benchClient starts stream --bench, in the test's process, against a server.
func benchClient(t *testing.T, addr string, args ...string) *command {
	t.Helper()
	return start(t, append([]string{"stream", "--provider", "engine", "--bench", addr}, args...)...)
}

// TestStreamBench makes this command both ends of --bench.
func TestStreamBench(t *testing.T) {
	for _, tc := range []struct {
		flags, row string
		headings   string
	}{
		{"-S 3000 -C 50 -I 4 --verify", "     3000          400",
			"stream-bw: block; client of 127.0.0.1:"},
		{"-S 64 -C 1 -I 300 --verify", "       64          300",
			"stream-lat: block; client of 127.0.0.1:"},
		{"-S 2000000 -I 1 -C 2 --buffer 2048 --verify", "  2000000            4", "BW average[GB/s]"},
		{"-C 10 --crc off", "     1000           20", "BW average[GB/s]"},
	} {
		server, addr := streamServer(t, words("127.0.0.1:0 --bench "+tc.flags)...)
		client := benchClient(t, addr, words(tc.flags)...)
		client.want(t, exitPassed, parts(tc.row, tc.headings), nil)
		server.want(t, exitPassed, parts(tc.row, strings.Replace(tc.headings, "client", "server", 1)),
			nil)
	}
}

// TestStreamBenchPhases: a run without options has a connection for round trips and another for one
// direction after the other, each with all of rstream's sizes. Here the numbers are smaller.
func TestStreamBenchPhases(t *testing.T) {
	whole := (&streamBenchFlags{}).phases(new(kong.Context))
	var want [2][]rstream.Test
	for _, size := range rstream.Sizes(false) {
		want[0] = append(want[0], rstream.LatencyOf(size))
		want[1] = append(want[1], rstream.BandwidthOf(size))
	}
	if len(whole) != 2 || !slices.Equal(whole[0], want[0]) || !slices.Equal(whole[1], want[1]) {
		t.Errorf("a run without options has %+v", whole)
	}
	for _, tests := range whole {
		for i := range tests {
			tests[i].Transfers = min(tests[i].Transfers, 5)
			tests[i].Iterations = min(tests[i].Iterations, 5)
		}
	}
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	defer vctx.Close()
	begin := func(c *streamCmd, addr string) (said *transcript, done chan error) {
		said, done = new(transcript), make(chan error, 1)
		c.Timeout, c.Verify, c.Bench = patience, true, true
		out := &output{stdout: said, errors: said, stop: func() {}}
		go func() {
			next, stop, err := c.connector(t.Context(), out, vctx, netip.MustParseAddrPort(addr))
			if err == nil {
				err = errors.Join(c.bench(t.Context(), whole, out, vctx, next), stop())
			}
			done <- err
		}()
		return said, done
	}
	atServer, served := begin(&streamCmd{Listen: "127.0.0.1:0"}, "127.0.0.1:0")
	addr := atServer.await(t, `listening on (\S+)\n`)[1]
	atClient, ended := begin(&streamCmd{}, addr)
	testkit.OK(t, <-ended)
	testkit.OK(t, <-served)
	for role, said := range map[string]*transcript{"client": atClient, "server": atServer} {
		wantText(t, role, said.String(), parts("stream-lat: block; "+role, "       64            5 ",
			"  1048576            5 ", "stream-bw: block; "+role, "       64           10 ",
			"  1048576           10 "))
	}
}

// TestStreamBenchJSON checks what --json prints.
func TestStreamBenchJSON(t *testing.T) {
	server, addr := streamServer(t, words("[::1]:0 --bench -S 500 -C 1 -I 20")...)
	client := benchClient(t, addr, words("-S 500 -C 1 -I 20 --json")...)
	client.want(t, exitPassed, nil, nil)
	server.want(t, exitPassed, nil, nil)
	var r streamReport
	decodeJSON(t, client, &r)
	if r.Role != "client" || r.Peer != addr || r.Provider != "engine" || r.Device != "govs0" ||
		len(r.Results) != 1 {
		t.Fatalf("report %+v", r)
	}
	if row := r.Results[0]; row.Size != 500 || row.Test.Transfers != 1 || row.Test.Iterations != 20 ||
		row.Iterations != 20 || row.RTT == nil || row.RTT.Typical <= 0 || row.Spec.Op != "stream-lat" {
		t.Errorf("row %+v", row)
	}
}

// TestStreamBenchDisagrees runs ends whose options differ.
func TestStreamBenchDisagrees(t *testing.T) {
	for _, tc := range []struct{ server, client, serverSays, clientSays string }{
		// The client waits for data that the server does not send, because it has not received all.
		{"-S 1000 -C 10", "-S 500 -C 10 --timeout 300ms", "",
			"nothing was exchanged for 300ms; does it have the same --size"},
		{"-S 500 -C 10", "-S 500 -C 11", "sends more than the tests have", ""},
		{"-S 500 -C 11", "-S 500 -C 10 -I 1 --timeout 300ms",
			"the peer ended the connection in the middle of a test; does it", ""},
	} {
		server, addr := streamServer(t, words("127.0.0.1:0 --bench "+tc.server)...)
		client := benchClient(t, addr, words(tc.client)...)
		client.wait(t)
		server.wait(t)
		if server.status == exitPassed && client.status == exitPassed {
			t.Errorf("%s and %s pass", server, client)
		}
		wantText(t, "the server", server.stderr.String(), parts(tc.serverSays))
		wantText(t, "the client", client.stderr.String(), parts(tc.clientSays))
	}
}

// TestStreamWrongUsage checks what is refused before anything is opened.
func TestStreamWrongUsage(t *testing.T) {
	for args, want := range map[string]string{
		"":                                                 "give either ADDR:PORT to connect to, or --listen ADDR:PORT",
		"192.0.2.1:7471 --listen 192.0.2.1:7471":           "give either ADDR:PORT to connect to",
		"192.0.2.1":                                        "an IP address or a name, and a port are needed",
		"192.0.2.1:0":                                      "port 0 can't be listened on",
		"192.0.2.1:7471 --timeout 0s":                      "--timeout 0s: has to be above 0",
		"192.0.2.1:7471 --buffer 2047":                     "--buffer 2047: has to be 2048 to 1073741824",
		"192.0.2.1:7471 --buffer 0":                        "--buffer 0: has to be 2048 to 1073741824",
		"192.0.2.1:7471 --size 5":                          "--size: is for --bench: add that",
		"192.0.2.1:7471 --verify":                          "--verify: is for --bench",
		"192.0.2.1:7471 --json":                            "--json: is for --bench",
		"192.0.2.1:7471 --bench --size many":               "--size many: has to be a number from 1 to 1073741824, or all",
		"192.0.2.1:7471 --bench --size -5":                 "--size -5: has to be a number from 1",
		"192.0.2.1:7471 --bench --size=":                   "--size is empty",
		"192.0.2.1:7471 --bench --count 0":                 "--count 0: has to be 1 to 1073741824",
		"192.0.2.1:7471 --bench --iterations -1":           "--iterations -1: has to be 1 to 1073741824",
		"192.0.2.1:7471 --bench --size all -C 3":           "--size all has rstream's own numbers",
		"192.0.2.1:7471 --provider kernel --crc off":       "--crc: is for the engine, and --provider is kernel",
		"192.0.2.1:7471 --provider kernel --cong reno":     "--cong: is for the engine",
		"192.0.2.1:7471 --provider infiniband":             "--provider must be one of",
		"192.0.2.1:7471 --bench -S 5 -C 1 -I 1 --verify x": "unexpected argument x",
	} {
		cmd := start(t, append([]string{"stream"}, words(args)...)...)
		cmd.want(t, exitUsage, nil, parts(name+": ", want))
		if cmd.stdout.String() != "" {
			t.Errorf("%s: stdout %q", cmd, &cmd.stdout)
		}
	}
}
