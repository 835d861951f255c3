package victim

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// Messages of the victim.
const (
	echoSize    = 64
	echoReceive = 16 // receives posted at a time
	echoSignal  = 8  // one in so many messages is signalled
)

// echo is one end of the victim's connection. Only one goroutine may use it.
type echo struct {
	spin bool
	pd   *ibverbs.PD
	mr   *ibverbs.MR
	ch   *ibverbs.CompChannel
	cq   *ibverbs.CQ
	conn *rdmacm.Conn

	wc     [echoReceive]ibverbs.WC
	recv   ibverbs.RecvWR
	send   ibverbs.SendWR
	posted uint64
}

func newEcho(vctx *ibverbs.Context, spin bool) (_ *echo, err error) {
	e := &echo{spin: spin}
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if e.pd, err = vctx.AllocPD(); err != nil {
		return nil, err
	}
	if e.mr, err = e.pd.RegMR(make([]byte, echoSize), ibverbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	if e.ch, err = vctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	if e.cq, err = vctx.CreateCQ(4*echoReceive, &ibverbs.CQOptions{Channel: e.ch}); err != nil {
		return nil, err
	}
	sge, err := e.mr.SGE(0, echoSize)
	if err != nil {
		return nil, err
	}
	e.recv = ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}}
	e.send = ibverbs.SendWR{Opcode: ibverbs.WRSend, Inline: make([]byte, echoSize)}
	return e, nil
}

// config configures the connection. The receives are posted before the peer can send.
func (e *echo) config() *rdmacm.ConnConfig {
	return &rdmacm.ConnConfig{
		PD: e.pd, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: ibverbs.QPCap{
			MaxSendWR: 2 * echoReceive, MaxRecvWR: echoReceive, MaxSendSGE: 1, MaxRecvSGE: 1,
			MaxInlineData: echoSize,
		},
		ResponderResources: -1, InitiatorDepth: -1,
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			for range echoReceive {
				if err := c.QP().PostRecv(e.recv); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (e *echo) close() error {
	var errs []error
	if e.conn != nil {
		errs = append(errs, e.conn.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.ch != nil {
		errs = append(errs, e.ch.Close())
	}
	if e.mr != nil {
		errs = append(errs, e.mr.Close())
	}
	if e.pd != nil {
		errs = append(errs, e.pd.Close())
	}
	return errors.Join(errs...)
}

// A spinning end lets other goroutines of its process run after yieldAfter polls, and
// checks its context after ctxAfter.
const (
	yieldAfter = 64
	ctxAfter   = 1 << 12
)

// wait waits for completions, and returns how many are in e.wc.
func (e *echo) wait(ctx context.Context) (int, error) {
	if !e.spin {
		return e.cq.PollWait(ctx, e.wc[:])
	}
	for looks := 1; ; looks++ {
		if n, err := e.cq.Poll(e.wc[:]); n > 0 || err != nil {
			return n, err
		}
		if looks%yieldAfter == 0 {
			runtime.Gosched()
		}
		if looks%ctxAfter == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

// receive waits for the peer's next message.
func (e *echo) receive(ctx context.Context) error {
	for {
		n, err := e.wait(ctx)
		if err != nil {
			return err
		}
		received := 0
		for i := range n {
			wc := &e.wc[i]
			if wc.Status != ibverbs.WCSuccess {
				return errors.Join(wc.Err(), e.conn.QP().Cause())
			}
			if wc.Opcode == ibverbs.WCRecv {
				received++
			}
		}
		if received == 0 {
			continue
		}
		for range received {
			if err := e.conn.QP().PostRecv(e.recv); err != nil {
				return err
			}
		}
		return nil
	}
}

// post sends a message.
func (e *echo) post() error {
	e.send.Flags = ibverbs.SendInline
	if e.posted++; e.posted%echoSignal == 0 {
		e.send.Flags |= ibverbs.SendSignaled
	}
	return e.conn.QP().PostSend(e.send)
}

// answer answers messages until the connection ends.
func (e *echo) answer(ctx context.Context) error {
	for {
		if err := e.receive(ctx); err != nil {
			return err
		}
		if err := e.post(); err != nil {
			return err
		}
	}
}

// dial is the victim's client.
func dial(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, spin bool) (*echo, error) {
	e, err := newEcho(vctx, spin)
	if err != nil {
		return nil, err
	}
	if e.conn, err = rdmacm.Dial(ctx, vctx, addr, e.config()); err != nil {
		return nil, errors.Join(err, e.close())
	}
	return e, nil
}

// Pings are the round trips of one measurement.
type Pings struct {
	N      uint64
	Missed uint64 // requests that were due while one was under way
	RTT    load.Latency
}

// pings makes round trips until limit has passed. A request is due at intervals of every; 0 means
// as soon as the previous one is answered.
func (e *echo) pings(ctx context.Context, limit, every time.Duration) (*Pings, error) {
	ctx, cancel := context.WithTimeout(ctx, limit+patience)
	defer cancel()
	rtt := make([]time.Duration, 0, 1<<16) // large enough not to grow
	p := &Pings{}
	began := monotonic()
	for due := began; due-began < limit; {
		if ahead := due - monotonic(); ahead > 0 {
			sleep(ahead)
		}
		posted := monotonic()
		if err := e.post(); err != nil {
			return nil, err
		}
		if err := e.receive(ctx); err != nil {
			return nil, fmt.Errorf("round trip %d: %w", p.N+1, err)
		}
		p.N++
		over := monotonic()
		p.Missed += count(&rtt, over-posted, every)
		due = max(posted+every, over)
	}
	p.RTT = load.LatencyOf(rtt)
	return p, nil
}

// count counts a request that took d, and the requests that fell due in that time, because they
// would have been answered no sooner. It returns the number of the latter.
func count(list *[]time.Duration, d, every time.Duration) (missed uint64) {
	*list = append(*list, d)
	if every <= 0 {
		return 0
	}
	for d -= every; d > 0; d -= every {
		*list = append(*list, d)
		missed++
	}
	return missed
}

// sleep sleeps without Go's timers, which may be a millisecond late.
func sleep(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // it may wake early
}

// monotonic returns the time since the machine started.
func monotonic() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // can't fail: the arguments are right
	return time.Duration(t.Nano())
}
