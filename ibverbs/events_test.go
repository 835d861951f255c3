package ibverbs_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// What ibv_get_async_event(3) says, and the events of each device. The tests of this file run on
// the engine, and on siw through TestOnSiw.

// wantEvents waits for events of the types, in any order, checks the object of each, and checks
// that no other event comes.
func wantEvents(t *testing.T, vctx *ibverbs.Context, want map[ibverbs.AsyncEventType]ibverbs.AsyncEvent) {
	t.Helper()
	left := len(want)
	for ctx := timeout(t); left > 0; left-- {
		e, err := vctx.AsyncEvent(ctx)
		if err != nil {
			t.Fatalf("%d events missing: %v", left, err)
		}
		e2, ok := want[e.Type]
		if e2.Type = e.Type; !ok || e != e2 {
			t.Errorf("event %s, want %s", e, e2)
		}
	}
	short, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if e, err := vctx.AsyncEvent(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("another event: %s, %v", e, err)
	}
}

// TestEventsOfQPs: which events a failure at one end raises at both. Both ends are on the same
// device.
func TestEventsOfQPs(t *testing.T) {
	type types []ibverbs.AsyncEventType
	// On RoCE the completion reports a failure, and rxe raises no event
	// (kernel-notes/rxe-statuses.md).
	for _, c := range []struct {
		name           string
		fail           func(j *joined) error
		client, server types
		siwClient      types // if they are not client
	}{
		{
			name: "a Send from memory that is nobody's",
			fail: func(j *joined) error {
				return j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{{Addr: 1, Length: 8, LKey: 0x5a5a5a00}}})
			},
			client:    types{ibverbs.EventQPFatal, ibverbs.EventSQDrained},
			siwClient: types{ibverbs.EventQPFatal},
		},
		{
			name: "a Write to memory that may only be read",
			fail: func(j *joined) error {
				return j.client.QP().PostSend(ibverbs.SendWR{
					Opcode: ibverbs.WRRDMAWrite, RemoteAddr: j.readOnly.Addr(), RKey: j.readOnly.RKey(), SGList: []ibverbs.SGE{{Addr: j.mr.Addr(), Length: 8, LKey: j.mr.LKey()}},
				})
			},
			server: types{ibverbs.EventQPAccessErr},
		},
		{
			name: "a Read behind the end of a region",
			fail: func(j *joined) error {
				return j.client.QP().PostSend(ibverbs.SendWR{
					Opcode: ibverbs.WRRDMARead, RemoteAddr: j.readOnly.Addr() + j.readOnly.Len(), RKey: j.readOnly.RKey(), SGList: []ibverbs.SGE{{Addr: j.mr.Addr(), Length: 8, LKey: j.mr.LKey()}},
				})
			},
			server: types{ibverbs.EventQPReqErr},
			client: types{ibverbs.EventSQDrained}, siwClient: types{}, // siw omits a Read that has been sent
		},
		{
			name: "a Send that is longer than its receive",
			fail: func(j *joined) error {
				if err := j.server.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{{Addr: j.serverMR.Addr(), Length: 4, LKey: j.serverMR.LKey()}}}); err != nil {
					return err
				}
				return j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{{Addr: j.mr.Addr(), Length: 8, LKey: j.mr.LKey()}}})
			},
			server: types{ibverbs.EventQPFatal},
		},
		{
			name: "a disconnect",
			fail: func(j *joined) error { return j.client.Disconnect() },
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			vctx, l := queueWorld(t)
			j := joinWith(t, vctx, l, rdmacm.ConnConfig{})
			defer j.close(t)
			want := make(map[ibverbs.AsyncEventType]ibverbs.AsyncEvent)
			client := c.client
			if onSiw() && c.siwClient != nil {
				client = c.siwClient
			}
			for _, typ := range client {
				want[typ] = ibverbs.AsyncEvent{QP: j.client.QP()}
			}
			for _, typ := range c.server {
				want[typ] = ibverbs.AsyncEvent{QP: j.server.QP()}
			}
			if onRxe() {
				clear(want)
			}
			testkit.OK(t, c.fail(j))
			wantEvents(t, vctx, want)
		})
	}
}

