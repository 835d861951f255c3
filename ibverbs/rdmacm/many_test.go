package rdmacm_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// A hundred connections at once: no event, message or private data goes to the wrong one, and
// rejections do not affect the others.
//
// siw gives up a Reply after some seconds, and a hundred accepts on a loaded, emulated CPU may take
// longer. A client that the kernel gives up tries again, as a program would, and each such attempt
// may fail one accept. Every client succeeds eventually.
func TestConnHundredAtOnce(t *testing.T) {
	const conns = 100
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	var givenUp [conns]int
	var failed [conns]atomic.Int32
	wait := each(t, ctx, l, 4, func(req *rdmacm.Request) error {
		name := binary.BigEndian.Uint32(req.PrivateData())
		err := echo(ctx, req)
		if err != nil && name < conns && onKernel() {
			failed[name].Add(1)
			return nil
		}
		return err
	})
	var clients sync.WaitGroup
	for i := range conns {
		clients.Go(func() {
			err := callEcho(ctx, t, vctx, l.Addr(), uint32(i))
			for onKernel() && errors.Is(err, syscall.ETIMEDOUT) {
				givenUp[i]++
				err = callEcho(ctx, t, vctx, l.Addr(), uint32(i))
			}
			if err != nil {
				t.Errorf("client %d: %v", i, err)
			}
		})
	}
	clients.Wait()
	testkit.OK(t, l.Close())
	wait()
	attempts := conns
	for i := range conns {
		attempts += givenUp[i]
		if n := int(failed[i].Load()); n > givenUp[i] {
			t.Errorf("%d accepts for client %d failed, which gave up %d attempts", n, i, givenUp[i])
		}
	}
	t.Logf("%d clients, %d attempts", conns, attempts)
}

// No client starves: clients of the engine that connect again and again all get their share. (On
// siw the kernel decides.)
func TestFairShares(t *testing.T) {
	const clients, total = 20, 400
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	wait := each(t, ctx, l, 4, func(req *rdmacm.Request) error { return echo(ctx, req) })
	var made atomic.Int64
	shares := make([]int, clients)
	var wg sync.WaitGroup
	for i := range clients {
		wg.Go(func() {
			for made.Add(1) <= total {
				if err := callEcho(ctx, t, vctx, l.Addr(), uint32(10*i)); err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				shares[i]++
			}
		})
	}
	wg.Wait()
	testkit.OK(t, l.Close())
	wait()
	least, most := slices.Min(shares), slices.Max(shares)
	t.Logf("%d connections: %d to %d a client", total, least, most)
	if least < total/clients/4 {
		t.Errorf("a client got %d connections of %d, another %d: %v", least, total, most, shares)
	}
}

// each calls handle with every request, in its own goroutine, until the listener is closed.
// accepting goroutines call Accept at a time. The function that each returns waits for all of them.
func each(t *testing.T, ctx context.Context, l *rdmacm.Listener, accepting int, handle func(*rdmacm.Request) error) (wait func()) {
	var wg sync.WaitGroup
	for range accepting {
		wg.Go(func() {
			for {
				req, err := l.Accept(ctx)
				if errors.Is(err, os.ErrClosed) {
					return
				}
				if err != nil {
					t.Errorf("Accept: %v", err)
					return
				}
				wg.Go(func() {
					if err := handle(req); err != nil {
						t.Errorf("server: %v", err)
					}
				})
			}
		})
	}
	return wg.Wait
}

// echo answers a request: every tenth with a rejection, others with a connection that sends back
// one message.
func echo(ctx context.Context, req *rdmacm.Request) error {
	name := req.PrivateData()[:4] // RoCE pads it with zeros, here and in the answers
	if binary.BigEndian.Uint32(name)%10 == 7 {
		return req.Reject(name)
	}
	r := &receiver{n: 1, size: 8}
	defer r.close()
	c, err := req.Accept(ctx, &rdmacm.ConnConfig{
		Prepare: r.prepare, PrivateData: name, Cap: ibverbs.QPCap{MaxInlineData: 8},
	})
	if err != nil {
		return fmt.Errorf("accept: %w", err)
	}
	defer c.Close()
	msg, err := r.get(ctx, c)
	if err != nil {
		return fmt.Errorf("receive: %w", err)
	}
	if !bytes.Equal(msg, name) {
		return fmt.Errorf("message %x on the connection of %x", msg, name)
	}
	if err := c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: msg}); err != nil {
		return err
	}
	return c.Wait(ctx)
}

func callEcho(ctx context.Context, t *testing.T, vctx *ibverbs.Context, addr netip.AddrPort, i uint32) error {
	name := binary.BigEndian.AppendUint32(nil, i)
	r := &receiver{n: 1, size: 8}
	defer r.close()
	c, err := rdmacm.Dial(ctx, vctx, addr, &rdmacm.ConnConfig{
		PD: nil, Prepare: r.prepare, PrivateData: name, Cap: ibverbs.QPCap{MaxInlineData: 8},
	})
	if i%10 == 7 {
		var rejected *rdmacm.RejectedError
		if !errors.As(err, &rejected) || !bytes.HasPrefix(rejected.PrivateData, name) {
			return fmt.Errorf("got %w, want a rejection with our name", err)
		}
		return nil
	}
	if err != nil {
		return err
	}
	defer c.Close()
	if !bytes.HasPrefix(c.PrivateData(), name) {
		return fmt.Errorf("private data %x", c.PrivateData())
	}
	if err := c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: name}); err != nil {
		return err
	}
	var msg []byte
	err = awaitAnswer(ctx, t, c, func(ctx context.Context) (err error) {
		msg, err = r.get(ctx, c)
		return err
	})
	if err != nil || !bytes.Equal(msg, name) {
		return fmt.Errorf("message %x: %w", msg, err)
	}
	return c.Shutdown(ctx)
}
