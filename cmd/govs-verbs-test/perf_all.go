package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/alecthomas/kong"

	perffigures "github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/figures"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/worker"
)

// perfAllCmd measures the figures that govs promises.
type perfAllCmd struct {
	Rounds    int     `short:"r" default:"7" help:"Measure everything N times. Default 7." placeholder:"N"`
	TimePer   seconds `short:"D" default:"300ms" help:"How long each measurement takes. Default 300ms." placeholder:"TIME"`
	Only      string  `help:"Only figures and plots with ids like 'write_*' or bandwidth." placeholder:"GLOB,..."`
	Provider  string  `enum:"auto,engine,both" default:"auto" help:"What to measure: engine; both: engine and siw; auto: both if there is a usable siw device. Default auto." placeholder:"PROVIDER"`
	Siw       string  `enum:"default,crc,p2p" default:"default" env:"VM_SIW" help:"Which build of siw this machine has: default has CRC off, crc requires it, p2p asks for peer-to-peer mode. Default: as ci/vm/run says." placeholder:"VARIANT"`
	Cong      string  `default:"cubic" help:"TCP congestion control of all that is measured; system: the system's default. Default cubic." placeholder:"NAME"`
	ClientCPU int     `default:"0" help:"The client's CPU. Default 0." placeholder:"N"`
	ServerCPU int     `default:"1" help:"The server's CPU. Default 1." placeholder:"N"`
	Procs     int     `default:"1" help:"GOMAXPROCS of each end. Default 1." placeholder:"N"`

	perfFiles

	With []string `help:"Take figures that this run lacks from the JSON of an earlier run." placeholder:"FILE"`
}

// Help implements kong's HelpProvider.
func (*perfAllCmd) Help() string {
	return `Starts two processes of this program, each pinned to a CPU, and has them measure the engine, raw TCP in Go and, where they are installed, ` +
		`UCX (ucx_perftest), libfabric (fi_pingpong) and perftest over the engine (exec). Where there is a siw device, they measure siw and perftest over it, too. ` +
		`Each round measures everything once. A figure is the median over the rounds of the ratio in each.

Figures of the path (path-*) come first. Their ends are in two network namespaces, joined by ` +
		`veth with an MTU of 1500 and of 9000, and with a delay of 0.1 ms in each direction where the kernel has netem.

Two values belong to a figure, its goals: REACH, the one to reach, and AIM, a better one to aim for. ` +
		`The last column has the better of the two that the median meets, reach or aim, or else missed; ` +
		`or why the figure is missing. ` +
		`The file of --markdown says what each figure compares, and has further ratios, which have no goals. ` +
		`docs/benchmarks in the source has the files of one run, and says how to read them.

It runs in a network namespace of its own where the system lets it (as root, or where user namespaces are allowed). ` +
		"--only takes several patterns with commas between them."
}

// Validate implements kong's check.
func (c *perfAllCmd) Validate(k *kong.Context) error {
	if err := checkOnly(k, c.Only); err != nil {
		return err
	}
	if err := c.config().Check(); err != nil {
		return err
	}
	if err := c.check(); err != nil {
		return err
	}
	for _, file := range c.With {
		if _, err := readFigures(file); err != nil {
			return err
		}
	}
	return nil
}

func (c *perfAllCmd) config() perffigures.Config {
	f := perffigures.Config{
		Rounds: c.Rounds, Time: time.Duration(c.TimePer), Only: c.Only, ClientCPU: c.ClientCPU, ServerCPU: c.ServerCPU,
		Procs: c.Procs, Cong: c.Cong,
	}
	if c.Cong == "system" {
		f.Cong = ""
	}
	return f
}

// separated, in the environment, says that this process has a network namespace to
// itself, and why siw, which is not in there, is left out.
const separated = "GOVS_PERF_SEPARATE_NETWORK"