// TestEventsSQDrained: the event of ibv_modify_qp(3) for a drained send queue comes when it was
// requested and all posted work is done. siw has no such request.
func TestEventsSQDrained(t *testing.T) {
	for _, notify := range []bool{true, false} {
		vctx, l := queueWorld(t)
		j := joinWith(t, vctx, l, rdmacm.ConnConfig{})
		testkit.OK(t, j.write(t, 1, ibverbs.SendSignaled))
		testkit.OK(t, j.client.QP().Modify(ibverbs.QPAttr{State: ibverbs.QPSQD, EnSQDAsyncNotify: notify}, ibverbs.QPAttrState|ibverbs.QPAttrEnSQDNotify))
		want := map[ibverbs.AsyncEventType]ibverbs.AsyncEvent{}
		if notify && !onSiw() {
			want[ibverbs.EventSQDrained] = ibverbs.AsyncEvent{QP: j.client.QP()}
		}
		wantEvents(t, vctx, want)
		if wc := take(t, j.client.SendCQ(), 1); wc[0].WRID != 1 || wc[0].Err() != nil {
			t.Errorf("what was posted before: %v", wc[0].Err())
		}
		j.close(t)
	}
}

// TestEventsOfPorts: the port of a kernel device follows its network interface. The engine has no
// interface of its own and raises no event.
func TestEventsOfPorts(t *testing.T) {
	vctx, _ := open()
	defer func() { testkit.OK(t, vctx.Close()) }()
	if !onKernel() {
		wantEvents(t, vctx, nil)
		return
	}
	ip := func(args string) {
		t.Helper()
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	for _, want := range []struct {
		is    string
		typ   ibverbs.AsyncEventType
		state ibverbs.PortState
	}{{"down", ibverbs.EventPortErr, ibverbs.PortDown}, {"up", ibverbs.EventPortActive, ibverbs.PortActive}} {
		ip("link set " + ondevice.Netdev() + " " + want.is)
		wantEvents(t, vctx, map[ibverbs.AsyncEventType]ibverbs.AsyncEvent{want.typ: {Port: 1}})
		if port := testkit.Must(vctx.QueryPort(1))(t); port.State != want.state {
			t.Errorf("%s: %s", want.is, port.State)
		}
	}
}

// TestEventsWaiting: of several waiting callers, one gets each event; a context ends one wait, and
// Close ends all. Unread events do not delay Close.
func TestEventsWaiting(t *testing.T) {
	vctx, l := queueWorld(t)
	ended, cancel := context.WithCancel(timeout(t))
	cancel()
	if _, err := vctx.AsyncEvent(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %v", err)
	}
	type result struct {
		e   ibverbs.AsyncEvent
		err error
	}
	results := make(chan result, 3)
	for range cap(results) {
		go func() {
			e, err := vctx.AsyncEvent(context.Background())
			results <- result{e, err}
		}()
	}
	cq := testkit.Must(vctx.CreateCQ(1, nil))(t)
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{SendCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 1}})
	overflow := func() {
		t.Helper()
		for range 1 + cq.CQE() {
			testkit.OK(t, j.write(t, 1, ibverbs.SendSignaled))
		}
	}
	overflow()
	if r := <-results; r.err != nil || r.e.Type != ibverbs.EventCQErr || r.e.CQ != cq {
		t.Errorf("the first event: %s, %v", r.e, r.err)
	}
	take(t, cq, 1)
	overflow()
	if r := <-results; r.err != nil || r.e.CQ != cq {
		t.Errorf("the second event: %s, %v", r.e, r.err)
	}
	j.close(t)
	testkit.OK(t, cq.Close())
	testkit.OK(t, l.Close())
	testkit.OK(t, vctx.Close())
	select {
	case r := <-results:
		wantErr(t, "the third caller, when the device is closed", r.err, os.ErrClosed)
	case <-time.After(patience):
		t.Fatal("Close does not wake who waits for an event")
	}
	_, err := vctx.AsyncEvent(t.Context())
	wantErr(t, "a closed device", err, os.ErrClosed)
}

// TestEventsOfClosedObjects: an unread event is dropped when its object is closed.
func TestEventsOfClosedObjects(t *testing.T) {
	vctx, l := queueWorld(t)
	cq := testkit.Must(vctx.CreateCQ(1, nil))(t)
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{SendCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 1}})
	for range 1 + cq.CQE() {
		testkit.OK(t, j.write(t, 1, ibverbs.SendSignaled))
	}
	if !onSiw() { // siw checks only the state
		refused(t, "a request for SQ drained without SQD", j.client.QP().Modify(ibverbs.QPAttr{EnSQDAsyncNotify: true}, ibverbs.QPAttrEnSQDNotify), syscall.EINVAL)
	}
	testkit.OK(t, j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{{Addr: 1, Length: 8, LKey: 0x5a5a5a00}}}))
	time.Sleep(30 * time.Millisecond)
	j.close(t)
	testkit.OK(t, cq.Close())
	wantEvents(t, vctx, nil)
}
