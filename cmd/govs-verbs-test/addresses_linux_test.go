//go:build !race

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
)

// spellings are addresses to listen at, each with addresses that reach the listener. PORT is the
// listener's port, and SERVICE one of services, another for each
// endpoint. The network namespace of the test has lo with fe80::7, and nothing else.
//
// Programs pass addresses to the functions unchanged. So they test only spellings of another form:
// a name, a service, no host and a zone. They connect to the first address of each.
var spellings = []struct {
	listen   string
	dial     []string
	programs bool
}{
	{listen: "127.0.0.1:0", dial: []string{"127.0.0.1:PORT", "[::ffff:127.0.0.1]:PORT", "0.0.0.0:PORT", "localhost:PORT"}},
	{listen: "[::ffff:127.0.0.1]:0", dial: []string{"127.0.0.1:PORT"}},
	{listen: "localhost:0", dial: []string{"localhost:PORT"}},
	{listen: "localhost:SERVICE", dial: []string{"localhost:SERVICE", "127.0.0.1:PORT"}, programs: true},
	{listen: "[::1]:0", dial: []string{"[::1]:PORT"}},
	{listen: ":0", dial: []string{"127.0.0.1:PORT", "[::1]:PORT", ":PORT", "[::]:PORT"}, programs: true},
	{listen: "[fe80::7%lo]:0", dial: []string{"[fe80::7%lo]:PORT", "[fe80::7%1]:PORT"}, programs: true},
}

// An endpoint listens at an address as a user spells it, and connects to one.
type endpoint struct {
	name string
	// listen returns the listener's address.
	listen func(t *testing.T, address string) (got string)
	dial   func(t *testing.T, address string) error
	// program reports whether the endpoint is a program, and not a function.
	program bool
}

// services are names of ports that package net knows without a file.
var services = []string{"http", "https", "ftp", "ftps", "telnet", "smtp", "domain", "gopher", "pop3",
	"imap2", "imap3", "submission", "imaps", "pop3s", "ssh", "submissions"}

const inAddressNamespace = "GOVS_ADDRESSES"

