package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
)

// perfServe starts a server of perf and returns it with its address.
func perfServe(t *testing.T, op load.Op, args ...string) (*command, string) {
	t.Helper()
	server := start(t, append([]string{"perf", string(op), "--listen"}, args...)...)
	return server, server.stderr.await(t, `listening on (\S+)\n`)[1]
}

// perfOps are the workloads, those over TCP included.
func perfOps() []load.Op { return append(load.Ops(), "tcp-bw", "tcp-lat") }

// perfEngine is --provider engine where there are providers.
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
			client := start(t, append([]string{"perf", string(op), addr, "-s", "3000", "-n", "40"}, perfEngine(op)...)...)
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
	client := start(t, words("perf send-bw --provider engine --all -n 2 -t 2 --sge 3 "+addr)...)
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

func TestPerfWrongUsage(t *testing.T) {
	for args, want := range map[string]string{
		"write-bw": "give either ADDR:PORT of the server, or --listen ADDR:PORT",
		"write-bw 192.0.2.1:7175 --listen 192.0.2.1:7175": "give either ADDR:PORT of the server",
		"write-bw 192.0.2.1":                              "an IP address or a name, and a port are needed",
		"tcp-bw localhost":                                "an IP address or a name, and a port are needed",
		"write-bw 192.0.2.1:0": "port 0 can't be listened on: " +
			"name a port from 1 to 65535",
		"write-bw 192.0.2.1:7175 --iters 1 --duration 1s":    "--iters and --duration can't be used together",
		"write-bw 192.0.2.1:7175 --iters=-1":                 "--iters -1: has to be at least 1",
		"write-bw 192.0.2.1:7175 --duration=-1s":             "--duration -1s: has to be above 0",
		"write-bw 192.0.2.1:7175 --size -5":                  "--size -5: has to be 1 to",
		"write-bw 192.0.2.1:7175 -s -5":                      "--size -5: has to be 1 to",
		"write-bw 192.0.2.1:7175 -D -1s":                     "--duration -1s: has to be above 0",
		"write-bw --listen 192.0.2.1:7175 --serve -3":        "--serve -3: has to be at least 0",
		"write-bw 192.0.2.1:7175 --size 0":                   "--size 0: has to be 1 to",
		"tcp-bw 192.0.2.1:7175 --size 2000000000":            "--size 2000000000: has to be 1 to",
		"write-bw 192.0.2.1:7175 --tx-depth 100000":          "--tx-depth 100000: has to be 1 to",
		"write-bw 192.0.2.1:7175 --tx-depth 4 --post-list 8": "--post-list 8 is more than --tx-depth 4",
		"write-bw 192.0.2.1:7175 --qp=-1":                    "--qp -1: has to be 1 to",
		"send-lat 192.0.2.1:7175 --qp 2":                     "--qp 2: send-lat has one message under way",
		"tcp-lat 192.0.2.1:7175 --qp 2":                      "--qp 2: tcp-lat has one message under way",
		"send-lat 192.0.2.1:7175 --tx-depth 8":               "--tx-depth: send-lat has one message under way",
		"read-lat 192.0.2.1:7175 --post-list 5":              "--post-list: read-lat has one message under way",
		"tcp-lat 192.0.2.1:7175 --warmup=-2":                 "--warmup -2: has to be at least 0",
		"send-lat 192.0.2.1:7175 --bidirectional":            "--bidirectional: send-lat has one message under way",
		"write-bw 192.0.2.1:7175 --size 64 --all":            "--size and --all can't be used together",
		"write-bw 192.0.2.1:7175 --iters 0":                  "--iters 0: has to be at least 1",
		"write-bw 192.0.2.1:7175 --duration soon":            "10s or 500ms, or a whole number of seconds",
		"write-bw 192.0.2.1:7175 -D 0":                       "--duration 0s: has to be above 0",
		"write-bw 192.0.2.1:7175 --duration 0s":              "--duration 0s: has to be above 0",
		"write-bw 192.0.2.1:7175 --qp 0":                     "--qp 0: has to be 1 to",
		"write-bw 192.0.2.1:7175 --tx-depth 0":               "--tx-depth 0: has to be 1 to",
		"write-bw 192.0.2.1:7175 --post-list 0":              "--post-list 0: has to be 1 to",
		"write-bw 192.0.2.1:7175 --sge 0":                    "--sge 0: has to be 1 to 16",
		"write-bw 192.0.2.1:7175 --mr 0":                     "--mr 0: has to be 1 to",
		"read-bw 192.0.2.1:7175 --outstanding 0":             "--outstanding 0: has to be 1 to 128",
		"write-bw 192.0.2.1:7175 --inline=-1":                "--inline -1: has to be 0 to",
		"write-lat 192.0.2.1:7175 --poll block":              "use --poll spin",
		"read-bw 192.0.2.1:7175 --inline 64":                 "--inline: read-bw posts RDMA Reads, which can't be inline",
		"read-bw 192.0.2.1:7175 --outstanding 129":           "--outstanding 129: has to be 1 to 128",
		"write-bw 192.0.2.1:7175 --poll sometimes":           "--poll must be one of",
		"write-bw 192.0.2.1:7175 --crc maybe":                "--crc must be one of",
		"write-bw --listen 192.0.2.1:7175 --serve=-1":        "--serve -1: has to be at least 0",
		"write-bw 192.0.2.1:7175 --procs=-1":                 "--procs -1: has to be at least 1",
		"write-bw 192.0.2.1:7175 --cpu=-2":                   "--cpu -2: there is no such CPU",
		"write-bw 192.0.2.1:7175 -o 3":                       "--outstanding: write-bw posts no RDMA Reads: leave",
		"send-lat 192.0.2.1:7175 -o 3":                       "--outstanding: send-lat posts no RDMA Reads: leave",
		"read-lat 192.0.2.1:7175 -I 3":                       "--inline: read-lat posts RDMA Reads, which can't be inline",
		"write-bw 192.0.2.1:7175 --serve 3":                  "--serve 3: is for a server, with --listen",
		"tcp-lat 192.0.2.1:7175 --serve 1":                   "--serve 1: is for a server, with --listen",
		"send-bw --listen 192.0.2.1:7175 -s 64":              "--size: the client decides the workload",
		"send-bw --listen 192.0.2.1:7175 --all":              "--all: the client decides the workload",
		"tcp-bw --listen 192.0.2.1:7175 --poll block":        "--poll: the client decides the workload",
		"read-bw --listen 192.0.2.1:7175 -o 3":               "--outstanding: the client decides the workload",
		"write-bw --listen 192.0.2.1:7175 --json":            "--json: the client prints the result",
		"write-bw 192.0.2.1:7175 --provider kernel --crc on": "--crc: is for the engine, and --provider is kernel",
		"write-bw --listen 192.0.2.1:7175 --busy-wait -1s":   "--busy-wait -1s: has to be at least 0",
		"write-bw 192.0.2.1:7175 --busy-wait 1us":            "--busy-wait: with --poll spin this end never sleeps",
		"tcp-bw 192.0.2.1:7175 --crc on":                     "unknown flag --crc",
		"frobnicate":                                         "unexpected argument frobnicate",
		"write-bw --self --listen 127.0.0.1:0":               "--self and --listen can't be used together",
		"write-bw --self -b":                                 "leave --bidirectional out",
		"write-bw --self --rounds 0":                         "--rounds 0: has to be 1 to",
		"write-bw 192.0.2.1:7175 --rounds 3":                 "--rounds 3: is for --self",
	} {
		cmd := start(t, append([]string{"perf"}, strings.Fields(args)...)...)
		cmd.want(t, exitUsage, nil, parts(name+": ", want, hint))
		if cmd.stdout.String() != "" {
			t.Errorf("%s: stdout %q", cmd, &cmd.stdout)
		}
	}
}

