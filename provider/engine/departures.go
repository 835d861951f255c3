package engine

import (
	"container/heap"
	"container/list"
	"errors"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// departures are the connections of a device that have ended here and wait for the peer's end: RDMA
// streams (see linger) and connections that the start-up refused (see farewell). Each holds a
// socket although the program has nothing left of it. So Options.MaxClosing bounds how many there
// are, and Options.MaxClosingPerPeer how many one peer has.
//
// When there is one too many, the peer that has most of them loses the one that has waited longest.
// That peer had more time than all others to see its end, and a peer that floods the device with
// ending connections displaces only its own.
//
// A goroutine may take mu while it holds closer.mu or farewell.mu, and dropping while it holds
// farewell.mu. It takes no lock while it holds one of these two.
type departures struct {
	mu       sched.Mutex[locks.Departures]
	stopping bool
	peers    map[netip.Addr]*leavingPeer // nil before the first
	places   map[departing]*list.Element // in the list of its peer
	most     leavingPeers
	came     uint64 // how many have been added

	dropping sched.Mutex[locks.Dropping]
	dropped  [4096]byte // into which farewells read
}

// leavingPeer is a peer that has waiting connections.
type leavingPeer struct {
	addr    netip.Addr
	waiting list.List // of leavingConn, the oldest first; never empty
	at      int       // in leavingPeers
}

// leavingConn is a connection that waits for the peer's end.
type leavingConn struct {
	departing
	peer *leavingPeer
	came uint64 // departures.came when it was added
}

func (p *leavingPeer) oldest() leavingConn { return p.waiting.Front().Value.(leavingConn) }

// leavingPeers is a heap. Its first peer has most waiting connections. Among peers with equally
// many, it is the one whose oldest connection came first.
type leavingPeers []*leavingPeer

func (h leavingPeers) Len() int { return len(h) }

func (h leavingPeers) Less(i, j int) bool {
	if a, b := h[i].waiting.Len(), h[j].waiting.Len(); a != b {
		return a > b
	}
	return h[i].oldest().came < h[j].oldest().came
}

func (h leavingPeers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *leavingPeers) Push(x any) {
	p := x.(*leavingPeer)
	p.at = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *leavingPeers) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}

// departing is a connection that waits for the peer's end.
type departing interface {
	// cut closes the socket without waiting any longer. TCP still sends the bytes that it has
	// taken, and the FIN. With reset, the connection is reset instead if TCP has not taken
	// everything. The caller holds no lock. The socket may be closed already.
	cut(reset bool)
	peer() netip.Addr // a result of cm.PeerOf
}

// add notes that c waits. If instead is not nil, there is one connection too many, and the caller
// must cut instead. ok is false if the device is being closed, so that c can't wait.
func (d *departures) add(c departing, opts *Options) (instead departing, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return nil, false
	}
	if d.peers == nil {
		d.peers, d.places = make(map[netip.Addr]*leavingPeer), make(map[departing]*list.Element)
	}
	addr := c.peer()
	p := d.peers[addr]
	d.came++
	if p == nil {
		p = &leavingPeer{addr: addr}
		d.peers[addr] = p
	}
	d.places[c] = p.waiting.PushBack(leavingConn{c, p, d.came})
	if p.waiting.Len() == 1 {
		heap.Push(&d.most, p)
	} else {
		heap.Fix(&d.most, p.at)
	}
	switch {
	case p.waiting.Len() > opts.MaxClosingPerPeer:
		instead = p.oldest().departing
	case len(d.places) > opts.MaxClosing:
		instead = d.most[0].oldest().departing
	}
	if instead != nil {
		d.remove(instead)
	}
	return instead, true
}

// gone notes that the socket of c is closed.
func (d *departures) gone(c departing) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(c)
}

// remove removes c, if it is there. mu is held.
func (d *departures) remove(c departing) {
	place := d.places[c]
	if place == nil {
		return
	}
	delete(d.places, c)
	p := place.Value.(leavingConn).peer
	if p.waiting.Len() == 1 {
		heap.Remove(&d.most, p.at)
		delete(d.peers, p.addr)
		return
	}
	p.waiting.Remove(place)
	heap.Fix(&d.most, p.at)
}

// stop cuts all connections, and lets no other wait.
func (d *departures) stop() {
	d.mu.Lock()
	d.stopping = true
	places := d.places
	d.peers, d.places, d.most = nil, nil, nil
	d.mu.Unlock()
	for c := range places {
		c.cut(false)
	}
}

// len returns how many connections wait.
func (d *departures) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.places)
}

