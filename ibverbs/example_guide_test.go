package ibverbs_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// The examples of docs/reference.md.

// connect opens a device and makes a connection from it to itself. The caller closes both ends, and
// then the device.
func connect(ctx context.Context, dial, accept *rdmacm.ConnConfig) (vctx *ibverbs.Context, dialled, accepted *rdmacm.Conn) {
	vctx, addr := open()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		req, err := l.Accept(ctx)
		check(err)
		accepted, err = req.Accept(ctx, accept)
		check(err)
	}()
	dialled, err = rdmacm.Dial(ctx, vctx, l.Addr(), dial)
	check(err)
	<-done
	return vctx, dialled, accepted
}

// A server posts eight receives before the client can send, and posts each of them again when it
// has used the message.
func ExampleQP_PostRecv() {
	const slots, size = 8, 64
	var mr *ibverbs.MR
	slot := func(i uint64) ibverbs.RecvWR {
		sge, err := mr.SGE(int(i)*size, size)
		check(err)
		return ibverbs.RecvWR{WRID: i, SGList: []ibverbs.SGE{sge}}
	}
	server := &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			if mr, err = c.PD().AllocMR(slots*size, ibverbs.AccessLocalWrite); err != nil {
				return err
			}
			for i := range uint64(slots) {
				if err := c.QP().PostRecv(slot(i)); err != nil {
					return err
				}
			}
			return nil
		},
	}
	ctx := context.Background()
	vctx, client, conn := connect(ctx, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxInlineData: size}}, server)
	defer vctx.Close()
	defer mr.Close()
	defer conn.Close()
	defer client.Close()

	var wc [1]ibverbs.WC
	var message string
	for i := range 20 {
		check(client.QP().PostSend(ibverbs.SendWR{
			Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: fmt.Appendf(nil, "message %d", i),
		}))
		_, err := conn.RecvCQ().PollWait(ctx, wc[:])
		check(err)
		check(wc[0].Err())
		message = string(mr.Bytes()[wc[0].WRID*size:][:wc[0].ByteLen])
		check(conn.QP().PostRecv(slot(wc[0].WRID)))
	}
	check(client.Shutdown(ctx))
	fmt.Println(message)
	// Output:
	// message 19
}

// In this protocol the server sends the first message. By default Dial opens the stream for that.
// This client does it itself, with an empty RDMA Write, which needs no key and is invisible to the
// server's program.
func ExampleQP_PostSend_first() {
	ctx := context.Background()
	var mr *ibverbs.MR
	vctx, client, server := connect(ctx, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			mr, err = receiveInto(c)
			return err
		},
		NoOpeningWrite: true,
	}, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxInlineData: 64}})
	defer vctx.Close()
	defer mr.Close()
	defer server.Close()
	defer client.Close()

	check(client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}))

	check(server.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: []byte("welcome")}))
	var wc [1]ibverbs.WC
	_, err := client.RecvCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	fmt.Printf("%s\n", mr.Bytes()[:wc[0].ByteLen])
	check(client.Shutdown(ctx))
	// Output:
	// welcome
}

// Of 1000 Writes every 16th is signalled. Its completion frees its place in the send queue and the
// places of the 15 before it.
func ExampleQP_PostSend_unsignaled() {
	ctx := context.Background()
	var target *ibverbs.MR
	vctx, conn, peer := connect(ctx, nil, granting(&target, 8, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))
	defer vctx.Close()
	defer target.Close()
	defer peer.Close()
	defer conn.Close()
	remote := granted(conn)
	src, err := conn.PD().RegMR([]byte("8 bytes!"), 0)
	check(err)
	defer src.Close()
	sge, err := src.SGE(0, 8)
	check(err)

	var wc [1]ibverbs.WC
	wrs := []ibverbs.SendWR{{
		Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{sge}, RemoteAddr: remote.Addr, RKey: remote.RKey,
	}}
	const every = 16
	places := rdmacm.DefaultSendWR
	for i := range 1000 {
		wrs[0].Flags = 0
		if i%every == every-1 {
			wrs[0].Flags = ibverbs.SendSignaled
		}
		if places == 0 {
			_, err := conn.SendCQ().PollWait(ctx, wc[:])
			check(err)
			check(wc[0].Err())
			places += every
		}
		check(conn.QP().PostSend(wrs...))
		places--
	}
	check(conn.Shutdown(ctx))
	fmt.Println(places, "places were free at the end")
	// Output:
	// 8 places were free at the end
}

