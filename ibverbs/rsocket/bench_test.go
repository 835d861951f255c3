package rsocket_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// The benchmarks compare streams between two processes, both ends of which block. All use the same
// congestion control, if the system has it, because BBR's pacing costs more than the streams
// themselves.
const congestion = "cubic"

// A carrier makes streams.
type carrier struct {
	name   string
	listen func(rsocket.Config) (net.Listener, error)
	dial   func(ctx context.Context, addr string) (net.Conn, error)
}

var carriers = []carrier{
	{"tcp", func(rsocket.Config) (net.Listener, error) {
		lc := net.ListenConfig{Control: control}
		return lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	}, func(ctx context.Context, addr string) (net.Conn, error) {
		d := net.Dialer{Control: control}
		return d.DialContext(ctx, "tcp", addr)
	}},
	overEngine("rsocket", engine.Options{}),
	overEngine("rsocket-nocrc", engine.Options{CRC: engine.CRCOff}),
}

// overEngine runs rsockets over a device of the engine, which stays open as long as the process.
func overEngine(name string, opts engine.Options) carrier {
	open := func() (*ibverbs.Context, error) {
		if hasCongestion() {
			opts.TCP = transport.TCPOptions{CongestionControl: congestion}
		}
		return ibverbs.Open(engine.New(&opts), "")
	}
	return carrier{name, func(cfg rsocket.Config) (net.Listener, error) {
		vctx, err := open()
		if err != nil {
			return nil, err
		}
		lc := rsocket.ListenConfig{Config: cfg}
		return lc.Listen(context.Background(), vctx, "tcp", "127.0.0.1:0")
	}, func(ctx context.Context, addr string) (net.Conn, error) {
		vctx, err := open()
		if err != nil {
			return nil, err
		}
		c, err := rsocket.Dial(ctx, vctx, "tcp", addr)
		if err != nil {
			return nil, err
		}
		return &withDevice{c, vctx}, nil
	}}
}

// withDevice closes the device with the connection.
type withDevice struct {
	*rsocket.Conn
	vctx *ibverbs.Context
}

func (c *withDevice) Close() error { return errors.Join(c.Conn.Close(), c.vctx.Close()) }

// serverEnv makes the process the server of a benchmark: "carrier job".
const serverEnv = "RSOCKET_BENCHMARK_SERVER"

// serveBenchmark is the server's main function.
func serveBenchmark(what string) error {
	name, job, _ := strings.Cut(what, " ")
	for _, k := range carriers {
		if k.name != name {
			continue
		}
		l, err := k.listen(rsocket.Config{})
		if job == "large" {
			l, err = k.listen(rsocket.Config{ReceiveBuffer: 64 << 20, ReceiveQueue: 2000})
		}
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		c, err := l.Accept()
		if err != nil {
			return err
		}
		switch job {
		case "echo":
			err = echo(c, messageSize)
		case "drain":
			err = drain(c)
		case "large": // the benchmark then stops the server
			if _, err = c.Write([]byte{1}); err == nil {
				err = drain(c)
			}
		}
		return errors.Join(err, c.Close())
	}
	return fmt.Errorf("no carrier %s", name)
}

// messageSize is the size of round trips' messages.
const messageSize = 64

// echo sends back what it receives, size bytes at a time.
func echo(c net.Conn, size int) error {
	buf := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, buf); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

// drain reads until the end, and then sends how many bytes it has read.
func drain(c net.Conn) error {
	buf, total := make([]byte, 1<<20), 0
	for {
		n, err := c.Read(buf)
		total += n
		if err == io.EOF {
			_, err = fmt.Fprintf(c, "%d\n", total)
			return err
		}
		if err != nil {
			return err
		}
	}
}

// startServer starts a process that serves one connection, and returns its address.
func startServer(t testing.TB, carrier, job string) (cmd *exec.Cmd, addr string) {
	t.Helper()
	cmd = exec.CommandContext(timeout(t), testkit.Must(os.Executable())(t))
	cmd.Env = append(os.Environ(), serverEnv+"="+carrier+" "+job)
	cmd.Stderr = os.Stderr
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.OK(t, cmd.Start())
	addr = testkit.Must(bufio.NewReader(out).ReadString('\n'))(t)
	return cmd, strings.TrimSpace(addr)
}

// connect starts a server, and connects to it. done closes everything.
func (k carrier) connect(b *testing.B, job string) (c net.Conn, done func()) {
	b.Helper()
	cmd, addr := startServer(b, k.name, job)
	c = testkit.Must(k.dial(timeout(b), addr))(b)
	return c, func() {
		b.Helper()
		testkit.OK(b, c.Close())
		testkit.OK(b, cmd.Wait())
	}
}

// BenchmarkRoundTrip measures round trips of 64 bytes.
func BenchmarkRoundTrip(b *testing.B) {
	for _, k := range carriers {
		b.Run(k.name, func(b *testing.B) {
			c, done := k.connect(b, "echo")
			buf := make([]byte, messageSize)
			times := make([]time.Duration, 0, 1<<20)
			b.ReportAllocs()
			for b.Loop() {
				began := time.Now()
				if _, err := c.Write(buf); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
				if len(times) < cap(times) {
					times = append(times, time.Since(began))
				}
			}
			slices.Sort(times)
			b.ReportMetric(float64(times[len(times)/2]), "median-ns/op")
			done()
		})
	}
}

// BenchmarkStream measures Writes of 64 KiB and 1 MiB in one direction, until everything is read.
func BenchmarkStream(b *testing.B) {
	for _, size := range []int{64 << 10, 1 << 20} {
		for _, k := range carriers {
			b.Run(fmt.Sprintf("%dKiB/%s", size>>10, k.name), func(b *testing.B) {
				c, done := k.connect(b, "drain")
				buf := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					if _, err := c.Write(buf); err != nil {
						b.Fatal(err)
					}
					n += size
				}
				testkit.OK(b, c.(interface{ CloseWrite() error }).CloseWrite())
				got := testkit.Must(io.ReadAll(c))(b)
				if want := fmt.Sprintf("%d\n", n); string(got) != want {
					b.Errorf("the server received %q, and not %q", got, want)
				}
				done()
			})
		}
	}
}