// TestPerfHelp shows that a workload's help has its own name and no option that it refuses.
func TestPerfHelp(t *testing.T) {
	for _, op := range perfOps() {
		help := start(t, "perf", string(op), "--help")
		help.want(t, exitPassed, parts("perf "+string(op)+" --listen 192.0.2.1:7175", "--size", "--serve"), nil)
		for _, option := range workloadOptions {
			offered := strings.Contains(help.stdout.String(), "--"+option)
			usable := useless(op, option) == "" &&
				(slices.Contains(load.Ops(), op) || !slices.Contains(onlyRDMA, option))
			if offered != usable {
				t.Errorf("%s --%s: the help has it: %v, it is of use: %v", op, option, offered, usable)
			}
		}
	}
}

// onlyRDMA are the options of workloads that those over raw TCP don't have.
var onlyRDMA = []string{"tx-depth", "post-list", "inline", "sge", "mr", "outstanding", "bidirectional"}

// TestPerfWrongServer has clients that reach a server of another kind.
func TestPerfWrongServer(t *testing.T) {
	_, rdma := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine")
	start(t, "perf", "tcp-bw", rdma).want(t, exitFailed, nil,
		parts(rdma+" is not a server of tcp-bw or tcp-lat, or has another client: "))
	_, tcp := perfServe(t, "tcp-bw", "127.0.0.1:0")
	start(t, "perf", "tcp-lat", tcp, "-n", "10", "-s", "64").want(t, exitPassed, parts("tcp-lat: "), nil)
}

