package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

type pingCmd struct {
	Addr     string        `arg:"" optional:"" help:"Whom to ping: ADDR:PORT. rping's port is 7174." placeholder:"ADDR:PORT"`
	Listen   string        `help:"Serve one client at this address, then end." placeholder:"ADDR:PORT"`
	Provider string        `enum:"auto,engine,kernel" default:"auto" help:"Provider: auto, engine or kernel."`
	Count    int           `short:"C" default:"10" help:"How many pings the client sends."`
	Size     int           `short:"S" default:"64" help:"Octets of each ping."`
	Verbose  bool          `short:"v" help:"Print the data of each ping."`
	Timeout  time.Duration `default:"60s" help:"Give up after this time."`
	JSON     bool          `name:"json" help:"Print the client's figures as JSON."`
}

// What rping takes (RPING_BUFSIZE and the length of its message's head).
const (
	minPing = 32
	maxPing = 64 << 10
)

// Validate implements kong's check.
func (c *pingCmd) Validate() error {
	switch {
	case (c.Addr == "") == (c.Listen == ""):
		return errors.New("give either ADDR:PORT to ping, or --listen ADDR:PORT to be pinged")
	case c.Size < minPing || c.Size > maxPing:
		return fmt.Errorf("--size %d: rping takes %d to %d octets", c.Size, minPing, maxPing)
	case c.Count < 1:
		return fmt.Errorf("--count %d: has to be at least 1", c.Count)
	}
	return nil
}

// Run pings, or serves.
func (c *pingCmd) Run(ctx context.Context, out *output) error {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	addr, err := netip.ParseAddrPort(c.Addr + c.Listen)
	if err != nil {
		return &environmentError{fmt.Errorf("%w: an IP address and a port are needed, such as 192.0.2.1:7174", err)}
	}
	vctx, why, err := openProvider(c.Provider)
	if err != nil {
		return &environmentError{err}
	}
	defer vctx.Close()
	fmt.Fprintf(out.errors, "%s\n", why)
	if c.Listen != "" {
		return c.serve(ctx, out, vctx, addr)
	}
	return c.ping(ctx, out, vctx, addr)
}

// side is one end of an rping: the buffer that its peer reads or writes, and
// the two messages.
type side struct {
	ctx  context.Context
	conn *rdmacm.Conn
	data *ibverbs.MR // what is pinged
	sink *ibverbs.MR // client: where the server's Write goes
	send *ibverbs.MR
	recv *ibverbs.MR
}

// config registers memory and posts the first receive before the peer can send.
func (s *side) config(size int) *rdmacm.ConnConfig {
	return &rdmacm.ConnConfig{
		ResponderResources: 1, InitiatorDepth: 1,
		Prepare: func(ctx context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			s.ctx, s.conn = ctx, conn
			all := ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead | ibverbs.AccessRemoteWrite
			for _, b := range []struct {
				mr     **ibverbs.MR
				n      int
				access ibverbs.Access
			}{{&s.data, size, all}, {&s.sink, size, all}, {&s.send, pingInfoLen, ibverbs.AccessLocalWrite}, {&s.recv, pingInfoLen, ibverbs.AccessLocalWrite}} {
				mr, err := conn.PD().AllocMR(b.n, b.access)
				if err != nil {
					return errors.Join(err, s.free())
				}
				*b.mr = mr
			}
			return s.postRecv()
		},
	}
}

func (s *side) free() error {
	var errs []error
	for _, mr := range []*ibverbs.MR{s.data, s.sink, s.send, s.recv} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(errs...)
}

// close ends the connection and frees the memory.
func (s *side) close() error {
	if s.conn == nil {
		return nil
	}
	_ = s.conn.Close() // EBUSY: the memory is still registered with its PD
	return errors.Join(s.free(), s.conn.Close())
}

func (s *side) postRecv() error {
	sge, err := s.recv.SGE(0, pingInfoLen)
	if err != nil {
		return err
	}
	return s.conn.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}})
}

// tell sends the peer an info message.
func (s *side) tell(info pingInfo) error {
	info.put(s.send.Bytes())
	sge, err := s.send.SGE(0, pingInfoLen)
	if err != nil {
		return err
	}
	return s.do(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}})
}

// do posts one work request and waits for its completion.
func (s *side) do(wr ibverbs.SendWR) error {
	wr.Flags |= ibverbs.SendSignaled
	if err := s.conn.QP().PostSend(wr); err != nil {
		return err
	}
	return s.wait(s.conn.SendCQ(), wr.Opcode.String())
}

