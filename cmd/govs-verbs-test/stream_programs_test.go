//go:build !race

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// A streamSite says where the Go end and the C end of a stream are.
type streamSite struct {
	vctx    *ibverbs.Context // of the Go end
	addr    netip.Addr       // of both ends
	program launcher         // starts the C end
	refuses bool             // the Go end is over siw, which may refuse a C end's first message
}

// listen listens for a stream.
func (s *streamSite) listen(t *testing.T, port uint16) *rsocket.Listener {
	t.Helper()
	l := testkit.Must(rsocket.Listen(t.Context(), s.vctx, "tcp", netip.AddrPortFrom(s.addr, port).String()))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	return l
}

// accept waits for the C end.
func (s *streamSite) accept(t *testing.T, l *rsocket.Listener, p *program) *rsocket.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := l.AcceptContext(ctx)
	if err != nil {
		t.Fatalf("%v\n%s: stdout:\n%s\nstderr:\n%s", err, p, &p.stdout, &p.stderr)
	}
	return limited(t, c)
}

// streamAttempts is how often a Go end over siw is tried with a C end over siw.
const streamAttempts = 10

// serve starts a C end that connects to the port and sends first, and lets do serve it. If the Go
// end is over siw, and siw does not read the C end's first bytes, serve starts again. err is the
// error of do.
func (s *streamSite) serve(t *testing.T, port uint16, start func() *program,
	do func(c *rsocket.Conn) error) (c *rsocket.Conn, p *program, err error) {
	t.Helper()
	l := s.listen(t, port)
	for {
		p = start()
		c = s.accept(t, l, p)
		done := make(chan struct{})
		go func() {
			defer close(done)
			err = do(c)
		}()
		if !s.refuses || !siwhang.Hung(t, port, done) {
			<-done
			return c, p, err
		}
		p.kill()
		_ = c.Close()
		<-done
	}
}

// dial starts a C end that listens, and connects to it. A C end sends as soon as it has accepted,
// although it may not, and siw does not delay that (kernel-notes/siw-responder-speaks-first.md).
// siw refuses the message if it comes in one piece with the Reply, and then dial tries again with
// both ends. The engine accepts it.
func (s *streamSite) dial(t *testing.T, start func(port uint16) *program) (*rsocket.Conn,
	*program) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for attempt := 1; ; attempt++ {
		port := freePort()
		p := start(port)
		awaitListener(t, p, port)
		c, err := rsocket.Dial(ctx, s.vctx, "tcp", netip.AddrPortFrom(s.addr, port).String())
		if err == nil {
			return limited(t, c), p
		}
		if !s.refuses || attempt == streamAttempts || !errors.Is(err, syscall.EINVAL) {
			t.Fatal(err)
		}
		t.Logf("once more: %v", err)
		p.kill()
	}
}

// limited gives a connection a deadline, and closes it with the test.
func limited(t *testing.T, c *rsocket.Conn) *rsocket.Conn {
	t.Helper()
	testkit.OK(t, c.SetDeadline(time.Now().Add(patience)))
	t.Cleanup(func() { _ = c.Close() }) // mostly already closed
	return c
}

// streamPrograms are tests of a Go end with other projects' programs.
var streamPrograms = []struct {
	name string
	test func(t *testing.T, s *streamSite)
}{
	{"rcopy", fromRcopy},
	{"rcopy as server", toRcopy},
	{"iperf", fromIperf},
	{"iperf as server", toIperf},
	{"riostream", fromRiostream},
	{"riostream as server", toRiostream},
	{"calls", func(t *testing.T, s *streamSite) { interopCalls(t, s, false) }},
	{"calls of a server", func(t *testing.T, s *streamSite) { interopCalls(t, s, true) }},
}

// copyMessage is a message of rcopy, which some kinds continue with further bytes.
type copyMessage struct {
	Version, Command uint8
	Len              uint16 // with what follows
	Data             uint32
	ID               uint64
}

