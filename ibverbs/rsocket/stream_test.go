package rsocket_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// random returns bytes that depend only on the seed.
type random struct{ r *rand.ChaCha8 }

func newRandom(seed byte) *random { return &random{rand.NewChaCha8([32]byte{seed})} }

func (r *random) Read(p []byte) (int, error) { return r.r.Read(p) }

// plain hides the methods of a Conn that io.Copy prefers.
type plainConn struct{ net.Conn }

// send writes total bytes in pieces of random sizes, and returns their checksum.
func send(c net.Conn, seed byte, total, most int, from bool) ([]byte, error) {
	src, sum := newRandom(seed), sha256.New()
	sizes := rand.New(rand.NewPCG(uint64(seed), 2))
	for left := total; left > 0; {
		n := min(left, 1+sizes.IntN(most))
		var m int64
		var err error
		if from {
			m, err = io.CopyN(c, io.TeeReader(src, sum), int64(n))
		} else {
			p := make([]byte, n)
			_, _ = src.Read(p)
			sum.Write(p)
			var k int
			k, err = c.Write(p)
			m = int64(k)
		}
		if err != nil {
			return nil, err
		}
		if m != int64(n) {
			return nil, fmt.Errorf("%d of %d bytes were written", m, n)
		}
		left -= n
	}
	return sum.Sum(nil), nil
}

// receive reads until the end in pieces of random sizes.
func receive(c net.Conn, seed byte, most int, to bool) (n int, sum []byte, err error) {
	h := sha256.New()
	if to {
		m, err := c.(io.WriterTo).WriteTo(h)
		return int(m), h.Sum(nil), err
	}
	n, err = receiveInto(h, c, rand.New(rand.NewPCG(uint64(seed), 3)), most)
	return n, h.Sum(nil), err
}

func receiveInto(h hash.Hash, c net.Conn, sizes *rand.Rand, most int) (total int, err error) {
	p := make([]byte, most)
	for {
		n, err := c.Read(p[:1+sizes.IntN(most)])
		h.Write(p[:n])
		total += n
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
	}
}

// bothWays sends total bytes in each direction at the same time, and compares checksums.
func bothWays(t *testing.T, c, s *rsocket.Conn, total, most int, from, to bool) {
	t.Helper()
	var wg sync.WaitGroup
	sums := make([][]byte, 4)
	for i, end := range []*rsocket.Conn{c, s} {
		wg.Add(2)
		go func() {
			defer wg.Done()
			sum, err := send(end, byte(i), total, most, from)
			if err == nil {
				err = end.CloseWrite()
			}
			if err != nil {
				t.Errorf("end %d sends: %v; %v", i, err, end)
			}
			sums[i] = sum
		}()
		go func() {
			defer wg.Done()
			n, sum, err := receive(end, byte(i), most, to)
			if err != nil || n != total {
				t.Errorf("end %d received %d bytes: %v; %v", i, n, err, end)
			}
			sums[3-i] = sum
		}()
	}
	wg.Wait()
	if !bytes.Equal(sums[0], sums[2]) || !bytes.Equal(sums[1], sums[3]) {
		t.Error("what was received is not what was sent")
	}
}

// TestConnBothWays moves data in both directions at once, in pieces of 1 byte to 1 MiB.
func TestConnBothWays(t *testing.T) {
	total := 32 << 20
	if onKernel() || testkit.Race {
		total = 4 << 20
	}
	for _, tc := range []struct {
		name           string
		client, server rsocket.Config
		total, most    int
		from, to       bool
	}{
		{"1 MiB", rsocket.Config{}, rsocket.Config{}, total, 1 << 20, false, false},
		{"small", rsocket.Config{}, rsocket.Config{}, total / 64, 100, false, false},
		{"ReadFrom, WriteTo", rsocket.Config{}, rsocket.Config{}, total, 1 << 20, true, true},
		{"tiny", tiny, tiny, total / 32, 10000, false, false},
		{"tiny and large", tiny, rsocket.Config{ReceiveBuffer: 1 << 20, SendBuffer: 1 << 20},
			total / 32, 1 << 20, false, true},
		{"odd", rsocket.Config{SendBuffer: 5001, ReceiveBuffer: 2049, SendQueue: 17, ReceiveQueue: 19, Inline: 17},
			rsocket.Config{SendBuffer: 2049, ReceiveBuffer: 3000, SendQueue: 31, ReceiveQueue: 16},
			total / 32, 20000, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			vctx, addr := device(t)
			c, s := pair(t, vctx, addr, tc.client, tc.server)
			bothWays(t, c, s, tc.total, tc.most, tc.from, tc.to)
		})
	}
}

