package rsocket_test

import (
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// messages returns how many messages a raw peer has received by the end of its connection.
func (r *rawPeer) messages(t *testing.T) (n int) {
	t.Helper()
	wcs := make([]ibverbs.WC, 16)
	for {
		m := testkit.Must(r.conn.RecvCQ().PollWait(timeout(t), wcs))(t)
		for i := range wcs[:m] {
			if wcs[i].Status != ibverbs.WCSuccess {
				return n
			}
			n++
		}
	}
}

// TestConnNoAnswerToDisconnect: an end whose peer has disconnected sends nothing more, as in C.
func TestConnNoAnswerToDisconnect(t *testing.T) {
	r, s := dialRaw(t, rsocket.Config{})
	r.message(t, proto.KindData, 1)
	r.message(t, proto.KindControl, proto.ControlDisconnect)
	if got := testkit.Must(io.ReadAll(s))(t); len(got) != 1 {
		t.Errorf("%d bytes are read", len(got))
	}
	testkit.OK(t, s.CloseWrite())
	testkit.OK(t, s.Close())
	time.Sleep(10 * time.Millisecond)
	if n := r.messages(t); n > 1 {
		t.Errorf("the peer gets %d messages, and not at most a grant", n)
	}
}

// TestConnAcceptorCloses: a client also reads io.EOF from a server that closes accepted
// connections.
func TestConnAcceptorCloses(t *testing.T) {
	vctx, addr := device(t)
	ctx := timeout(t)
	l := testkit.Must(rsocket.Listen(ctx, vctx, "tcp", addr.String()))(t)
	const times = 40
	served := make(chan error, 1)
	go func() {
		for range times {
			c, err := l.Accept()
			if err == nil {
				err = c.Close()
			}
			if err != nil {
				served <- err
				return
			}
		}
		served <- nil
	}()
	for range times {
		c := testkit.Must(rsocket.Dial(ctx, vctx, "tcp", l.Addr().String()))(t)
		if n, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read returns %d, %v", n, err)
		}
		testkit.OK(t, c.Close())
	}
	testkit.OK(t, <-served)
	testkit.OK(t, l.Close())
}

// TestConnCloseWithoutLinger: when Close does not wait, a running Write fails as a waiting Write
// does, and not because the connection has gone.
func TestConnCloseWithoutLinger(t *testing.T) {
	vctx, addr := device(t)
	rounds := 150
	if testkit.Race { // ci/test also runs all of them without the race detector
		rounds = 50
	}
	if onKernel() {
		rounds = 15
	}
	for i := range rounds {
		c, s := pair(t, vctx, addr, rsocket.Config{Linger: -1}, rsocket.Config{})
		go func() { _, _ = io.Copy(io.Discard, s) }()
		failed := make(chan error, 1)
		go func() {
			for {
				if _, err := c.Write(make([]byte, 100000)); err != nil {
					failed <- err
					return
				}
			}
		}()
		time.Sleep(time.Duration(i%30) * 100 * time.Microsecond)
		testkit.OK(t, c.Close())
		wantErr(t, "Write", <-failed, net.ErrClosed)
		testkit.OK(t, s.Close())
	}
}

// TestConnClosesUnderFlood: data that was written before Close arrives, with the end, even if the
// peer constantly writes data that is not read.
func TestConnClosesUnderFlood(t *testing.T) {
	vctx, addr := device(t)
	rounds := 20
	if onKernel() {
		rounds = 5
	}
	for i := range rounds {
		c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				if _, err := s.Write(make([]byte, 50000)); err != nil {
					return
				}
			}
		})
		wg.Go(func() { _, _ = io.Copy(io.Discard, plainConn{c}) })
		time.Sleep(time.Duration(i%7) * time.Millisecond)
		testkit.Must(c.Write(make([]byte, 100000)))(t)
		testkit.OK(t, c.Close())
		if n, err := io.Copy(io.Discard, s); n != 100000 || err != nil {
			t.Errorf("%d bytes come, %v; %v", n, err, s)
		}
		wg.Wait()
	}
}

// TestConnWriteFindsEnd: data that the peer wrote before it closed can be read, with the end, even
// if a Write finds first that the connection has gone.
func TestConnWriteFindsEnd(t *testing.T) {
	vctx, addr := device(t)
	for range 10 {
		c, s := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
		testkit.Must(c.Write([]byte("x")))(t)
		testkit.Must(io.ReadFull(s, make([]byte, 1)))(t)
		for range 100 {
			testkit.Must(s.Write(make([]byte, 100)))(t)
		}
		testkit.OK(t, s.Close())
		time.Sleep(20 * time.Millisecond)
		var err error
		for i := 0; i < 1000 && err == nil; i++ {
			_, err = c.Write(make([]byte, 100))
		}
		wantErr(t, "Write", err, syscall.EPIPE)
		if n, err := io.Copy(io.Discard, plainConn{c}); n != 10000 || err != nil {
			t.Errorf("%d bytes come, %v; %v", n, err, c)
		}
		testkit.OK(t, c.Close())
	}
}

// TestConnNudges: an end that has dialled sends empty Writes to a peer from which it receives
// nothing, because that may be siw, which has not read the first message. When it has received
// something, it sends one more, because siw may send before it has read.
func TestConnNudges(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	r := new(rawPeer)
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			r.conn, err = req.Accept(ctx, r.config(t, good))
		}
		accepted <- err
	}()
	c := testkit.Must(rsocket.Dial(ctx, vctx, "tcp", l.Addr().String()))(t)
	testkit.OK(t, <-accepted)
	defer func() { testkit.OK(t, errors.Join(c.Close(), r.conn.Close())) }()
	for c.Stats().Keepalives < 2 {
		if ctx.Err() != nil {
			t.Fatalf("it sends no two Writes: %v", c)
		}
		time.Sleep(10 * time.Millisecond)
	}
	before := c.Stats().Keepalives
	r.message(t, proto.KindData, 1)
	testkit.Must(io.ReadFull(c, make([]byte, 1)))(t)
	most := 1 + c.Stats().Keepalives - before // the third may precede the message
	for c.Stats().Keepalives == before {
		if ctx.Err() != nil {
			t.Fatalf("it sends none after the peer's message: %v", c)
		}
		time.Sleep(10 * time.Millisecond)
	}
	time.Sleep(time.Second) // the next would come 800 ms after it
	if n := c.Stats().Keepalives - before; n > most {
		t.Errorf("after the peer's message it sends %d more, want %d at most", n, most)
	}
}
