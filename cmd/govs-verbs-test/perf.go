package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
)

// perfCmd measures. Its commands are named after perftest's programs: write-bw is ib_write_bw.
type perfCmd struct {
	WriteBW  perfRDMACmd `cmd:"" name:"write-bw" help:"Bandwidth of RDMA Writes."`
	WriteLat perfRDMACmd `cmd:"" name:"write-lat" help:"Round trip of RDMA Writes, one each way."`
	ReadBW   perfRDMACmd `cmd:"" name:"read-bw" help:"Bandwidth of RDMA Reads."`
	ReadLat  perfRDMACmd `cmd:"" name:"read-lat" help:"Round trip of an RDMA Read."`
	SendBW   perfRDMACmd `cmd:"" name:"send-bw" help:"Bandwidth of Sends."`
	SendLat  perfRDMACmd `cmd:"" name:"send-lat" help:"Round trip of Sends, one each way."`
	TCPBW    perfTCPCmd  `cmd:"" name:"tcp-bw" help:"Bandwidth of raw TCP, to compare with."`
	TCPLat   perfTCPCmd  `cmd:"" name:"tcp-lat" help:"Round trip over raw TCP, to compare with."`

	End perfEndCmd `cmd:"" hidden:"" help:"An end that takes orders from a program."`
}

// perfFlags are the flags of all workloads.
type perfFlags struct {
	Addr     string  `arg:"" optional:"" name:"addr:port" help:"The server: an IP address or a name, and a port."`
	Listen   string  `help:"Be the server at this address, until the client ends. Port 0: any free port, which is printed." placeholder:"ADDR:PORT"`
	Serve    int     `default:"1" help:"Server: serve this many clients, one after another; 0: until interrupted. Default 1." placeholder:"N"`
	Size     int     `short:"s" default:"65536" help:"Bytes of a message. Default 65536; latency: 64." placeholder:"N"`
	All      bool    `short:"a" help:"All sizes from 2 to 2^23, instead of --size."`
	Iters    int     `short:"n" help:"Messages on each QP. Default 5000 for bandwidth, 1000 for latency." placeholder:"N"`
	Duration seconds `short:"D" help:"Instead of --iters: 10s, 500ms, or whole seconds." placeholder:"TIME"`
	Warmup   int     `default:"-1" help:"Messages on each QP before those that count; 0: none. Default: as many as 16 MiB holds, but at least 4 and at most 1000." placeholder:"N"`
	QP       int     `short:"q" default:"1" help:"Bandwidth: QPs, or TCP connections. Default 1." placeholder:"N"`
	Poll     string  `enum:"spin,block" default:"spin" help:"How both ends wait: spin or block. Default spin." placeholder:"HOW"`
	Cong     string  `default:"cubic" help:"TCP congestion control of this end's sockets (not of the kernel provider's); system: the system's default. Default cubic, because some others pace what is sent." placeholder:"NAME"`
	CPU      int     `default:"-1" help:"Keep this end on CPU N. Default: any CPU." placeholder:"N"`
	Procs    int     `help:"GOMAXPROCS of this end. Default: 1 with --cpu, otherwise what Go takes." placeholder:"N"`
	JSON     bool    `name:"json" help:"Print the result as JSON."`

	CPUProfile string `name:"cpuprofile" help:"Write a CPU profile of this end, for go tool pprof." placeholder:"FILE"`
	MemProfile string `name:"memprofile" help:"Write a profile of this end's allocations, all of them, for go tool pprof." placeholder:"FILE"`

	both bool // this command is both ends
}

// seconds is a duration with a unit, or a whole number of seconds as in perftest.
type seconds time.Duration

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *seconds) UnmarshalText(text []byte) error {
	value := string(text)
	if _, err := strconv.ParseUint(value, 10, 64); err == nil {
		value += "s"
	}
	d, err := time.ParseDuration(value)
	if err != nil {
		return fmt.Errorf("%q: takes a time such as 10s or 500ms, or a whole number of seconds", text)
	}
	*s = seconds(d)
	return nil
}

// perfTCPCmd is a baseline.
type perfTCPCmd struct{ perfFlags }