// tiny has the minimum of every size.
var tiny = rsocket.Config{SendBuffer: 2048, ReceiveBuffer: 2048, SendQueue: 16, ReceiveQueue: 16, Inline: 4}

// TestConnHalfClose: each direction ends on its own.
func TestConnHalfClose(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	testkit.Must(c.Write([]byte("question")))(t)
	testkit.OK(t, c.CloseWrite())
	testkit.OK(t, c.CloseWrite())
	if got := testkit.Must(io.ReadAll(s))(t); string(got) != "question" {
		t.Errorf("the server reads %q", got)
	}
	_, err := c.Write([]byte("more"))
	wantErr(t, "Write after CloseWrite", err, syscall.EPIPE)
	testkit.Must(s.Write([]byte("answer")))(t)
	testkit.OK(t, s.CloseRead())
	testkit.OK(t, s.Close())
	if got := testkit.Must(io.ReadAll(c))(t); string(got) != "answer" {
		t.Errorf("the client reads %q", got)
	}
	testkit.OK(t, c.Close())
	_, err = c.Read(make([]byte, 1))
	wantErr(t, "Read after Close", err, net.ErrClosed)
	wantErr(t, "a second Close", c.Close(), net.ErrClosed)
	wantErr(t, "CloseWrite after Close", c.CloseWrite(), net.ErrClosed)
	wantErr(t, "CloseRead after Close", c.CloseRead(), net.ErrClosed)
	wantErr(t, "SetDeadline after Close", c.SetDeadline(time.Now()), net.ErrClosed)
}

// TestConnBothShutDown: the second one to shut down disconnects, as in C.
func TestConnBothShutDown(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	for _, ends := range [][2]*rsocket.Conn{{c, s}, {s, c}} {
		testkit.OK(t, ends[0].CloseWrite())
		testkit.Must(io.ReadAll(ends[1]))(t)
	}
	if !c.Stats().PeerDisconnected || s.Stats().PeerDisconnected || !s.Stats().PeerShutdown {
		t.Errorf("the first one has %v, the second one %v", c, s)
	}
}

// TestConnCloseRead: Read ends, and with CloseWrite the whole stream.
func TestConnCloseRead(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	testkit.Must(s.Write([]byte("x")))(t)
	testkit.Must(io.ReadFull(c, make([]byte, 1)))(t)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	testkit.OK(t, c.CloseRead())
	if err := <-ended; err != io.EOF {
		t.Errorf("a Read that waits ends with %v", err)
	}
	testkit.Must(c.Write([]byte("last")))(t)
	testkit.OK(t, c.CloseWrite())
	if got := testkit.Must(io.ReadAll(s))(t); string(got) != "last" {
		t.Errorf("the server reads %q", got)
	}
	// The peer has disconnected: nothing can be written to it any more.
	_, err := s.Write([]byte("x"))
	wantErr(t, "Write to an end that has disconnected", err, syscall.EPIPE)
}

// TestConnPeerCloses: data that was written before Close is read, and then Write fails.
func TestConnPeerCloses(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	sum := testkit.Must(send(c, 1, 60000, 60000, false))(t)
	testkit.OK(t, c.Close())
	n, got, err := receive(s, 1, 1000, false)
	if n != 60000 || !bytes.Equal(got, sum) || err != nil {
		t.Errorf("the server reads %d bytes, %v", n, err)
	}
	_, err = s.Write(make([]byte, 100))
	wantErr(t, "Write to an end that has closed", err, syscall.EPIPE)
	wantErr(t, "Write of nothing", errors.Join(mustFail(s.Write(nil))), syscall.EPIPE)
}

func mustFail(_ int, err error) error { return err }