// TestAddresses: every function that takes an address accepts each spelling, and every command and
// example accepts each spelling of another form.
func TestAddresses(t *testing.T) {
	dir := os.Getenv(inAddressNamespace)
	if dir == "" {
		testkit.NeedRoot(t, "network namespaces need root")
		dir = t.TempDir()
		buildExamples(t, dir, ".", "echo", "kv", "rpc", "pull", "9p", "rdma_client", "rdma_server")
		buildExamples(t, dir, "grpc", ".")
		cmd := exec.Command(os.Args[0], "-test.run=^TestAddresses$", "-test.v")
		cmd.Env = append(os.Environ(), inAddressNamespace+"="+dir, secretVariable+"="+testSecret)
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	ip(t, "link set lo up")
	ip(t, "address add fe80::7/64 dev lo nodad")
	t.Run("hosts", testHosts)
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	defer func() { testkit.OK(t, vctx.Close()) }()
	all := append(libraryEndpoints(vctx), programEndpoints(dir)...)
	nine := libraryEndpoints(vctx)[0]
	nine.name, nine.listen = "9p", func(t *testing.T, address string) string {
		return server(t, exec.Command(filepath.Join(dir, "9p"), "--provider", "engine", "--listen", address, dir))
	}
	for n, e := range append(all, nine) {
		t.Run(e.name, func(t *testing.T) {
			for _, s := range spellings {
				if e.program && !s.programs {
					continue
				}
				t.Run(s.listen, func(t *testing.T) {
					got := e.listen(t, strings.ReplaceAll(s.listen, "SERVICE", services[n]))
					_, port, err := net.SplitHostPort(got)
					testkit.OK(t, err)
					for i, address := range s.dial {
						if e.program && i > 0 {
							break
						}
						address = strings.NewReplacer("PORT", port, "SERVICE", services[n]).Replace(address)
						if err := e.dial(t, address); err != nil {
							t.Errorf("listening at %s, which is %s; connecting to %s: %v", s.listen, got, address, err)
						}
					}
				})
			}
		})
	}
}

// buildExamples builds packages of a module below ibverbs/examples, without the kernel provider,
// because then the go command links them without a C linker, in half the time.
func buildExamples(t *testing.T, dir, module string, packages ...string) {
	t.Helper()
	args := []string{"build", "-tags", "nokernel", "-o", dir + "/"}
	for _, p := range packages {
		args = append(args, "./"+p)
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = filepath.Join("../../ibverbs/examples", module)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
}

// hosts are addresses of this machine for options that take no port.
var hosts = []string{"127.0.0.1", "::ffff:127.0.0.1", "::1", "fe80::7%lo", "fe80::7%1"}

// testHosts: options that take an address of this machine accept each spelling.
func testHosts(t *testing.T) {
	b := newBridged(t)
	for _, host := range hosts {
		t.Run("run --addr "+host, func(t *testing.T) {
			p := startCmd(t, self(t, "run", "--no-tshark", "--only", "send/zero", "--initiator", "engine",
				"--responder", "engine", "--addr", host))
			p.want(t, 0)
		})
		if strings.Contains(host, ".") {
			continue // TestExecAddress: getaddrinfo has only IPv6 addresses here
		}
		t.Run("exec --address "+host, func(t *testing.T) {
			port := freePort()
			arguments := []string{"-v", "-C", "3", "-a", host, "-p", fmt.Sprint(port)}
			listening := startCmd(t, b.command([]string{"--address", host}, append([]string{"rping", "-s"}, arguments...)...))
			awaitListener(t, listening, port)
			startCmd(t, b.command([]string{"--address", host}, append([]string{"rping", "-c"}, arguments...)...)).want(t, 0)
			// TestExecPrograms checks its status, which was 255 here once (CONTRIBUTING.md).
			listening.wait(t)
			wantText(t, listening.String(), listening.stdout.String(), parts("server ping data: rdma-ping-2"))
		})
	}
}

// libraryEndpoints returns the functions.
func libraryEndpoints(vctx *ibverbs.Context) []endpoint {
	streamListen := func(t *testing.T, address string) string {
		l := testkit.Must(rsocket.Listen(t.Context(), vctx, "tcp", address))(t)
		served := make(chan struct{})
		go func() {
			defer close(served)
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				_ = c.Close()
			}
		}()
		t.Cleanup(func() {
			testkit.OK(t, l.Close())
			<-served
		})
		return l.Addr().String()
	}
	read := func(c net.Conn, err error) error {
		if err != nil {
			return err
		}
		_, err = c.Read(make([]byte, 1))
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return errors.Join(err, c.Close())
	}
	return []endpoint{
		{name: "rdmacm names", listen: func(t *testing.T, address string) string {
			l := testkit.Must(rdmacm.ListenName(t.Context(), vctx, address, nil))(t)
			t.Cleanup(func() { testkit.OK(t, l.Close()) })
			go serveConns(l)
			return l.Addr().String()
		}, dial: func(t *testing.T, address string) error {
			c, err := rdmacm.DialName(t.Context(), vctx, address, nil)
			if err != nil {
				return err
			}
			return c.Close()
		}},
		{name: "rdmacm addresses", listen: func(t *testing.T, address string) string {
			addrs := testkit.Must(rdmacm.GetAddrInfo(t.Context(), address, &rdmacm.AddrInfoHints{Passive: true}))(t)
			l := testkit.Must(rdmacm.Listen(t.Context(), vctx, addrs[0], nil))(t)
			t.Cleanup(func() { testkit.OK(t, l.Close()) })
			go serveConns(l)
			return l.Addr().String()
		}, dial: func(t *testing.T, address string) error {
			var errs []error
			for _, addr := range testkit.Must(rdmacm.GetAddrInfo(t.Context(), address, nil))(t) {
				c, err := rdmacm.Dial(t.Context(), vctx, addr, nil)
				if err == nil {
					return c.Close()
				}
				errs = append(errs, err)
			}
			return errors.Join(errs...)
		}},
		{name: "rsocket", listen: streamListen, dial: func(t *testing.T, address string) error {
			return errors.Join(read(rsocket.Dial(t.Context(), vctx, "tcp", address)),
				read(new(rsocket.Dialer).DialContext(vctx)(t.Context(), "tcp", address)))
		}},
	}
}

// serveConns accepts connections and closes them, until l is closed.
func serveConns(l *rdmacm.Listener) {
	for {
		req, err := l.Accept(context.Background())
		if err != nil {
			return
		}
		if c, err := req.Accept(context.Background(), nil); err == nil {
			_ = c.Close()
		}
	}
}

// server starts a program that prints where it listens.
func server(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	p := startCmd(t, cmd)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		for line := range strings.Lines(p.stdout.String() + p.stderr.String()) {
			if _, rest, found := strings.Cut(line, "listening on "); found && strings.HasSuffix(line, "\n") {
				address, _, _ := strings.Cut(strings.TrimSpace(rest), ";")
				return address
			}
		}
		select {
		case <-p.done:
			t.Fatalf("%s: %v\n%s%s", p, p.err, p.stdout.String(), p.stderr.String())
		default:
		}
	}
	t.Fatalf("%s does not listen", p)
	return ""
}

