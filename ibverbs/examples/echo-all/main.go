// Echo-all is echo as a program in production needs it: it handles every error, limits every wait
// and shuts down cleanly.
//
//	go run ./ibverbs/examples/echo-all --listen 127.0.0.1:7471       # one terminal
//	go run ./ibverbs/examples/echo-all 127.0.0.1:7471 hello          # another
//
// The server prints
//
//	listening on 127.0.0.1:7471
//	127.0.0.1:41938: echoed 5 bytes
//
// and the client
//
//	hello
//
// It shows:
//   - opening a device of either provider (main.go),
//   - receives that are posted before the peer can send (ConnConfig.Receives), and again before
//     the peer may send its next message (Message.Release),
//   - sending from registered memory, which is used again only after its work request has
//     completed (Conn.Send in server.go),
//   - waits that end with a deadline, with the connection or with an interrupt,
//   - Shutdown, which waits for what was sent, and Close, which frees everything.
//
// --provider chooses engine, kernel or auto. The default, auto, takes an iWARP device of the kernel
// if one reaches the address, otherwise the engine. Soft-iWARP (siw) does not use 127.0.0.1; give
// the address of the interface under the device instead.
package main

import (
	"context"
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

// maxMessage is the length in bytes of the longest message. Both ends post receives of
// this length, because a Send that is longer than its receive ends the connection.
const maxMessage = 4096

// config has one receive for each end, because the client sends its next message after the answer.
func config() *rdmacm.ConnConfig {
	return &rdmacm.ConnConfig{Receives: 1, ReceiveSize: maxMessage}
}

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "echo-all:", err)
		os.Exit(1)
	}
}

// start does what the command line asks for.
func start() error {
	listen := flag.String("listen", "", "serve at this `address` instead of connecting")
	provider := flag.String("provider", "auto", "engine, kernel or auto")
	timeout := flag.Duration("timeout", 10*time.Second, "of the client, for everything")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: echo-all [flags] --listen ADDRESS\n"+
			"       echo-all [flags] ADDRESS MESSAGE\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *listen == "" && flag.NArg() != 2 || *listen != "" && flag.NArg() != 0 {
		fmt.Fprintf(os.Stderr, "echo-all: %d arguments after the flags: a server takes none, a client an address "+
			"and a message, both after all flags\n", flag.NArg())
		flag.Usage()
		os.Exit(2)
	}

	// The first interrupt shuts the program down cleanly.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *listen != "" {
		return serve(ctx, *provider, *listen)
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	return send(ctx, *provider, flag.Arg(0), flag.Arg(1))
}

// open opens a device of the provider for connections with address. Nothing else depends on
// the provider.
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
