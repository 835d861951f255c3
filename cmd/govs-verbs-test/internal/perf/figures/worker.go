package figures

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/worker"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	govs "github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// order is an order to an end, which is a worker process. One field is set, with Over and
// Addr if that needs them.
type order struct {
	Who     bool       `json:",omitempty"` // describe the end
	Listen  *Device    `json:",omitempty"` // server: listen over it, at Addr
	Run     *load.Spec `json:",omitempty"` // client: run it over Over, with the server at Addr
	Idle    *int       `json:",omitempty"` // client: have so many idle connections to Addr; server: 0, listen for them
	UseIdle bool       `json:",omitempty"` // post to every idle QP once
	Memory  bool       `json:",omitempty"` // report the memory of the process

	Over *Device        `json:",omitempty"`
	Addr netip.AddrPort `json:",omitzero"`
}

type answer struct {
	End     *load.End      `json:",omitempty"` // its description
	Addr    netip.AddrPort `json:",omitzero"`
	Result  *load.Result   `json:",omitempty"`
	Elapsed time.Duration  `json:",omitempty"`
	Memory  *memory        `json:",omitempty"`
}

// Serve is an end: it takes orders from in until that ends. self describes the process to
// other ends, and its Cong is for all sockets.
func Serve(ctx context.Context, in io.Reader, out io.Writer, self load.End) error {
	ctx, stop := context.WithCancel(ctx)
	x := &executor{ctx: ctx, self: self, vctxs: make(map[Device]*ibverbs.Context)}
	defer x.close(stop)
	return worker.Serve(in, out, x.do)
}

// executor carries out the orders to an end. It does one thing at a time.
type executor struct {
	ctx    context.Context
	self   load.End
	vctxs  map[Device]*ibverbs.Context
	peer   peer // of client
	client client
	served []func() error // what is to be closed when ctx has ended
	idle   *idle
}

// peer is what a client is connected to.
type peer struct {
	device Device
	addr   netip.AddrPort
}

type client interface {
	Run(ctx context.Context, spec load.Spec) (load.Result, error)
	Close() error
}

type server interface {
	Addr() netip.AddrPort
	Serve(ctx context.Context, n int) error
	Close() error
}

func (x *executor) do(o order) (a answer, err error) {
	switch {
	case o.Who:
		a.End = &x.self
	case o.Listen != nil:
		a.Addr, err = x.listen(*o.Listen, o.Addr)
	case o.Run != nil && o.Over != nil:
		a.Result, err = x.run(peer{*o.Over, o.Addr}, *o.Run)
	case o.Idle != nil && o.Over != nil:
		a.Addr, a.Elapsed, err = x.idling(*o.Over, o.Addr, *o.Idle)
	case o.UseIdle && x.idle != nil:
		err = x.idle.use()
	case o.Memory:
		a.Memory, err = memoryNow()
	default:
		err = errors.New("an order to do nothing")
	}
	return a, err
}

// end says what this end is with a device.
func (x *executor) end(d Device) load.End {
	e := x.self
	e.Provider, e.CRC = d.Provider, d.CRC
	if d.Provider == "kernel" {
		e.Cong = "" // its sockets are out of reach
	}
	return e
}

// open opens a device once.
func (x *executor) open(d Device) (*ibverbs.Context, error) {
	d.Segments, d.Link = false, "" // the address decides these
	d.Stream = false
	if vctx, ok := x.vctxs[d]; ok {
		return vctx, nil
	}
	var vctx *ibverbs.Context
	var err error
	if d.Provider == "kernel" {
		vctx, err = ibverbs.Open(kernel.New(), "")
	} else {
		opts := new(govs.Options)
		opts.TCP.CongestionControl = x.self.Cong
		if d.CRC == "off" {
			opts.CRC = govs.CRCOff
		}
		if d.Sleeps {
			opts.BusyWait = -1
		}
		vctx, err = ibverbs.Open(govs.New(opts), "")
	}
	if err != nil {
		return nil, err
	}
	x.vctxs[d] = vctx
	return vctx, nil
}

func (x *executor) listen(d Device, addr netip.AddrPort) (netip.AddrPort, error) {
	s, err := x.server(d, addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.Serve(x.ctx, 0) // the client reports what goes wrong
	}()
	x.served = append(x.served, func() error { <-over; return s.Close() })
	return s.Addr(), nil
}

// server listens for what a device is for.
func (x *executor) server(d Device, addr netip.AddrPort) (server, error) {
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

// network returns that of TCP, or of streams over a device.
func (x *executor) network(d Device) (none rawtcp.Network, err error) {
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

// run runs over the connection to a server, which is kept for the next run with it. After an error
// it is made anew. There are no connections of other runs: a device whose connections are more than
// a few gives them smaller send buffers, and one of them has a twentieth less bandwidth then.
func (x *executor) run(p peer, spec load.Spec) (*load.Result, error) {
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

// leave ends the client that there is.
func (x *executor) leave() error {
	c := x.client
	if c == nil {
		return nil
	}
	x.client = nil
	return c.Close()
}

func (x *executor) dial(p peer) (client, error) {
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

// close ends everything in the order in which it can end. No caller takes errors any
// more.
func (x *executor) close(stop func()) {
	_ = x.leave()
	stop()
	for _, wait := range x.served {
		_ = wait()
	}
	if x.idle != nil {
		x.idle.close()
	}
	for _, vctx := range x.vctxs {
		_ = vctx.Close()
	}
}