func (s *side) wait(cq *ibverbs.CQ, what string) error {
	var wc [1]ibverbs.WC
	if _, err := cq.PollWait(s.ctx, wc[:]); err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	if err := wc[0].Err(); err != nil {
		if cause := s.conn.QP().Cause(); cause != nil {
			return fmt.Errorf("%s: %w: %w", what, err, cause)
		}
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// hear waits for the peer's info message, and posts the next receive.
func (s *side) hear() (pingInfo, error) {
	if err := s.wait(s.conn.RecvCQ(), "the peer's message"); err != nil {
		return pingInfo{}, err
	}
	info := parsePingInfo(s.recv.Bytes())
	return info, s.postRecv()
}

// figures are what the client reports.
type figures struct {
	Peer     string  `json:"peer"`
	Provider string  `json:"provider"`
	Device   string  `json:"device"`
	Count    int     `json:"count"`
	Size     int     `json:"size"`
	MinUs    float64 `json:"min_us"`
	MeanUs   float64 `json:"mean_us"`
	MaxUs    float64 `json:"max_us"`
}

func (c *pingCmd) ping(ctx context.Context, out *output, vctx *ibverbs.Context, addr netip.AddrPort) error {
	s := &side{}
	defer s.close()
	conn, err := rdmacm.Dial(ctx, vctx, addr, s.config(c.Size))
	if err != nil {
		return fmt.Errorf("connecting to %s: %w", addr, err)
	}
	s.ctx, s.conn = ctx, conn
	f := figures{Peer: addr.String(), Provider: vctx.Provider(), Device: vctx.Name(), Count: c.Count, Size: c.Size}
	var sum time.Duration
	for n := range c.Count {
		began := time.Now()
		if err := s.pingOnce(n); err != nil {
			return fmt.Errorf("ping %d: %w", n, err)
		}
		took := time.Since(began)
		sum += took
		us := float64(took.Nanoseconds()) / 1000
		if n == 0 || us < f.MinUs {
			f.MinUs = us
		}
		f.MaxUs = max(f.MaxUs, us)
		if c.Verbose {
			fmt.Fprintf(out, "ping data: %s\n", bytes.TrimRight(s.sink.Bytes(), "\x00"))
		}
	}
	f.MeanUs = float64(sum.Nanoseconds()) / 1000 / float64(c.Count)
	if err := conn.Disconnect(); err != nil {
		return err
	}
	if err := conn.Wait(ctx); err != nil {
		return err
	}
	if c.JSON {
		return printJSON(out, f)
	}
	fmt.Fprintf(out, "%d pings of %d octets to %s over %s %s: round trip min/mean/max %.1f/%.1f/%.1f us\n",
		c.Count, c.Size, addr, f.Provider, f.Device, f.MinUs, f.MeanUs, f.MaxUs)
	return nil
}

// pingOnce: the server reads our data, and writes it back to our sink.
func (s *side) pingOnce(n int) error {
	fillPing(s.data.Bytes(), n)
	clear(s.sink.Bytes())
	if err := s.tell(infoOf(s.data)); err != nil {
		return err
	}
	if _, err := s.hear(); err != nil { // it has read
		return err
	}
	if err := s.tell(infoOf(s.sink)); err != nil {
		return err
	}
	if _, err := s.hear(); err != nil { // it has written
		return err
	}
	if !bytes.Equal(s.data.Bytes(), s.sink.Bytes()) {
		return errors.New("what came back is not what was sent")
	}
	return nil
}

func (c *pingCmd) serve(ctx context.Context, out *output, vctx *ibverbs.Context, addr netip.AddrPort) error {
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	if err != nil {
		return fmt.Errorf("listening on %s: %w", addr, err)
	}
	defer l.Close()
	fmt.Fprintf(out.errors, "listening on %s\n", l.Addr())
	req, err := l.Accept(ctx)
	if err != nil {
		return fmt.Errorf("nobody connected: %w", err)
	}
	s := &side{}
	defer s.close()
	// The client's size is not known before its first message.
	conn, err := req.Accept(ctx, s.config(maxPing))
	if err != nil {
		return err
	}
	s.ctx, s.conn = ctx, conn
	served := 0
	for {
		text, err := s.serveOnce()
		if errors.Is(err, ibverbs.ErrFlushed) && served > 0 {
			break // the client has disconnected
		}
		if err != nil {
			return fmt.Errorf("ping %d: %w", served, err)
		}
		served++
		if c.Verbose {
			fmt.Fprintf(out, "server ping data: %s\n", text)
		}
	}
	fmt.Fprintf(out, "served %d pings of %s\n", served, conn.RemoteAddr())
	return nil
}

// serveOnce reads the client's data and writes it to where the client wants it.
func (s *side) serveOnce() ([]byte, error) {
	from, err := s.hear()
	if err != nil {
		return nil, err
	}
	if from.Size == 0 || from.Size > maxPing {
		return nil, fmt.Errorf("the client wants to ping with %d octets; rping takes up to %d", from.Size, maxPing)
	}
	sge, err := s.data.SGE(0, int(from.Size))
	if err != nil {
		return nil, err
	}
	wr := ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{sge}, RemoteAddr: from.Addr, RKey: from.Key}
	if err := s.do(wr); err != nil {
		return nil, err
	}
	text, _, _ := bytes.Cut(s.data.Bytes()[:from.Size], []byte{0})
	if err := s.tell(pingInfo{}); err != nil { // go on
		return nil, err
	}
	to, err := s.hear()
	if err != nil {
		return nil, err
	}
	if to.Size != from.Size {
		return nil, fmt.Errorf("the client's sink has %d octets, its source had %d", to.Size, from.Size)
	}
	wr.Opcode, wr.RemoteAddr, wr.RKey = ibverbs.WRRDMAWrite, to.Addr, to.Key
	if err := s.do(wr); err != nil {
		return nil, err
	}
	return bytes.Clone(text), s.tell(pingInfo{})
}
