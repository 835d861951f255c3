package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestObjectsOfPeersThatLeft: calls of an object that were begun for connections which have
// ended since count in MaxAccepted. So peers that come, write or read, and leave, or that the
// program ends, make no more calls than MaxAccepted permits, however long each takes.
func TestObjectsOfPeersThatLeft(t *testing.T) {
	const limit, takes, size = 4, time.Hour, 4 * policy.Chunk
	read := func(r *raw, m *mr, n uint32) {
		r.readReq(rdmap.ReadRequest{Size: n, SourceSTag: m.stag, SourceTO: m.base, SinkSTag: 5})
	}
	for name, tc := range map[string]struct {
		ask    func(r *raw, m *mr)
		served int // connections that leave a call behind, or several, until no more may come
	}{
		"writing": {func(r *raw, m *mr) {
			r.send(rdmap.WriteHeader(m.stag, m.base, true), octets(1000))
		}, limit},
		"reading": {func(r *raw, m *mr) { read(r, m, 1000) }, limit},
		"ahead":   {func(r *raw, m *mr) { read(r, m, size) }, limit / objectReads},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := Options{MaxAccepted: limit, MaxAcceptedPerPeer: limit}
				w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", opts, true)
				h := w.server
				o := &sleeper{store{b: make([]byte, size)}, takes}
				rights := provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead
				m := testkit.Must(h.pd.RegObject(o, size, rights))(t).(*mr)
				t.Cleanup(func() { testkit.OK(t, m.Close()) })
				l := h.listen()
				served := 0
				for range 5 * limit {
					p := w.dialRaw(l.LocalAddr())
					p.trySend(rawRequest(nil))
					w.moment()
					if h.ch.events() == 0 {
						continue // it was reset
					}
					server, _ := h.wantRequest("a request", l)
					testkit.OK(t, server.Accept(provider.ConnParam{ResponderResources: 1}))
					p.wantFrame("accepted", mpa.KindReply)
					h.want("accepted", server, provider.CMEstablished, 0)
					framer, d := newFraming(true)
					tc.ask(&raw{t: t, c: p.w.conn, framer: framer, d: d, sendMSN: 1, readMSN: 1}, m)
					synctest.Wait()
					p.w.abort()
					synctest.Wait()
					h.closeID(server)
					served++
				}
				if n := h.dev.chunks.Lent(); n != limit || served != tc.served {
					t.Errorf("%d calls for %d connections, which have ended, want %d for %d",
						n, served, limit, tc.served)
				}
				time.Sleep(takes)
				synctest.Wait()
				if n := h.dev.chunks.Lent(); n != 0 {
					t.Errorf("%d calls are not over", n)
				}
				h.wantPending("all are over", l, 1, 0, 0, 0)
				w.wantServed(l)
			})
		})
	}
}
