package rdmacm_test

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestConnReceiverOfWritesWithImm: the peer's Write with immediate data takes a receive and puts
// nothing into it, however long the Write is. WC.ByteLen is the length of the Write.
func TestConnReceiverOfWritesWithImm(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	if !onKernel() {
		vctx = testkit.Must(ibverbs.Open(engine.New(&engine.Options{Extensions: true}), ""))(t)
		defer func() { testkit.OK(t, vctx.Close()) }()
	}
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		req, err := l.Accept(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		c, err := req.Accept(ctx, messages(4, 64))
		testkit.OK(t, err)
		accepted <- c
	}()
	a := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), nil))(t)
	defer a.Close()
	b := <-accepted
	defer b.Close()
	here := testkit.Must(a.PD().AllocMR(4096, allRights))(t)
	defer here.Close()
	mr := testkit.Must(b.PD().AllocMR(4096, allRights))(t)
	defer mr.Close()
	there := testkit.Must(mr.Remote(0, 4096))(t)
	for _, n := range []int{4096, 8, 0} {
		testkit.OK(t, a.Do(ctx, ibverbs.NewWriteWithImm(there, 7, sge(t, here, 0, n))))
		m := testkit.Must(b.Receive(ctx))(t)
		if len(m.Data) != 0 || m.WC.Opcode != ibverbs.WCRecvRDMAWithImm || m.WC.Imm != 7 ||
			int(m.WC.ByteLen) != n {
			t.Errorf("a Write of %d bytes: %d bytes of data, %+v", n, len(m.Data), m.WC)
		}
		testkit.OK(t, m.Release())
	}
}
