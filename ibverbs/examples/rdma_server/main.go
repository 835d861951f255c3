// Rdma_server is a port of rdma-core's librdmacm/examples/rdma_server.c, call by call, for
// those who come from C. It takes one connection, waits for 16 bytes, sends 16 bytes, and
// ends. Either end can be the C program, over a kernel device.
//
//	go run ./ibverbs/examples/rdma_server -s 127.0.0.1       # one terminal
//	go run ./ibverbs/examples/rdma_client -s 127.0.0.1       # another
//
// The server prints
//
//	rdma_server: start
//	rdma_server: listening on 127.0.0.1:7471
//	rdma_server: end
//
// The equivalent of each call of the C program, in order:
//
//	rdma_getaddrinfo        GetAddrInfo
//	rdma_create_ep          Open, CreateEventChannel, CreateID, BindAddr (see ep.go)
//	rdma_listen             ID.Listen
//	rdma_get_request        EventChannel.GetEvent, ID.Migrate, and for the QP AllocPD,
//	                        CreateCompChannel, CreateCQ, CreateQP
//	ibv_query_qp            QP.Query
//	rdma_reg_msgs           PD.RegMR with AccessLocalWrite
//	rdma_post_recv          QP.PostRecv
//	rdma_accept             ID.Accept, then the event
//	rdma_get_recv_comp      CQ.PollWait of the receive CQ
//	rdma_post_send          QP.PostSend
//	rdma_get_send_comp      CQ.PollWait of the send CQ
//	rdma_disconnect         ID.Disconnect, then the event
//	rdma_dereg_mr           MR.Close
//	rdma_destroy_ep         Close of each object, children first
//
// The comment of rdma_client describes how the calls differ from C. Package rdmacm's Listen and
// Accept do everything up to rdma_accept in three calls; package echo shows them.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

const messageLen = 16 // bytes, as in the C program

var (
	server   = flag.String("s", "0.0.0.0", "`address` or name to listen at")
	port     = flag.String("p", "7471", "`port` to listen at")
	provider = flag.String("provider", "auto", "engine, kernel or auto")
	timeout  = flag.Duration("timeout", 10*time.Second, "for everything after a client's request")
)

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "rdma_server:", err)
		os.Exit(1)
	}
}

// start does what the command line asks for.
func start() error {
	flag.Parse()
	if flag.NArg() != 0 {
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	fmt.Println("rdma_server: start")
	if err := run(ctx); err != nil {
		return err
	}
	fmt.Println("rdma_server: end")
	return nil
}

func run(ctx context.Context) (err error) {
	addrs, err := rdmacm.GetAddrInfo(ctx, net.JoinHostPort(*server, *port), &rdmacm.AddrInfoHints{Passive: true})
	if err != nil {
		return err
	}
	l, err := listenEP(addrs[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.destroy()) }()
	if err := l.id.Listen(1); err != nil {
		return err
	}
	fmt.Println("rdma_server: listening on", l.id.LocalAddr())
	ep, err := l.getRequest(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.destroy()) }()
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()

	// The device may grant less inline data than was asked for.
	_, init, err := ep.qp.Query()
	if err != nil {
		return err
	}
	inline := init.Cap.MaxInlineData >= messageLen
	if !inline {
		fmt.Println("rdma_server: no inline data on this device, sending from registered memory")
	}

	recvMsg, sendMsg := make([]byte, messageLen), make([]byte, messageLen)
	recvMR, err := ep.pd.RegMR(recvMsg, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, recvMR.Close()) }()
	send := ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: sendMsg}
	if !inline {
		sendMR, err := ep.pd.RegMR(sendMsg, ibverbs.AccessLocalWrite)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, sendMR.Close()) }()
		sge, err := sendMR.SGE(0, messageLen)
		if err != nil {
			return err
		}
		send = ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}
	}

	sge, err := recvMR.SGE(0, messageLen)
	if err != nil {
		return err
	}
	if err := ep.qp.PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}}); err != nil {
		return err
	}
	if err := ep.id.Accept(nil); err != nil {
		return err
	}
	if err := ep.await(ctx, rdmacm.Established); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.disconnect(ctx)) }()

	if err := getComp(ctx, ep.recvCQ); err != nil {
		return fmt.Errorf("the receive: %w", err)
	}
	if err := ep.qp.PostSend(send); err != nil {
		return err
	}
	if err := getComp(ctx, ep.sendCQ); err != nil {
		return fmt.Errorf("the send: %w", err)
	}
	return nil
}

// getComp waits for one completion, as rdma_get_send_comp and rdma_get_recv_comp do. In C the
// completion has the result of the work; here it is the error.
func getComp(ctx context.Context, cq *ibverbs.CQ) error {
	var wc [1]ibverbs.WC
	if _, err := cq.PollWait(ctx, wc[:]); err != nil {
		return err
	}
	return wc[0].Err()
}
