package engine

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// wantPending checks how many requests a listener, its channel and its device have, after a moment
// in which it may become too many, or after the time that it takes.
func (h *cmHost) wantPending(what string, l *cm.ID, places, events, ids, accepted int) {
	h.t.Helper()
	h.w.moment()
	var got [4]int
	want := [...]int{places, events, ids, accepted}
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		got = [...]int{cm.Pending(l), cm.Events(h.ch), cm.IDs(h.ch) - 1, h.dev.cm.Accepted()}
		if got == want || h.w.fake || time.Now().After(end) {
			break
		}
	}
	testkit.Equal(h.t, what+": places, events, ids, connections counted", got, want)
}

// TestRequestsOfPeersThatLeft: when a peer sends a Request and goes away, or does not wait for the
// answer, nothing is kept of the request unless the program has fetched it. If it has, the request
// keeps its place until the program has answered it.
//
//rfc:5044 MPA-7.1.5-01 Enable MPA only when no streaming data is expected
func TestRequestsOfPeersThatLeft(t *testing.T) {
	const limit = 4
	opts := Options{MaxPending: limit, MaxAccepted: limit, MaxAcceptedPerPeer: limit}
	onWholeNetworks(t, opts, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		leave := [limit]func(p *rawPeer){
			func(p *rawPeer) { p.close() },
			func(p *rawPeer) { testkit.OK(t, p.conn.CloseWrite()) },
			func(p *rawPeer) { testkit.OK(t, p.conn.Abort()) },
			func(p *rawPeer) { p.send([]byte{0}) },
		}
		comeAndGo := func(i int) {
			p := w.request(l)
			waitFor(t, "a request has come", func() bool { return cm.Events(w.server.ch) == 1 })
			leave[i%limit](p)
			waitFor(t, "it is withdrawn", func() bool { return cm.Events(w.server.ch) == 0 })
		}
		for i := range 3 * limit {
			comeAndGo(i)
		}
		w.server.wantPending("nobody fetched them", l, 1, 0, 0, 0) // one place for the next peer

		var fetched []*cm.ID
		for i := range limit {
			p := w.request(l)
			id, _ := w.server.wantRequest("a request", l)
			fetched = append(fetched, id)
			leave[i](p)
			wantLeft(t, id)
		}
		w.server.wantPending("all fetched, all gone", l, limit, 0, limit, limit)
		w.request(l)
		w.server.wantPending("the next one waits", l, limit, 0, limit, limit)
		wantErr(t, fetched[0].Accept(provider.ConnParam{}), syscall.ECONNRESET)
		server, _ := w.server.wantRequest("Accept gives a place back", l)
		testkit.OK(t, server.Reject(nil))
		wantErr(t, fetched[1].Reject(nil), syscall.ECONNRESET)
		w.server.closeID(fetched[2])
		w.server.wantPending("so do Reject and Close", l, 2, 0, 4, 1)
		wantErr(t, fetched[0].Accept(provider.ConnParam{}), syscall.EINVAL)
		testkit.Equal(t, "the QP's state", qpOf(fetched[0]).getState(), provider.QPInit)
		wantErr(t, fetched[3].Accept(provider.ConnParam{}), syscall.ECONNRESET)
		w.wantServed(l)
	})
}

// TestRequestWithdrawnWhileItsListenerMoves: if the peer of a request leaves while the request
// moves to another channel together with its listener, the request is still fetched there.
func TestRequestWithdrawnWhileItsListenerMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", Options{}, true)
		l := w.server.listen()
		p := w.request(l)
		w.moment()
		release := cm.Hold(w.server.ch, l)
		p.close()
		w.moment()
		release()
		server, _ := w.server.wantRequest("it is fetched", l)
		wantErr(t, server.Accept(provider.ConnParam{}), syscall.ECONNRESET)
		w.server.wantPending("and answered", l, 1, 0, 1, 0)
	})
}

