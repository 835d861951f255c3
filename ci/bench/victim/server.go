package victim

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// cong is the TCP congestion control of all sockets.
const cong = "cubic"

// sinkSize is the size of the region that peers may write to. Each peer has a part of it.
const sinkSize = 4 << 20

// server is the program that the victim and the hostile peers connect to, over one device.
type server struct {
	vctx   *ibverbs.Context
	spin   bool
	victim *rdmacm.Listener
	others *rdmacm.Listener

	pd           *ibverbs.PD // of the peers
	source, sink *ibverbs.MR
	cq           *ibverbs.CQ
	grant        []byte

	cancel context.CancelFunc
	tasks  sync.WaitGroup
	live   atomic.Int64 // connections of peers
}

// device opens a device, for the server or the victim's client.
func device(busyWait time.Duration) (*ibverbs.Context, error) {
	opts := &engine.Options{BusyWait: busyWait}
	opts.TCP.CongestionControl = cong
	return ibverbs.Open(engine.New(opts), "")
}

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// backlog is the backlog of the two listeners.
const backlog = 1024

func serve(ctx context.Context, vctx *ibverbs.Context, poll load.Poll) (_ *server, err error) {
	s := &server{vctx: vctx, spin: poll == load.Spin}
	ctx, s.cancel = context.WithCancel(ctx)
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if err := s.offer(); err != nil {
		return nil, err
	}
	for _, l := range []struct {
		at    **rdmacm.Listener
		serve func(context.Context, *rdmacm.Request)
	}{{&s.victim, s.serveVictim}, {&s.others, s.servePeer}} {
		listener, err := rdmacm.Listen(ctx, vctx, loopback, &rdmacm.ListenConfig{Backlog: backlog})
		if err != nil {
			return nil, err
		}
		*l.at = listener
		s.tasks.Go(func() { s.accept(ctx, listener, l.serve) })
	}
	return s, nil
}

// offer registers the memory that peers may read and write.
func (s *server) offer() (err error) {
	if s.pd, err = s.vctx.AllocPD(); err != nil {
		return err
	}
	if s.source, err = s.pd.RegMR(make([]byte, readSize), ibverbs.AccessRemoteRead); err != nil {
		return err
	}
	if s.sink, err = s.pd.RegMR(make([]byte, sinkSize), ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite); err != nil {
		return err
	}
	if s.cq, err = s.vctx.CreateCQ(backlog, nil); err != nil {
		return err
	}
	s.grant = grant{
		source: s.source.Addr(), sourceKey: s.source.RKey(), sourceSize: readSize,
		sink: s.sink.Addr(), sinkKey: s.sink.RKey(), sinkSize: sinkSize,
	}.appendTo(nil)
	return nil
}

// accept serves each request on a goroutine of its own.
func (s *server) accept(ctx context.Context, l *rdmacm.Listener, serve func(context.Context, *rdmacm.Request)) {
	for {
		req, err := l.Accept(ctx)
		switch {
		case err == nil:
			s.tasks.Go(func() { serve(ctx, req) })
		case ctx.Err() != nil || errors.Is(err, os.ErrClosed):
			return
		}
	}
}

// serveVictim answers until the victim's client leaves. After an error here the connection ends,
// and the client reports that.
func (s *server) serveVictim(ctx context.Context, req *rdmacm.Request) {
	e, err := newEcho(s.vctx, s.spin)
	if err != nil {
		_ = req.Close()
		return
	}
	if e.conn, err = req.Accept(ctx, e.config()); err == nil {
		_ = e.answer(ctx)
	}
	_ = e.close()
}

// servePeer keeps a peer's connection until the peer ends it.
func (s *server) servePeer(ctx context.Context, req *rdmacm.Request) {
	s.live.Add(1)
	defer s.live.Add(-1)
	conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
		PD: s.pd, SendCQ: s.cq, RecvCQ: s.cq,
		Cap:                ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
		ResponderResources: maxDepth, InitiatorDepth: -1, PrivateData: s.grant,
	})
	if err != nil {
		return // the peer did not wait for the Reply
	}
	_ = conn.Wait(ctx)
	_ = conn.Close()
}

func (s *server) close() error {
	s.cancel()
	var errs []error
	for _, l := range []*rdmacm.Listener{s.victim, s.others} {
		if l != nil {
			errs = append(errs, l.Close())
		}
	}
	s.tasks.Wait()
	if s.cq != nil {
		errs = append(errs, s.cq.Close())
	}
	for _, mr := range []*ibverbs.MR{s.source, s.sink} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	if s.pd != nil {
		errs = append(errs, s.pd.Close())
	}
	return errors.Join(errs...)
}