const (
	copyOpen = iota + 1
	copyClose
	copyWrite
	copyResponse = 0x80 // of a command
)

// copyContent returns the content to copy. It is made only when a test asks for it, because each
// command that tests start is the tests' own binary, and would make it, too.
var copyContent = sync.OnceValue(func() []byte {
	return bytes.Repeat([]byte("one file after another, "), 1<<16)
})

// fromRcopy does in Go what rcopy's server does.
func fromRcopy(t *testing.T, s *streamSite) {
	from := filepath.Join(t.TempDir(), "from")
	testkit.OK(t, os.WriteFile(from, copyContent(), 0o644))
	port := freePort()
	start := func() *program {
		return s.program(nil, "rcopy", from, s.addr.String()+":a name", "-p", fmt.Sprint(port))
	}
	head := make([]byte, binary.Size(copyMessage{}))
	c, client, err := s.serve(t, port, start, func(c *rsocket.Conn) error {
		_, err := io.ReadFull(c, head)
		return err
	})
	testkit.OK(t, err)
	for i, command := range []uint8{copyOpen, copyWrite, copyClose} {
		if i > 0 {
			testkit.Must(io.ReadFull(c, head))(t)
		}
		var m copyMessage
		testkit.Must(binary.Decode(head, binary.NativeEndian, &m))(t)
		if m.Command != command {
			t.Fatalf("rcopy sends %+v instead of command %d", m, command)
		}
		more := make([]byte, int(m.Len)-binary.Size(m))
		testkit.Must(io.ReadFull(c, more))(t)
		switch command {
		case copyOpen:
			if name := string(bytes.TrimRight(more, "\x00")); name != "a name" {
				t.Errorf("rcopy opens %q", name)
			}
		case copyWrite:
			got := make([]byte, binary.NativeEndian.Uint64(more))
			testkit.Must(io.ReadFull(c, got))(t)
			if !bytes.Equal(got, copyContent()) {
				t.Errorf("%d bytes were copied, with differences; want %d", len(got),
					len(copyContent()))
			}
		}
		m.Command |= copyResponse
		m.Len, m.Data = uint16(binary.Size(m)), 0
		testkit.OK(t, binary.Write(c, binary.NativeEndian, &m))
	}
	testkit.OK(t, noOctets(c))
	testkit.OK(t, c.Close())
	client.want(t, 0, "done", fmt.Sprint(len(copyContent()), " bytes in"))
}

// toRcopy does in Go what rcopy's client does.
func toRcopy(t *testing.T, s *streamSite) {
	to := filepath.Join(t.TempDir(), "to")
	c, _ := s.dial(t, func(port uint16) *program {
		return s.program(nil, "rcopy", "-p", fmt.Sprint(port))
	})
	command := func(command uint8, data uint32, more, behind []byte) {
		t.Helper()
		m := copyMessage{Command: command, Data: data}
		m.Len = uint16(binary.Size(m) + len(more))
		b := testkit.Must(binary.Append(nil, binary.NativeEndian, &m))(t)
		testkit.Must(c.Write(append(b, more...)))(t)
		testkit.Must(c.Write(behind))(t)
		testkit.OK(t, binary.Read(c, binary.NativeEndian, &m))
		if want := (copyMessage{Command: command | copyResponse, Len: 16}); m != want {
			t.Fatalf("rcopy answers command %d with %+v", command, m)
		}
	}
	size := binary.NativeEndian.AppendUint64(nil, uint64(len(copyContent())))
	command(copyOpen, 0o644, append([]byte(to), 0), nil)
	command(copyWrite, 0, size, copyContent())
	command(copyClose, 0, nil, nil)
	testkit.OK(t, c.Close())
	if got := testkit.Must(os.ReadFile(to))(t); !bytes.Equal(got, copyContent()) {
		t.Errorf("%d bytes were copied, with differences; want %d", len(got), len(copyContent()))
	}
}

// preloaded is the environment of a program whose TCP sockets are librdmacm's streams.
var preloaded = []string{"LD_PRELOAD=/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"}

