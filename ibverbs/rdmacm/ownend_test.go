package rdmacm_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// TestConnCallsAfterOwnEnd: whatever error a call of a Conn gets when this side ends the
// connection, it returns one error, which says so.
func TestConnCallsAfterOwnEnd(t *testing.T) {
	for name, end := range map[string]func(c *rdmacm.Conn) error{
		"Shutdown":   func(c *rdmacm.Conn) error { return c.Shutdown(timeout(t)) },
		"Disconnect": (*rdmacm.Conn).Disconnect,
		"Close":      (*rdmacm.Conn).Close,
	} {
		t.Run(name, func(t *testing.T) {
			for range repeats(30, 6) {
				client, server := pair(t, nil, nil)
				theirs := testkit.Must(server.PD().AllocMR(64, remoteRights))(t)
				ours := testkit.Must(client.PD().AllocMR(64, 0))(t)
				remote := testkit.Must(theirs.Remote(0, 64))(t)
				sge := testkit.Must(ours.SGE(0, 64))(t)
				peer := client.RemoteAddr().String()
				var calls sync.WaitGroup
				for range 4 {
					calls.Go(func() {
						for {
							if err := client.Write(timeout(t), remote, sge); err != nil {
								checkOwnEnd(t, "Conn.Write", err, peer)
								return
							}
						}
					})
				}
				testkit.OK(t, end(client))
				calls.Wait()
				checkOwnEnd(t, "Conn.Write", client.Write(timeout(t), remote, sge), peer)
				testkit.OK(t, ours.Close())
				testkit.OK(t, theirs.Close())
			}
		})
	}
}

// TestCallsAfterThePeersEnd: if the peer ended the connection first, calls say so, even after this
// side's Shutdown or Disconnect. After its Close they say that it has closed the Conn.
func TestCallsAfterThePeersEnd(t *testing.T) {
	for name, end := range map[string]func(c *rdmacm.Conn) error{
		"Shutdown":   func(c *rdmacm.Conn) error { return c.Shutdown(timeout(t)) },
		"Disconnect": (*rdmacm.Conn).Disconnect,
	} {
		ctx := timeout(t)
		client, server := pair(t, nil, nil)
		testkit.OK(t, server.Disconnect())
		testkit.OK(t, client.Wait(ctx))
		testkit.OK(t, end(client))
		err := client.Do(ctx, ibverbs.SendWR{})
		wantErr(t, "after "+name, err, io.EOF, "Conn.Do", "the peer closed")
		if errors.Is(err, os.ErrClosed) {
			t.Errorf("after %s: %v is os.ErrClosed", name, err)
		}
		testkit.OK(t, client.Close())
		wantErr(t, "after Close", client.Do(ctx, ibverbs.SendWR{}), os.ErrClosed, "this side has closed")
	}
}

// checkOwnEnd checks the error of op, a call of a Conn, after this side has ended the connection
// with peer.
func checkOwnEnd(t *testing.T, op string, err error, peer string) {
	t.Helper()
	var e *ibverbs.Error
	if !errors.Is(err, os.ErrClosed) || !errors.As(err, &e) || e.Op != op || e.Object != peer ||
		!strings.Contains(err.Error(), "this side has") || strings.Contains(err.Error(), "file already") {
		t.Errorf("%s returns %v", op, err)
	}
}

// TestConnReceiveAfterOwnEnd: calls of Receive say that this side has ended the connection, whether
// receives are flushed or all of them hold messages.
func TestConnReceiveAfterOwnEnd(t *testing.T) {
	const receives = 2
	for name, end := range map[string]func(c *rdmacm.Conn) error{
		"Shutdown":   func(c *rdmacm.Conn) error { return c.Shutdown(timeout(t)) },
		"Disconnect": (*rdmacm.Conn).Disconnect,
		"Close":      (*rdmacm.Conn).Close,
	} {
		for _, held := range []int{0, receives} {
			t.Run(fmt.Sprint(name, " with ", held, " messages"), func(t *testing.T) {
				ctx := timeout(t)
				for range repeats(30, 6) {
					client, server := pair(t, messages(receives, 8), nil)
					for range held {
						testkit.OK(t, server.SendBytes(ctx, []byte("held")))
						testkit.Must(client.Receive(ctx))(t)
					}
					peer := client.RemoteAddr().String()
					var calls sync.WaitGroup
					for range 4 {
						calls.Go(func() {
							_, err := client.Receive(ctx)
							checkOwnEnd(t, "Conn.Receive", err, peer)
						})
					}
					testkit.OK(t, end(client))
					calls.Wait()
					_, err := client.Receive(ctx)
					checkOwnEnd(t, "Conn.Receive", err, peer)
				}
			})
		}
	}
}

// TestCauseOfOwnEnd: the cause of an end by this side does not speak of files.
func TestCauseOfOwnEnd(t *testing.T) {
	client, _ := pair(t, nil, nil)
	testkit.OK(t, client.Shutdown(timeout(t)))
	wantErr(t, "Cause", client.QP().Cause(), os.ErrClosed, "this side disconnected")
	if strings.Contains(client.QP().Cause().Error(), "file") {
		t.Error(client.QP().Cause())
	}
}