// programEndpoints returns the commands, and the examples in dir.
func programEndpoints(dir string) []endpoint {
	ran := func(cmd *exec.Cmd) error {
		cmd.Stdin = strings.NewReader("")
		out, err := cmd.CombinedOutput()
		if err != nil {
			return errors.Join(err, errors.New(clip(string(out))))
		}
		return nil
	}
	command := func(listen, dial []string) endpoint {
		return endpoint{listen: func(t *testing.T, address string) string {
			return server(t, self(t, append(listen, "--listen", address)...))
		}, dial: func(t *testing.T, address string) error {
			return ran(self(t, append(dial, address)...))
		}}
	}
	example := func(listen, dial []string) endpoint {
		return endpoint{listen: func(t *testing.T, address string) string {
			args := append([]string{"--provider", "engine", "--listen", address}, listen[1:]...)
			return server(t, exec.Command(filepath.Join(dir, listen[0]), args...))
		}, dial: func(t *testing.T, address string) error {
			args := []string{"--provider", "engine"}
			for _, a := range dial[1:] {
				args = append(args, strings.ReplaceAll(a, "NEW", filepath.Join(t.TempDir(), "new")))
			}
			return ran(exec.Command(filepath.Join(dir, dial[0]), swapAddress(args, address)...))
		}}
	}
	named := func(name string, e endpoint) endpoint {
		e.name, e.program = name, true
		return e
	}
	file := filepath.Join(dir, "echo")
	all := []endpoint{
		named("ping", command([]string{"ping", "--persistent", "--provider", "engine"},
			[]string{"ping", "--provider", "engine", "--count", "1"})),
		named("perf send-lat", command([]string{"perf", "send-lat", "--serve", "0", "--provider", "engine"},
			[]string{"perf", "send-lat", "--provider", "engine", "--iters", "10"})),
		named("perf tcp-lat", command([]string{"perf", "tcp-lat", "--serve", "0"},
			[]string{"perf", "tcp-lat", "--iters", "10"})),
		named("echo", example([]string{"echo"}, []string{"echo", "ADDRESS", "hello"})),
		named("kv", example([]string{"kv"}, []string{"kv", "ADDRESS", "put", "a", "b"})),
		named("rpc", example([]string{"rpc"}, []string{"rpc", "ADDRESS", "upper", "hello"})),
		named("pull", example([]string{"pull", file}, []string{"pull", "ADDRESS", "NEW"})),
		named("grpc", example([]string{"grpc"}, []string{"grpc", "ADDRESS", "hello"})),
	}
	stream := named("stream", command([]string{"stream", "--provider", "engine"},
		[]string{"stream", "--provider", "engine"}))
	pinged := all[0].listen
	target := named("run --target", command(nil,
		[]string{"run", "--no-tshark", "--only", "rdmac/request-refused", "--target"}))
	target.listen = pinged
	peer := named("run --peer", command([]string{"agent", "--provider", "engine"},
		[]string{"run", "--no-tshark", "--only", "send/zero", "--initiator", "engine",
			"--responder", "engine@peer", "--peer"}))
	client := endpoint{name: "rdma_client", program: true, listen: func(t *testing.T, address string) string {
		host, port, err := net.SplitHostPort(address)
		testkit.OK(t, err)
		return server(t, exec.Command(filepath.Join(dir, "rdma_server"), "-provider", "engine", "-s", host, "-p", port))
	}, dial: func(t *testing.T, address string) error {
		host, port, err := net.SplitHostPort(address)
		testkit.OK(t, err)
		return ran(exec.Command(filepath.Join(dir, "rdma_client"), "-provider", "engine", "-s", host, "-p", port))
	}}
	return append(all, stream, target, peer, client)
}

// swapAddress returns args with address for ADDRESS.
func swapAddress(args []string, address string) []string {
	out := make([]string, len(args))
	for i, a := range args {
		out[i] = strings.ReplaceAll(a, "ADDRESS", address)
	}
	return out
}