// TestPeerLeavesWhileItIsAccepted: the event says that the connection could not be made, not that
// the peer rejected it. The start-up is counted, and logged for the listener.
func TestPeerLeavesWhileItIsAccepted(t *testing.T) {
	onWholeNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		log := new(recorder)
		w.server.dev.log.to = slog.New(log)
		l := w.server.listen()
		p := w.request(l)
		server, _ := w.server.wantRequest("the request", l)
		for range policy.StepsAtOnce { // the goroutine of the request has to wait before it notes that the peer left
			w.server.dev.prog.steps <- struct{}{}
		}
		p.close()
		conn := cm.RequestConn(server)
		waitFor(t, "the FIN has come", func() bool {
			_, err := conn.Readv([][]byte{make([]byte, 1)})
			return err == io.EOF
		})
		testkit.OK(t, cm.AcceptLater(server, provider.ConnParam{}))
		for range policy.StepsAtOnce {
			<-w.server.dev.prog.steps
		}
		e := w.server.want("the peer has left", server, provider.CMConnectError, syscall.ECONNRESET)
		const why = "the peer closed the TCP connection before it had the Reply"
		testkit.Equal(t, "the cause", fmt.Sprint(e.Cause), why)
		w.server.dev.log.draining.Wait()
		st := testkit.Must(w.server.dev.Stats())(t)
		if text := log.String(); st.Failures != 1 || !strings.Contains(text, "side=listener") ||
			!strings.Contains(text, why) {
			t.Errorf("%d failures, log:\n%s", st.Failures, text)
		}
	})
}

// TestCloseWhileConnecting: a start-up that the program itself ends is logged as that.
func TestCloseWhileConnecting(t *testing.T) {
	onWholeNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		log := new(recorder)
		w.active.dev.log.to = slog.New(log)
		client, _, _ := w.toRaw(provider.ConnParam{})
		w.active.closeID(client)
		w.active.dev.log.draining.Wait()
		if text := log.String(); !strings.Contains(text, "side=dialler") ||
			!strings.Contains(text, "this side closed the id before the connection was made") {
			t.Errorf("log:\n%s", text)
		}
	})
}

// TestDeviceCloseWaitsForAWithdrawnRequest: when Close of the device has returned, no goroutine of
// its is left, not even the one that takes back the request of a peer that left. A program may
// close the listener and then the event channel before that.
func TestDeviceCloseWaitsForAWithdrawnRequest(t *testing.T) {
	w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", Options{}, false)
	h, l := w.server, w.server.listen()
	p := w.request(l)
	waitFor(t, "the request", func() bool { return cm.Events(h.ch) == 1 })
	release := lockElsewhere(h.dev.cm.LockAdmission, h.dev.cm.UnlockAdmission) // it stops there
	defer release()
	p.close()
	waitFor(t, "the request is withdrawn", func() bool { return cm.Events(h.ch) == 0 })
	testkit.OK(t, l.Close())
	testkit.OK(t, h.ch.Close())
	testkit.OK(t, h.cq.Close())
	testkit.OK(t, h.pd.Close())
	wantCloseAfter(t, h.dev, release)
}

// lockElsewhere has another goroutine lock, because locks have an order, and unlock when the
// function that it returns is called for the first time.
func lockElsewhere(lock, unlock func()) (release func()) {
	held, over := make(chan struct{}), make(chan struct{})
	go func() {
		lock()
		defer unlock()
		close(held)
		<-over
	}()
	<-held
	return sync.OnceFunc(func() { close(over) })
}

// wantCloseAfter checks that Close of a device that nothing holds returns after release, and not
// before.
func wantCloseAfter(t *testing.T, d *device, release func()) {
	t.Helper()
	closed := make(chan error, 1)
	go func() { closed <- d.Close() }()
	select {
	case err := <-closed:
		t.Errorf("Close returned %v while a goroutine of the device was still at work", err)
	case <-time.After(50 * time.Millisecond):
		release()
		testkit.OK(t, <-closed)
	}
}

