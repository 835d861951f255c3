package ibverbs_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// A server lends each client a part of one region for the duration of a request. A work request
// binds the window, and the Send after it carries the window's key. The client's answer invalidates
// the key, so the server can read the bytes while no peer writes to them.
func ExampleMW() {
	ctx := context.Background()
	vctx, err := ibverbs.Open(engine.New(nil), "")
	check(err)
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil)
	check(err)
	defer l.Close()
	done := make(chan struct{})
	go func() { defer close(done); fillWindow(ctx, vctx, l) }()

	req, err := l.Accept(ctx)
	check(err)
	conn, err := req.Accept(ctx, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxInlineData: 64}})
	check(err)
	defer conn.Close()
	mr, err := conn.PD().AllocMR(1<<20, ibverbs.AccessLocalWrite|ibverbs.AccessMWBind) // no remote rights
	check(err)
	defer mr.Close()
	mw, err := conn.PD().AllocMW(ibverbs.MWType2)
	check(err)
	defer mw.Close()

	check(conn.QP().PostRecv(ibverbs.RecvWR{}))
	info, err := mr.BindInfo(4096, 64, ibverbs.AccessRemoteWrite)
	check(err)
	key := ibverbs.IncRKey(mw.RKey())
	lent, err := ibverbs.RemoteRegion{Addr: info.Addr, Len: info.Length, RKey: key}.MarshalBinary()
	check(err)
	check(conn.QP().PostSend(
		ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: key, Bind: &info},
		ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: lent}))

	var wc [1]ibverbs.WC
	_, err = conn.RecvCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	fmt.Println("given back:", wc[0].Flags&ibverbs.WCWithInv != 0 && wc[0].InvalidatedRKey == key)
	fmt.Printf("%s\n", mr.Bytes()[4096:4096+13])
	<-done
	// Output:
	// given back: true
	// from a client
}

// fillWindow runs the client.
func fillWindow(ctx context.Context, vctx *ibverbs.Context, l *rdmacm.Listener) {
	var mr *ibverbs.MR
	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{
		Cap: ibverbs.QPCap{MaxInlineData: 64},
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			if mr, err = c.PD().AllocMR(64, ibverbs.AccessLocalWrite); err != nil {
				return err
			}
			sge, err := mr.SGE(0, ibverbs.RemoteRegionSize)
			if err != nil {
				return err
			}
			return c.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}})
		},
	})
	check(err)
	defer mr.Close()
	defer conn.Close()
	check(conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite})) // from here on the server may send
	var wc [1]ibverbs.WC
	_, err = conn.RecvCQ().PollWait(ctx, wc[:])
	check(err)
	var lent ibverbs.RemoteRegion
	check(lent.UnmarshalBinary(mr.Bytes()[:ibverbs.RemoteRegionSize]))
	check(conn.QP().PostSend(
		ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendInline, Inline: []byte("from a client"), RemoteAddr: lent.Addr, RKey: lent.RKey},
		ibverbs.SendWR{Opcode: ibverbs.WRSendWithInv, Flags: ibverbs.SendSignaled, InvalidateRKey: lent.RKey}))
	_, err = conn.SendCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	check(conn.Shutdown(ctx))
}
