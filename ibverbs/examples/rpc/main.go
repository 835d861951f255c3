// Rpc calls methods of a server with messages. All connections of the server take their
// receives from one shared receive queue (SRQ); each call has a deadline, which the server
// also knows; and a client whose connection is lost makes another and calls again.
//
//	go run ./ibverbs/examples/rpc --listen 127.0.0.1:7471                   # one terminal
//	go run ./ibverbs/examples/rpc 127.0.0.1:7471 upper hello                # another
//	go run ./ibverbs/examples/rpc --deadline 100ms 127.0.0.1:7471 sleep 2s
//	go run ./ibverbs/examples/rpc --count 100 --interval 1s 127.0.0.1:7471 upper hello
//
// The server prints
//
//	listening on 127.0.0.1:7471
//
// and the clients
//
//	HELLO
//	rpc: sleep: context deadline exceeded
//
// and the last client prints HELLO every second. It goes on when the server is stopped and
// started again, because calls wait for the server until --deadline.
//
// It shows:
//   - an SRQ with a Receiver for all connections, and messages that find their connection by
//     the number of the QP (server.go),
//   - credits: iWARP ends the connection if a message finds no receive, so the server announces
//     how many calls a client may have under way, has that many receives for each client,
//     and posts a receive again before it answers,
//   - answers that come in another order than the calls, for many goroutines (session.go),
//   - deadlines that reach the method, and abandoned calls (client.go, server.go),
//   - reconnecting with growing pauses (client.go).
//
// If a connection is lost, its calls may have been carried out or not, and the client makes
// them again. So a method must do no harm when it runs twice. A client that sends more than its
// credits takes receives from others: if clients can't be trusted, give each QP a receive queue
// of its own.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/auto"
)

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "rpc:", err)
		os.Exit(1)
	}
}

// start does what the command line asks for.
func start() error {
	listen := flag.String("listen", "", "serve at this `address` instead of calling")
	provider := flag.String("provider", "auto", "engine, kernel or auto")
	clients := flag.Int("clients", 32, "of the server: how many it has at a time")
	deadline := flag.Duration("deadline", 10*time.Second, "of each call, with reconnecting")
	count := flag.Int("count", 1, "how many calls to make")
	interval := flag.Duration("interval", 0, "between calls")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: rpc [flags] --listen ADDRESS\n       rpc [flags] ADDRESS upper TEXT\n       rpc [flags] ADDRESS sleep DURATION\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if wrong := misuse(*listen, flag.NArg(), *clients, *count, *interval, *deadline); wrong != "" {
		fmt.Fprintln(os.Stderr, "rpc:", wrong)
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *listen != "" {
		return serve(ctx, *provider, *listen, *clients)
	}
	return calls(ctx, *provider, flag.Args(), *count, *interval, *deadline)
}

// misuse returns what is wrong with the command line, or "". args is how many arguments
// follow the flags.
func misuse(listen string, args, clients, count int, interval, deadline time.Duration) string {
	switch {
	case listen != "" && args != 0:
		return "a server takes no arguments after its flags"
	case listen == "" && args != 3:
		return fmt.Sprintf("an address, a method and its argument are needed, after all flags; "+
			"there are %d arguments", args)
	case clients < 1:
		return fmt.Sprintf("--clients %d: has to be at least 1", clients)
	case count < 1:
		return fmt.Sprintf("--count %d: has to be at least 1", count)
	case interval < 0:
		return fmt.Sprintf("--interval %v: has to be at least 0", interval)
	case deadline <= 0:
		return fmt.Sprintf("--deadline %v: has to be above 0", deadline)
	}
	return ""
}

// calls makes the same call a number of times and prints the answers.
func calls(ctx context.Context, provider string, args []string, count int, interval, deadline time.Duration) (err error) {
	address, method, payload := args[0], args[1], args[2]
	vctx, err := open(ctx, provider, address, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
	c := newClient(vctx, address)
	defer func() { err = errors.Join(err, c.Close()) }()
	for n := range count {
		if n > 0 {
			select {
			case <-time.After(interval):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		one, cancel := context.WithTimeout(ctx, deadline)
		answer, err := c.Call(one, method, []byte(payload))
		cancel()
		if err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		fmt.Printf("%s\n", answer)
	}
	return nil
}

// open opens a device. auto takes one of the kernel if it leads to the address, otherwise
// the engine.
func open(ctx context.Context, name, address string, passive bool) (*ibverbs.Context, error) {
	addrs, err := rdmacm.GetAddrInfo(ctx, address, &rdmacm.AddrInfoHints{Passive: passive})
	if err != nil {
		return nil, err
	}
	p, err := auto.Named(name, &auto.Options{Addr: addrs[0].Addr()})
	if err != nil {
		return nil, fmt.Errorf("--provider: %w", err)
	}
	return ibverbs.Open(p, "")
}