// drop reads and discards what has arrived on conn, within the turn. The error is nil if there may
// be more.
func (d *departures) drop(conn transport.Conn, left *int) error {
	d.dropping.Lock()
	defer d.dropping.Unlock()
	for *left > 0 {
		n, err := conn.Readv([][]byte{d.dropped[:]})
		if err != nil {
			return err
		}
		*left -= max(n, policy.ReadLeast) // a read of one byte costs as much
	}
	return nil
}

// farewell is a connection that ends in the start-up with something left to send: a rejecting
// Reply, or a Terminate. The farewell sends it, then FIN. It reads and discards what the peer still
// sends until the peer's FIN, because closing with unread bytes is a reset, which could overtake
// what was sent. It is the Handler of its Conn and needs no goroutine, so any number of peers can
// be refused.
type farewell struct {
	dev  *device
	conn transport.Conn

	mu      sched.Mutex[locks.Farewell]
	out     []byte // still to be sent
	blocked bool   // the socket was full, and the poller watches for room
	fin     bool   // our FIN is out
	eof     bool   // the peer's FIN has come
	gone    bool   // the socket is closed
	timer   *time.Timer
}

// leave sends last and ends conn, without waiting. It takes over conn, which no poller watches.
func (d *device) leave(conn transport.Conn, last []byte) {
	f := &farewell{dev: d, conn: conn, out: last}
	f.mu.Lock() // Ready finds the lock taken, and is called again
	instead := f.begin()
	f.mu.Unlock()
	if instead != nil {
		instead.cut(true)
	}
}

// begin does what can be done at once. It returns a connection that must be cut, or nil. mu is
// held.
func (f *farewell) begin() (instead departing) {
	if turn := policy.TurnEnd; f.dev.poller.first().Add(f.conn, f) != nil || f.step(&turn) {
		f.close()
		return nil
	}
	instead, ok := f.dev.leaving.add(f, &f.dev.opts)
	if !ok {
		f.close()
		return nil
	}
	f.timer = time.AfterFunc(f.dev.opts.CloseTimeout, f.expired)
	return instead
}

// peer implements departing.
func (f *farewell) peer() netip.Addr { return cm.PeerOf(f.conn) }

// Ready implements transport.Handler.
func (f *farewell) Ready(readable, writable bool) { f.ReadyTurn(readable, writable, policy.TurnLeast) }

// ReadyTurn implements transport.Sharer.
func (f *farewell) ReadyTurn(_, _ bool, turn int) (used int, more bool) {
	if !f.mu.TryLock() {
		return 0, false // readiness comes again
	}
	left := turn
	done := !f.gone && f.step(&left)
	if done {
		f.close()
	}
	f.mu.Unlock()
	if done {
		f.dev.leaving.gone(f)
	}
	return turn - left, left <= 0
}

// step does what can be done in the rest of a turn, and reports whether the socket can be closed.
// mu is held.
func (f *farewell) step(left *int) bool {
	return !f.send() || f.drain(left) || f.fin && f.eof
}

// send sends the rest and the FIN. It reports false if the connection is lost. mu is held.
func (f *farewell) send() bool {
	for len(f.out) > 0 {
		n, err := writeRecords(f.conn, [][]byte{f.out}, []int{len(f.out)})
		f.out = f.out[n:]
		switch {
		case err == nil:
		case errors.Is(err, transport.ErrWouldBlock):
			f.blocked = true
			return f.dev.poller.first().WantWrite(f.conn, true) == nil
		default:
			return false
		}
	}
	if f.blocked {
		f.blocked = false
		if f.dev.poller.first().WantWrite(f.conn, false) != nil {
			return false
		}
	}
	if f.fin {
		return true
	}
	f.fin = true
	return f.conn.CloseWrite() == nil
}

// drain discards what has arrived, within the turn, and reports whether the connection is lost. mu
// is held.
func (f *farewell) drain(left *int) (lost bool) {
	if f.eof {
		return false
	}
	err := f.dev.leaving.drop(f.conn, left)
	if err == nil || errors.Is(err, transport.ErrWouldBlock) {
		return false
	}
	f.eof = isEOF(err)
	return !f.eof || f.dev.poller.first().WantRead(f.conn, false) != nil // it is readable forever
}

// close closes the socket. mu is held.
func (f *farewell) close() {
	if f.timer != nil {
		f.timer.Stop()
	}
	_ = f.conn.Close()
	f.gone = true
	f.out = nil
}

// expired gives up waiting for the peer.
func (f *farewell) expired() {
	f.cut(true)
	f.dev.leaving.gone(f)
}

// cut implements departing.
func (f *farewell) cut(reset bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gone {
		return
	}
	if reset && len(f.out) > 0 {
		_ = f.conn.Abort()
	} else {
		turn := policy.TurnLeast
		f.drain(&turn) // a close with unread bytes is a reset
	}
	f.close()
}
