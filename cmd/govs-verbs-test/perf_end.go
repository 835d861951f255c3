package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// perfEndCmd is an end for many runs that another program starts (ci/bench). It reads orders, as
// lines of JSON, from its stdin, and writes a line with the answer to each on its stdout.
type perfEndCmd struct {
	Cong string `default:"cubic" help:"TCP congestion control."`
}

// endOrder is an order: one of Who, Listen and Run is set.
type endOrder struct {
	Who    bool       `json:",omitempty"` // describe the end
	Listen *endDevice `json:",omitempty"` // listen at Addr for all runs with this end
	Run    *load.Spec `json:",omitempty"` // run it over Over, with the end that listens at Addr

	Over *endDevice     `json:",omitempty"`
	Addr netip.AddrPort `json:",omitzero"`
}

// endDevice describes the transport of a run.
type endDevice struct {
	Provider string // engine, kernel, or tcp for raw TCP
	CRC      string // engine: on, off
	Sleeps   bool   // engine: a blocking end sleeps without polling first
	Stream   bool   // over rsockets; their calls always block
}

// endReply is the answer to an order, or an Error, after which the end continues.
type endReply struct {
	Error  string `json:",omitempty"`
	Answer endAnswer
}

// endAnswer holds the result of an order.
type endAnswer struct {
	End    *load.End      `json:",omitempty"`
	Addr   netip.AddrPort `json:",omitzero"`
	Spec   *load.Spec     `json:",omitempty"` // of the run, with its defaults
	Result *load.Result   `json:",omitempty"`
}

// Run executes orders.
func (c *perfEndCmd) Run(ctx context.Context, out *output) error {
	f := perfFlags{Cong: c.Cong, CPU: -1}
	self, err := f.settle()
	if err != nil {
		return err
	}
	in, err := pollableStdin()
	if err != nil {
		return err
	}
	return serveOrders(ctx, in, out, self)
}

// pollableStdin is os.Stdin as a file that the network poller watches, so a goroutine that waits in
// a read holds neither a thread nor a P. A blocked read of os.Stdin keeps its P until the runtime
// notices, up to 10 ms later. With GOMAXPROCS=1 nothing else in the process runs during that time.
func pollableStdin() (*os.File, error) {
	fd, err := unix.FcntlInt(os.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating stdin: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("stdin: %w", errors.Join(err, unix.Close(fd)))
	}
	return os.NewFile(uintptr(fd), "stdin"), nil // NewFile detects that the descriptor is non-blocking
}

// serveOrders executes the orders from in until in ends. self describes this end; its Cong applies
// to all sockets.
func serveOrders(ctx context.Context, in io.Reader, out io.Writer, self load.End) error {
	ctx, stop := context.WithCancel(ctx)
	x := &perfEnd{ctx: ctx, self: self, vctxs: make(map[endDevice]*ibverbs.Context)}
	defer x.close(stop)
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o endOrder
		if err := orders.Decode(&o); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		var r endReply
		var err error
		if r.Answer, err = x.do(o); err != nil {
			r.Error = err.Error()
		}
		if err := answers.Encode(r); err != nil {
			return err
		}
	}
}

// perfEnd does one thing at a time.
type perfEnd struct {
	ctx    context.Context
	self   load.End
	vctxs  map[endDevice]*ibverbs.Context
	peer   endPeer // of client
	client endClient
	served []func() error // to be closed after ctx has ended
}

// endPeer is the server of a client.
type endPeer struct {
	device endDevice
	addr   netip.AddrPort
}

type endClient interface {
	Run(ctx context.Context, spec load.Spec) (load.Result, error)
	Close() error
}

func (x *perfEnd) do(o endOrder) (a endAnswer, err error) {
	switch {
	case o.Who:
		a.End = &x.self
	case o.Listen != nil:
		a.Addr, err = x.listen(*o.Listen, o.Addr)
	case o.Run != nil && o.Over != nil:
		a.Spec = o.Run
		if err = o.Over.complete(a.Spec); err == nil {
			a.Result, err = x.run(endPeer{*o.Over, o.Addr}, *a.Spec)
		}
	default:
		err = errors.New("the order names nothing to do")
	}
	return a, err
}

// overVerbs reports whether package load has the workloads.
func (d endDevice) overVerbs() bool { return d.Provider != "tcp" && !d.Stream }

