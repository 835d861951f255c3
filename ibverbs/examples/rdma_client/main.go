// Rdma_client is a port of rdma-core's librdmacm/examples/rdma_client.c, call by call, for
// those who come from C. It sends 16 bytes to rdma_server, waits for 16 bytes, and ends.
// Either end can be the C program, over a kernel device.
//
//	go run ./ibverbs/examples/rdma_server -s 127.0.0.1       # one terminal
//	go run ./ibverbs/examples/rdma_client -s 127.0.0.1       # another
//
// The client prints
//
//	rdma_client: start
//	rdma_client: end
//
// The equivalent of each call of the C program, in order:
//
//	rdma_getaddrinfo        GetAddrInfo
//	rdma_create_ep          Open, CreateEventChannel, CreateID, ResolveAddr, ResolveRoute,
//	                        AllocPD, CreateCompChannel, CreateCQ, CreateQP (see ep.go)
//	attr.cap.max_inline...  QP.Query
//	rdma_reg_msgs           PD.RegMR with AccessLocalWrite
//	rdma_post_recv          QP.PostRecv
//	rdma_connect            ID.Connect, then the event
//	rdma_post_send          QP.PostSend
//	rdma_get_send_comp      CQ.PollWait of the send CQ
//	rdma_get_recv_comp      CQ.PollWait of the receive CQ
//	rdma_disconnect         ID.Disconnect, then the event
//	rdma_dereg_mr           MR.Close
//	rdma_destroy_ep         Close of each object, children first
//
// Two things differ. A device is opened before an id exists, because it says which provider
// does the work; librdmacm opens them all and picks one by the address. And calls of an id never
// wait: they work as for a C id with an event channel. The ids of rdma_create_ep have no channel,
// so every call waits for its event. Package rdmacm's Dial does all of create_ep and connect in
// one call; package echo shows it.
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
	server   = flag.String("s", "127.0.0.1", "`address` or name of the server")
	port     = flag.String("p", "7471", "`port` of the server")
	provider = flag.String("provider", "auto", "engine, kernel or auto")
	timeout  = flag.Duration("timeout", 10*time.Second, "for everything")
)

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "rdma_client:", err)
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
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	fmt.Println("rdma_client: start")
	if err := run(ctx); err != nil {
		return err
	}
	fmt.Println("rdma_client: end")
	return nil
}

func run(ctx context.Context) (err error) {
	addrs, err := rdmacm.GetAddrInfo(ctx, net.JoinHostPort(*server, *port), nil)
	if err != nil {
		return err
	}
	ep, err := createEP(ctx, addrs[0])
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.destroy()) }()

	// The device may grant less inline data than was asked for.
	_, init, err := ep.qp.Query()
	if err != nil {
		return err
	}
	inline := init.Cap.MaxInlineData >= messageLen
	if !inline {
		fmt.Println("rdma_client: no inline data on this device, sending from registered memory")
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
	if err := ep.id.Connect(nil); err != nil {
		return err
	}
	if err := ep.await(ctx, rdmacm.Established); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ep.disconnect(ctx)) }()

	if err := ep.qp.PostSend(send); err != nil {
		return err
	}
	if err := getComp(ctx, ep.sendCQ); err != nil {
		return fmt.Errorf("the send: %w", err)
	}
	if err := getComp(ctx, ep.recvCQ); err != nil {
		return fmt.Errorf("the receive: %w", err)
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