// TestConnDeadlines: cases that nettest does not try.
func TestConnDeadlines(t *testing.T) {
	vctx, addr := device(t)
	c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
	isTimeout := func(what string, err error) {
		t.Helper()
		wantErr(t, what, err, os.ErrDeadlineExceeded)
		if ne := net.Error(nil); !errors.As(err, &ne) || !ne.Timeout() {
			t.Errorf("%s: %v is no timeout", what, err)
		}
	}
	// Of a waiting reader and writer, the one that polls leaves first, and the other one second.
	for _, first := range []string{"reader", "writer"} {
		read, wrote := make(chan error, 1), make(chan error, 1)
		testkit.OK(t, c.SetDeadline(time.Time{}))
		reader := func() {
			go func() {
				_, err := c.Read(make([]byte, 1))
				read <- err
			}()
		}
		writer := func() {
			go func() {
				for {
					if _, err := c.Write(make([]byte, 100000)); err != nil {
						wrote <- err
						return
					}
				}
			}()
		}
		if first == "reader" {
			reader()
			time.Sleep(20 * time.Millisecond)
			writer()
		} else {
			writer()
			time.Sleep(20 * time.Millisecond)
			reader()
		}
		time.Sleep(20 * time.Millisecond)
		testkit.OK(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		isTimeout("Read with the "+first+" first", <-read)
		testkit.OK(t, c.SetWriteDeadline(time.Now().Add(20*time.Millisecond)))
		isTimeout("Write with the "+first+" first", <-wrote)
	}
	// A second Read waits for the first one, and has the same deadline.
	testkit.OK(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	both := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := c.Read(make([]byte, 1))
			both <- err
		}()
	}
	isTimeout("one of two Reads", <-both)
	isTimeout("the other one", <-both)
	// Nothing is lost: data that was written before the deadlines arrives, and the connection goes
	// on.
	testkit.OK(t, c.SetDeadline(time.Time{}))
	testkit.Must(s.Write([]byte("x")))(t)
	testkit.Must(io.ReadFull(c, make([]byte, 1)))(t)
	closed := make(chan error, 1)
	go func() { closed <- c.Close() }()
	if n, err := io.Copy(io.Discard, plainConn{s}); err != nil || n < 64<<10 {
		t.Errorf("the other end reads %d bytes, %v", n, err)
	}
	testkit.OK(t, <-closed)
}

// TestConnClose ends a waiting reader and a waiting writer.
func TestConnClose(t *testing.T) {
	vctx, addr := device(t)
	c, _ := pair(t, vctx, addr, rsocket.Config{Linger: patience}, rsocket.Config{})
	ended := make(chan error, 4)
	for range 2 {
		go func() {
			_, err := c.Read(make([]byte, 1))
			ended <- err
		}()
		go func() {
			for {
				if _, err := c.Write(make([]byte, 100000)); err != nil {
					ended <- err
					return
				}
			}
		}()
	}
	time.Sleep(50 * time.Millisecond)
	began := time.Now()
	testkit.OK(t, c.Close())
	for range 4 {
		wantErr(t, "a call that waits", <-ended, net.ErrClosed)
	}
	if d := time.Since(began); d >= patience {
		t.Errorf("Close took %v", d)
	}
}

// TestConnMany: many connections at once, of one listener, leave nothing behind.
func TestConnMany(t *testing.T) {
	n := 100
	if onKernel() {
		n = 20
	}
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rsocket.Listen(ctx, vctx, "tcp", addr.String()))(t)
	var wg sync.WaitGroup
	wg.Add(1)
	go func() {
		defer wg.Done()
		for {
			c, err := l.Accept()
			if err != nil {
				wantErr(t, "Accept", err, net.ErrClosed)
				return
			}
			wg.Add(1)
			go func() {
				defer wg.Done()
				_, err := io.Copy(c, c)
				if err := errors.Join(err, c.Close()); err != nil {
					t.Error(err)
				}
			}()
		}
	}()
	errs := make(chan error, n)
	for i := range n {
		go func() {
			c, err := rsocket.Dial(ctx, vctx, "tcp", l.Addr().String())
			if err != nil {
				errs <- err
				return
			}
			text := []byte(fmt.Sprintf("I am client %d", i))
			_, err = c.Write(text)
			err = errors.Join(err, c.CloseWrite())
			got, rerr := io.ReadAll(c)
			if !bytes.Equal(got, text) {
				rerr = errors.Join(rerr, fmt.Errorf("client %d got %q", i, got))
			}
			errs <- errors.Join(err, rerr, c.Close())
		}()
	}
	for range n {
		testkit.OK(t, <-errs)
	}
	testkit.OK(t, l.Close())
	wg.Wait()
}

// TestConnKeepAlive: keepalives do not disturb the stream, outnumber the control slots, and end
// with the connection.
func TestConnKeepAlive(t *testing.T) {
	vctx, addr := device(t)
	cfg := rsocket.Config{KeepAlive: 2 * time.Millisecond}
	c, s := pair(t, vctx, addr, cfg, cfg)
	testkit.Once(t, func() error {
		before := c.Stats().Keepalives
		time.Sleep(100 * time.Millisecond)
		if n := c.Stats().Keepalives - before; n < 5 {
			return fmt.Errorf("%d keepalives in 100 ms", n)
		}
		return nil
	})
	bothWays(t, c, s, 1<<18, 1<<12, false, false)
	testkit.OK(t, c.Close())
	testkit.OK(t, s.Close())
}

// TestNetConn runs x/net's tests for every net.Conn.
func TestNetConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		vctx, addr := device(t)
		a, b := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
		return a, b, func() {
			a.Close()
			b.Close()
		}, nil
	})
}
