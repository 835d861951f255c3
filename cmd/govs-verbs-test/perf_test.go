package main

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// perfServe starts a server of perf and returns it with its address.
func perfServe(t *testing.T, op load.Op, args ...string) (*command, string) {
	t.Helper()
	server := start(t, append([]string{"perf", string(op), "--listen"}, args...)...)
	return server, server.stderr.await(t, `listening on (\S+)\n`)[1]
}

// perfOps are the workloads, those over TCP included.
func perfOps() []load.Op { return append(load.Ops(), "tcp-bw", "tcp-lat") }

// perfEngine returns --provider engine for workloads that have providers.
func perfEngine(op load.Op) []string {
	if strings.HasPrefix(string(op), "tcp") {
		return nil
	}
	return []string{"--provider", "engine"}
}

func TestPerf(t *testing.T) {
	for _, op := range perfOps() {
		t.Run(string(op), func(t *testing.T) {
			server, addr := perfServe(t, op, append([]string{"127.0.0.1:0"}, perfEngine(op)...)...)
			client := start(t, append(words("perf "+string(op)+" -s 3000 -n 40 --warmup 2 "+addr),
				perfEngine(op)...)...)
			columns := parts("BW peak[GB/s]", "MsgRate[Mpps]", "CPU[s/GiB]\n", "     3000           40")
			if op.Latency() {
				columns = parts("t_typical", "99.9%", "CPU[us/op]\n", "     3000           40")
			}
			client.want(t, exitPassed, append(columns, string(op)+": spin; ", " cubic", "GOMAXPROCS"), nil)
			server.want(t, exitPassed, nil, nil)
		})
	}
}

func TestPerfJSON(t *testing.T) {
	server, addr := perfServe(t, load.WriteBW, "[::1]:0", "--provider", "engine", "--crc", "off", "--serve", "2")
	client := start(t, words("perf write-bw --provider engine --crc off --duration 20ms -q 2 -t 16 -b --poll block --json "+addr)...)
	client.want(t, exitPassed, nil, nil)
	var r perfReport
	decodeJSON(t, client, &r)
	if r.Op != load.WriteBW || r.Poll != load.Block || len(r.Messages) != 1 {
		t.Fatalf("report %+v", r)
	}
	if r.Client.CRC != "off" || r.Server.CRC != "off" ||
		r.Server.Provider != "engine" || r.Server.Cong != "cubic" || r.Server.Procs < 1 || r.Server.Go == "" || r.Server.Kernel == "" || r.Server.Govs == "" {
		t.Errorf("ends: client %+v, server %+v", r.Client, r.Server)
	}
	m := r.Messages[0]
	if m.Size != 65536 || m.Iterations == 0 || m.Seconds < 0.02 || m.GBps <= 0 || m.Mops <= 0 || m.RTT != nil || !m.Spec.Bidirectional || m.Spec.QPs != 2 || m.Spec.TxDepth != 16 {
		t.Errorf("result %+v", m)
	}
	spent := m.ClientUsage.UserSeconds + m.ClientUsage.SysSeconds + m.ServerUsage.UserSeconds + m.ServerUsage.SysSeconds
	if gib := float64(m.Iterations) * 65536 / (1 << 30); spent <= 0 ||
		math.Abs(m.CPUPerGiB*gib/spent-1) > 1e-3 || math.Abs(m.CPUPerOp*float64(m.Iterations)/spent/1e6-1) > 1e-3 {
		t.Errorf("CPU time of %g s is %g s per GiB and %g us per message: %+v", spent, m.CPUPerGiB, m.CPUPerOp, m)
	}
	client = start(t, words("perf read-lat --provider engine -n 20 --warmup 2 -s 8 --json "+
		""+addr)...) // the server learns it
	client.want(t, exitPassed, nil, nil)
	var l perfReport
	decodeJSON(t, client, &l)
	if l.Op != load.ReadLat || len(l.Messages) != 1 || l.Messages[0].RTT == nil || l.Messages[0].RTT.Typical <= 0 {
		t.Errorf("report %+v", l)
	}
	server.want(t, exitPassed, nil, nil)
}

