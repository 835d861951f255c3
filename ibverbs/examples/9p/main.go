// 9p serves a file system to Linux, which mounts it over RDMA with the client that it has
// (9pnet_rdma, over siw or a network card), or over TCP:
//
//	go run ./ibverbs/examples/9p --listen 192.0.2.1:5640 /srv/files           # as root, or a user
//	mount -t 9p -o trans=rdma,port=5640,version=9p2000.L,msize=1048576 192.0.2.1 /mnt      # Linux
//
//	go run ./ibverbs/examples/9p --tcp --listen 127.0.0.1:5640 /srv/files
//	mount -t 9p -o trans=tcp,port=5640,version=9p2000.L 127.0.0.1 /mnt
//
// The server prints
//
//	listening on 192.0.2.1:5640
//	192.0.2.1:41938: connected
//	192.0.2.1:41938: left
//
// It shows:
//   - a server for a client that is in the kernel and knows nothing of this project,
//   - a protocol that is separate from its transport: package p9 has the protocol, over any
//     transport that carries messages; rdma.go is the transport over RDMA, p9/stream.go over TCP,
//   - Send and Receive alone: receives are posted before the client can send (ConnConfig.Receives),
//     and again before each reply, so that a client with --depth requests under way always finds
//     one,
//   - files that are read into registered memory and sent from there, and written from the
//     registered memory in which requests arrive.
//
// There is no authentication in iWARP, and none in this server: below the directory, a client that
// connects may do whatever the server's user may. Listen at an address that only trusted hosts
// reach. Locks (flock, fcntl) are refused with ENOLCK, extended attributes with EOPNOTSUPP, and
// set-user-ID programs with EPERM.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
)

// options are the flags.
type options struct {
	listen, provider string
	tcp, readOnly    bool
	msize            int // bytes in a message
	depth            int // requests that a client may have under way
	requests         int // how many of these are served at a time
	clients          int
}

func main() {
	if err := start(); err != nil {
		fmt.Fprintln(os.Stderr, "9p:", err)
		os.Exit(1)
	}
}

// start does what the command line asks for.
func start() (err error) {
	var o options
	flag.StringVar(&o.listen, "listen", "", "serve at this `address`; 9P's port is 5640")
	flag.StringVar(&o.provider, "provider", "auto", "engine, kernel or auto")
	flag.BoolVar(&o.tcp, "tcp", false, "serve over TCP")
	flag.BoolVar(&o.readOnly, "ro", false, "let nobody write")
	flag.IntVar(&o.msize, "msize", 1<<20, "bytes in a message at most; each client has room for --depth of them")
	flag.IntVar(&o.depth, "depth", 32, "requests of a client under way; over RDMA no less than its options rq and sq")
	flag.IntVar(&o.requests, "requests", 16, "requests of a client that are served at a time")
	flag.IntVar(&o.clients, "clients", 64,
		"clients that are served at a time; others wait, and one address has half of them at most")
	flag.Usage = func() {
		fmt.Fprint(flag.CommandLine.Output(), "usage: 9p [flags] --listen ADDRESS DIRECTORY\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	if wrong := o.misuse(flag.NArg()); wrong != "" {
		fmt.Fprintln(os.Stderr, "9p:", wrong)
		flag.Usage()
		os.Exit(2)
	}
	syscall.Umask(0) // new files have the modes that clients ask for
	root, err := os.OpenRoot(flag.Arg(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	var files p9.FS = p9.NewDir(root)
	if o.readOnly {
		files = p9.NewFS(root.FS())
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	server := p9.NewServer(files, p9.Limits{Requests: o.requests})
	if o.tcp {
		return serveTCP(ctx, server, &o)
	}
	return serveRDMA(ctx, server, &o)
}

// misuse returns what is wrong with the command line, or "". args is the number of arguments after
// the flags.
func (o *options) misuse(args int) string {
	const most = 1 << 20 // Linux's limit
	switch {
	case args != 1:
		return fmt.Sprintf("one directory is needed, after all flags; there are %d arguments", args)
	case o.listen == "":
		return "--listen ADDRESS is needed"
	case o.msize < 4096 || o.msize > most:
		return fmt.Sprintf("--msize %d: has to be 4096 to %d", o.msize, most)
	case o.depth < 1 || o.requests < 1 || o.clients < 1:
		return "--depth, --requests and --clients have to be at least 1"
	}
	return ""
}
