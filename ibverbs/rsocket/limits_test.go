package rsocket_test

import (
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
	"github.com/govs-rdma/govs/provider"
)

// TestNotOnRoCE: there are no rsockets on devices on which messages would be immediate data.
func TestNotOnRoCE(t *testing.T) {
	f := fake.New()
	f.Transport = provider.TransportIB
	vctx := testkit.Must(ibverbs.Open(f, ""))(t)
	_, err := rsocket.Dial(timeout(t), vctx, "tcp", "192.0.2.7:7471")
	wantErr(t, "Dial", err, errors.ErrUnsupported, "dial rsocket 192.0.2.7:7471",
		"immediate data", "use a device of iWARP")
	_, err = rsocket.Listen(timeout(t), vctx, "tcp", "192.0.2.7:7471")
	wantErr(t, "Listen", err, errors.ErrUnsupported, "listen rsocket", "immediate data")
	testkit.OK(t, vctx.Close())
}

// TestConnNoIOMap: the private data and an error say that there are no iomap entries.
func TestConnNoIOMap(t *testing.T) {
	r, s := dialRaw(t, rsocket.Config{})
	if r.peer.IOMap != 0 {
		t.Errorf("the private data has %d iomap entries", r.peer.IOMap)
	}
	r.message(t, proto.KindIOMap, 0)
	_, err := s.Read(make([]byte, 1))
	wantErr(t, "Read", err, err, "this end has none")
}

// TestConnCreditsKept: 8 of the peer's 100 credits are left unused. The peer has as many receives
// for data, and none for other messages.
func TestConnCreditsKept(t *testing.T) {
	r, s := dialRaw(t, rsocket.Config{})
	r.message(t, proto.KindData, 1)
	n := 0
	for range 100 {
		limit := patience
		if n == 92 {
			limit = 200 * time.Millisecond
		}
		testkit.OK(t, s.SetWriteDeadline(time.Now().Add(limit)))
		if _, err := s.Write([]byte{1}); err != nil {
			break
		}
		n++
	}
	if n != 92 || s.Stats().Credits != 8 {
		t.Errorf("%d transfers, after which there are %d credits", n, s.Stats().Credits)
	}
}

// TestConnManyMessages: a peer that uses all of its credits, and then sends as many credit messages
// as it may, finds receives for all of them, while this end only writes, without taking
// completions.
func TestConnManyMessages(t *testing.T) {
	cfg := rsocket.Config{SendQueue: 100, ReceiveQueue: 16}
	r, s := dialRaw(t, cfg)
	r.message(t, proto.KindData, 1)
	const transfers = (100 - proto.ControlSlots) / 2
	for range transfers {
		testkit.Must(s.Write([]byte{1}))(t)
	}
	for range cfg.ReceiveQueue - 1 {
		r.message(t, proto.KindData, 1)
	}
	for i := range transfers {
		r.message(t, proto.KindCredits, uint32(101+i))
	}
	r.message(t, proto.KindControl, proto.ControlShutdown)
	r.message(t, proto.KindControl, proto.ControlDisconnect)
	got := testkit.Must(io.ReadAll(s))(t)
	if len(got) != cfg.ReceiveQueue {
		t.Errorf("of %d bytes, %d were read", cfg.ReceiveQueue, len(got))
	}
	err := error(nil)
	for err == nil { // until it takes completions; the last is the disconnect
		_, err = s.Write([]byte{1})
	}
	wantErr(t, "Write", err, syscall.EPIPE)
	if st := s.Stats(); !st.PeerDisconnected || st.Err != nil {
		t.Errorf("%v", s)
	}
}
