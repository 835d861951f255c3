package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
)

// perfSelfFlags are the flags of a command that is both ends.
type perfSelfFlags struct {
	Self   bool `help:"Be both ends, at ADDR:PORT or on the loopback, and measure raw TCP between rounds. Each run takes 300ms, unless --iters or --duration is given."`
	Rounds int  `short:"r" default:"5" help:"With --self: measure both N times. Default 5." placeholder:"N"`
}

// selfTime is the default duration of each measurement of --self.
const selfTime = 300 * time.Millisecond

// checkSelf checks and applies the options of --self. It precedes all other checks.
func (c *perfRDMACmd) checkSelf(k *kong.Context) error {
	if c.both = c.Self; !c.Self {
		if given(k, "rounds") {
			return fmt.Errorf("--rounds %d: is for --self: add that, or leave the option out", c.Rounds)
		}
		return nil
	}
	switch {
	case c.Listen != "":
		return errors.New("--self and --listen can't be used together: leave out one")
	case given(k, "serve"):
		return errors.New("--self and --serve can't be used together: leave out --serve")
	case c.Bidirectional:
		return errors.New("--self compares with raw TCP, which sends one way: leave --bidirectional out")
	}
	if c.Addr == "" {
		c.Addr = "127.0.0.1:0"
	}
	if !given(k, "iters") && !given(k, "duration") {
		c.Duration = seconds(selfTime)
	}
	return checkLimits([]limit{{"rounds", c.Rounds, 1, 1000}})
}

// tcpSpec returns the most similar run over raw TCP.
func (c *perfRDMACmd) tcpSpec(op load.Op) load.Spec {
	like := rawtcp.BW
	if op.Latency() {
		like = rawtcp.Lat
	}
	return c.perfFlags.spec(like)
}

// perfSelfReport is the output of --self --json.
type perfSelfReport struct {
	Op      load.Op       `json:"op"`
	Poll    load.Poll     `json:"poll"`
	Client  load.End      `json:"client"`
	Server  load.End      `json:"server"`
	Rounds  int           `json:"rounds"`
	Results []perfSelfRow `json:"results"` // one row per size
}

// perfSelfRow compares medians over the rounds. The ratios are computed in each round.
type perfSelfRow struct {
	Size  int        `json:"size"` // bytes
	RDMA  perfValues `json:"rdma"`
	TCP   perfValues `json:"tcp"`
	Ratio perfSpread `json:"ratio"`
	// CPURatio covers the rounds in which TCP took CPU time; nil if no round was long enough.
	CPURatio *perfSpread `json:"cpu_ratio,omitempty"`
}

// perfValues holds GB/s and seconds of CPU time per GiB. For latency it holds microseconds, and
// microseconds of CPU time per round trip. CPU time is that of both ends together.
type perfValues struct {
	GBps      float64 `json:"gb_per_s,omitempty"`
	RTT       float64 `json:"rtt_us,omitempty"`
	CPUPerGiB float64 `json:"cpu_per_gib,omitempty"`
	CPUPerOp  float64 `json:"cpu_per_op,omitempty"`
}

// perfSpread is the spread over the rounds.
type perfSpread struct {
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	Most   float64 `json:"most"`
}

func spreadOf(list []float64) perfSpread {
	slices.Sort(list)
	n := len(list)
	return perfSpread{(list[(n-1)/2] + list[n/2]) / 2, list[0], list[n-1]}
}