// iperfOctets is how much iperf moves.
const iperfOctets = 2 << 20

// fromIperf receives from a program that uses TCP.
func fromIperf(t *testing.T, s *streamSite) {
	port := freePort()
	start := func() *program {
		return s.program(preloaded, arguments("iperf -c ADDR -p PORT -n 2M", s.addr.String(), port)...)
	}
	var n int64
	c, client, err := s.serve(t, port, start, func(c *rsocket.Conn) (err error) {
		n, err = io.Copy(io.Discard, c)
		return err
	})
	testkit.OK(t, err)
	if n < iperfOctets {
		t.Errorf("iperf has sent %d bytes", n)
	}
	testkit.OK(t, c.Close())
	client.want(t, 0, "2.00 MBytes")
}

// toIperf sends to a program that uses TCP.
func toIperf(t *testing.T, s *streamSite) {
	c, server := s.dial(t, func(port uint16) *program {
		return s.program(preloaded, arguments("iperf -s -P 1 -B ADDR -p PORT", s.addr.String(),
			port)...)
	})
	testkit.Must(c.Write(make([]byte, iperfOctets)))(t)
	testkit.OK(t, c.Close())
	server.want(t, 0, "2.00 MBytes")
}

// wantNoMap checks how riostream ends, because riostream maps its own memory for the peer: a Go end
// has no room for an entry, so riostream says ENOMEM and has closed its end.
func wantNoMap(t *testing.T, c *rsocket.Conn, p *program) {
	t.Helper()
	testkit.OK(t, c.Close())
	p.want(t, 255)
	wantText(t, "riostream's error", p.stderr.String(), parts(noMap))
}

const noMap = "riomap: Cannot allocate memory"

func fromRiostream(t *testing.T, s *streamSite) {
	port := freePort()
	start := func() *program {
		return s.program(nil, arguments("riostream -s ADDR -p PORT -S 4096 -I 1 -C 1 -T b",
			s.addr.String(), port)...)
	}
	c, client, err := s.serve(t, port, start, noOctets)
	testkit.OK(t, err)
	wantNoMap(t, c, client)
}

func toRiostream(t *testing.T, s *streamSite) {
	c, server := s.dial(t, func(port uint16) *program {
		return s.program(nil, arguments("riostream -b ADDR -p PORT -S 4096 -I 1 -C 1 -T b",
			s.addr.String(), port)...)
	})
	testkit.OK(t, noOctets(c))
	wantNoMap(t, c, server)
}

// noOctets waits for the end of a stream. No bytes may come before it.
func noOctets(c *rsocket.Conn) error {
	got, err := io.ReadAll(c)
	if err == nil && len(got) > 0 {
		err = fmt.Errorf("%q comes before the end", got)
	}
	return err
}

// goCalls makes the calls of a stream that testdata/streamcalls.c makes in C.
func goCalls(c *rsocket.Conn, calls string) error {
	var sent, got byte
	for _, call := range strings.Fields(calls) {
		n := 0
		if len(call) > 1 {
			if _, err := fmt.Sscan(call[1:], &n); err != nil {
				return fmt.Errorf("%s: %w", call, err)
			}
		}
		b := make([]byte, n)
		var err error
		switch call[0] {
		case 'w':
			for i := range b {
				b[i] = sent
				sent += 7
			}
			_, err = c.Write(b)
		case 'r':
			_, err = io.ReadFull(c, b)
			for i := range b {
				if b[i] != got && err == nil {
					err = fmt.Errorf("byte %d is %d and not %d", i, b[i], got)
				}
				got += 7
			}
		case 'e':
			var m int
			if m, err = c.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
				err = nil
			} else if err == nil {
				err = fmt.Errorf("%d bytes and no end", m)
			}
		case 's':
			err = c.CloseWrite()
		case 'b':
			err = errors.Join(c.CloseRead(), c.CloseWrite())
		case 'c':
			err = c.Close()
		default:
			err = errors.ErrUnsupported
		}
		if err != nil {
			return fmt.Errorf("%s: %w", call, err)
		}
	}
	return nil
}