// waysToClose are the ways in which a server ends a connection and has to wait for the peer.
// Each reads what the peer is sent last.
var waysToClose = map[string]func(w *cmWorld, l *cm.ID, p *rawPeer){
	"refused": func(_ *cmWorld, _ *cm.ID, p *rawPeer) {
		p.send(rawRequest(func(f *mpa.Frame) { f.Revision = 0 }))
		p.wantFrame("refused", mpa.KindReply)
	},
	"rejected": func(w *cmWorld, l *cm.ID, p *rawPeer) {
		p.send(rawRequest(nil))
		server, _ := w.server.wantRequest("to be rejected", l)
		testkit.OK(w.t, server.Reject([]byte("no")))
		if f := p.wantFrame("rejected", mpa.KindReply); !f.Reject || string(f.PrivateData[mpa.EnhancedLen:]) != "no" {
			w.t.Errorf("the Reply is %+v", f)
		}
		w.server.closeID(server)
	},
	"terminated": func(w *cmWorld, l *cm.ID, p *rawPeer) {
		p.send(rawRequest(nil))
		server, _ := w.server.wantRequest("to be terminated", l)
		testkit.OK(w.t, server.Accept(provider.ConnParam{}))
		p.wantFrame("accepted", mpa.KindReply)
		header := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
		framer := mpa.NewFramer(false, true)
		fpdu := testkit.Must(framer.AppendFPDU(nil, header.AppendTo(nil)))(w.t)
		p.send(fpdu) // nothing is posted to receive it
		p.wantFPDU(false)
		w.server.want("established", server, provider.CMEstablished, 0)
		w.server.want("terminated", server, provider.CMDisconnected, 0)
		w.server.closeID(server)
	},
}

// TestClosingConns: the number of connections that wait for the peer's end is bounded, for each
// peer and in all, and they have no goroutine. A connection that is cut because of that still
// delivers what was sent last, and one peer does not displace another one's connection.
func TestClosingConns(t *testing.T) {
	const limit, each = 6, 3
	opts := Options{MaxClosing: limit, MaxClosingPerPeer: each, CloseTimeout: time.Hour}
	for name, leave := range waysToClose {
		t.Run(name, func(t *testing.T) {
			inMemory(t, opts, func(t *testing.T, w *cmWorld) {
				l := w.server.listen()
				from := func(addr string) *rawPeer {
					return w.dialRawFrom(netip.MustParseAddr(addr), l.LocalAddr())
				}
				patient := from("192.0.2.2")
				leave(w, l, patient)
				synctest.Wait()
				before := runtime.NumGoroutine()
				var peers []*rawPeer
				for i := range 4 * limit {
					p := from("192.0.2.1")
					leave(w, l, p)
					synctest.Wait() // the next one must not get there first
					peers = append(peers, p)
					testkit.Equal(t, "connections that wait", w.server.dev.closing.len(), min(each, i+1)+1)
				}
				if n := runtime.NumGoroutine() - before; n > 2 {
					t.Errorf("%d goroutines more", n)
				}
				for i, p := range append(peers, patient) {
					testkit.Equal(t, fmt.Sprint("end ", i), p.wantEnd("FIN comes last"), io.EOF)
				}
				// A peer that sends more after the server's FIN is reset unless it has a place.
				for i, p := range append(peers, patient) {
					p.trySend([]byte("still here"))
					w.moment()
					err := p.wantEnd("sent after the server's FIN")
					testkit.Equal(t, fmt.Sprint("a place for peer ", i), err == io.EOF, i >= len(peers)-each)
				}
				time.Sleep(opts.CloseTimeout)
				synctest.Wait()
				if n := w.server.dev.closing.len(); n != 0 || len(w.server.dev.closing.peers) != 0 {
					t.Errorf("%d still wait after CloseTimeout", n)
				}
			})
		})
	}
}

// TestClosingConnsInAll: when all places are taken, the next connection displaces the one that
// has waited longest, and the device can be closed while all places are taken.
func TestClosingConnsInAll(t *testing.T) {
	onTCP(t, Options{MaxClosing: 2, MaxClosingPerPeer: 2, CloseTimeout: time.Minute}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		var peers []*rawPeer
		for range 5 {
			p := w.dialRaw(l.LocalAddr())
			waysToClose["refused"](w, l, p)
			peers = append(peers, p)
		}
		waitFor(t, "two wait", func() bool { return w.server.dev.closing.len() == 2 })
		for _, p := range peers {
			testkit.Equal(t, "the end", p.wantEnd("FIN"), io.EOF)
		}
	})
}

