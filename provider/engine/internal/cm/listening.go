package cm

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// listening is the state of an id that listens: one goroutine that accepts, and one for each
// connection that has not sent its Request yet.
//
// A peer that connects and stays silent takes a place until StartupTimeout has passed. There are
// Config.MaxPending places; a request that the program has not answered takes one as well. When
// all are taken, connections wait in TCP's backlog. One peer (see peerGroup) has at most
// Config.MaxPendingPerPeer places for silent connections, so that it alone can't keep all others
// out. Further silent connections of it are reset.
type listening struct {
	id     *ID
	l      transport.Listener
	ctx    context.Context
	cancel context.CancelFunc
	tasks  sync.WaitGroup
	places chan struct{}
	spare  atomic.Bool // acceptAll holds a place for the next connection
	counts listenCounts

	mu     sched.Mutex[locks.Listening]
	silent map[netip.Addr]int // connections without a Request

	// reading is held by the goroutine that reads Requests. No step waits for it.
	reading chan struct{}
	order   map[netip.Addr][]*arrival // by peer, in TCP's order; guarded by reading
}

// listenCounts is what a listener counts.
type listenCounts struct {
	connections, requests, refused, failed atomic.Uint64
}

// Listen implements provider.ID. An unbound id gets a port on every IPv4 address. An id that
// ResolveAddr has bound, but not resolved, gets a port on its address. backlog is TCP's;
// Config.MaxPending limits the number of requests that wait for an answer.
func (id *ID) Listen(backlog int) error {
	const op = "rdma_listen"
	if err := id.enter(op, idIdle, idBound); err != nil {
		return err
	}
	defer id.mu.Unlock()
	if id.binding == nil {
		addr := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
		if id.state == idBound { // by a ResolveAddr that failed, which reserves no port
			addr = id.local
		}
		if err := id.bind(op, addr); err != nil {
			return err
		}
	}
	l, err := id.binding.Listen(backlog)
	id.binding = nil
	if err != nil {
		id.state, id.local = idIdle, netip.AddrPort{} // the port is gone
		return fail(op, id.name(), err)
	}
	ls := &listening{
		id:      id,
		l:       l,
		places:  make(chan struct{}, id.m.cfg.MaxPending),
		silent:  make(map[netip.Addr]int),
		reading: make(chan struct{}, 1),
		order:   make(map[netip.Addr][]*arrival),
	}
	ls.ctx, ls.cancel = context.WithCancel(context.Background())
	id.listening, id.state = ls, idListening
	ls.tasks.Go(ls.acceptAll)
	return nil
}

// close ends listening and all connections without a Request.
func (ls *listening) close() {
	ls.cancel()
	_ = ls.l.Close()
	ls.tasks.Wait()
}

// acceptAll accepts connections until the listener ends. Accept fails when descriptors or memory
// have run out; until there are some again, connections stay in the backlog.
func (ls *listening) acceptAll() {
	for {
		select {
		case ls.places <- struct{}{}:
		case <-ls.ctx.Done():
			return
		}
		ls.spare.Store(true)
		conn, err := ls.l.Accept(ls.ctx)
		ls.spare.Store(false)
		if err == nil {
			ls.welcome(conn)
			ls.id.m.host.Yield()
			continue
		}
		<-ls.places
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ls.ctx.Done():
			return
		}
	}
}

// welcome gives a new connection the place that acceptAll holds.
func (ls *listening) welcome(conn transport.Conn) {
	peer := PeerOf(conn)
	ls.counts.connections.Add(1)
	if limit := ls.id.m.admit(peer); limit != "" {
		ls.refused(limit, conn)
		_ = conn.Abort()
		<-ls.places
		return
	}
	a, err := ls.arrive(conn, peer)
	if err != nil {
		ls.giveUp(peer)
		return
	}
	ls.tasks.Go(func() { ls.await(a) })
}

// giveUp undoes the counting of welcome.
func (ls *listening) giveUp(peer netip.Addr) {
	ls.id.m.Discharge(peer)
	<-ls.places
}

