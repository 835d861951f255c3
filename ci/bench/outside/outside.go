// Package outside runs the benchmarks of UCX, libfabric and perftest, with both ends on this
// machine, and reads what they print.
//
// Options have the programs' defaults where there are defaults, and choose the transport of this
// comparison: TCP, or for perftest an RDMA device. None of the programs has an option for the
// congestion control, so the system's or the route's applies.
package outside

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ci/bench/worker"
)

// A Test is one run of a program.
type Test struct {
	Program string // one of those below
	Size    int    // bytes of a message
	Iters   int    // messages, or round trips
	Warmup  int    `json:",omitempty"` // UCX only: messages before the measured ones
	NoCRC   bool   `json:",omitempty"` // over the bridge: connections have no CRC
}

// The programs, named after what they measure.
const (
	UCXPutBW    = "ucx-put-bw"    // ucx_perftest -t ucp_put_bw
	UCXTagBW    = "ucx-tag-bw"    // ucx_perftest -t tag_bw
	UCXTagLat   = "ucx-tag-lat"   // ucx_perftest -t tag_lat
	FabricPing  = "libfabric"     // fi_pingpong, a message each way
	VerbsWrite  = "perftest-bw"   // ib_write_bw over librdmacm
	VerbsSendPP = "perftest-send" // ib_send_lat over librdmacm

	ExecWrite  = "exec-perftest-bw"   // ib_write_bw over the bridge
	ExecSendPP = "exec-perftest-send" // ib_send_lat over the bridge
)

// A Result is what a program prints about a run. Values that it does not print are zero.
type Result struct {
	GBps float64       `json:",omitempty"` // 10^9 bytes of payload per second, in one direction
	RTT  time.Duration `json:",omitempty"` // round trip: median, or mean if only that is printed
}

// A Pair says where both ends of a program run.
type Pair struct {
	ClientCPU, ServerCPU int // the CPUs that they are pinned to; -1: not pinned
	Addr                 netip.Addr
	Netdev               string // of Addr, for UCX
	Device               string // RDMA device of Addr, for perftest

	// Exec is the command that runs a C program over the bridge, with its flags. Only the CRC and
	// the program have to be added.
	Exec []string
}

// program describes how to call a program, and how to read its output.
type program struct {
	binary  string
	version []string // the command that prints its version
	pkg     string   // of Debian
	bridged bool     // it runs with Pair.Exec
	env     func(Pair) []string
	server  func(p Pair, t Test, port int) []string
	client  func(p Pair, t Test, port int) []string
	parse   func(t Test, stdout string) (Result, error)

	// early reports whether a client has failed because it connected before its server listened, if
	// only the two programs can prevent that. It is nil if there is no such case.
	early func(client *process) bool
}

func lookup(name string) (program, error) {
	p, ok := programs[name]
	if !ok {
		return program{}, fmt.Errorf("no program %q", name)
	}
	return p, nil
}

// Usable returns why a program can't run on this machine, or nil if it can.
func Usable(name string) error {
	p, err := lookup(name)
	if err != nil {
		return err
	}
	if _, err := exec.LookPath(p.binary); err != nil {
		return fmt.Errorf("%s is not installed (package %s; ci/deps bench adds it)", p.binary, p.pkg)
	}
	return nil
}

// Package returns the Debian package of a program.
func Package(name string) string { return programs[name].pkg }

