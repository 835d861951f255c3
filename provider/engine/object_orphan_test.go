package engine

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestFetchedIsNoOrphan: when a stream ends, pieces of a message that an object has given
// already don't count in MaxAccepted, not even for a moment: a connection that came in that
// moment, at the last place, would be reset.
func TestFetchedIsNoOrphan(t *testing.T) {
	network := memnet.New(nil)
	side := newSide(t, Options{Network: network, MaxAccepted: 1}, sideOptions{})
	conn, theirs := connectTransport(t, network, memAddr)
	defer conn.Close()
	defer theirs.Close()
	d := side.dev
	s := (&stream{dev: d, conn: conn, admitted: true}).link()
	m := new(messageFetches)
	for m.n < len(m.pieces) {
		f := &objectFetch{payload: d.chunks.Get(), ahead: m.n > 0}
		f.state.Store(fetchDone)
		if f.ahead {
			d.prog.ahead.Add(1)
		}
		m.pieces[m.n] = f
		m.n++
	}
	s.tx.fetches = m

	d.cm.LockAdmission() // a goroutine that counts waits here
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.tx.endFetch()
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Error("pieces that are there were counted as calls of an object")
	}
	d.cm.UnlockAdmission()
	<-ended
	if n, ahead := d.chunks.Lent(), d.prog.ahead.Load(); n != 0 || ahead != 0 || d.cm.Accepted() != 0 {
		t.Errorf("%d chunks are lent, %d pieces are ahead, %d are counted", n, ahead, d.cm.Accepted())
	}
}

// TestDeviceCloseWaitsForObjectCalls: when Close of the device has returned, no goroutine of its is
// left, not even one that has called an object, and has let go of its region.
func TestDeviceCloseWaitsForObjectCalls(t *testing.T) {
	for _, writes := range []bool{true, false} {
		t.Run(fmt.Sprintf("writes=%v", writes), func(t *testing.T) {
			a, b := pair(t, memnet.New(nil), memAddr, Options{}, sideOptions{}, params(false))
			o := &waiting{began: make(chan struct{}, 1), over: make(chan struct{})}
			m := testkit.Must(b.pd.RegObject(o, 8, provider.AccessLocalWrite|
				provider.AccessRemoteWrite|provider.AccessRemoteRead))(t).(*memory.Region)
			src := a.reg(8, provider.AccessLocalWrite)
			wr := provider.SendWR{Opcode: provider.WRRDMARead, SGList: []provider.SGE{src.sge(0, 8)},
				RemoteAddr: m.Addr(), RKey: m.STag()}
			if writes {
				wr.Opcode = provider.WRRDMAWrite
			}
			var putting sync.Mutex
			b.dev.chunks.Idle = func(*chunk) bool {
				putting.Lock()
				defer putting.Unlock()
				return true
			}
			bs := b.qp.stream.Load()
			a.send(wr)
			<-o.began
			testkit.OK(t, b.qp.Close())                    // flushes; the call goes on
			lock, unlock := bs.rx.mu.Lock, bs.rx.mu.Unlock // what it takes after it has released the region
			if !writes {
				lock, unlock = putting.Lock, putting.Unlock
			}
			release := lockElsewhere(lock, unlock)
			defer release()
			close(o.over)
			testkit.OK(t, m.Close())
			testkit.OK(t, b.cq.Close())
			testkit.OK(t, b.pd.Close())
			wantCloseAfter(t, b.dev, release)
		})
	}
}

// waiting is an object whose calls take until over is closed.
type waiting struct{ began, over chan struct{} }

func (o *waiting) call(b []byte) (int, error) {
	o.began <- struct{}{}
	<-o.over
	return len(b), nil
}

func (o *waiting) ReadAt(b []byte, _ int64) (int, error)  { return o.call(b) }
func (o *waiting) WriteAt(b []byte, _ int64) (int, error) { return o.call(b) }

// TestObjectsOfPeersThatLeft: calls of an object that were begun for connections which have
// ended since count in MaxAccepted. So peers that come, write or read, and leave, or that the
// program ends, make no more calls than MaxAccepted permits, however long each takes.
func TestObjectsOfPeersThatLeft(t *testing.T) {
	const limit, takes, size = 4, time.Hour, 4 * policy.Chunk
	read := func(r *raw, m *memory.Region, n uint32) {
		r.readReq(rdmap.ReadRequest{Size: n, SourceSTag: m.STag(), SourceTO: m.Addr(), SinkSTag: 5})
	}
	for name, tc := range map[string]struct {
		ask    func(r *raw, m *memory.Region)
		served int // connections that leave a call behind, or several, until no more may come
	}{
		"writing": {func(r *raw, m *memory.Region) {
			r.send(rdmap.WriteHeader(m.STag(), m.Addr(), true), octets(1000))
		}, limit},
		"reading": {func(r *raw, m *memory.Region) { read(r, m, 1000) }, limit},
		"ahead":   {func(r *raw, m *memory.Region) { read(r, m, size) }, limit / objectReads},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := Options{MaxAccepted: limit, MaxAcceptedPerPeer: limit}
				w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", opts, true)
				h := w.server
				o := &sleeper{store{b: make([]byte, size)}, takes}
				rights := provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead
				m := testkit.Must(h.pd.RegObject(o, size, rights))(t).(*memory.Region)
				t.Cleanup(func() { testkit.OK(t, m.Close()) })
				l := h.listen()
				served := 0
				for range 5 * limit {
					p := w.dialRaw(l.LocalAddr())
					p.trySend(rawRequest(nil))
					w.moment()
					if cm.Events(h.ch) == 0 {
						continue // it was reset
					}
					server, _ := h.wantRequest("a request", l)
					testkit.OK(t, server.Accept(provider.ConnParam{ResponderResources: 1}))
					p.wantFrame("accepted", mpa.KindReply)
					h.want("accepted", server, provider.CMEstablished, 0)
					tc.ask(rawOn(t, p.conn, params(true)), m)
					synctest.Wait()
					p.abort()
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
				testkit.Equal(t, "calls that are not over", h.dev.chunks.Lent(), 0)
				h.wantPending("all are over", l, 1, 0, 0, 0)
				w.wantServed(l)
			})
		})
	}
}
