package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/bench/victim"
	"github.com/govs-rdma/govs/ci/bench/worker"
)

// errBeyond reports results that are not within their limits.
var errBeyond = errors.New("not everything is within its limit")

// parseVictim reads the flags of victim.
func parseVictim(args []string, f *output, stderr io.Writer) (*victim.Config, error) {
	c := &victim.Config{}
	flags := flag.NewFlagSet("victim", flag.ContinueOnError)
	flags.SetOutput(stderr)
	kinds := flags.String("kind", "", "kinds of hostile peers, with commas between them (default all)")
	peers := flags.String("peers", "1,64", "numbers of hostile peers")
	poll := flags.String("poll", "block,spin", "how the server waits for requests")
	flags.DurationVar(&c.Time, "time", 2*time.Second, "how long each measurement takes")
	flags.IntVar(&c.Rounds, "rounds", 5, "measure everything so often")
	flags.DurationVar(&c.Every, "every", 500*time.Microsecond, "time from one request to the next")
	flags.IntVar(&c.ServerCPU, "server-cpu", 1, "the server's CPU, which neither the client nor the peers may have")
	flags.IntVar(&c.ClientCPU, "client-cpu", 0, "the CPU of the victim's client")
	flags.IntVar(&c.HostileCPU, "hostile-cpu", -1, "the hostile peers' CPU (default a third one, or the client's)")
	flags.BoolVar(&c.Normal, "normal", false, "the hostile peers have the scheduler's usual policy, not SCHED_IDLE")
	f.flags(flags)
	if err := parse(flags, args); err != nil {
		return nil, err
	}
	if c.Kinds = victim.Kinds(); *kinds != "" {
		c.Kinds = nil
		for k := range strings.SplitSeq(*kinds, ",") {
			c.Kinds = append(c.Kinds, victim.Kind(k))
		}
	}
	for p := range strings.SplitSeq(*poll, ",") {
		c.Polls = append(c.Polls, load.Poll(p))
	}
	for n := range strings.SplitSeq(*peers, ",") {
		number, err := strconv.Atoi(n)
		if err != nil {
			return nil, usageError{fmt.Errorf("-peers %s: %w", *peers, err)}
		}
		c.Peers = append(c.Peers, number)
	}
	if c.HostileCPU < 0 {
		c.HostileCPU = c.ClientCPU
		cpus, _ := worker.CPUs() // if this fails, so does what follows
		for _, cpu := range cpus {
			if cpu != c.ServerCPU && cpu != c.ClientCPU {
				c.HostileCPU = cpu
				break
			}
		}
	}
	if err := c.Check(); err != nil {
		return nil, usageError{err}
	}
	return c, f.check()
}

func measureVictim(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	var f output
	c, err := parseVictim(args, &f, stderr)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c.Worker, c.Say = []string{self, "victim-end"}, sayTo(stderr)
	rep, err := victim.Run(ctx, *c)
	if err != nil {
		return err
	}
	var name unix.Utsname
	if err := unix.Uname(&name); err == nil {
		rep.Conditions["kernel"] = unix.ByteSliceToString(name.Release[:])
	}
	if err := f.write(rep, stdout); err != nil {
		return err
	}
	if !rep.Within() {
		return errBeyond
	}
	return nil
}