// streamCalls returns the program that makes calls in C, which is built on the host.
const streamCalls = builtPrograms + "/streamcalls"

func buildStreamCalls(t *testing.T) {
	t.Helper()
	testkit.OK(t, os.MkdirAll(builtPrograms, 0o755))
	compiledAs(t, streamCalls, "streamcalls", "-lrdmacm")
}

// cCalls starts the program that makes calls in C.
func cCalls(program launcher, addr netip.Addr, port uint16, role, calls string) *program {
	return program(nil, append([]string{streamCalls, addr.String(), fmt.Sprint(port), role},
		strings.Fields(calls)...)...)
}

// interopCalls makes a Go end and a C end make calls.
func interopCalls(t *testing.T, s *streamSite, cListens bool) {
	client := "w1 r1 w300000 r300000 w65536 r1 w10 s r20 e c"
	server := "r1 w1 r300000 w300000 r65536 w1 r10 e w20 c"
	var p *program
	var err error
	if cListens {
		var c *rsocket.Conn
		c, p = s.dial(t, func(port uint16) *program {
			return cCalls(s.program, s.addr, port, "listen", server)
		})
		err = goCalls(c, client)
	} else {
		port := freePort()
		_, p, err = s.serve(t, port, func() *program {
			return cCalls(s.program, s.addr, port, "connect", client)
		}, func(c *rsocket.Conn) error { return goCalls(c, server) })
	}
	if err != nil {
		t.Error(err)
	}
	p.want(t, 0, "all calls were made")
}

// TestStreamPrograms connects a Go end, over the engine, with programs over the engine, on IPv4
// and IPv6.
func TestStreamPrograms(t *testing.T) {
	b := newBridged(t)
	buildStreamCalls(t)
	for _, addr := range []string{"127.0.0.1", "::1"} {
		s := &streamSite{vctx: openEngine(t), addr: netip.MustParseAddr(addr)}
		for _, p := range streamPrograms {
			if s.addr.Is6() && !strings.HasPrefix(p.name, "calls") {
				continue // rcopy and librspreload have only IPv4
			}
			t.Run(p.name+", "+addr, func(t *testing.T) {
				s := *s
				s.program = b.of(t).launch
				p.test(t, &s)
			})
		}
	}
}

// TestStreamProgramsOnSiw runs streamPrograms with programs over siw, and the Go end over the
// engine and over siw.
func TestStreamProgramsOnSiw(t *testing.T) {
	if !vmtest.Inside() {
		newBridged(t)
		buildStreamCalls(t)
	}
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	for _, provider := range providers {
		s := &streamSite{vctx: openDevice(t, provider), addr: netip.MustParseAddr(siwAddr),
			refuses: provider == "kernel"}
		for _, p := range streamPrograms {
			t.Run(p.name+", the Go end over "+provider, func(t *testing.T) {
				s := *s
				s.program = launchOverSiw(t)
				p.test(t, &s)
			})
		}
	}
}

// TestStreamNoMap: riostream says the same to a C peer that has no entries, which is C's default.
func TestStreamNoMap(t *testing.T) {
	b := newBridged(t)
	buildStreamCalls(t)
	port := freePort()
	server := cCalls(b.launch, netip.MustParseAddr("127.0.0.1"), port, "listen", "e c")
	awaitListener(t, server, port)
	client := b.start(arguments("riostream -s ADDR -p PORT -S 4096 -I 1 -C 1 -T b", "127.0.0.1",
		port)...)
	client.want(t, 255)
	wantText(t, "riostream's error", client.stderr.String(), parts(noMap))
	server.want(t, 0, "all calls were made")
}

// openEngine opens an engine for the test.
func openEngine(t *testing.T) *ibverbs.Context {
	t.Helper()
	vctx, _, err := openProvider("engine", netip.Addr{}, nil)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, vctx.Close()) })
	return vctx
}
