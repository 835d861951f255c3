package rsocket_test

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// messages returns how many messages a raw peer has received when its connection has ended.
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

// TestConnNoAnswerToDisconnect: an end whose peer has disconnected sends nothing more, as C's.
func TestConnNoAnswerToDisconnect(t *testing.T) {
	r, s := dialRaw(t, rsocket.Config{})
	r.message(t, proto.KindData, 1)
	r.message(t, proto.KindControl, proto.ControlDisconnect)
	if got := testkit.Must(io.ReadAll(s))(t); len(got) != 1 {
		t.Errorf("%d octets are read", len(got))
	}
	testkit.OK(t, s.CloseWrite())
	testkit.OK(t, s.Close())
	time.Sleep(10 * time.Millisecond)
	if n := r.messages(t); n > 1 {
		t.Errorf("the peer gets %d messages, and not at most a grant", n)
	}
}

// TestConnAcceptorCloses: a client reads io.EOF also of a server that closes what it has accepted.
func TestConnAcceptorCloses(t *testing.T) {
	vctx, addr := device(t)
	ctx := timeout(t)
	l := testkit.Must(rsocket.Listen(ctx, vctx, addr))(t)
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
		c := testkit.Must(rsocket.Dial(ctx, vctx, l.Addr().(*net.TCPAddr).AddrPort()))(t)
		if n, err := c.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read returns %d, %v", n, err)
		}
		testkit.OK(t, c.Close())
	}
	testkit.OK(t, <-served)
	testkit.OK(t, l.Close())
}