// TestClosingConnsAreFair: when all places are taken, the peer that has most of them gives one
// up, though no peer has more than its share, and others have waited longer.
func TestClosingConnsAreFair(t *testing.T) {
	const limit = 8
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}) }
	var addrs []netip.Addr
	for i := range 2 * limit {
		addrs = append(addrs, addr(i))
	}
	opts := Options{MaxClosing: limit, MaxClosingPerPeer: limit / 2, CloseTimeout: time.Hour}
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(&memnet.Options{Addrs: addrs}), "192.0.2.0:0", opts, true)
		l := w.server.listen()
		from := func(i int) {
			waysToClose["refused"](w, l, w.dialRawFrom(addr(i), l.LocalAddr()))
			synctest.Wait() // the next one must not get there first
		}
		want := func(what string, want ...int) { // of how many each peer waits
			t.Helper()
			got := make([]int, len(want))
			waiting := 0
			for i := range got {
				if p := w.server.dev.closing.peers[addr(i)]; p != nil {
					got[i] = p.waiting.Len()
				}
				waiting += got[i]
			}
			if n := w.server.dev.closing.len(); !slices.Equal(got, want) || n != waiting {
				t.Errorf("%s: of the peers %v wait, %d in all, want %v", what, got, n, want)
			}
		}
		from(0)
		from(1)
		for i := range 10 * limit {
			from(2 + i%3)
		}
		want("three flood", 1, 1, 2, 2, 2)
		for range limit {
			from(2)
		}
		want("one of them goes on", 1, 1, 2, 2, 2)
		for i := range 4 {
			from(5 + i)
		}
		want("others come: the peer with most gives way, among equals the one that came first",
			0, 1, 1, 1, 1, 1, 1, 1, 1)
	})
}

// TestPeerThatHungUpFirstDisplacesNobody: a connection that can be closed at once needs no
// place among those that wait.
func TestPeerThatHungUpFirstDisplacesNobody(t *testing.T) {
	inMemory(t, Options{MaxClosing: 1, CloseTimeout: time.Hour}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		patient := w.dialRaw(l.LocalAddr())
		waysToClose["refused"](w, l, patient)
		for range 3 {
			p := w.request(l)
			server, _ := w.server.wantRequest("a request", l)
			testkit.OK(t, server.Accept(provider.ConnParam{}))
			p.wantFrame("accepted", mpa.KindReply)
			p.close()
			w.server.want("established", server, provider.CMEstablished, 0)
			w.server.want("the peer hung up", server, provider.CMDisconnected, 0)
			w.server.closeID(server)
		}
		testkit.Equal(t, "the end", patient.wantEnd("FIN"), io.EOF)
		patient.trySend([]byte("still here"))
		w.moment()
		testkit.Equal(t, "the end", patient.wantEnd("sent after the server's FIN"), io.EOF)
	})
}

// TestRefusedPeerReadsNothing: a peer that does not take what it is sent last is reset
// when its time is over, or when another connection needs its place.
func TestRefusedPeerReadsNothing(t *testing.T) {
	for name, limit := range map[string]int{"time": 8, "place": 1} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network := memnet.New(&memnet.Options{Window: 40})
				w := newCMWorld(t, network, "192.0.2.1:0", Options{MaxClosing: limit}, true)
				l := w.server.listen()
				reject := func() *rawPeer {
					p := w.request(l)
					server, _ := w.server.wantRequest("a request", l)
					testkit.OK(t, server.Reject(octets(200)))
					synctest.Wait()
					return p
				}
				start := time.Now()
				first := reject()
				if limit == 1 {
					reject().wantFrame("read at last", mpa.KindReply)
				}
				b := make([]byte, 40)
				time.Sleep(2 * time.Second)
				var err error
				for err == nil {
					_, err = first.read(b)
				}
				testkit.WantErr(t, "the end", err, syscall.ECONNRESET)
				if d := time.Since(start); d > 3*time.Second {
					t.Errorf("after %s", d)
				}
				w.moment()
			})
		})
	}
}

// TestHalfClosedPeerGetsTheReply: a peer that sends FIN before it has read is still sent
// all of the Reply.
func TestHalfClosedPeerGetsTheReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(&memnet.Options{Window: 40}), "192.0.2.1:0", Options{}, true)
		l := w.server.listen()
		p := w.request(l)
		server, _ := w.server.wantRequest("a request", l)
		testkit.OK(t, server.Reject(octets(200)))
		synctest.Wait()
		testkit.OK(t, p.conn.CloseWrite())
		synctest.Wait()
		p.wantFrame("all of it", mpa.KindReply)
		testkit.Equal(t, "the end", p.wantEnd("and FIN"), io.EOF)
	})
}