// Run measures.
func (c *perfAllCmd) Run(ctx context.Context, k *kong.Context, out *output) error {
	cfg := c.config()
	cfg.Say = func(format string, args ...any) { fmt.Fprintf(out.errors, format+"\n", args...) }
	if err := usableCPUs(cfg.ClientCPU, cfg.ServerCPU); err != nil {
		return unable(err)
	}
	if err := checkCongestion("--cong", cfg.Cong); err != nil {
		return unable(err)
	}
	if err := c.findSiw(&cfg); err != nil {
		return unable(err)
	}
	switch {
	case os.Getenv(separated) != "":
		if err := perffigures.PrepareNetwork(ctx, cfg.Cong); err != nil {
			cfg.NoSplit = err.Error()
		}
	case cfg.Kernel != nil:
		cfg.NoSplit = "siw's is this machine's"
	default:
		err := c.separate(ctx, k, out, cfg.NoKernel)
		var denied *deniedError
		if !errors.As(err, &denied) {
			return err
		}
		cfg.NoSplit = denied.Error()
	}
	cfg.Separate = cfg.NoSplit == ""
	if !cfg.Separate {
		cfg.Say("no network namespace for this run: %s", cfg.NoSplit)
	}
	return c.measure(ctx, cfg, out)
}

// usableCPUs says whether this process may run on CPUs.
func usableCPUs(wanted ...int) error {
	have, err := pin.CPUs()
	if err != nil {
		return err
	}
	for _, cpu := range wanted {
		found := false
		for _, h := range have {
			found = found || h == cpu
		}
		if !found {
			return fmt.Errorf("this process may not run on CPU %d, only on %v (--client-cpu, --server-cpu)", cpu, have)
		}
	}
	return nil
}

// findSiw decides whether siw is measured.
func (c *perfAllCmd) findSiw(cfg *perffigures.Config) error {
	if cfg.NoKernel = os.Getenv(separated); cfg.NoKernel != "" {
		return nil
	}
	if c.Provider == "engine" {
		cfg.NoKernel = "left out (--provider engine)"
		return nil
	}
	k, err := findKernel(netip.Addr{})
	switch {
	case err == nil:
		cfg.Kernel = &perffigures.KernelDevice{Name: k.device, Addr: k.addr, CRC: c.Siw == "crc"}
	case c.Provider == "both":
		return err
	default:
		cfg.NoKernel = oneLine(err.Error())
	}
	return nil
}

// deniedError says that the system gives no network namespace.
type deniedError struct{ error }

// separate runs this command in a network namespace of its own.
func (c *perfAllCmd) separate(ctx context.Context, k *kong.Context, out *output, noKernel string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self, k.Args...)
	cmd.Env = append(os.Environ(), separated+"="+noKernel)
	cmd.Stdout, cmd.Stderr = out, out.errors
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 30 * time.Second
	perffigures.SeparateNetwork(cmd)
	if err := cmd.Start(); err != nil {
		return &deniedError{err}
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == exitUsage:
		return unable(errFailed) // it has said why
	case errors.As(err, &exit) && exit.Exited():
		return errFailed
	case ctx.Err() != nil:
		return errors.New("interrupted")
	}
	return err
}

func (c *perfAllCmd) measure(ctx context.Context, cfg perffigures.Config, out *output) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cfg.Worker = []string{self, "perf", "end", "--cong", c.Cong}
	cfg.Exec = []string{self, "exec"}
	if cfg.Cong != "" {
		cfg.Exec = append(cfg.Exec, "--congestion", cfg.Cong)
	}
	rep, err := perffigures.Run(ctx, cfg)
	if err != nil {
		return interrupted(ctx, err)
	}
	for _, file := range c.With {
		other, err := readFigures(file)
		if err != nil {
			return unable(err)
		}
		rep.Adopt(other)
	}
	if err := out.table([]string{"FIGURE", "MEDIAN", "MIN", "MAX", "ROUNDS", "REACH", "AIM", ""}, rep.Rows()); err != nil {
		return err
	}
	return c.write(rep)
}

func readFigures(name string) (*perffigures.Report, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var rep perffigures.Report
	if err := json.Unmarshal(text, &rep); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if rep.Figures == nil {
		return nil, fmt.Errorf("%s has no figures: it is not what perf all --json writes", name)
	}
	return &rep, nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// perfEndCmd is an end of perf all, which starts it and talks to it.
type perfEndCmd struct {
	Cong string `default:"cubic" help:"TCP congestion control."`
}

// Run carries out orders.
func (c *perfEndCmd) Run(ctx context.Context, out *output) error {
	f := perfFlags{Cong: c.Cong, CPU: -1}
	self, err := f.settle()
	if err != nil {
		return err
	}
	in, err := worker.Stdin()
	if err != nil {
		return err
	}
	return perffigures.Serve(ctx, in, out, self)
}
