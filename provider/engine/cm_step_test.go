package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestConnectionsThatComeGiveWay: what has arrived for other connections is received between
// the steps of one that comes, though nobody else does that.
func TestConnectionsThatComeGiveWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", Options{}, true)
		client, server := w.established()
		waiting := func() int64 { return w.server.cq.(*cq).seen.Load() }
		w.server.dev.prog.cancel() // from here on only connections that come call the poller
		<-w.server.dev.prog.ended
		testkit.Must(qpOf(server).PostRecv([]provider.RecvWR{{WRID: 1}}))(t)
		testkit.Must(qpOf(client).PostSend([]provider.SendWR{{Opcode: provider.WRSend}}))(t)
		synctest.Wait()
		testkit.Equal(t, "completions before anybody has called the poller", waiting(), 0)
		p := w.dialRaw(server.LocalAddr())
		synctest.Wait()
		testkit.Equal(t, "completions after a connection has come", waiting(), 1)
		p.abort()
	})
}

// TestStepsAtOnce: connections wait for those that take a step, whatever the step is, and each
// gives its place back.
func TestStepsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts := Options{CloseTimeout: time.Hour}
		w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", opts, true)
		l := w.server.listen()
		steps := w.server.dev.prog.steps
		blocked := func(what string, do func(), done func() bool) {
			t.Helper()
			for range policy.StepsAtOnce {
				steps <- struct{}{}
			}
			do()
			w.moment()
			if done() {
				t.Errorf("%s: it did not wait for the steps of others", what)
			}
			for range policy.StepsAtOnce {
				<-steps
			}
			w.moment()
			if n := len(steps); !done() || n != 0 {
				t.Errorf("%s: done %v, and %d steps are not over", what, done(), n)
			}
		}
		event := func() bool { return cm.Events(w.server.ch) > 0 }
		come := func() *rawPeer { return w.request(l) }
		var p *rawPeer
		blocked("a request", func() { p = come() }, event)
		server, _ := w.server.wantRequest("a request", l)
		blocked("accepting it", func() {
			testkit.OK(t, cm.AcceptLater(server, provider.ConnParam{}))
		}, event)
		w.server.want("accepted", server, provider.CMEstablished, 0)
		p.abort()
		w.server.want("ended", server, provider.CMDisconnected, 0)
		come()
		server, _ = w.server.wantRequest("another", l)
		left := func(n int) func() bool {
			return func() bool { return w.server.dev.closing.len() == n }
		}
		blocked("rejecting it", func() { testkit.OK(t, cm.RejectLater(server, nil)) }, left(1))
		p = come()
		w.moment()
		blocked("its peer leaves", func() { p.abort() }, func() bool { return !event() })
		come()
		server, _ = w.server.wantRequest("the last", l)
		blocked("closing an id", func() { go w.server.closeID(server) }, left(2))
	})
}
