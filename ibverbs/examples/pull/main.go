// Pull copies a file from a server with RDMA Reads. The server maps the file, registers it
// and does nothing more: its program takes no part in the copying. The client also maps the new
// file, and the Reads place the bytes there.
//
//	go run ./ibverbs/examples/pull --listen 127.0.0.1:7471 /var/log/syslog     # one terminal
//	go run ./ibverbs/examples/pull 127.0.0.1:7471 /tmp/syslog                  # another
//
// The server prints
//
//	listening on 127.0.0.1:7471
//	127.0.0.1:41938: connected
//	127.0.0.1:41938: left
//
// and the client, with a bar before it if it runs in a terminal,
//
//	[==============>                         ]  36%   812.4 MiB/s
//	/tmp/syslog: 734003200 bytes in 0.874s, 800.9 MiB/s
//
// It shows:
//   - a file as a memory region (PD.MapFile), for Reads of a peer and as the memory into which
//     Reads place their data,
//   - a region that is announced in the private data of the connection,
//   - a queue that is kept full: as many goroutines as --depth call Conn.Read on one connection,
//   - a limit on the time without progress, so that a server that stops is noticed.
//
// The new file gets its name when it is complete. A file that changes while it is copied is
// copied as a mixture; nothing reports that.
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

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "pull:", err)
		os.Exit(1)
	}
}

// start does what the command line asks for.
func start() error {
	listen := flag.String("listen", "", "serve the file at this `address`")
	provider := flag.String("provider", "auto", "engine, kernel or auto")
	var o options
	flag.IntVar(&o.chunk, "chunk", 1<<20, "`bytes` of each Read")
	flag.IntVar(&o.depth, "depth", 8, "how many Reads are under way at a time")
	flag.DurationVar(&o.timeout, "timeout", 10*time.Second, "for connecting, and for each wait")
	flag.BoolVar(&o.progress, "progress", isTerminal(os.Stderr), "draw a bar")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: pull [flags] --listen ADDRESS FILE\n       pull [flags] ADDRESS NEWFILE\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if *listen == "" && flag.NArg() != 2 || *listen != "" && flag.NArg() != 1 || o.chunk < 1 || o.depth < 1 {
		fmt.Fprintf(os.Stderr, "pull: %d arguments after the flags: a server takes a file, a client an address and "+
			"a new file, after all flags; --chunk and --depth have to be at least 1\n", flag.NArg())
		flag.Usage()
		os.Exit(2)
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *listen != "" {
		return serve(ctx, *provider, *listen, flag.Arg(0))
	}
	return pull(ctx, *provider, flag.Arg(0), flag.Arg(1), o)
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
