// Command govs-verbs-test tests iWARP stacks: it runs verbs and wire scenarios
// over any pairing of the engine and the kernel, compares what happened, and
// explains the differences. It also lists devices, manages RDMA links, decodes
// captures, speaks rping's and rsocket's protocols, and runs commands in a virtual
// machine with siw.
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
	"reflect"
	"strings"
	"syscall"

	"github.com/alecthomas/kong"
)

// Exit statuses.
const (
	exitPassed = 0
	exitFailed = 1 // the command ran, and something did not pass
	exitUsage  = 2 // wrong usage, or the environment lacks something
)

const name = "govs-verbs-test"

// errFailed ends a command that has already printed why it failed.
var errFailed = errors.New("failed")

// A usageError reports wrong usage, or something that the machine lacks and how to add it. The exit
// status is 2.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// unable wraps err in a usageError; nil stays nil.
func unable(err error) error {
	if err == nil {
		return nil
	}
	return &usageError{err}
}

// cli is the command line.
type cli struct {
	Version kong.VersionFlag `help:"Print the version and end."`

	Devices devicesCmd `cmd:"" help:"List the RDMA devices of both providers."`
	Link    linkCmd    `cmd:"" help:"List, add and delete RDMA links of the kernel (siw, rxe)."`
	List    listCmd    `cmd:"" help:"List the scenarios of the suite."`
	Run     runCmd     `cmd:"" help:"Run scenarios, judge them and write reports."`
	Compare compareCmd `cmd:"" help:"Judge the runs that run --collect has collected, and write reports."`
	Profile profileCmd `cmd:"" help:"List, print and check profiles: what is known of the stacks under test."`
	Decode  decodeCmd  `cmd:"" help:"Print the iWARP in a capture file as a ladder."`
	Diff    diffCmd    `cmd:"" help:"Compare the iWARP in two capture files."`
	Replay  replayCmd  `cmd:"" help:"Play one side of a capture to the engine, and compare what it does."`
	Fuzz    fuzzCmd    `cmd:"" help:"Play random sequences of frames to engine and kernel, and compare what they do."`
	Ping    pingCmd    `cmd:"" help:"Exchange data with the C program rping, or with another ping."`
	Stream  streamCmd  `cmd:"" help:"Connect stdin and stdout over RDMA (rsockets), or measure with rstream."`
	Perf    perfCmd    `cmd:"" help:"Measure bandwidth and latency."`
	Agent   agentCmd   `cmd:"" help:"Serve this host's devices to a run on another host."`
	Exec    execCmd    `cmd:"" help:"Run a C program of libibverbs and librdmacm over the Go engine."`
	VM      vmCmd      `cmd:"" name:"vm" help:"Run a command in a virtual machine that has siw, and rxe."`
}

// grammar returns a cli for kong. If args begins with the name of a command, the cli contains only
// that command, because parsing all of them takes kong a quarter of a command's start time.
func grammar(args []string) any {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[cli]()) {
		if _, command := f.Tag.Lookup("cmd"); command && len(args) > 0 && args[0] == strings.ToLower(f.Name) {
			version, _ := reflect.TypeFor[cli]().FieldByName("Version")
			return reflect.New(reflect.StructOf([]reflect.StructField{version, f})).Interface()
		}
	}
	return new(cli)
}

const description = `Test iWARP stacks: the Go engine and the Linux kernel (siw), against each other and against the RFCs.

Exit status: 0 if all passed, 1 for a failure, 2 for wrong usage or a machine that lacks what the command needs.`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// The first signal ends running work in order. If that takes too long, a second signal ends the
	// process as usual.
	context.AfterFunc(ctx, stop)
	// A reader that closes the pipe early, as head does, makes Write fail instead of
	// ending the process, so that a run can remove its temporary files.
	signal.Ignore(syscall.SIGPIPE)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run executes a command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	out := &output{stdout: stdout, errors: stderr, stop: stop}
	status := execute(ctx, args, out)
	if out.err == nil {
		return status
	}
	if !errors.Is(out.err, syscall.EPIPE) { // the reader has closed the pipe: no message
		fmt.Fprintf(stderr, "%s: writing the output: %v\n", name, out.err)
	}
	return max(status, exitFailed)
}

func execute(ctx context.Context, args []string, out *output) int {
	helped := false
	parser := kong.Must(grammar(args),
		kong.Name(name),
		kong.Description(description),
		kong.Vars{"version": name + " " + version()},
		kong.Writers(out, out.errors),
		kong.Exit(func(int) { helped = true }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.BindTo(ctx, (*context.Context)(nil)),
		kong.Bind(out),
	)
	if len(args) == 0 {
		_, _ = parser.Parse([]string{"--help"})
		return exitUsage
	}
	describePerf(parser.Model)
	k, err := parser.Parse(prepared(parser.Model, args))
	if helped {
		return exitPassed
	}
	if err != nil {
		fmt.Fprintf(out.errors, "%s: %v\nRun %s --help, or any of its commands with --help.\n", name, explained(err), name)
		return exitUsage
	}
	err = k.Run()
	if err == nil {
		return exitPassed
	}
	if !errors.Is(err, errFailed) && out.err == nil {
		fmt.Fprintf(out.errors, "%s: %v\n", name, err)
	}
	var usage *usageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	return exitFailed
}