func TestPerfAllSizes(t *testing.T) {
	server, addr := perfServe(t, load.SendBW, "127.0.0.1:0", "--provider", "engine")
	client := start(t, words("perf send-bw --provider engine --all -n 2 --warmup 1 -t 2 --sge 3 "+addr)...)
	var want []string
	for size := 2; size <= largest; size *= 2 {
		want = append(want, fmt.Sprintf("\n%9d            2 ", size))
	}
	client.want(t, exitPassed, want, nil)
	server.want(t, exitPassed, nil, nil)
}

// perftest's -D is a number of seconds.
func TestSeconds(t *testing.T) {
	for text, want := range map[string]time.Duration{"5": 5 * time.Second, "500ms": 500 * time.Millisecond, "1.5s": 1500 * time.Millisecond} {
		var got seconds
		if err := got.UnmarshalText([]byte(text)); err != nil || time.Duration(got) != want {
			t.Errorf("%s: %v, error %v", text, time.Duration(got), err)
		}
	}
}

// TestPerfWrongServer connects clients to a server of another kind.
func TestPerfWrongServer(t *testing.T) {
	_, rdma := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine")
	start(t, "perf", "tcp-bw", rdma).want(t, exitFailed, nil,
		parts(rdma+" is not a server of tcp-bw or tcp-lat, or has another client: "))
	_, tcp := perfServe(t, "tcp-bw", "127.0.0.1:0")
	start(t, "perf", "tcp-lat", tcp, "-n", "10", "--warmup", "2", "-s", "64").want(t, exitPassed, parts("tcp-lat: "), nil)
}

// TestPerfUnable gives well-formed options that this machine can't fulfil.
func TestPerfUnable(t *testing.T) {
	for args, want := range map[string]string{
		"write-bw --provider engine --listen 203.0.113.7:0":               "listening on 203.0.113.7:0: ",
		"tcp-bw --listen 203.0.113.7:0":                                   "203.0.113.7:0",
		"tcp-bw --listen 127.0.0.1:0 --cong no-such":                      "--cong no-such: ",
		"write-bw --provider engine --listen 127.0.0.1:0 --cong no-such":  "--cong no-such: this machine has ",
		"write-bw --provider engine --listen 127.0.0.1:0 --cpu 1000":      "--cpu 1000: this process may run on [",
		"write-bw --provider engine --listen 127.0.0.1:0 --cpu 100000000": "--cpu 100000000: this process may run on [",
	} {
		start(t, append([]string{"perf"}, strings.Fields(args)...)...).want(t, exitUsage, nil, parts(want))
	}
	start(t, words("perf write-bw --provider engine 127.0.0.1:1 --cong no-such")...).want(t, exitUsage, nil, parts("--cong no-such: "))
	start(t, words("perf tcp-bw 127.0.0.1:1")...).want(t, exitFailed, nil,
		parts("(the same command with --listen): dial tcp 127.0.0.1:1: connect: connection refused\n"))
	start(t, words("perf write-bw --provider engine 127.0.0.1:1")...).want(t, exitFailed, nil,
		parts("(the same command with --listen): rdma_connect 127.0.0.1:1: "+
			"nobody listens there; start the server first: connection refused\n"))
}

// TestPerfSaysWhy makes runs that are impossible, or that differ from what one end may
// expect.
func TestPerfSaysWhy(t *testing.T) {
	_, addr := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine", "--serve", "0")
	client := start(t, words("perf write-bw --provider engine -n 10 --warmup 0 -s 64 --crc off "+addr)...)
	client.want(t, exitPassed, parts("with CRC, as one end asks for it"), nil)
	client = start(t, words("perf write-bw --provider engine -n 10 -s 5000 --inline 5000 "+addr)...)
	client.want(t, exitFailed, nil, parts("5000 bytes inline: govs0 takes at most 512"))
	client = start(t, words("perf write-bw --provider engine -n 10 --warmup 2 -s 5000 --inline 4999 "+addr)...)
	client.want(t, exitPassed, nil, nil) // nothing is inline
}

