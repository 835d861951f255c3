// Command govs-verbs-test tests iWARP stacks: it runs verbs and wire scenarios
// over any pairing of the engine and the kernel, compares what happened, and
// explains the differences. It also lists devices, manages RDMA links, decodes
// captures and speaks rping's protocol.
//
// See govs-verbs-test --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit statuses.
const (
	exitPassed = 0
	exitFailed = 1 // something was tried and did not pass
	exitUsage  = 2 // wrong usage, or an environment that can't do it
)

// errFailed ends a command that has said all there is to say: something did not
// pass.
var errFailed = errors.New("failed")

// An environmentError is about what the machine lacks, and says what adds it.
type environmentError struct{ err error }

func (e *environmentError) Error() string { return e.err.Error() }
func (e *environmentError) Unwrap() error { return e.err }

// cli is the command line.
type cli struct {
	Devices devicesCmd `cmd:"" help:"List the RDMA devices of both providers."`
	Link    linkCmd    `cmd:"" help:"List, add and delete RDMA links of the kernel (siw, rxe)."`
	List    listCmd    `cmd:"" help:"List the scenarios of the suite."`
	Run     runCmd     `cmd:"" help:"Run scenarios, judge them and write reports."`
	Compare compareCmd `cmd:"" help:"Judge what run --collect brought, and write reports."`
	Decode  decodeCmd  `cmd:"" help:"Print the iWARP in a capture file as a ladder."`
	Ping    pingCmd    `cmd:"" help:"Exchange data with an rping, ours or the C one."`
}

// output is where commands print.
type output struct {
	io.Writer
	errors io.Writer
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (status int) {
	var c cli
	exited := false
	parser := kong.Must(&c,
		kong.Name("govs-verbs-test"),
		kong.Description("Test iWARP stacks: the Go engine and the Linux kernel (siw), against each other and against the RFCs.\n\n"+
			"Exit status: 0 if all passed, 1 for a failure, 2 for wrong usage or an environment that can't do it."),
		kong.Writers(stdout, stderr),
		kong.Exit(func(int) { exited = true }),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true}),
		kong.BindTo(ctx, (*context.Context)(nil)),
	)
	if len(args) == 0 {
		args = []string{"--help"}
		status = exitUsage
	}
	k, err := parser.Parse(args)
	if exited { // --help has printed what there is
		return status
	}
	if err != nil {
		fmt.Fprintf(stderr, "govs-verbs-test: %v\n", err)
		fmt.Fprintln(stderr, "Run govs-verbs-test --help, or any of its commands with --help.")
		return exitUsage
	}
	err = k.Run(&output{stdout, stderr})
	var env *environmentError
	switch {
	case err == nil:
		return exitPassed
	case errors.Is(err, errFailed):
		return exitFailed
	case errors.As(err, &env):
		fmt.Fprintf(stderr, "govs-verbs-test: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "govs-verbs-test: %v\n", err)
	return exitFailed
}