// perfRDMACmd is a workload over RDMA.
type perfRDMACmd struct {
	perfFlags
	perfSelfFlags
	Provider      string        `enum:"auto,engine,kernel" default:"auto" help:"Provider: engine, kernel, or auto for the kernel where it has a usable device with the address. Default auto." placeholder:"PROVIDER"`
	CRC           string        `enum:"on,off" default:"on" help:"Engine: ask for CRC. It is off only if both ends turn it off. Default on." placeholder:"on|off"`
	BusyWait      time.Duration `default:"250us" help:"Poll for this long before sleeping. Default 250us." placeholder:"TIME"`
	TxDepth       int           `short:"t" help:"Work requests outstanding on a QP. Default 128; with many QPs fewer." placeholder:"N"`
	PostList      int           `short:"l" help:"Bandwidth: work requests in one post, the last one signalled. Default: a quarter of --tx-depth, at most 64." placeholder:"N"`
	Inline        int           `short:"I" help:"Post messages of up to N bytes inline. Default 0." placeholder:"N"`
	SGE           int           `default:"1" help:"Scatter/gather entries of a message. Default 1." placeholder:"N"`
	MR            int           `default:"1" help:"Regions that the messages go through in turn. Default 1." placeholder:"N"`
	Outstanding   int           `short:"o" default:"16" help:"RDMA Reads outstanding on a QP. Default 16." placeholder:"N"`
	Bidirectional bool          `short:"b" help:"Bandwidth: both ways at the same time; the sum is printed."`
}

// defaultLatSize is the default message size for latency, in bytes.
const defaultLatSize = 64

// largest is the last size of --all, in bytes.
const largest = 1 << 23

// sizes returns the requested sizes.
func (f *perfFlags) sizes() []int {
	if !f.All {
		return []int{f.Size}
	}
	var list []int
	for n := 2; n <= largest; n *= 2 {
		list = append(list, n)
	}
	return list
}

// given reports whether an option is in the arguments.
func given(k *kong.Context, name string) bool {
	return slices.ContainsFunc(k.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == name })
}

// A limit is the permitted range of a number given with an option.
type limit struct {
	option       string
	n, low, high int
}

func checkLimits(limits []limit) error {
	for _, l := range limits {
		if l.n < l.low || l.n > l.high {
			return fmt.Errorf("--%s %d: has to be %d to %d", l.option, l.n, l.low, l.high)
		}
	}
	return nil
}

// check returns an error for flags that no workload supports.
func (f *perfFlags) check(k *kong.Context) error {
	switch {
	case (f.Addr == "") == (f.Listen == ""):
		return errors.New("give either ADDR:PORT of the server, or --listen ADDR:PORT to be the server")
	case given(k, "iters") && given(k, "duration"):
		return errors.New("--iters and --duration can't be used together: leave out one")
	case given(k, "size") && f.All:
		return errors.New("--size and --all can't be used together: leave out one")
	case given(k, "iters") && f.Iters < 1:
		return fmt.Errorf("--iters %d: has to be at least 1", f.Iters)
	case given(k, "duration") && f.Duration <= 0:
		return fmt.Errorf("--duration %v: has to be above 0", time.Duration(f.Duration))
	case given(k, "warmup") && f.Warmup < 0:
		return fmt.Errorf("--warmup %d: has to be at least 0", f.Warmup)
	case f.Serve < 0:
		return fmt.Errorf("--serve %d: has to be at least 0", f.Serve)
	case f.Procs < 0:
		return fmt.Errorf("--procs %d: has to be at least 1", f.Procs)
	case f.CPU < -1:
		return fmt.Errorf("--cpu %d: there is no such CPU", f.CPU)
	}
	if strings.HasSuffix(string(opOf(k)), "-lat") && !given(k, "size") {
		f.Size = defaultLatSize
	}
	if err := checkAddress(f.Addr+f.Listen, f.Listen != "" || f.both); err != nil {
		return err
	}
	if err := checkLimits([]limit{{"size", f.Size, 1, load.MaxSize}, {"qp", f.QP, 1, load.MaxQPs}}); err != nil {
		return err
	}
	return f.checkUseless(k)
}

// spec returns the requested run, without its size.
func (f *perfFlags) spec(op load.Op) load.Spec {
	s := load.Spec{Op: op, Iters: f.Iters, Duration: time.Duration(f.Duration), QPs: f.QP, Poll: load.Poll(f.Poll)}
	switch {
	case f.Warmup > 0:
		s.Warmup = f.Warmup
	case f.Warmup == 0:
		s.Warmup = -1 // no warm-up; 0 means the default
	}
	if s.Iters == 0 && s.Duration == 0 {
		s.Iters = 5000
		if op.Latency() {
			s.Iters = 1000
		}
	}
	return s
}

func (c *perfRDMACmd) spec(op load.Op) load.Spec {
	s := c.perfFlags.spec(op)
	s.TxDepth, s.PostList, s.Inline, s.SGEs, s.MRs, s.Outstanding, s.Bidirectional =
		c.TxDepth, c.PostList, c.Inline, c.SGE, c.MR, c.Outstanding, c.Bidirectional
	if op.Latency() {
		s.TxDepth, s.PostList = 1, 1
	}
	return s
}