// refused counts a connection that a limit refuses.
func (ls *listening) refused(limit string, conn transport.Conn) {
	ls.counts.refused.Add(1)
	ls.id.m.host.Refused(limit, conn.RemoteAddr())
}

// failed counts a connection without a valid Request.
func (ls *listening) failed(conn transport.Conn, err error) {
	ls.counts.failed.Add(1)
	ls.id.m.host.Failed("listener", conn.RemoteAddr(), err)
}

// errSilent is why a silent connection is reset when its peer has too many of them.
var errSilent = errors.New("too many connections of the peer are silent")

// admit counts a connection that has sent nothing so far, or returns errSilent.
func (ls *listening) admit(peer netip.Addr) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.silent[peer] >= ls.id.m.cfg.MaxPendingPerPeer {
		return errSilent
	}
	ls.silent[peer]++
	return nil
}

// speaks undoes admit for a connection that has sent something.
func (ls *listening) speaks(peer netip.Addr) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.silent[peer]--; ls.silent[peer] == 0 {
		delete(ls.silent, peer)
	}
}

// refuse closes the connection of a peer that sent no valid Request. reply gives a peer of the
// other version the reason; it is nil for all others.
//
//rfc:5044 RDMAC-C.2.1-01 Non-permissive responder to Rev0: Reply Rev 1, then close
func (ls *listening) refuse(w *wire, reply []byte) {
	if reply == nil {
		w.close()
		return
	}
	w.closeAfter(reply)
}

// announce makes the id of a connection and raises CONNECT_REQUEST. If the listener is closed, it
// returns false and closes the connection.
//
//rfc:5044 RDMAC-C.2-01 ULP informed that version 0 is in use
//rfc:6581 MPA2-9.1-01 Peer IRD/ORD passed to the ULP
func (ls *listening) announce(r *mpa.Request, w *wire) bool {
	l := ls.id
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == idClosed || !l.ch.refs.Hold() {
		w.close()
		return false
	}
	child := newID(l.ch, l.cookie)
	// Until child is complete, others may fetch the event, or find that the peer has left.
	child.mu.Lock()
	defer child.mu.Unlock()
	child.state, child.admitted = idRequested, ls.id.m.cfg.countsAccepted()
	child.local, child.remote = w.conn.LocalAddr(), w.conn.RemoteAddr()
	event := &queuedEvent{CMEvent: provider.CMEvent{
		Type:     provider.CMConnectRequest,
		ID:       child,
		ListenID: l,
		Param:    l.m.requestParam(r),
		RDMAC:    r.RDMAC,
	}}
	r.PrivateData = nil // the event has a copy, and this slice would keep the whole frame in memory
	child.wait(&request{
		Request: r, wire: w, places: ls.places, answers: make(chan answer, 1), event: event,
	})
	l.ch.push(event)
	ls.counts.requests.Add(1)
	return true
}

// requestParam returns what a CONNECT_REQUEST reports: the private data, and the largest read
// depths that can be accepted. For a Request without depths (revision 1) they are 0, as with siw.
//
//rfc:5044 MPA-7.1.1-20 Private data handed to the ULP unchanged
func (m *Manager) requestParam(r *mpa.Request) provider.ConnParam {
	p := provider.ConnParam{PrivateData: append([]byte(nil), r.PrivateData...)}
	if r.Enhanced {
		p.ResponderResources = negotiable(r.ORD, m.cfg.MPA.MaxIRD)
		p.InitiatorDepth = negotiable(r.IRD, m.cfg.MaxORD)
	}
	return p
}

// ListenerStats implements provider.ListenerStater.
func (id *ID) ListenerStats() (provider.ListenerStats, error) {
	const op = "stats"
	if err := id.enter(op, idListening); err != nil {
		return provider.ListenerStats{}, err
	}
	defer id.mu.Unlock()
	ls := id.listening
	pending := len(ls.places)
	if ls.spare.Load() {
		pending = max(pending-1, 0)
	}
	return provider.ListenerStats{
		Connections: ls.counts.connections.Load(), Requests: ls.counts.requests.Load(),
		Refused: ls.counts.refused.Load(), Failed: ls.counts.failed.Load(),
		Pending: pending, MaxPending: cap(ls.places),
	}, nil
}
