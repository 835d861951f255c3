package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/govs-rdma/govs/ci/bench/figures"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/kernel"
)

// figuresCmd are the flags of figures.
type figuresCmd struct {
	cfg          figures.Config
	command, siw string
	svg          string
	output
}

func (c *figuresCmd) parse(args []string, stderr io.Writer) error {
	flags := flag.NewFlagSet("figures", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&c.command, "command", "out/bin/govs-verbs-test", "the command whose ends measure")
	flags.IntVar(&c.cfg.Rounds, "rounds", 7, "measure everything so often")
	flags.DurationVar(&c.cfg.Time, "time-per", 300*time.Millisecond, "how long each measurement takes")
	flags.StringVar(&c.cfg.Only, "only", "", "only ids like these `patterns`, with commas between them")
	flags.StringVar(&c.siw, "siw", "", "measure siw, of this `build`: default has CRC off, crc requires it")
	flags.BoolVar(&c.cfg.Separate, "separate", false, "the network is as the script run makes it")
	flags.IntVar(&c.cfg.ClientCPU, "client-cpu", 0, "the client's CPU")
	flags.IntVar(&c.cfg.ServerCPU, "server-cpu", 1, "the server's CPU")
	flags.IntVar(&c.cfg.Procs, "procs", 1, "GOMAXPROCS of each end")
	flags.StringVar(&c.svg, "svg", "", "write the plot into this `folder`")
	c.output.flags(flags)
	if err := parse(flags, args); err != nil {
		return err
	}
	if err := c.cfg.Check(); err != nil {
		return usageError{err}
	}
	c.cfg.Worker = []string{c.command, "perf", "end", "--cong", figures.Cong}
	c.cfg.Exec = []string{c.command, "exec", "--congestion", figures.Cong}
	return c.check()
}

func measureFigures(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var c figuresCmd
	if err := c.parse(args, stderr); err != nil {
		return err
	}
	cfg := &c.cfg
	cfg.Say = sayTo(stderr)
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cfg.IdleWorker = []string{self, "idle-end"}
	if c.siw != "" {
		if cfg.Kernel, err = findSiw(c.siw == "crc"); err != nil {
			return usageError{err}
		}
	}
	rep, err := figures.Run(ctx, *cfg)
	if err != nil {
		return err
	}
	if err := c.write(rep, stdout); err != nil || c.svg == "" {
		return err
	}
	return rep.WriteSVG(c.svg)
}

// findSiw finds the first iWARP device of the kernel, and its address.
func findSiw(crc bool) (*figures.KernelDevice, error) {
	devices, err := kernel.New().Devices()
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		if d.Transport != provider.TransportIWARP {
			continue
		}
		ifc, err := net.InterfaceByName(d.Netdev)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Name, err)
		}
		addrs, err := ifc.Addrs()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", d.Name, err)
		}
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				return &figures.KernelDevice{Name: d.Name, Addr: p.Addr(), CRC: crc}, nil
			}
		}
	}
	return nil, errors.New("no device of siw with an IPv4 address (ci/bench/run guest boots one that has it)")
}