// TestPerfPeerGone makes each end lose the other in the middle of a run.
func TestPerfPeerGone(t *testing.T) {
	for _, op := range []load.Op{load.WriteBW, load.SendLat, "tcp-lat"} {
		for _, gone := range []string{"server", "client"} {
			if op == "tcp-lat" && gone == "client" {
				continue // the end of the stream is how the client says that it is done
			}
			t.Run(string(op)+" "+gone, func(t *testing.T) {
				// The ends may not be connected yet when one is killed.
				testkit.Scaled(t, 100*time.Millisecond, func(pause time.Duration) error {
					text := perfLosing(t, op, gone, pause)
					if !strings.Contains(text, "the connection has ended: ") && !strings.Contains(text, "the peer has left") {
						return fmt.Errorf("the %s is gone, and that is told as %q", gone, text)
					}
					return nil
				})
			})
		}
	}
}

// perfLosing kills the server or the client, as gone says, a while after the client has begun to
// connect, and returns the other's output.
func perfLosing(t *testing.T, op load.Op, gone string, pause time.Duration) string {
	perf := func(args ...string) *program {
		return startCommand(t, nil, slices.Concat([]string{"perf", string(op)}, args, perfEngine(op))...)
	}
	server := perf("--listen", "127.0.0.1:0")
	addr := server.stderr.await(t, `listening on (\S+)\n`)[1]
	client := perf(addr, "-s", "64", "-D", "1h")
	client.stdout.await(t, "#bytes")
	time.Sleep(pause)
	leaver, left := server, client
	if gone == "client" {
		leaver, left = client, server
	}
	if err := leaver.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	left.want(t, exitFailed)
	return left.stderr.String()
}

// TestPerfSelf makes one command both ends, beside raw TCP.
func TestPerfSelf(t *testing.T) {
	p := startCommand(t, nil, words("perf write-bw --self [::1]:0 --provider engine --crc off --poll block "+
		"-q 2 -D 20ms --rounds 3 --json")...)
	p.want(t, exitPassed)
	var r perfSelfReport
	if err := json.Unmarshal([]byte(p.stdout.String()), &r); err != nil {
		t.Fatal(err)
	}
	if r.Op != load.WriteBW || r.Poll != load.Block || r.Rounds != 3 || len(r.Results) != 1 ||
		r.Client.CRC != "off" || r.Server.CRC != "off" || r.Server.Provider != "engine" {
		t.Fatalf("report %+v", r)
	}
	m := r.Results[0]
	if m.Size != 65536 || m.RDMA.GBps <= 0 || m.TCP.GBps <= 0 || m.Ratio.Least <= 0 ||
		m.Ratio.Least > m.Ratio.Median || m.Ratio.Median > m.Ratio.Most {
		t.Errorf("result %+v", m)
	}
}

// TestPerfSelfInterrupted: no server is left behind.
func TestPerfSelfInterrupted(t *testing.T) {
	mark := markProcesses(t)
	p := startCommand(t, nil, words("perf send-lat --self --provider engine -D 1h")...)
	p.stdout.await(t, "#bytes")
	testkit.OK(t, p.cmd.Process.Signal(syscall.SIGINT))
	p.want(t, exitFailed)
	testkit.NoneMarked(t, mark)
}

// TestPerfSelfFails: an error is reported unchanged, and no server is left behind.
func TestPerfSelfFails(t *testing.T) {
	mark := markProcesses(t)
	p := startCommand(t, nil, words("perf write-bw --self --provider engine -n 10 -s 5000 --inline 5000")...)
	p.want(t, exitFailed)
	wantText(t, "stderr", p.stderr.String(), parts("5000 bytes inline"))
	testkit.NoneMarked(t, mark)
}

// TestPerfSelfLine: an unknown ratio is not printed as 0.
func TestPerfSelfLine(t *testing.T) {
	r := perfSelfRow{Size: 64, RDMA: perfValues{RTT: 7, CPUPerOp: 3}, TCP: perfValues{RTT: 6}}
	if line := r.line(load.SendLat); !strings.HasSuffix(line, " -") {
		t.Errorf("%q", line)
	}
}

func TestPerfInterrupted(t *testing.T) {
	server, addr := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine", "--serve", "0")
	client := start(t, words("perf write-bw --provider engine --duration 1h -s 4096 "+addr)...)
	client.stdout.await(t, "BW average")
	client.stop()
	client.want(t, exitFailed, nil, parts(name+": interrupted\n"))
	server.stop()
	server.want(t, exitPassed, nil, nil)
}