// self measures with servers in processes of their own. This process is the client of both.
func (c *perfRDMACmd) self(ctx context.Context, k *kong.Context, out *output) error {
	serverCPU, err := c.shareCPUs()
	if err != nil {
		return unable(err)
	}
	// Servers have their own context, because an error ends them too, which is not an interruption.
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	return c.inProcess(ctx, func(addr netip.AddrPort, self load.End) (err error) {
		vctx, err := c.open(out, addr.Addr(), &self)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, vctx.Close()) }()
		op := opOf(k)
		rdma, err := startSelfServer(running, c.serverArgs(k, string(op), addr, serverCPU))
		if err != nil {
			return err
		}
		defer rdma.wait(cancel, &err)
		tcp, err := startSelfServer(running, c.serverArgs(k, "tcp-bw", netip.AddrPortFrom(addr.Addr(), 0), serverCPU))
		if err != nil {
			return err
		}
		defer tcp.wait(cancel, &err)
		client, err := load.Dial(ctx, vctx, rdma.addr, self)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, client.Close()) }()
		raw, err := rawtcp.Dial(ctx, tcp.addr, rawtcp.TCP(c.congestion()))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, raw.Close()) }()
		rep := &perfSelfReport{Op: op, Poll: load.Poll(c.Poll), Client: self, Server: client.Peer(), Rounds: c.Rounds}
		return c.compare(ctx, out, rep, client.Run, raw.Run)
	})
}

// shareCPUs pins this end to one CPU, if no option says otherwise, and returns the CPU for the
// servers, or -1 for any.
func (c *perfRDMACmd) shareCPUs() (int, error) {
	if c.CPU < 0 && c.Procs > 0 {
		return -1, nil
	}
	cpus, err := pin.CPUs()
	if err != nil || len(cpus) < 2 {
		return -1, err
	}
	if c.CPU < 0 {
		c.CPU = cpus[0]
	}
	return cpus[slices.IndexFunc(cpus, func(cpu int) bool { return cpu != c.CPU })], nil
}

// serverArgs returns the arguments of a server with this end's options.
func (c *perfRDMACmd) serverArgs(k *kong.Context, op string, addr netip.AddrPort, cpu int) []string {
	args := []string{"perf", op, "--listen", addr.String(), "--cpu", strconv.Itoa(cpu)}
	for _, o := range []struct {
		name, value string
		rdma        bool
	}{
		{"cong", c.Cong, false}, {"procs", strconv.Itoa(c.Procs), false}, {"provider", c.Provider, true},
		{"crc", c.CRC, true}, {"busy-wait", c.BusyWait.String(), true},
	} {
		if given(k, o.name) && (!o.rdma || op != "tcp-bw") {
			args = append(args, "--"+o.name, o.value)
		}
	}
	return args
}

// selfServer is a server process that this command has started. It ends with its client.
type selfServer struct {
	cmd  *exec.Cmd
	addr netip.AddrPort
	said strings.Builder // on stderr
	over chan struct{}   // closed at the end of its stderr
}

func startSelfServer(ctx context.Context, args []string) (*selfServer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s := &selfServer{cmd: exec.CommandContext(ctx, self, args...), over: make(chan struct{})}
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(syscall.SIGTERM) }
	s.cmd.WaitDelay = 10 * time.Second
	stderr, err := s.cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	listens := make(chan error, 1)
	go func() {
		defer close(s.over)
		for lines := bufio.NewScanner(stderr); lines.Scan(); {
			if at, ok := strings.CutPrefix(lines.Text(), "listening on "); ok {
				var err error
				s.addr, err = netip.ParseAddrPort(at)
				listens <- err
				continue
			}
			s.said.WriteString(lines.Text() + "\n")
		}
	}()
	select {
	case err = <-listens:
	case <-s.over:
		err = fmt.Errorf("the server: %w: %s", s.cmd.Wait(), oneLine(s.said.String()))
	}
	return s, err
}

// wait waits until the server ends; an error makes it end.
func (s *selfServer) wait(cancel func(), err *error) {
	if *err != nil {
		cancel()
	}
	<-s.over
	if ended := s.cmd.Wait(); ended != nil && *err == nil {
		*err = fmt.Errorf("the server: %w: %s", ended, oneLine(s.said.String()))
	}
}

type perfRun func(context.Context, load.Spec) (load.Result, error)

