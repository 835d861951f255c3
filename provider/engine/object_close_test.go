package engine

import (
	"bytes"
	"fmt"
	"os"
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

// sleeper is an object in memory that sleeps in each call.
type sleeper struct {
	store
	takes time.Duration
}

func (o *sleeper) ReadAt(b []byte, off int64) (int, error) {
	time.Sleep(o.takes)
	return o.store.ReadAt(b, off)
}

func (o *sleeper) WriteAt(b []byte, off int64) (int, error) {
	time.Sleep(o.takes)
	return o.store.WriteAt(b, off)
}

// sleeping registers an object of n bytes whose calls take ten CloseTimeouts.
func (s *side) sleeping(n int) (*sleeper, *memory.Region) {
	o := &sleeper{store{b: make([]byte, n)}, 10 * s.dev.opts.CloseTimeout}
	pattern(o.b, 1)
	return o, s.object(o, n, everything)
}

// wantInOrder waits for the end of a connection that we have ended, and the peer after
// us.
func (s *side) wantInOrder(what string) {
	s.t.Helper()
	testkit.WantErr(s.t, what, s.wantDown(what), os.ErrClosed)
}

// TestCloseWaitsForObjects: a graceful end takes the time that objects of ours take, on
// either side of the stream, however short CloseTimeout is.
func TestCloseWaitsForObjects(t *testing.T) {
	const size = 3000
	t.Run("what is posted", func(t *testing.T) {
		story(t, Options{}, params(true), func(s *side, r *raw) {
			o, m := s.sleeping(size)
			s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled,
				SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.STag()}}})
			s.qp.disconnect()
			time.Sleep(o.takes)
			r.wantMessage("the Send", o.b)
			r.wantFIN("FIN after it")
			testkit.OK(t, r.c.CloseWrite())
			s.wantInOrder("a Send from an object")
			s.wantWC("the Send", provider.WC{WRID: 1, Opcode: provider.WCSend})
		})
	})
	t.Run("what the peer has asked for", func(t *testing.T) {
		story(t, Options{}, params(true), func(s *side, r *raw) {
			o, m := s.sleeping(size)
			r.readReq(rdmap.ReadRequest{Size: size, SourceSTag: m.STag(), SourceTO: m.Addr(), SinkSTag: 5})
			synctest.Wait()
			s.qp.disconnect()
			time.Sleep(o.takes)
			r.wantMessage("the response", o.b)
			r.wantFIN("FIN after it")
			testkit.OK(t, r.c.CloseWrite())
			s.wantInOrder("a response from an object")
		})
	})
	t.Run("what has come", func(t *testing.T) {
		story(t, Options{}, params(true), func(s *side, r *raw) {
			o, m := s.sleeping(size)
			payload := bytes.Repeat([]byte{7}, 1000)
			for i := range 3 {
				r.send(rdmap.WriteHeader(m.STag(), m.Addr()+uint64(1000*i), true), payload)
			}
			synctest.Wait()
			s.qp.disconnect()
			r.wantFIN("nothing is left to send")
			testkit.OK(t, r.c.CloseWrite())
			time.Sleep(3 * o.takes)
			s.wantInOrder("Writes to an object")
			testkit.EqualBytes(t, "what has reached the object", o.b, bytes.Repeat([]byte{7}, size))
		})
	})
}

// TestCloseTimeoutBehindObjects: a peer that never closes its side has CloseTimeout for
// it beside the time that objects take, and not once more for each.
func TestCloseTimeoutBehindObjects(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		o, m := s.sleeping(1000)
		write := func() { r.send(rdmap.WriteHeader(m.STag(), m.Addr(), true), make([]byte, 1000)) }
		write()
		synctest.Wait()
		half := s.dev.opts.CloseTimeout / 2
		time.Sleep(half) // of what the object takes, before the end begins
		begin := time.Now()
		s.qp.disconnect()
		time.Sleep(o.takes) // up to half of CloseTimeout after the first store
		write()
		synctest.Wait()
		testkit.WantErr(t, "the end", s.wantDown("no FIN of the peer"), os.ErrDeadlineExceeded)
		testkit.Equal(t, "the time to the end", time.Since(begin), 2*o.takes-half+2*half)
	})
}

// TestCloseTimeoutAfterObject: a peer that has taken nothing while an object was read has
// CloseTimeout for it after that.
func TestCloseTimeoutAfterObject(t *testing.T) {
	const first, size = 1000, 3000
	h := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	window := mpa.FPDULen(h.Len() + first)
	network := memnet.Options{Window: window}
	storyOn(t, network, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		o, m := s.sleeping(size)
		mem := s.reg(first, 0)
		s.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{mem.sge(0, first)}},
			provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled,
				SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.STag()}}})
		half := s.dev.opts.CloseTimeout / 2
		time.Sleep(half)
		s.qp.disconnect() // checks come between the ends of calls
		time.Sleep(o.takes + s.dev.opts.CloseTimeout - half - time.Millisecond)
		r.wantMessage("what filled the window", mem.b)
		r.wantMessage("the Send", o.b)
		r.wantFIN("FIN after it")
		testkit.OK(t, r.c.CloseWrite())
		s.wantInOrder("a Send from an object")
		s.wantWC("the Send", provider.WC{WRID: 1, Opcode: provider.WCSend})
	})
}

// TestCloseTimeoutBesideFIN: CloseTimeout ends when our FIN has gone out, and the time for the
// peer's does not begin before the next moment. The connection goes on.
func TestCloseTimeoutBesideFIN(t *testing.T) {
	network := memnet.Options{Window: 1000}
	storyOn(t, network, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		mem := s.reg(2000, 0)
		s.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{mem.sge(0, 2000)}})
		begin, limit := time.Now(), s.dev.opts.CloseTimeout
		s.qp.disconnect()
		time.Sleep(limit / 2)
		st := s.qp.stream.Load()
		st.tx.mu.Lock()
		st.enter(phaseFINSent) // as sendFIN does, and nothing of what it does then
		st.tx.mu.Unlock()
		testkit.WantErr(t, "the end", s.wantDown("no FIN of the peer"), os.ErrDeadlineExceeded)
		testkit.Equal(t, "the time to the end", time.Since(begin), 2*limit)
	})
}

// wantMessage waits for the segments of a message, with these bytes in all.
func (r *raw) wantMessage(what string, want []byte) {
	r.t.Helper()
	var got []byte
	for {
		h, payload := r.next(what)
		if got = append(got, payload...); h.Last {
			break
		}
	}
	testkit.EqualBytes(r.t, what, got, want)
}

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