// TestCutOffByOwnEnd: when this side disconnects, siw completes the work that it is sending with a
// status that local faults have, too. The error is attributed to the end if the device names no
// other cause, and this side has ended the connection.
func TestCutOffByOwnEnd(t *testing.T) {
	for _, c := range []struct {
		name   string
		cause  error
		status ibverbs.WCStatus
		end    bool
		roce   bool
		ours   bool
	}{
		{"cut off", nil, ibverbs.WCLocQPOpErr, true, false, true},
		{"flushed", nil, ibverbs.WCWRFlushErr, true, false, true},
		{"no end", nil, ibverbs.WCLocQPOpErr, false, false, false},
		{"the peer's end", io.EOF, ibverbs.WCLocQPOpErr, true, false, false},
		{"another fault", nil, ibverbs.WCLocProtErr, true, false, false},
		{"a fault on RoCE", nil, ibverbs.WCLocQPOpErr, true, true, false},
	} {
		f, vctx := newFake(t, goodDial())
		f.Cause, f.Transport = c.cause, provider.TransportIWARP
		if c.roce {
			f.Transport = provider.TransportIB
		}
		conn := testkit.Must(rdmacm.Dial(timeout(t), vctx, somewhere, nil))(t)
		f.PostSend = func(q *fake.QP, wrs []provider.SendWR) (int, error) {
			if c.end {
				testkit.OK(t, conn.Disconnect())
			}
			q.Init.SendCQ.(*fake.CQ).Complete(provider.WC{WRID: wrs[0].WRID, QPN: fake.QPN, Status: c.status})
			return len(wrs), nil
		}
		err := conn.Do(timeout(t), ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite})
		var work *ibverbs.WCError
		switch ours := errors.Is(err, os.ErrClosed) && strings.HasSuffix(err.Error(),
			"this side has ended the connection (Conn.Shutdown or Disconnect) before the work was complete"); {
		case !errors.As(err, &work) || work.Status != c.status:
			t.Errorf("%s: %v has no status %s", c.name, err, c.status)
		case ours != c.ours:
			t.Errorf("%s: %v is this side's end: %t, want %t", c.name, err, ours, c.ours)
		}
		testkit.OK(t, conn.Close())
		testkit.OK(t, vctx.Close())
	}
}

// TestReceiveAfterOwnEndWithoutACause: Receive does the same on a device that knows no cause, such
// as a kernel device.
func TestReceiveAfterOwnEndWithoutACause(t *testing.T) {
	ctx := timeout(t)
	f, vctx := newFake(t, goodDial())
	f.Cause, f.Transport = nil, provider.TransportIWARP
	var recvCQ *fake.CQ
	f.PostSend = func(q *fake.QP, wrs []provider.SendWR) (int, error) {
		recvCQ = q.Init.RecvCQ.(*fake.CQ)
		return len(wrs), nil
	}
	cfg := messages(1, 8)
	cfg.NoOpeningWrite = true
	conn := testkit.Must(rdmacm.Dial(ctx, vctx, somewhere, cfg))(t)
	testkit.OK(t, conn.QP().PostSend(ibverbs.SendWR{}))
	testkit.OK(t, conn.Disconnect())
	recvCQ.Complete(provider.WC{QPN: fake.QPN, Status: ibverbs.WCWRFlushErr})
	_, err := conn.Receive(ctx)
	checkOwnEnd(t, "Conn.Receive", err, somewhere.String())
	wantErr(t, "a receive that was flushed", err, ibverbs.ErrFlushed)
	testkit.OK(t, conn.Close())
	_, err = conn.Receive(ctx)
	checkOwnEnd(t, "Conn.Receive", err, somewhere.String())
	testkit.OK(t, vctx.Close())
}

// TestCallOnAClosedConn: the first call on a closed Conn returns an error with the call and the
// peer.
func TestCallOnAClosedConn(t *testing.T) {
	client, _ := pair(t, nil, nil)
	peer := client.RemoteAddr().String()
	testkit.OK(t, client.Close())
	wantErr(t, "Send", client.Send(timeout(t), ibverbs.SGE{}), os.ErrClosed, "Conn.Send "+peer, "this side has closed")
}

// TestClosedConnKnowsItsPeer: the error names the peer even if a closed id no longer knows the
// address, as on the kernel.
func TestClosedConnKnowsItsPeer(t *testing.T) {
	_, vctx := newFake(t, goodDial())
	c := testkit.Must(rdmacm.Dial(timeout(t), vctx, somewhere, nil))(t)
	local := c.LocalAddr()
	testkit.OK(t, c.Close())
	if l, r := c.LocalAddr(), c.RemoteAddr(); l != local || r != somewhere {
		t.Errorf("the addresses are %v and %v, want %v and %v", l, r, local, somewhere)
	}
	wantErr(t, "Send", c.Send(timeout(t), ibverbs.SGE{}), os.ErrClosed, "Conn.Send "+somewhere.String())
	testkit.OK(t, vctx.Close())
}