// compare does the rounds of each size, and prints each size's result at once.
func (c *perfRDMACmd) compare(ctx context.Context, out *output, rep *perfSelfReport, rdma, tcp perfRun) error {
	if !c.JSON {
		s := withSize(c.spec(rep.Op), c.sizes()[0])
		_ = s.Complete() // Validate has excluded errors
		fmt.Fprintf(out, "%s: %s; %d rounds, raw TCP after each\n", rep.Op, describe(s, rep.Client, rep.Server), c.Rounds)
		fmt.Fprintln(out, selfHeadings(rep.Op))
	}
	for _, size := range c.sizes() {
		row, err := c.rounds(ctx, rep.Op, size, rdma, tcp)
		if err != nil {
			return fmt.Errorf("messages of %d bytes: %w", size, err)
		}
		rep.Results = append(rep.Results, row)
		if !c.JSON {
			fmt.Fprintln(out, row.line(rep.Op))
		}
	}
	if c.JSON {
		return out.json(rep)
	}
	return nil
}

// rounds measures messages of one size, alternating between RDMA and TCP.
func (c *perfRDMACmd) rounds(ctx context.Context, op load.Op, size int, rdma, tcp perfRun) (
	row perfSelfRow, err error,
) {
	var speeds, costs [2][]float64
	var ratios, cpu []float64
	for range c.Rounds {
		for i, m := range []struct {
			run  perfRun
			spec load.Spec
		}{{rdma, c.spec(op)}, {tcp, c.tcpSpec(op)}} {
			r, err := m.run(ctx, withSize(m.spec, size))
			if err != nil {
				return row, err
			}
			speed, cost := r.GBps(), r.CPUPerGiB().Seconds()
			if op.Latency() {
				speed, cost = us(r.Lat.Median), us(r.CPUPerOp())
			}
			speeds[i], costs[i] = append(speeds[i], speed), append(costs[i], cost)
		}
		last := len(speeds[0]) - 1
		ratios = append(ratios, speeds[0][last]/speeds[1][last])
		if costs[1][last] > 0 { // it may be 0, because CPU time comes in ticks
			cpu = append(cpu, costs[0][last]/costs[1][last])
		}
	}
	values := func(i int) perfValues {
		speed, cost := spreadOf(speeds[i]).Median, spreadOf(costs[i]).Median
		if op.Latency() {
			return perfValues{RTT: speed, CPUPerOp: cost}
		}
		return perfValues{GBps: speed, CPUPerGiB: cost}
	}
	row = perfSelfRow{Size: size, RDMA: values(0), TCP: values(1), Ratio: spreadOf(ratios)}
	if len(cpu) > 0 {
		spread := spreadOf(cpu)
		row.CPURatio = &spread
	}
	return row, nil
}

func selfHeadings(op load.Op) string {
	unit, per := "[GB/s]", "[s/GiB]"
	if op.Latency() {
		unit, per = "[us]", "[us/op]"
	}
	return fmt.Sprintf("%9s %12s %12s %7s %15s %14s %14s %7s", "#bytes", "RDMA"+unit, "TCP"+unit, "ratio",
		"least to most", "CPU"+per, "TCP's"+per, "ratio")
}

func (r perfSelfRow) line(op load.Op) string {
	format := "%9d %12.3f %12.3f %7.2f %15s %14.3f %14.3f %7s"
	speed, cost := [2]float64{r.RDMA.GBps, r.TCP.GBps}, [2]float64{r.RDMA.CPUPerGiB, r.TCP.CPUPerGiB}
	if op.Latency() {
		speed, cost = [2]float64{r.RDMA.RTT, r.TCP.RTT}, [2]float64{r.RDMA.CPUPerOp, r.TCP.CPUPerOp}
	}
	spread := fmt.Sprintf("%.2f to %.2f", r.Ratio.Least, r.Ratio.Most)
	cpu := "-"
	if r.CPURatio != nil {
		cpu = fmt.Sprintf("%.2f", r.CPURatio.Median)
	}
	return fmt.Sprintf(format, r.Size, speed[0], speed[1], r.Ratio.Median, spread, cost[0], cost[1], cpu)
}
