package figures

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
	"github.com/govs-rdma/govs/ibverbs"
	govs "github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// The two ends are processes that do what the one that started them says: an
// order in a line of JSON on their stdin, an answer in a line on their stdout.

// order is what an end is to do. One of the fields that point is set.
type order struct {
	Listen  *Device         `json:",omitempty"` // server: listen over it, at Addr
	Run     *load.Spec      `json:",omitempty"` // client: run it over Over, with the server at Addr
	Idle    *int            `json:",omitempty"` // client: have so many idle connections to Addr; server: 0, listen for them
	UseIdle bool            `json:",omitempty"` // post to every idle QP once
	Memory  bool            `json:",omitempty"` // tell the memory of the process
	Profile *profileRequest `json:",omitempty"`

	Over *Device        `json:",omitempty"`
	Addr netip.AddrPort `json:",omitzero"`
}

type answer struct {
	Error   string         `json:",omitempty"`
	End     *load.End      `json:",omitempty"` // the first, unasked: who it is
	Addr    netip.AddrPort `json:",omitzero"`
	Result  *load.Result   `json:",omitempty"`
	Elapsed time.Duration  `json:",omitempty"`
	Memory  *memory        `json:",omitempty"`
}

// Serve is an end: it takes orders from in until that ends. self is what is told
// of the process, and its Cong is for all sockets.
func Serve(ctx context.Context, in io.Reader, out io.Writer, self load.End) error {
	ctx, stop := context.WithCancel(ctx)
	w := &worker{ctx: ctx, self: self, vctxs: make(map[Device]*ibverbs.Context), clients: make(map[peer]client)}
	defer w.close(stop)
	say := json.NewEncoder(out)
	if err := say.Encode(answer{End: &self}); err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("an order: %w", err)
		}
		a, err := w.do(o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := say.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

// worker is an end. It does one thing at a time.
type worker struct {
	ctx     context.Context
	self    load.End
	vctxs   map[Device]*ibverbs.Context
	clients map[peer]client
	served  []func() error // what is to be closed when ctx has ended
	idle    *idle
	profile profile
}

// peer is what a client is kept for.
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

func (w *worker) do(o order) (a answer, err error) {
	switch {
	case o.Listen != nil:
		a.Addr, err = w.listen(*o.Listen, o.Addr)
	case o.Run != nil && o.Over != nil:
		a.Result, err = w.run(peer{*o.Over, o.Addr}, *o.Run)
	case o.Idle != nil && o.Over != nil:
		a.Addr, a.Elapsed, err = w.idling(*o.Over, o.Addr, *o.Idle)
	case o.UseIdle && w.idle != nil:
		err = w.idle.use()
	case o.Memory:
		a.Memory, err = memoryNow()
	case o.Profile != nil:
		err = w.profile.do(*o.Profile)
	default:
		err = errors.New("an order to do nothing")
	}
	return a, err
}

// end says what this end is with a device.
func (w *worker) end(d Device) load.End {
	e := w.self
	e.Provider, e.CRC, e.Placement = d.Provider, d.CRC, d.Placement
	if d.Provider == "kernel" {
		e.Cong = "" // its sockets are out of reach
	}
	return e
}

// open opens a device once.
func (w *worker) open(d Device) (*ibverbs.Context, error) {
	d.Segments = false // a matter of the address
	if vctx, ok := w.vctxs[d]; ok {
		return vctx, nil
	}
	var vctx *ibverbs.Context
	var err error
	if d.Provider == "kernel" {
		vctx, err = ibverbs.Open(kernel.New(), "")
	} else {
		opts := new(govs.Options)
		opts.TCP.CongestionControl = w.self.Cong
		if d.CRC == "off" {
			opts.CRC = govs.CRCOff
		}
		if d.Placement == "fast" {
			opts.Placement = govs.PlaceStreaming
		}
		if d.Sleeps {
			opts.BusyWait = -1
		}
		vctx, err = ibverbs.Open(govs.New(opts), "")
	}
	if err != nil {
		return nil, err
	}
	w.vctxs[d] = vctx
	return vctx, nil
}

func (w *worker) listen(d Device, addr netip.AddrPort) (netip.AddrPort, error) {
	var s server
	if d.Provider == "tcp" {
		l, err := rawtcp.Listen(w.ctx, addr, w.self.Cong)
		if err != nil {
			return netip.AddrPort{}, err
		}
		s = l
	} else {
		vctx, err := w.open(d)
		if err != nil {
			return netip.AddrPort{}, err
		}
		l, err := load.Listen(w.ctx, vctx, addr, w.end(d))
		if err != nil {
			return netip.AddrPort{}, err
		}
		s = l
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.Serve(w.ctx, 0) // what goes wrong with a client, the client says
	}()
	w.served = append(w.served, func() error { <-over; return s.Close() })
	return s.Addr(), nil
}

// run runs over the connection to a server, which is kept. After an error it is
// made anew.
func (w *worker) run(p peer, spec load.Spec) (*load.Result, error) {
	c, ok := w.clients[p]
	if !ok {
		var err error
		if c, err = w.dial(p); err != nil {
			return nil, err
		}
		w.clients[p] = c
	}
	r, err := c.Run(w.ctx, spec)
	if err != nil {
		delete(w.clients, p)
		return nil, errors.Join(err, c.Close())
	}
	return &r, nil
}

func (w *worker) dial(p peer) (client, error) {
	if p.device.Provider == "tcp" {
		return rawtcp.Dial(w.ctx, p.addr, w.self.Cong)
	}
	vctx, err := w.open(p.device)
	if err != nil {
		return nil, err
	}
	return load.Dial(w.ctx, vctx, p.addr, w.end(p.device))
}

// close ends everything in the order in which it can end. Nobody is left to hear
// of errors.
func (w *worker) close(stop func()) {
	for _, c := range w.clients {
		_ = c.Close()
	}
	stop()
	for _, wait := range w.served {
		_ = wait()
	}
	if w.idle != nil {
		w.idle.close()
	}
	for _, vctx := range w.vctxs {
		_ = vctx.Close()
	}
}
