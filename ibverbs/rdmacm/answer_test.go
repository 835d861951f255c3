package rdmacm_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestConnAnswerBeforeAccept: a goroutine that Prepare has started answers the peer's first
// message, which may come before Accept has returned on this side.
func TestConnAnswerBeforeAccept(t *testing.T) { testAnswers(t, true) }

// TestConnAnswerBeforeDial: the same on the dialling side. The peer has to wait until it may send
// (RFC 5044 section 7.1.2), as the engine does; siw does not.
func TestConnAnswerBeforeDial(t *testing.T) { testAnswers(t, false) }

// testAnswers makes one side answer the other on many connections, some of them at the same time.
func testAnswers(t *testing.T, acceptorAnswers bool) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	atOnce, each := 4, repeats(10, 4)
	var sides sync.WaitGroup
	for range atOnce {
		sides.Go(func() {
			for range each {
				req, err := l.Accept(ctx)
				if err != nil {
					t.Errorf("Listener.Accept: %v", err)
					return
				}
				talk(ctx, t, acceptorAnswers, req.Accept)
			}
		})
		sides.Go(func() {
			for range each {
				talk(ctx, t, !acceptorAnswers, func(ctx context.Context,
					cfg *rdmacm.ConnConfig) (*rdmacm.Conn, error) {
					return rdmacm.Dial(ctx, vctx, l.Addr(), cfg)
				})
			}
		})
	}
	sides.Wait()
	testkit.OK(t, l.Close())
}

// awaitAnswer waits with get for the answer to a first message. siw may leave the first bytes
// unread until more come (kernel-notes/siw-first-fpdu.md). So if there is no answer on siw for
// long, awaitAnswer sends an empty Write.
func awaitAnswer(ctx context.Context, t *testing.T, c *rdmacm.Conn, get func(context.Context) error) error {
	for {
		short, cancel := ctx, context.CancelFunc(func() {})
		if onSiw() {
			short, cancel = context.WithTimeout(ctx, 5*time.Second)
		}
		err := get(short)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if !siwhang.Unread(t, 0) {
			continue // siw is slow
		}
		t.Log("sending an empty Write, which makes siw read")
		if err := c.Do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}); err != nil {
			return err
		}
	}
}

// talk makes a connection, and sends a message before it receives one, or the other way round. A
// goroutine that Prepare starts does this on the answering side.
func talk(ctx context.Context, t *testing.T, answers bool,
	connect func(context.Context, *rdmacm.ConnConfig) (*rdmacm.Conn, error)) {
	var (
		mr     *ibverbs.MR
		answer sync.WaitGroup
	)
	c, err := connect(ctx, &rdmacm.ConnConfig{
		Receives: 2, ReceiveSize: 16,
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			if mr, err = c.PD().AllocMR(16, ibverbs.AccessLocalWrite); err != nil || !answers {
				return err
			}
			answer.Go(func() {
				if _, err := c.Receive(ctx); err != nil {
					t.Errorf("the first message: %v", err)
					return
				}
				if err := c.Send(ctx, sge(t, mr, 0, 4)); err != nil {
					t.Errorf("the answer: %v", err)
					_ = c.Disconnect() // otherwise the peer waits
				}
			})
			return nil
		},
	})
	if err != nil {
		t.Errorf("connecting: %v", err)
		answer.Wait()
		return
	}
	if !answers {
		if err := c.Send(ctx, sge(t, mr, 0, 4)); err != nil {
			t.Errorf("the first message: %v", err)
		} else if err = awaitAnswer(ctx, t, c, func(ctx context.Context) error {
			_, err := c.Receive(ctx)
			return err
		}); err != nil {
			t.Errorf("receiving the answer: %v", err)
		}
	}
	answer.Wait()
	if answers {
		_ = c.Wait(ctx) // the answer is on its way
	}
	testkit.OK(t, c.Close())
	testkit.OK(t, mr.Close())
}