// withSize returns s for messages of a size. A message with fewer bytes than entries has fewer
// entries.
func withSize(s load.Spec, size int) load.Spec {
	s.Size = size
	s.SGEs = min(s.SGEs, max(size, 1))
	return s
}

// Validate implements kong's check.
func (c *perfRDMACmd) Validate(k *kong.Context) error {
	if err := c.checkSelf(k); err != nil {
		return err
	}
	if err := c.check(k); err != nil {
		return err
	}
	lowest := func(option string) int { // 0 means the default
		if given(k, option) {
			return 1
		}
		return 0
	}
	err := checkLimits([]limit{
		{"tx-depth", c.TxDepth, lowest("tx-depth"), load.MaxTxDepth},
		{"post-list", c.PostList, lowest("post-list"), load.MaxTxDepth}, {"inline", c.Inline, 0, load.MaxSize},
		{"sge", c.SGE, 1, load.MaxSGEs}, {"mr", c.MR, 1, load.MaxMRs}, {"outstanding", c.Outstanding, 1, load.MaxOutstanding},
	})
	if err != nil {
		return err
	}
	if c.TxDepth > 0 && c.PostList > c.TxDepth {
		return fmt.Errorf("--post-list %d is more than --tx-depth %d", c.PostList, c.TxDepth)
	}
	if err := c.checkUseless(k); err != nil {
		return err
	}
	for _, size := range c.sizes() {
		s := withSize(c.spec(opOf(k)), size)
		if err := s.Complete(); err != nil {
			return err
		}
	}
	return nil
}

// Validate implements kong's check.
func (c *perfTCPCmd) Validate(k *kong.Context) error {
	if err := c.check(k); err != nil {
		return err
	}
	for _, size := range c.sizes() {
		s := withSize(c.spec(opOf(k)), size)
		if err := rawtcp.Complete(&s); err != nil {
			return err
		}
	}
	return nil
}

// opOf returns the workload that the command is named after.
func opOf(k *kong.Context) load.Op { return load.Op(k.Selected().Name) }

// settle applies the flags for this process, and returns the process's description for the other
// end and the report.
func (f *perfFlags) settle() (load.End, error) {
	if f.CPU >= 0 {
		if err := pin.Self(f.CPU); err != nil {
			if cpus, err := pin.CPUs(); err == nil && !slices.Contains(cpus, f.CPU) {
				return load.End{}, unable(fmt.Errorf("--cpu %d: this process may run on %v only", f.CPU, cpus))
			}
			return load.End{}, unable(fmt.Errorf("--cpu %d: %w", f.CPU, err))
		}
	}
	switch {
	case f.Procs > 0:
		runtime.GOMAXPROCS(f.Procs)
	case f.CPU >= 0:
		// A second thread on the same CPU does not help, and it delays the wake-up of sleeping
		// goroutines: a round trip of Sends takes 75 us instead of 56.
		runtime.GOMAXPROCS(1)
	}
	e := load.End{Cong: f.congestion(), Procs: runtime.GOMAXPROCS(0), Kernel: kernelRelease(), Go: runtime.Version(), Govs: version()}
	cpus, err := pin.CPUs()
	if err == nil && len(cpus) == 1 {
		e.CPU = strconv.Itoa(cpus[0])
	}
	return e, err
}

// congestion returns the congestion control for the sockets, or "" for the system's default.
func (f *perfFlags) congestion() string {
	if f.Cong == "system" {
		return ""
	}
	return f.Cong
}

// checkCongestion returns an error for a bad name of a congestion control, before each socket fails
// with it.
func checkCongestion(flag, name string) error {
	if name == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err = unix.SetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION, name); err == nil {
		return nil
	}
	// The kernel loads modules on demand, so more names may work.
	list, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	return fmt.Errorf("%s %s: this machine has %s: %w", flag, name, oneLine(string(list)), err)
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// open opens the device.
func (c *perfRDMACmd) open(out *output, addr netip.Addr, self *load.End) (*ibverbs.Context, error) {
	opts := new(engine.Options)
	opts.TCP.CongestionControl = c.congestion()
	if c.CRC == "off" {
		opts.CRC = engine.CRCOff
	}
	if opts.BusyWait = c.BusyWait; c.BusyWait == 0 {
		opts.BusyWait = -1
	}
	vctx, why, err := openProvider(c.Provider, addr, opts)
	if err != nil {
		if bad := checkCongestion("--cong", c.congestion()); bad != nil && c.Provider != "kernel" {
			err = bad // the engine's own error would not name the option
		}
		return nil, unable(err)
	}
	fmt.Fprintln(out.errors, why)
	self.Provider, self.Device = vctx.Provider(), vctx.Name()
	if self.Provider == "engine" {
		self.CRC, self.BusyWait = c.CRC, c.BusyWait.String()
	} else {
		self.Cong = "" // the kernel's sockets cannot be configured
	}
	return vctx, nil
}

