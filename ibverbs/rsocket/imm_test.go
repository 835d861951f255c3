package rsocket_test

import (
	"errors"
	"net"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestImmediateData: on a device that supports RFC 7306, immediate data is not processed as a
// message, even if the memory of its receive contains an earlier message.
func TestImmediateData(t *testing.T) {
	ctx := timeout(t)
	_, addr := device(t)
	vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{Extensions: true}), ""))(t)
	t.Cleanup(func() { closeDevice(t, vctx) })
	lc := rsocket.ListenConfig{Config: rsocket.Config{SendQueue: 16, ReceiveQueue: 16}}
	l := testkit.Must(lc.Listen(ctx, vctx, "tcp", addr.String()))(t)
	defer l.Close()
	accepted := make(chan *rsocket.Conn, 1)
	go func() {
		c, _ := l.AcceptContext(ctx)
		accepted <- c
	}()
	r := new(rawPeer)
	var err error
	r.conn, err = rdmacm.Dial(ctx, vctx, l.Addr().(*net.TCPAddr).AddrPort(), r.config(t, good))
	testkit.OK(t, err)
	s := <-accepted
	t.Cleanup(func() {
		s.Close()
		testkit.OK(t, r.conn.Close())
	})
	r.peer = testkit.Must(proto.ParseHello(r.conn.PrivateData()))(t)
	read := make([]byte, 100)
	for range 40 { // more than there are receives
		r.message(t, proto.KindData, 4)
		testkit.Must(s.Read(read))(t)
	}
	sge := testkit.Must(r.mr.SGE(0, 4))(t)
	err = r.conn.Do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWriteWithImm,
		SGList: []ibverbs.SGE{sge}, RemoteAddr: r.peer.Data.Addr, RKey: r.peer.Data.Key})
	if err != nil && !errors.Is(err, ibverbs.ErrFlushed) {
		t.Error(err)
	}
	n, err := s.Read(read)
	wantErr(t, "Read", err, syscall.EPROTO, "immediate data")
	if n != 0 {
		t.Errorf("Read returns %d bytes", n)
	}
}
