// Kv is a key-value store: clients read the server's memory region, which holds the table, and can
// also write it, without the server's program.
//
//	go run ./ibverbs/examples/kv --listen 127.0.0.1:7471             # one terminal
//	go run ./ibverbs/examples/kv 127.0.0.1:7471 put colour green     # another
//	go run ./ibverbs/examples/kv 127.0.0.1:7471 get colour
//
// The server prints
//
//	listening on 127.0.0.1:7471
//
// and the clients
//
//	put colour by compare-and-swap
//	green
//
// It shows:
//   - a data structure that stays consistent although no program guards it: table.go
//     says how a reader notices that it has read half of an old value and half of a new one,
//   - RDMA Read, and a Write and a compare-and-swap that are posted together (client.go),
//   - what to do without atomic operations (server.go).
//
// Atomic operations of iWARP are RFC 7306's, which the engine has with its option Extensions,
// and which siw does not have. Each end reports in the private data of the connection whether
// it has them. If one does not, the client still reads by itself, but it sends what it wants
// to write to the server, which writes its own memory. The line is then
//
//	put colour by the server
//
// Both ways can be used at the same time, since MR.CompareAndSwap is atomic against the
// peers' operations. --atomics=false makes a client of the engine go the second way.
//
// Clients are trusted: a client that may write the region may write all of it. Keys cannot be
// removed; a key without a value keeps its place in the table.
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
	"github.com/govs-rdma/govs/provider/engine"
)

const usage = `usage: kv [flags] --listen ADDRESS
       kv [flags] ADDRESS get KEY
       kv [flags] ADDRESS put KEY VALUE
`

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "kv:", err)
		os.Exit(1)
	}
}

// start does what the command line asks for.
func start() error {
	listen := flag.String("listen", "", "serve at this `address` instead of connecting")
	name := flag.String("provider", "auto", "engine, kernel or auto")
	slots := flag.Int("slots", 1024, "of the server: `places` for keys")
	atomics := flag.Bool("atomics", true, "use atomic operations if there are any")
	timeout := flag.Duration("timeout", 10*time.Second, "of the client, for everything")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), usage)
		flag.PrintDefaults()
	}
	flag.Parse()
	command := flag.Arg(1)
	server := *listen != "" && flag.NArg() == 0 && *slots > 0
	client := *listen == "" && (command == "get" && flag.NArg() == 3 || command == "put" && flag.NArg() == 4)
	if !server && !client {
		fmt.Fprintf(os.Stderr, "kv: %d arguments after the flags: a server takes none and --slots above 0; a client "+
			"an address and get KEY or put KEY VALUE, after all flags\n", flag.NArg())
		flag.Usage()
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if server {
		return serve(ctx, *name, *listen, *slots, *atomics)
	}
	ctx, cancel := context.WithTimeout(ctx, *timeout)
	defer cancel()
	return run(ctx, *name, flag.Arg(0), *atomics, flag.Args()[1:])
}

// run connects to the server at address and carries out a command.
func run(ctx context.Context, name, address string, atomics bool, command []string) (err error) {
	vctx, err := open(ctx, name, address, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
	c, err := dial(ctx, vctx, address, atomics)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	switch key := command[1]; command[0] {
	case "get":
		value, err := c.table.get(ctx, key)
		if err != nil {
			return err
		}
		fmt.Println(value)
	case "put":
		by := "compare-and-swap"
		put := c.table.put
		if !c.atomics {
			by, put = "the server", c.ask
		}
		if err := put(ctx, key, command[2]); err != nil {
			return err
		}
		fmt.Printf("put %s by %s\n", key, by)
	}
	return c.conn.Shutdown(ctx)
}

// open opens a device, with atomic operations if it has them. auto takes one of the kernel
// if it leads to the address, otherwise the engine.
func open(ctx context.Context, name, address string, passive bool) (*ibverbs.Context, error) {
	addrs, err := rdmacm.GetAddrInfo(ctx, address, &rdmacm.AddrInfoHints{Passive: passive})
	if err != nil {
		return nil, err
	}
	p, err := auto.Named(name, &auto.Options{Addr: addrs[0].Addr(), Engine: &engine.Options{Extensions: true}})
	if err != nil {
		return nil, fmt.Errorf("--provider: %w", err)
	}
	return ibverbs.Open(p, "")
}

// hasAtomics reports whether the device has atomic operations.
func hasAtomics(vctx *ibverbs.Context) (bool, error) {
	attr, err := vctx.Query()
	return attr.AtomicCap != ibverbs.AtomicNone, err
}
