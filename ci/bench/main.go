// Command govs-bench measures the figures of docs/benchmarks. The script run builds and
// starts it.
//
// It starts processes of govs-verbs-test (perf end), each pinned to a CPU. They measure the engine,
// raw TCP in Go and siw in turns with UCX, libfabric and perftest.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/govs-rdma/govs/ci/bench/figures"
	"github.com/govs-rdma/govs/ci/bench/victim"
	"github.com/govs-rdma/govs/ci/bench/worker"
)

// Exit statuses.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is the error of a request that can't be measured.
type usageError struct{ error }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	var usage usageError
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return
	case ctx.Err() != nil:
		err = errors.New("interrupted")
	}
	fmt.Fprintln(os.Stderr, "govs-bench:", err)
	stop()
	if errors.As(err, &usage) {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailed)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		return usageError{errors.New("usage: govs-bench figures|victim [flags]; each has -h")}
	}
	switch args[0] {
	case "figures":
		return measureFigures(ctx, args[1:], stdout, stderr)
	case "victim":
		return measureVictim(ctx, args[1:], stdout, stderr)
	case "idle-end", "victim-end": // processes that the others start
		in, err := worker.Stdin()
		if err != nil {
			return err
		}
		if args[0] == "idle-end" {
			return figures.ServeIdle(ctx, in, stdout)
		}
		return victim.Serve(ctx, victim.Role(args[1]), in, stdout)
	}
	return usageError{fmt.Errorf("%s: figures or victim", args[0])}
}

// parse reads flags, and refuses arguments.
func parse(flags *flag.FlagSet, args []string) error {
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil {
		return usageError{err}
	}
	if flags.NArg() > 0 {
		return usageError{fmt.Errorf("unexpected argument %s", flags.Arg(0))}
	}
	return nil
}

// output is the file that a report is written to, besides stdout.
type output struct{ markdown string }

func (o *output) flags(flags *flag.FlagSet) {
	flags.StringVar(&o.markdown, "markdown", "", "write the tables to this `file`")
}

// check finds a file that can't be written before the measurement begins.
func (o *output) check() error {
	if o.markdown == "" {
		return nil
	}
	if info, err := os.Stat(filepath.Dir(o.markdown)); err != nil || !info.IsDir() {
		return usageError{fmt.Errorf("-markdown %s: there is no such folder", o.markdown)}
	}
	return nil
}

// write writes what is printed to stdout and to the file.
func (o *output) write(rep interface{ Markdown(io.Writer) error }, stdout io.Writer) error {
	if err := rep.Markdown(stdout); err != nil || o.markdown == "" {
		return err
	}
	file, err := os.Create(o.markdown)
	if err != nil {
		return err
	}
	return errors.Join(rep.Markdown(file), file.Close())
}

// sayTo reports progress.
func sayTo(w io.Writer) func(string, ...any) {
	return func(format string, args ...any) { fmt.Fprintf(w, format+"\n", args...) }
}
