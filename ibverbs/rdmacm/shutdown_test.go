package rdmacm_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestConnShutdownNamesTheTerminate: work that the peer refuses completes with success, and the
// program polls nothing after that. Shutdown returns the Terminate.
func TestConnShutdownNamesTheTerminate(t *testing.T) {
	for name, tc := range map[string]struct {
		wr    func(server *ibverbs.MR) ibverbs.SendWR
		words []string
	}{
		"no receive": {
			func(*ibverbs.MR) ibverbs.SendWR { return ibverbs.SendWR{Opcode: ibverbs.WRSend} },
			[]string{"no buffer available", "the peer terminated the connection"},
		},
		"wrong key": {
			func(mr *ibverbs.MR) ibverbs.SendWR {
				return ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, RemoteAddr: mr.Addr(),
					RKey: mr.RKey() ^ 0x5a5a5a00}
			},
			[]string{"invalid STag", "the peer terminated the connection"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, wait := range []bool{false, true} {
				ctx := timeout(t)
				client, server := pair(t, nil, nil)
				mr := testkit.Must(server.PD().AllocMR(64, remoteRights))(t)
				src := testkit.Must(client.PD().AllocMR(8, 0))(t)
				wr := tc.wr(mr)
				wr.SGList, wr.Flags = []ibverbs.SGE{testkit.Must(src.SGE(0, 8))(t)}, ibverbs.SendSignaled
				testkit.OK(t, client.QP().PostSend(wr))
				var wc [1]ibverbs.WC
				testkit.Must(client.SendCQ().PollWait(ctx, wc[:]))(t)
				testkit.OK(t, wc[0].Err()) // as on iWARP
				if wait {
					testkit.OK(t, client.Wait(ctx))
				}
				err := client.Shutdown(ctx)
				if onKernel() { // kernel devices do not report Terminates
					testkit.OK(t, err)
				} else {
					var term *ibverbs.TerminateError
					if !errors.As(err, &term) || !term.Remote {
						t.Fatalf("Shutdown returns %v", err)
					}
					wantErr(t, "Shutdown", err, term,
						append(tc.words, "Conn.Shutdown "+server.LocalAddr().String())...)
				}
				testkit.OK(t, mr.Close())
				testkit.OK(t, src.Close())
			}
		})
	}
}

const remoteRights = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite

// TestConnShutdownOfGoodWork: an orderly end, by either side, is not an error.
func TestConnShutdownOfGoodWork(t *testing.T) {
	ctx := timeout(t)
	client, server := pair(t, nil, nil)
	testkit.OK(t, client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}))
	testkit.OK(t, client.Shutdown(ctx))
	testkit.OK(t, server.Shutdown(ctx))
	testkit.OK(t, client.Shutdown(ctx))
}

// TestDeadlinesAreNamed: the error of a wait that ends with its context names the wait and the
// peer.
func TestDeadlinesAreNamed(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client, server := pair(t, &rdmacm.ConnConfig{NoOpeningWrite: true}, nil)
	testkit.OK(t, server.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}))
	ch := testkit.Must(rdmacm.CreateEventChannel(client.ID().Channel().Context()))(t)
	defer ch.Close()
	peer := server.RemoteAddr().String()
	vctx := ch.Context()
	_, event := ch.GetEvent(ctx)
	_, async := vctx.AsyncEvent(ctx)
	_, dial := rdmacm.Dial(ctx, vctx, server.LocalAddr(), nil)
	_, dialName := rdmacm.DialName(ctx, vctx, "localhost:1", nil)
	_, listen := rdmacm.Listen(ctx, vctx, server.LocalAddr(), nil)
	for name, tc := range map[string]struct {
		err   error
		words []string
	}{
		"Wait": {server.Wait(ctx), []string{"Conn.Wait " + peer, "before the connection ended"}},
		"Drain": {server.QP().Drain(ctx),
			[]string{"drain qp ", "before everything that was posted",
				"sends are held until the peer's first message"}},
		"Shutdown": {server.Shutdown(ctx),
			[]string{"Conn.Shutdown " + peer, "drain qp ", "held until the peer's first message"}},
		"GetEvent":   {event, []string{"rdma_get_cm_event event channel of ", "before there was an event"}},
		"AsyncEvent": {async, []string{"ibv_get_async_event ", "before there was an event"}},
		"Dial":       {dial, []string{"rdma_connect " + server.LocalAddr().String(), "before Dial began"}},
		"DialName":   {dialName, []string{"rdma_", "before"}},
		"Listen":     {listen, []string{"rdma_listen " + server.LocalAddr().String(), "before Listen began"}},
	} {
		wantErr(t, name, tc.err, context.Canceled, append(tc.words, "the caller's context ended")...)
		var e *ibverbs.Error
		if !errors.As(tc.err, &e) {
			t.Errorf("%s: %T", name, tc.err)
		}
	}
	soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	wantErr(t, "Shutdown", server.Shutdown(soon), context.DeadlineExceeded, "Conn.Shutdown")
}