// TestPerfUnable has well-formed options that this machine can't fulfil.
func TestPerfUnable(t *testing.T) {
	for args, want := range map[string]string{
		"write-bw --provider engine --listen 203.0.113.7:0":               "listening on 203.0.113.7:0: ",
		"tcp-bw --listen 203.0.113.7:0":                                   "203.0.113.7:0",
		"tcp-bw --listen 127.0.0.1:0 --cong no-such":                      "--cong no-such: ",
		"write-bw --provider engine --listen 127.0.0.1:0 --cong no-such":  "; this machine has ",
		"write-bw --provider engine --listen 127.0.0.1:0 --cpu 1000":      "--cpu 1000: this process may run on [",
		"write-bw --provider engine --listen 127.0.0.1:0 --cpu 100000000": "--cpu 100000000: this process may run on [",
	} {
		start(t, append([]string{"perf"}, strings.Fields(args)...)...).want(t, exitUsage, nil, parts(want))
	}
	start(t, words("perf write-bw --provider engine 127.0.0.1:1 --cong no-such")...).want(t, exitUsage, nil, parts("--cong no-such: "))
	start(t, words("perf tcp-bw 127.0.0.1:1")...).want(t, exitFailed, nil,
		parts("connection refused; start the server first"))
	start(t, words("perf write-bw --provider engine 127.0.0.1:1")...).want(t, exitFailed, nil,
		parts("connection refused: nobody listens there; start the server first"))
}

// TestPerfSaysWhy has runs that are impossible, or that differ from what one end may
// expect.
func TestPerfSaysWhy(t *testing.T) {
	_, addr := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine", "--serve", "0")
	client := start(t, words("perf write-bw --provider engine -n 10 --warmup 0 -s 64 --crc off "+addr)...)
	client.want(t, exitPassed, parts("with CRC, as one end asks for it"), nil)
	client = start(t, words("perf write-bw --provider engine -n 10 -s 5000 --inline 5000 "+addr)...)
	client.want(t, exitFailed, nil, parts("5000 octets inline: govs0 takes at most 512"))
	client = start(t, words("perf write-bw --provider engine -n 10 -s 5000 --inline 4999 "+addr)...)
	client.want(t, exitPassed, nil, nil) // nothing is inline
}

// TestPerfPeerGone has each end lose the other in the middle of a run.
func TestPerfPeerGone(t *testing.T) {
	for _, op := range []load.Op{load.WriteBW, load.SendLat, "tcp-lat"} {
		for _, gone := range []string{"server", "client"} {
			if op == "tcp-lat" && gone == "client" {
				continue // an end of the stream is how it says that it has all it wants
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
// connect, and returns what the other says.
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

func TestPerfProfiles(t *testing.T) {
	server, addr := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine")
	cpu, mem := filepath.Join(t.TempDir(), "cpu"), filepath.Join(t.TempDir(), "mem")
	// The rate of the allocation profile is the process's.
	startCommand(t, nil, words("perf write-bw --provider engine -n 10 -t 2 -s 64 --cpuprofile "+cpu+" --memprofile "+mem+" "+addr)...).want(t, exitPassed)
	server.want(t, exitPassed, nil, nil)
	for _, file := range []string{cpu, mem} {
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	start(t, words("perf tcp-bw 127.0.0.1:1 --cpuprofile /proc/none")...).want(t, exitUsage, nil, parts("--cpuprofile: "))
	start(t, words("perf tcp-bw 127.0.0.1:1 --memprofile /proc/none")...).want(t, exitUsage, nil, parts("--memprofile: "))
}

// TestPerfPinned has a process keep to a CPU, which can't be undone in ours.
func TestPerfPinned(t *testing.T) {
	cpus, err := pin.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	cpu := strconv.Itoa(cpus[0])
	server, addr := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine")
	p := startCommand(t, nil, words("perf write-bw --provider engine -n 10 -t 2 -s 64 --cpu "+cpu+" "+addr)...)
	p.want(t, exitPassed, "on CPU "+cpu+" GOMAXPROCS 1")
	server.want(t, exitPassed, nil, nil)
}

// TestPerfSelf has one command be both ends, beside raw TCP.
func TestPerfSelf(t *testing.T) {
	for _, op := range load.Ops() {
		p := startCommand(t, nil, words("perf "+string(op)+" --self --provider engine -n 40 --rounds 2")...)
		p.want(t, exitPassed, string(op)+": spin; ", "2 rounds, raw TCP after each", "least to most", " to ")
	}
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

// TestPerfSelfFails: an error is said as it is, and no server is left behind.
func TestPerfSelfFails(t *testing.T) {
	mark := markProcesses(t)
	p := startCommand(t, nil, words("perf write-bw --self --provider engine -n 10 -s 5000 --inline 5000")...)
	p.want(t, exitFailed)
	wantText(t, "stderr", p.stderr.String(), parts("5000 octets inline"))
	testkit.NoneMarked(t, mark)
}

// TestPerfSelfLine: a ratio that is not known is not 0.
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