// Run measures, or serves.
func (c *perfRDMACmd) Run(ctx context.Context, k *kong.Context, out *output) error {
	if c.Self {
		return c.self(ctx, k, out)
	}
	return c.inProcess(ctx, func(addr netip.AddrPort, self load.End) (err error) {
		vctx, err := c.open(out, addr.Addr(), &self)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, vctx.Close()) }()
		if c.Listen != "" {
			s, err := load.Listen(ctx, vctx, addr, self)
			if err != nil {
				return unable(err)
			}
			return c.serve(ctx, out, s)
		}
		client, err := load.Dial(ctx, vctx, addr, self)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, client.Close()) }()
		return c.measure(ctx, out, c.spec(opOf(k)), client.Run, self, client.Peer())
	})
}

// Run measures, or serves.
func (c *perfTCPCmd) Run(ctx context.Context, k *kong.Context, out *output) error {
	return c.inProcess(ctx, func(addr netip.AddrPort, self load.End) (err error) {
		self.Provider = "tcp"
		if err := checkCongestion("--cong", c.congestion()); err != nil {
			return unable(err)
		}
		if c.Listen != "" {
			s, err := rawtcp.Listen(ctx, addr, rawtcp.TCP(c.congestion()))
			if err != nil {
				return unable(err)
			}
			return c.serve(ctx, out, s)
		}
		client, err := rawtcp.Dial(ctx, addr, rawtcp.TCP(c.congestion()))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, client.Close()) }()
		return c.measure(ctx, out, c.spec(opOf(k)), client.Run, self, load.End{Provider: "tcp"})
	})
}

// inProcess runs do in this process as the flags require: on the given CPU, with profiles, and
// until ctx ends.
func (f *perfFlags) inProcess(ctx context.Context, do func(addr netip.AddrPort, self load.End) error) error {
	addr, err := resolve(ctx, f.Addr+f.Listen, f.Listen != "" || f.both)
	if err != nil {
		return unable(interrupted(ctx, err))
	}
	self, err := f.settle()
	if err != nil {
		return err
	}
	stop, err := f.profile()
	if err != nil {
		return err
	}
	err = do(addr, self)
	return interrupted(ctx, errors.Join(err, stop()))
}

// interrupted returns err, or an error that reports the interruption if ctx has ended.
func interrupted(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return err
}

// perfServer is a server of either kind.
type perfServer interface {
	Addr() netip.AddrPort
	Serve(ctx context.Context, n int) error
	Close() error
}

// serve serves clients.
func (f *perfFlags) serve(ctx context.Context, out *output, s perfServer) error {
	fmt.Fprintf(out.errors, "listening on %s\n", s.Addr())
	err := s.Serve(ctx, f.Serve)
	if f.Serve == 0 && errors.Is(err, context.Canceled) {
		err = nil // the normal end
	}
	return errors.Join(err, s.Close())
}

// describe returns a text with the conditions of a run.
func describe(s load.Spec, client, server load.End) string {
	parts := []string{string(s.Poll)}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if s.TxDepth > 1 {
		qps := "1 QP"
		if s.QPs > 1 {
			qps = fmt.Sprintf("%d QPs", s.QPs)
		}
		add("%s, %d outstanding in lists of %d", qps, s.TxDepth, s.PostList)
	}
	if s.Bidirectional {
		add("bidirectional")
	}
	if client.CRC != "" && server.CRC != "" && client.CRC != server.CRC {
		add("with CRC, as one end asks for it")
	}
	for _, e := range []struct {
		what string
		end  load.End
	}{{"client", client}, {"server", server}} {
		text := e.what + " " + strings.TrimSpace(e.end.Provider+" "+e.end.Device)
		if e.end.CRC != "" {
			text += " CRC " + e.end.CRC
		}
		if e.end.BusyWait != "" && s.Poll == load.Block {
			text += " looks " + e.end.BusyWait + " before it sleeps"
		}
		if e.end.Cong != "" {
			text += " " + e.end.Cong
		}
		if e.end.CPU != "" {
			text += " on CPU " + e.end.CPU
		}
		if e.end.Procs > 0 {
			text += fmt.Sprintf(" GOMAXPROCS %d", e.end.Procs)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}