// TestCloseEndsItsOwnConnection: an id whose connection has ended does not end the QP's next
// one, even if its own DISCONNECTED has not been raised yet.
func TestCloseEndsItsOwnConnection(t *testing.T) {
	for name, end := range map[string]func(id *cm.ID) error{
		"Close": (*cm.ID).Close, "Disconnect": (*cm.ID).Disconnect,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", Options{}, true)
				attr := provider.QPInitAttr{SendCQ: w.server.cq, RecvCQ: w.server.cq, Cap: smallQP}
				q := testkit.Must(w.server.pd.CreateQP(attr))(t).(*qp)
				t.Cleanup(func() { testkit.OK(t, q.Close()) })
				l := w.server.listen()
				accept := func() (client, server *cm.ID) {
					client = w.active.connect(l.LocalAddr(), provider.ConnParam{})
					server = w.server.own(w.server.next("a request").ID)
					testkit.OK(t, server.Accept(provider.ConnParam{QP: q}))
					w.server.want("accepted", server, provider.CMEstablished, 0)
					w.active.want("accepted", client, provider.CMEstablished, 0)
					return client, server
				}
				client, server := accept()
				s := q.stream.Load()
				down, release := s.onDown, make(chan struct{})
				s.onDown = func(err error) {
					<-release
					down(err)
				}
				go q.abort(io.ErrUnexpectedEOF)
				w.active.want("aborted", client, provider.CMDisconnected, 0)
				synctest.Wait()
				testkit.OK(t, q.Modify(provider.QPAttr{State: provider.QPReset}, provider.QPAttrState))
				client, second := accept()

				testkit.OK(t, end(server))
				w.moment()
				testkit.Equal(t, "the state of the next connection's QP", q.getState(),
					provider.QPRTS)
				close(release)
				w.moment()
				if name == "Disconnect" {
					w.server.want("the first connection", server, provider.CMDisconnected, 0)
				}
				testkit.OK(t, second.Disconnect())
				w.server.want("the second connection", second, provider.CMDisconnected, 0)
				w.active.want("the second connection", client, provider.CMDisconnected, 0)
			})
		})
	}
}

// TestLimitsOfIPv6Peers: all addresses of one prefix share the limits of one peer, for silent and
// for accepted connections.
func TestLimitsOfIPv6Peers(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("2001:db8::1")}
	for _, a := range []string{"2001:db8::2", "2001:db8::3", "2001:db8:0:1::1"} {
		addrs = append(addrs, netip.MustParseAddr(a))
	}
	for name, opts := range map[string]Options{
		"silent": {MaxPendingPerPeer: 2}, "accepted": {MaxAcceptedPerPeer: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newCMWorld(t, memnet.New(&memnet.Options{Addrs: addrs}), "[2001:db8::1]:0", opts, true)
				l := w.server.listen()
				for i, a := range addrs {
					p := w.dialRawFrom(a, l.LocalAddr())
					synctest.Wait()
					_, err := p.conn.Readv([][]byte{make([]byte, 1)})
					testkit.Equal(t, fmt.Sprintf("connection %d, from %s is reset", i, a),
						errors.Is(err, syscall.ECONNRESET), i == 2)
				}
				w.pause()
			})
		})
	}
}

// TestReplyThatNobodyTakes: a peer that does not read the accepting Reply is reset after
// StartupTimeout, so that nothing of the Reply is kept for it.
func TestReplyThatNobodyTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(&memnet.Options{Window: 13}), "192.0.2.1:0", Options{}, true)
		l := w.server.listen()
		p := w.request(l)
		server, _ := w.server.wantRequest("a request", l)
		start := time.Now()
		testkit.OK(t, server.Accept(provider.ConnParam{}))
		w.moment()
		w.server.wantPending("it is not taken", l, 2, 0, 1, 1)
		e := w.server.next("its time is over")
		if e.ID != server || e.Status != -int(syscall.ETIMEDOUT) {
			t.Errorf("event %s, status %d", e.Type, e.Status)
		}
		testkit.Equal(t, "time", time.Since(start), 10*time.Second)
		w.server.wantPending("it is over", l, 1, 0, 1, 0)
		var err error
		for b := make([]byte, 100); err == nil; {
			_, err = p.read(b)
		}
		testkit.WantErr(t, "the end", err, syscall.ECONNRESET)
	})
}