// complete sets the defaults.
func (d endDevice) complete(s *load.Spec) error {
	if d.overVerbs() {
		return s.Complete()
	}
	return rawtcp.Complete(s)
}

// end describes this end with a device.
func (x *perfEnd) end(d endDevice) load.End {
	e := x.self
	e.Provider, e.CRC = d.Provider, d.CRC
	if d.Provider == "kernel" {
		e.Cong = "" // its sockets cannot be configured
	}
	return e
}

// open opens a device, once for all runs.
func (x *perfEnd) open(d endDevice) (*ibverbs.Context, error) {
	d.Stream = false
	if vctx, ok := x.vctxs[d]; ok {
		return vctx, nil
	}
	var vctx *ibverbs.Context
	var err error
	if d.Provider == "kernel" {
		vctx, err = ibverbs.Open(kernel.New(), "")
	} else {
		opts := new(engine.Options)
		opts.TCP.CongestionControl = x.self.Cong
		if d.CRC == "off" {
			opts.CRC = engine.CRCOff
		}
		if d.Sleeps {
			opts.BusyWait = -1
		}
		vctx, err = ibverbs.Open(engine.New(opts), "")
	}
	if err != nil {
		return nil, err
	}
	x.vctxs[d] = vctx
	return vctx, nil
}

func (x *perfEnd) listen(d endDevice, addr netip.AddrPort) (netip.AddrPort, error) {
	s, err := x.server(d, addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.Serve(x.ctx, 0) // the client reports failures
	}()
	x.served = append(x.served, func() error { <-over; return s.Close() })
	return s.Addr(), nil
}

// server listens for a device's runs.
func (x *perfEnd) server(d endDevice, addr netip.AddrPort) (perfServer, error) {
	if d.overVerbs() {
		vctx, err := x.open(d)
		if err != nil {
			return nil, err
		}
		return load.Listen(x.ctx, vctx, addr, x.end(d))
	}
	network, err := x.network(d)
	if err != nil {
		return nil, err
	}
	return rawtcp.Listen(x.ctx, addr, network)
}

// network returns the network for TCP, or for streams over a device.
func (x *perfEnd) network(d endDevice) (none rawtcp.Network, err error) {
	if !d.Stream {
		return rawtcp.TCP(x.self.Cong), nil
	}
	vctx, err := x.open(d)
	if err != nil {
		return none, err
	}
	return rawtcp.Network{
		Listen: func(ctx context.Context, addr netip.AddrPort) (net.Listener, error) {
			return rsocket.Listen(ctx, vctx, "tcp", addr.String())
		},
		Dial: func(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
			return rsocket.Dial(ctx, vctx, "tcp", addr.String())
		},
	}, nil
}

// run runs over the connection to a server, which it keeps for the next run with that server. After
// an error it makes a new one. It closes connections of other runs: with more than a few
// connections, a device gives each a smaller send buffer, which costs a twentieth of the bandwidth.
func (x *perfEnd) run(p endPeer, spec load.Spec) (*load.Result, error) {
	if x.client == nil || x.peer != p {
		if err := x.leave(); err != nil {
			return nil, fmt.Errorf("ending the connections of the run before: %w", err)
		}
		c, err := x.dial(p)
		if err != nil {
			return nil, err
		}
		x.client, x.peer = c, p
	}
	r, err := x.client.Run(x.ctx, spec)
	if err != nil {
		return nil, errors.Join(err, x.leave())
	}
	return &r, nil
}

// leave ends the current client, if any.
func (x *perfEnd) leave() error {
	c := x.client
	if c == nil {
		return nil
	}
	x.client = nil
	return c.Close()
}

func (x *perfEnd) dial(p endPeer) (endClient, error) {
	if p.device.overVerbs() {
		vctx, err := x.open(p.device)
		if err != nil {
			return nil, err
		}
		return load.Dial(x.ctx, vctx, p.addr, x.end(p.device))
	}
	network, err := x.network(p.device)
	if err != nil {
		return nil, err
	}
	return rawtcp.Dial(x.ctx, p.addr, network)
}

// close ends everything, in a possible order. Nobody is left to receive errors.
func (x *perfEnd) close(stop func()) {
	_ = x.leave()
	stop()
	for _, wait := range x.served {
		_ = wait()
	}
	for _, vctx := range x.vctxs {
		_ = vctx.Close()
	}
}
