// Grpc serves and calls a gRPC service over RDMA: its connections come from package rsocket, and
// everything else is as over TCP.
//
//	cd ibverbs/examples/grpc                     # a module of its own: gRPC is no dependency of govs
//	go run . --listen 127.0.0.1:7471             # one terminal
//	go run . 127.0.0.1:7471 hello RDMA           # another
//
// The server prints
//
//	listening on 127.0.0.1:7471
//
// and the client, which calls Say once for each message,
//
//	hello
//	RDMA
//
// With --stream the client sends all messages in one call of Talk, whose answers come while it
// sends. The server waits for --wait before each answer, so that
//
//	go run . --wait 1s --timeout 100ms 127.0.0.1:7471 hello
//
// fails with DeadlineExceeded. It shows:
//   - an [rsocket.Listener] for [grpc.Server.Serve] (server.go),
//   - an [rsocket.Dialer] for [grpc.WithContextDialer] (client.go),
//   - closing the device after gRPC, whose goroutines close connections a little later than its
//     calls return (closeDevice).
//
// --provider chooses engine, kernel or auto. The default, auto, takes an iWARP device of the kernel
// if one reaches the address, otherwise the engine. Soft-iWARP (siw) does not use 127.0.0.1; give
// the address of the interface under the device instead. Other kernel devices do not work.
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
		fmt.Fprintln(os.Stderr, "grpc:", err)
		os.Exit(1)
	}
}

// start does what the command line asks for.
func start() error {
	listen := flag.String("listen", "", "serve at this `address` instead of calling")
	provider := flag.String("provider", "auto", "engine, kernel or auto")
	var calls calls
	flag.DurationVar(&calls.timeout, "timeout", 10*time.Second, "of each call")
	flag.DurationVar(&calls.wait, "wait", 0, "how long the server waits before each answer")
	flag.BoolVar(&calls.stream, "stream", false, "one call for all messages")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(),
			"usage: grpc [flags] --listen ADDRESS\n       grpc [flags] ADDRESS MESSAGE...\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *listen == "" && flag.NArg() < 2 || *listen != "" && flag.NArg() != 0 {
		fmt.Fprintf(os.Stderr, "grpc: %d arguments after the flags: a server takes none, a client an address "+
			"and messages\n", flag.NArg())
		flag.Usage()
		os.Exit(2)
	}

	// The first interrupt shuts the program down cleanly.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *listen != "" {
		return serve(ctx, *provider, *listen)
	}
	calls.messages = flag.Args()[1:]
	return call(ctx, *provider, flag.Arg(0), calls)
}

// open opens a device of the provider for connections with address; passive is for listening there.
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

// closeDevice closes the device when gRPC has closed the last connection. Close fails with EBUSY if
// the device still has connections, and its error names them.
func closeDevice(vctx *ibverbs.Context) error {
	for patience := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if err := vctx.Close(); !errors.Is(err, syscall.EBUSY) || time.Now().After(patience) {
			return err
		}
	}
}
