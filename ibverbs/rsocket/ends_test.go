package rsocket_test

import (
	"io"
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
