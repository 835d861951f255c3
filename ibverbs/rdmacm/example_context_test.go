package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// Every call that waits takes a context, and ends with it: Dial, Accept, waiting for a completion,
// Wait and Shutdown. The connection goes on; the program decides whether to close it.
func ExampleConn_contexts() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // for everything
	defer cancel()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()

	// No goroutine answers requests yet.
	soon, cancelSoon := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancelSoon()
	_, err = rdmacm.Dial(soon, vctx, l.Addr(), nil)
	fmt.Println("Dial:", errors.Is(err, context.DeadlineExceeded))

	served := make(chan struct{})
	stop, cancelStop := context.WithCancel(ctx)
	go func() {
		defer close(served)
		for {
			req, err := l.Accept(stop)
			if errors.Is(err, context.Canceled) {
				fmt.Println("Accept: the server was told to stop")
				return
			}
			check(err)
			conn, err := req.Accept(stop, nil)
			if err != nil {
				continue // the first Dial, which has given up
			}
			defer conn.Close()
		}
	}()
	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	check(err)
	defer conn.Close()

	// No message arrives.
	wait, cancelWait := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancelWait()
	var wc [1]ibverbs.WC
	_, err = conn.RecvCQ().PollWait(wait, wc[:])
	fmt.Println("PollWait:", errors.Is(err, context.DeadlineExceeded))

	check(conn.Shutdown(ctx))
	cancelStop()
	<-served
	// Output:
	// Dial: true
	// PollWait: true
	// Accept: the server was told to stop
}