// Version returns the first line that a program, or its package, prints about its version, or ""
// if it prints none.
func Version(ctx context.Context, name string) string {
	p, err := lookup(name)
	if err != nil {
		return ""
	}
	out, err := exec.CommandContext(ctx, p.version[0], p.version[1:]...).CombinedOutput()
	if err != nil && len(out) == 0 {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimSpace(strings.TrimLeft(line, "# "))
}

// The time that a server may take until it listens, on a machine with other work, and the number of
// attempts if the client connected too early.
var (
	listenLimit = 2 * time.Minute
	mostRuns    = 5
)

// errEarly is the error of a client that connected before its server listened.
var errEarly = errors.New("it seems that the client came before its server listened")

// Run runs both ends and returns what the client printed. When ctx ends, both are killed.
func (p Pair) Run(ctx context.Context, t Test) (Result, error) {
	if err := Usable(t.Program); err != nil {
		return Result{}, err
	}
	if t.Size < 1 || t.Iters < 1 || t.Warmup < 0 {
		return Result{}, fmt.Errorf("%s: %d messages of %d bytes after %d: impossible", t.Program, t.Iters, t.Size, t.Warmup)
	}
	prog := programs[t.Program]
	if prog.bridged && len(p.Exec) == 0 {
		return Result{}, fmt.Errorf("%s: no command runs programs over the bridge", t.Program)
	}
	for runs := 1; ; runs++ {
		r, err := p.run(ctx, prog, t)
		if !errors.Is(err, errEarly) || ctx.Err() != nil {
			return r, err
		}
		if runs == mostRuns {
			return Result{}, fmt.Errorf("%d runs, the last of them: %w", runs, err)
		}
	}
}

// run makes one attempt of Run.
func (p Pair) run(ctx context.Context, prog program, t Test) (Result, error) {
	port, err := freePort(p.Addr)
	if err != nil {
		return Result{}, err
	}
	// The server is ended in every case.
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	server, err := p.start(ctx, prog, p.command(prog, t, prog.server(p, t, port)), p.ServerCPU)
	if err != nil {
		return Result{}, err
	}
	defer func() {
		stop()
		<-server.done
	}()
	if err := server.listening(ctx, port); err != nil {
		return Result{}, fmt.Errorf("%s, server: %w", prog.binary, err)
	}
	client, err := p.start(ctx, prog, p.command(prog, t, prog.client(p, t, port)), p.ClientCPU)
	if err != nil {
		return Result{}, err
	}
	<-client.done
	if client.err != nil {
		err := errors.Join(ctx.Err(), client.failure())
		if prog.early != nil && prog.early(client) {
			err = fmt.Errorf("%w: %w", errEarly, err)
		}
		return Result{}, fmt.Errorf("%s: %w", client.cmd, err)
	}
	r, err := prog.parse(t, client.stdout.String())
	if err != nil {
		return Result{}, fmt.Errorf("%s: %w in its output:\n%s", client.cmd, err, client.stdout.String())
	}
	return r, nil
}

// command returns the command of a program with its arguments.
func (p Pair) command(prog program, t Test, args []string) []string {
	args = append([]string{prog.binary}, args...)
	if !prog.bridged {
		return args
	}
	crc := "preferred"
	if t.NoCRC {
		crc = "off"
	}
	return slices.Concat(p.Exec, []string{"--crc", crc, "--"}, args)
}

// process is a running program.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr bytes.Buffer
	done           chan struct{} // closed when it has ended
	err            error         // of Wait, then
}

func (p Pair) start(ctx context.Context, prog program, command []string, cpu int) (*process, error) {
	pr := &process{cmd: exec.CommandContext(ctx, command[0], command[1:]...), done: make(chan struct{})}
	pr.cmd.Stdout, pr.cmd.Stderr = &pr.stdout, &pr.stderr
	pr.cmd.WaitDelay = time.Second
	if prog.env != nil {
		pr.cmd.Env = append(pr.cmd.Environ(), prog.env(p)...)
	}
	var err error
	if cpu >= 0 {
		err = worker.OnCPU(pr.cmd, cpu)
	}
	if err == nil {
		err = pr.cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", prog.binary, err)
	}
	go func() {
		pr.err = pr.cmd.Wait()
		close(pr.done)
	}()
	return pr, nil
}

// failure returns the error of an ended program, with the end of its output.
func (pr *process) failure() error {
	said := strings.TrimSpace(pr.stderr.String())
	if said == "" {
		said = strings.TrimSpace(pr.stdout.String())
	}
	const tail = 400
	if len(said) > tail {
		said = "..." + said[len(said)-tail:]
	}
	return fmt.Errorf("%w: %s", pr.err, said)
}

// listening waits until a socket listens at the port. It does not try to connect, because these
// servers serve only one client.
func (pr *process) listening(ctx context.Context, port int) error {
	limit := time.NewTimer(listenLimit)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		there, err := listens(port)
		if there || err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-limit.C:
			return fmt.Errorf("it does not listen at port %d after %v", port, listenLimit)
		case <-ctx.Done():
			return ctx.Err()
		case <-pr.done:
			if pr.err == nil {
				return errors.New("ended before it listened")
			}
			return pr.failure()
		}
	}
}

// freePort finds a TCP port at which no socket listens.
func freePort(addr netip.Addr) (int, error) {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

// number reads a number of an output, and its suffix, if any: k, m or g, by which fi_pingpong
// means multiples of 1024.
func number(text string) (float64, error) {
	unit := 1.0
	for i, suffix := range []string{"k", "m", "g"} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			text, unit = rest, float64(int(1)<<(10*(i+1)))
		}
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is no number", text)
	}
	return n * unit, nil
}

// micros returns a duration of so many microseconds.
func micros(us float64) time.Duration { return time.Duration(us * float64(time.Microsecond)) }

var errNoResult = fmt.Errorf("no result: %w", io.ErrUnexpectedEOF)

// listens reports whether a TCP socket of this network namespace listens at the port, at any
// address. The kernel's own sockets, such as siw's, count.
func listens(port int) (bool, error) {
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		found, err := listensIn(file, port)
		if found {
			return true, nil
		}
		if err != nil && !os.IsNotExist(err) { // without IPv6 there is no tcp6
			return false, err
		}
	}
	return false, nil
}

// listensIn searches one of the kernel's tables: the fields of each row are a number, the local and
// the remote address, and the state.
func listensIn(file string, port int) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	const stateListen = "0A"
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 || fields[3] != stateListen {
			continue
		}
		_, text, _ := strings.Cut(fields[1], ":")
		if n, err := strconv.ParseUint(text, 16, 16); err == nil && int(n) == port {
			return true, nil
		}
	}
	return false, lines.Err()
}
