package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// onWire returns a Wire on lo. Without CAP_NET_RAW nothing can be captured, so onWire
// checks only that Usable says so, and ends the test.
func onWire(t *testing.T) *Wire {
	t.Helper()
	w := &Wire{Interface: "lo"}
	if err := w.Usable(); err != nil {
		t.Logf("captures on the wire are not tested here: %v", err)
		if !strings.Contains(err.Error(), "packet sockets need root or CAP_NET_RAW") {
			t.Errorf("that does not say what is needed")
		}
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.FailNow() // all tests are wanted, and with siw all captures are of this kind
		}
		t.SkipNow()
	}
	return w
}

// transfer is a TCP connection on loopback that carries octets to the server
// and an answer back.
type transfer struct {
	listener net.Listener
	port     uint16
}

func listen(t *testing.T, network, addr string) *transfer {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return &transfer{l, l.Addr().(*net.TCPAddr).AddrPort().Port()}
}

func (x *transfer) run(t *testing.T, octets, answer []byte) {
	t.Helper()
	served := make(chan error, 1)
	go func() {
		c, err := x.listener.Accept()
		if err == nil {
			_, err = io.Copy(io.Discard, c)
		}
		if err == nil {
			_, err = c.Write(answer)
		}
		if err == nil {
			err = c.Close()
		}
		served <- err
	}()
	c, err := net.Dial("tcp", x.listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(octets); err != nil {
		t.Fatal(err)
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, answer) {
		t.Fatalf("%d octets came back: %v", len(got), err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-served; err != nil {
		t.Fatal(err)
	}
}

// streams reads a capture file and returns what its one connection carried.
func streams(t *testing.T, file string, port uint16) (out, in []byte) {
	t.Helper()
	trace, err := wire.ReadFile(file, port)
	if err != nil {
		t.Fatal(err)
	}
	if len(trace.Conns) != 1 || len(trace.Notes) != 0 {
		t.Fatalf("%d connections in the capture, notes %q", len(trace.Conns), trace.Notes)
	}
	return octetsOf(t, trace.Conns[0])
}

func octetsOf(t *testing.T, c *wire.Conn) (out, in []byte) {
	t.Helper()
	fins := 0
	for i := range c.Frames {
		f := &c.Frames[i]
		switch {
		case f.Kind == wire.KindFIN:
			fins++
		case f.Kind == wire.KindUndecoded && len(f.Octets) == 0:
			t.Fatalf("the capture is not complete: %v", f.Err)
		case f.Dir == wire.ToResponder:
			out = append(out, f.Octets...)
		default:
			in = append(in, f.Octets...)
		}
	}
	if fins != 2 {
		t.Errorf("%d FINs in the capture, want 2", fins)
	}
	return out, in
}

func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b)
	return b
}

func TestWireCapture(t *testing.T) {
	w := onWire(t)
	for _, tc := range []struct{ network, addr string }{{"tcp4", "127.0.0.1:0"}, {"tcp6", "[::1]:0"}} {
		t.Run(tc.network, func(t *testing.T) {
			if tc.network == "tcp6" {
				l, err := net.Listen("tcp6", tc.addr)
				if err != nil {
					t.Skipf("this machine has no IPv6: %v", err)
				}
				_ = l.Close()
			}
			x, other := listen(t, tc.network, tc.addr), listen(t, tc.network, tc.addr)
			c, err := w.Start(x.port)
			if err != nil {
				t.Fatal(err)
			}
			before := time.Now()
			sent, answer := random(100_000), random(5000)
			other.run(t, random(1000), nil)
			x.run(t, sent, answer)
			file := filepath.Join(t.TempDir(), "run.pcapng")
			if err := c.Stop(file); err != nil {
				t.Fatal(err)
			}
			out, in := streams(t, file, 0) // port 0, because nothing else may be in the file
			if !bytes.Equal(out, sent) || !bytes.Equal(in, answer) {
				t.Errorf("the capture has %d and %d octets, or others than the %d and %d that were sent", len(out), len(in), len(sent), len(answer))
			}
			trace, err := wire.ReadFile(file, x.port)
			if err != nil {
				t.Fatal(err)
			}
			if at := trace.Conns[0].Start; at.Before(before) || at.After(time.Now()) {
				t.Errorf("the first packet's time is %v, which is not that of the test", at)
			}
		})
	}
}

// TestWireListen: another process that has the same port at another address is not recorded.
func TestWireListen(t *testing.T) {
	for _, tc := range []struct {
		name   string
		listen []netip.Addr
		want   int // connections in the recording
	}{
		{"its address", []netip.Addr{netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("127.0.0.2")}, 1},
		{"mapped into IPv6", []netip.Addr{netip.MustParseAddr("::ffff:127.0.0.2")}, 1},
		{"another address", []netip.Addr{netip.MustParseAddr("127.0.0.9")}, 0},
		{"any", nil, 2},
		{"unspecified", []netip.Addr{netip.IPv4Unspecified()}, 2},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := onWire(t)
			w.Listen = tc.listen
			x := listen(t, "tcp4", "127.0.0.2:0")
			other := listen(t, "tcp4", fmt.Sprintf("127.0.0.3:%d", x.port))
			recording, err := w.Start(x.port)
			if err != nil {
				t.Fatal(err)
			}
			other.run(t, random(1000), random(10))
			x.run(t, random(1000), random(10))
			file := filepath.Join(t.TempDir(), "run.pcapng")
			if err := recording.Stop(file); err != nil {
				t.Fatal(err)
			}
			trace, err := wire.ReadFile(file, x.port)
			if err != nil {
				t.Fatal(err)
			}
			if len(trace.Conns) != tc.want {
				t.Fatalf("%d connections are in the recording, want %d", len(trace.Conns), tc.want)
			}
			if tc.want == 1 {
				if at := trace.Conns[0].Responder.Addr().String(); at != "127.0.0.2" {
					t.Errorf("the connection that was recorded is to %s", at)
				}
			}
		})
	}
}

