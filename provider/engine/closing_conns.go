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

// closingConns are the connections of a device that have ended here and wait for the peer's end:
// RDMA streams (see linger) and connections that the start-up refused (see refusedConn). Each holds
// a socket although the program has nothing left of it. So Options.MaxClosing bounds how many there
// are, and Options.MaxClosingPerPeer how many one peer has.
//
// When there is one too many, the peer that has most of them loses the one that has waited longest.
// That peer had more time than all others to see its end, and a peer that floods the device with
// ending connections displaces only its own.
//
// A goroutine may take mu while it holds closer.mu or refusedConn.mu, and dropping while it holds
// refusedConn.mu. It takes no lock while it holds one of these two.
type closingConns struct {
	mu       sched.Mutex[locks.ClosingConns]
	stopping bool
	peers    map[netip.Addr]*closingPeer   // nil before the first
	places   map[closingConn]*list.Element // in the list of its peer
	most     closingPeers
	came     uint64 // how many have been added

	dropping sched.Mutex[locks.Dropping]
	dropped  [4096]byte // into which refused connections read
}

// closingPeer is a peer that has waiting connections.
type closingPeer struct {
	addr    netip.Addr
	waiting list.List // of closingEntry, the oldest first; never empty
	at      int       // in closingPeers
}

// closingEntry is a connection that waits for the peer's end.
type closingEntry struct {
	closingConn
	peer *closingPeer
	came uint64 // closingConns.came when it was added
}

func (p *closingPeer) oldest() closingEntry { return p.waiting.Front().Value.(closingEntry) }

// closingPeers is a heap. Its first peer has most waiting connections. Among peers with equally
// many, it is the one whose oldest connection came first.
type closingPeers []*closingPeer

func (h closingPeers) Len() int { return len(h) }

func (h closingPeers) Less(i, j int) bool {
	if a, b := h[i].waiting.Len(), h[j].waiting.Len(); a != b {
		return a > b
	}
	return h[i].oldest().came < h[j].oldest().came
}

func (h closingPeers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push implements heap.Interface.
func (h *closingPeers) Push(x any) {
	p := x.(*closingPeer)
	p.at = len(*h)
	*h = append(*h, p)
}

// Pop implements heap.Interface.
func (h *closingPeers) Pop() any {
	last := len(*h) - 1
	p := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return p
}

// closingConn is a connection that waits for the peer's end.
type closingConn interface {
	// cut closes the socket without waiting any longer. TCP still sends the bytes that it has
	// taken, and the FIN. With reset, the connection is reset instead if TCP has not taken
	// everything. The caller holds no lock. The socket may be closed already.
	cut(reset bool)
	peer() netip.Addr // a result of cm.PeerOf
}

// add notes that c waits. If instead is not nil, there is one connection too many, and the caller
// must cut instead. ok is false if the device is being closed, so that c can't wait.
func (d *closingConns) add(c closingConn, opts *Options) (instead closingConn, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return nil, false
	}
	if d.peers == nil {
		d.peers, d.places = make(map[netip.Addr]*closingPeer), make(map[closingConn]*list.Element)
	}
	addr := c.peer()
	p := d.peers[addr]
	d.came++
	if p == nil {
		p = &closingPeer{addr: addr}
		d.peers[addr] = p
	}
	d.places[c] = p.waiting.PushBack(closingEntry{c, p, d.came})
	if p.waiting.Len() == 1 {
		heap.Push(&d.most, p)
	} else {
		heap.Fix(&d.most, p.at)
	}
	switch {
	case p.waiting.Len() > opts.MaxClosingPerPeer:
		instead = p.oldest().closingConn
	case len(d.places) > opts.MaxClosing:
		instead = d.most[0].oldest().closingConn
	}
	if instead != nil {
		d.remove(instead)
	}
	return instead, true
}

// gone notes that the socket of c is closed.
func (d *closingConns) gone(c closingConn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(c)
}

// remove removes c, if it is there. mu is held.
func (d *closingConns) remove(c closingConn) {
	place := d.places[c]
	if place == nil {
		return
	}
	delete(d.places, c)
	p := place.Value.(closingEntry).peer
	if p.waiting.Len() == 1 {
		heap.Remove(&d.most, p.at)
		delete(d.peers, p.addr)
		return
	}
	p.waiting.Remove(place)
	heap.Fix(&d.most, p.at)
}

// stop cuts all connections, and lets no other wait.
func (d *closingConns) stop() {
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
func (d *closingConns) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.places)
}