// Two connections complete to one CQ. It has room for all work that both can have posted, and for
// the work request of QP.Drain, which Conn.Shutdown calls.
func ExampleContext_CreateCQ() {
	vctx, addr := open()
	defer vctx.Close()
	ctx := context.Background()
	ch, err := vctx.CreateCompChannel()
	check(err)
	defer ch.Close()

	const conns, sends, receives = 2, 16, 32
	cq, err := vctx.CreateCQ(conns*(sends+1+receives), &ibverbs.CQOptions{Channel: ch})
	check(err)
	defer cq.Close()
	cfg := &rdmacm.ConnConfig{
		SendCQ: cq, RecvCQ: cq,
		Cap: ibverbs.QPCap{MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 1, MaxRecvSGE: 1},
	}

	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		req, err := l.Accept(ctx)
		check(err)
		conn, err := req.Accept(ctx, cfg)
		check(err)
		accepted <- conn
	}()
	client, err := rdmacm.Dial(ctx, vctx, l.Addr(), cfg)
	check(err)
	defer client.Close()
	server := <-accepted
	defer server.Close()
	fmt.Println(client.SendCQ() == server.RecvCQ(), cq.CQE() >= 98)
	// Output:
	// true true
}

// A Read after a Write, from the place that the Write has written, completes when the Write has
// been placed in the peer's memory.
func ExampleQP_PostSend_readBack() {
	ctx := context.Background()
	var target *ibverbs.MR
	vctx, conn, peer := connect(ctx, nil, granting(&target, 8,
		ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead))
	defer vctx.Close()
	defer target.Close()
	defer peer.Close()
	defer conn.Close()
	remote := granted(conn)
	// The sink of a Read needs AccessRemoteWrite with iWARP hardware.
	mr, err := conn.PD().AllocMR(16, ibverbs.AccessReadSink)
	check(err)
	defer mr.Close()
	copy(mr.Bytes(), "8 bytes!")
	src, err := mr.SGE(0, 8)
	check(err)
	sink, err := mr.SGE(8, 8)
	check(err)

	check(conn.QP().PostSend(
		ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{src}, RemoteAddr: remote.Addr, RKey: remote.RKey},
		ibverbs.SendWR{
			Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sink},
			RemoteAddr: remote.Addr, RKey: remote.RKey,
		},
	))
	var wc [1]ibverbs.WC
	_, err = conn.SendCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	fmt.Printf("%v: %s\n", wc[0].Opcode, mr.Bytes()[8:])
	check(conn.Shutdown(ctx))
	// Output:
	// IBV_WC_RDMA_READ: 8 bytes!
}

// granting returns a configuration for accepting a connection whose peer may use a new region of n
// bytes. The private data names the region.
func granting(mr **ibverbs.MR, n int, access ibverbs.Access) *rdmacm.ConnConfig {
	return &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) (err error) {
			if *mr, err = c.PD().AllocMR(n, access); err != nil {
				return err
			}
			region, err := (*mr).Remote(0, n)
			if err != nil {
				return err
			}
			param.PrivateData, err = region.MarshalBinary()
			return err
		},
	}
}

// granted returns the region that the peer's private data names. RoCE pads the data with zeros.
func granted(c *rdmacm.Conn) (r ibverbs.RemoteRegion) {
	data := c.PrivateData()
	check(r.UnmarshalBinary(data[:min(len(data), ibverbs.RemoteRegionSize)]))
	return r
}

// The client ends the connection with Shutdown. The server learns of the end from a flushed
// receive, or from Done.
func Example_closing() {
	ctx := context.Background()
	served := make(chan int)
	vctx, client, server := connect(ctx, nil, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			return c.QP().PostRecv(make([]ibverbs.RecvWR, 8)...)
		},
	})
	defer vctx.Close()
	go func() { served <- serve(ctx, server) }()

	for range 3 {
		check(client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
	}
	check(client.Shutdown(ctx)) // waits for the three Sends, then disconnects
	check(client.Close())
	fmt.Println(<-served, "messages")
	// Output:
	// 3 messages
}

// serve counts empty messages until the connection ends.
func serve(ctx context.Context, conn *rdmacm.Conn) (messages int) {
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { <-conn.Done(); cancel() }()
	var wc [1]ibverbs.WC
	for {
		_, err := conn.RecvCQ().PollWait(waiting, wc[:])
		if err == nil {
			err = wc[0].Err()
		}
		if errors.Is(err, ibverbs.ErrFlushed) || errors.Is(err, context.Canceled) {
			break // the connection is over
		}
		check(err)
		messages++
		check(conn.QP().PostRecv(ibverbs.RecvWR{}))
	}
	check(conn.Close())
	return messages
}