// A capture begins when Start returns and has all packets, even if they come faster than
// they are taken.
func TestWireBurst(t *testing.T) {
	w := onWire(t)
	x := listen(t, "tcp4", "127.0.0.1:0")
	c, err := w.Start(x.port)
	if err != nil {
		t.Fatal(err)
	}
	sent := random(64 << 20)
	if testkit.Race { // the race detector slows the recording; ci/test runs all of it without, too
		sent = sent[:8<<20]
	}
	x.run(t, sent, nil)
	file := filepath.Join(t.TempDir(), "run.pcapng")
	if err := c.Stop(file); err != nil {
		if !strings.Contains(err.Error(), "the capture is not complete") {
			t.Fatal(err)
		}
		t.Logf("said clearly: %v", err)
		return
	}
	if out, _ := streams(t, file, x.port); !bytes.Equal(out, sent) {
		t.Errorf("the capture has %d octets of %d, and Stop said nothing of it", len(out), len(sent))
	}
}

func TestWireTellsOfDroppedPackets(t *testing.T) {
	w := onWire(t)
	w.rcvbuf = 1 // the kernel makes it as small as it may be, which is less than a large packet
	x := listen(t, "tcp4", "127.0.0.1:0")
	c, err := w.Start(x.port)
	if err != nil {
		t.Fatal(err)
	}
	x.run(t, random(1<<20), nil)
	file := filepath.Join(t.TempDir(), "run.pcapng")
	err = c.Stop(file)
	if err == nil || !strings.Contains(err.Error(), "packets: the capture is not complete") {
		t.Errorf("the error is %v", err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("an incomplete capture was written: %v", err)
	}
}

// TestWireLossy: if packets may be lost, a recording waits for a FIN as long as TCP takes to send
// it again.
func TestWireLossy(t *testing.T) {
	w := onWire(t)
	for lossy, want := range map[bool]int{true: 2, false: 1} {
		x := listen(t, "tcp", "127.0.0.1:0")
		w.Lossy = lossy
		recording, err := w.Start(x.port)
		if err != nil {
			t.Fatal(err)
		}
		client, err := net.Dial("tcp", x.listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		server, err := x.listener.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if err := client.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		late := time.AfterFunc(500*time.Millisecond, func() { _ = server.(*net.TCPConn).CloseWrite() })
		file := filepath.Join(t.TempDir(), "late.pcapng")
		if err := recording.Stop(file); err != nil {
			t.Fatal(err)
		}
		late.Stop()
		_, _ = client.Close(), server.Close()
		fins := 0
		_, packets, err := readPart(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range packets {
			if _, _, flags, ok := segmentOf(p.data); ok && flags&tcpFIN != 0 {
				fins++
			}
		}
		if fins != want {
			t.Errorf("lossy %v: %d FINs in the recording, want %d", lossy, fins, want)
		}
	}
}

func TestWireUsable(t *testing.T) {
	onWire(t)
	t.Run("no such interface", func(t *testing.T) {
		err := (&Wire{Interface: "no-such-if0"}).Usable()
		if err == nil || !strings.Contains(err.Error(), "no-such-if0") {
			t.Errorf("the error is %v", err)
		}
		if _, err := (&Wire{Interface: "no-such-if0"}).Start(1); err == nil {
			t.Error("Start does not say so")
		}
	})
	t.Run("without CAP_NET_RAW", func(t *testing.T) {
		err := withoutNetRaw(t, func() error { return (&Wire{Interface: "lo"}).Usable() })
		if err == nil || !strings.Contains(err.Error(), "packet sockets need root or CAP_NET_RAW") {
			t.Errorf("the error is %v", err)
		}
	})
}

// withoutNetRaw calls f on a thread that lacks the capability. The thread ends when f has returned.
func withoutNetRaw(t *testing.T, f func() error) error {
	t.Helper()
	result, failed := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread is not used again
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var data [2]unix.CapUserData
		err := unix.Capget(&hdr, &data[0])
		data[0].Effective &^= 1 << unix.CAP_NET_RAW
		if err == nil {
			err = unix.Capset(&hdr, &data[0])
		}
		failed <- err
		if err == nil {
			result <- f()
		}
	}()
	if err := <-failed; err != nil {
		t.Fatalf("the capability can't be dropped: %v", err)
	}
	return <-result
}

func TestWireStopWritesNowhere(t *testing.T) {
	w := onWire(t)
	c, err := w.Start(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(filepath.Join(t.TempDir(), "no", "folder", "run.pcapng")); err == nil {
		t.Error("a capture in a folder that is not there has no error")
	}
}

// TestWireLimit: a recording that exceeds its limit keeps nothing, and says so.
func TestWireLimit(t *testing.T) {
	w := onWire(t)
	w.Limit = 10_000
	x := listen(t, "tcp4", "127.0.0.1:0")
	rec, err := w.Start(x.port)
	if err != nil {
		t.Fatal(err)
	}
	x.run(t, random(20_000), nil)
	c := rec.(*wireCapture)
	<-c.done
	if err := c.raw.Control(func(uintptr) {}); err == nil {
		t.Error("its socket, which nobody reads, is open, so that the kernel keeps packets for it")
	}
	if err := rec.Stop(filepath.Join(t.TempDir(), "run.pcapng")); err == nil {
		t.Error("a recording above its limit is complete")
	}
	if c.packets != nil {
		t.Errorf("%d packets are kept", len(c.packets))
	}
	if n := w.held.Load(); n != 0 {
		t.Errorf("%d bytes are held, and nothing is recorded", n)
	}
}

// TestFollow: packets come while the connection is open, but packets of other ports do not.
func TestFollow(t *testing.T) {
	w := onWire(t)
	x, other := listen(t, "tcp4", "127.0.0.1:0"), listen(t, "tcp4", "127.0.0.1:0")
	f, err := w.Follow(x.port)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const octets, answer = 100000, 2000
	other.run(t, make([]byte, octets), make([]byte, answer))
	x.run(t, make([]byte, octets), make([]byte, answer))
	var ends lifetimes
	size, fins := 0, 0
	for fins < 2 {
		err := f.Packets(ctx, func(data []byte, at time.Time) {
			from, to, flags, ok := segmentOf(data)
			if !ok || from.Port() != x.port && to.Port() != x.port {
				t.Errorf("a packet from %v to %v, want port %d", from, to, x.port)
			}
			if time.Since(at).Abs() > 2*time.Minute {
				t.Errorf("a packet of %v", at)
			}
			if flags&tcpFIN != 0 {
				fins++
			}
			ends.see(data)
			size += len(data)
		})
		if err != nil {
			t.Fatalf("after %d octets: %v", size, err)
		}
	}
	if size < octets+answer || !ends.all() {
		t.Errorf("%d octets, want %d and the headers; all connections have ended: %v", size, octets+answer, ends.all())
	}
	ended, stop := context.WithCancel(ctx)
	time.AfterFunc(10*time.Millisecond, stop)
	for err = nil; err == nil; { // an ACK may still come
		err = f.Packets(ended, func([]byte, time.Time) {})
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ends: %v", err)
	}
	if dropped, err := f.Close(); dropped != 0 || err != nil {
		t.Errorf("Close: %d packets dropped, %v", dropped, err)
	}
}