// drop reads and discards what has arrived on conn, within the budget. The error is nil if there
// may be more.
func (d *closingConns) drop(conn transport.Conn, left *int) error {
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

// refusedConn is a connection that ends in the start-up with something left to send: a rejecting
// Reply, or a Terminate. It sends it, then FIN. It reads and discards what the peer still
// sends until the peer's FIN, because closing with unread bytes is a reset, which could overtake
// what was sent. It is the Handler of its Conn and needs no goroutine, so any number of peers can
// be refused.
type refusedConn struct {
	dev  *device
	conn transport.Conn

	mu      sched.Mutex[locks.RefusedConn]
	out     []byte // still to be sent
	blocked bool   // the socket was full, and the poller watches for room
	fin     bool   // our FIN is out
	eof     bool   // the peer's FIN has come
	gone    bool   // the socket is closed
	timer   *time.Timer
}

// closeAfter sends last and ends conn, without waiting. It takes over conn, which no poller
// watches.
func (d *device) closeAfter(conn transport.Conn, last []byte) {
	r := &refusedConn{dev: d, conn: conn, out: last}
	r.mu.Lock() // Ready finds the lock taken, and is called again
	instead := r.begin()
	r.mu.Unlock()
	if instead != nil {
		instead.cut(true)
	}
}

// begin does what can be done at once. It returns a connection that must be cut, or nil. mu is
// held.
func (r *refusedConn) begin() (instead closingConn) {
	if budget := policy.BudgetEnd; r.dev.poller.first().Add(r.conn, r) != nil || r.step(&budget) {
		r.close()
		return nil
	}
	instead, ok := r.dev.closing.add(r, &r.dev.opts)
	if !ok {
		r.close()
		return nil
	}
	r.timer = time.AfterFunc(r.dev.opts.CloseTimeout, r.expired)
	return instead
}

// peer implements closingConn.
func (r *refusedConn) peer() netip.Addr { return cm.PeerOf(r.conn) }

// Ready implements transport.Handler.
func (r *refusedConn) Ready(readable, writable bool) {
	r.ReadyTurn(readable, writable, policy.BudgetLeast)
}

// ReadyTurn implements transport.Sharer.
func (r *refusedConn) ReadyTurn(_, _ bool, budget int) (used int, more bool) {
	if !r.mu.TryLock() {
		return 0, false // readiness comes again
	}
	left := budget
	done := !r.gone && r.step(&left)
	if done {
		r.close()
	}
	r.mu.Unlock()
	if done {
		r.dev.closing.gone(r)
	}
	return budget - left, left <= 0
}

// step does what can be done in the rest of a budget, and reports whether the socket can be closed.
// mu is held.
func (r *refusedConn) step(left *int) bool {
	return !r.send() || r.drain(left) || r.fin && r.eof
}

// send sends the rest and the FIN. It reports false if the connection is lost. mu is held.
func (r *refusedConn) send() bool {
	for len(r.out) > 0 {
		n, err := writeRecords(r.conn, [][]byte{r.out}, []int{len(r.out)})
		r.out = r.out[n:]
		switch {
		case err == nil:
		case errors.Is(err, transport.ErrWouldBlock):
			r.blocked = true
			return r.dev.poller.first().WantWrite(r.conn, true) == nil
		default:
			return false
		}
	}
	if r.blocked {
		r.blocked = false
		if r.dev.poller.first().WantWrite(r.conn, false) != nil {
			return false
		}
	}
	if r.fin {
		return true
	}
	r.fin = true
	return r.conn.CloseWrite() == nil
}

// drain discards what has arrived, within the budget, and reports whether the connection is lost.
// mu is held.
func (r *refusedConn) drain(left *int) (lost bool) {
	if r.eof {
		return false
	}
	err := r.dev.closing.drop(r.conn, left)
	if err == nil || errors.Is(err, transport.ErrWouldBlock) {
		return false
	}
	r.eof = isEOF(err)
	return !r.eof || r.dev.poller.first().WantRead(r.conn, false) != nil // it is readable forever
}

// close closes the socket. mu is held.
func (r *refusedConn) close() {
	if r.timer != nil {
		r.timer.Stop()
	}
	_ = r.conn.Close()
	r.gone = true
	r.out = nil
}

// expired gives up waiting for the peer.
func (r *refusedConn) expired() {
	r.cut(true)
	r.dev.closing.gone(r)
}

// cut implements closingConn.
func (r *refusedConn) cut(reset bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.gone {
		return
	}
	if reset && len(r.out) > 0 {
		_ = r.conn.Abort()
	} else {
		budget := policy.BudgetLeast
		r.drain(&budget) // a close with unread bytes is a reset
	}
	r.close()
}
