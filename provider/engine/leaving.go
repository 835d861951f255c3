package engine

import (
	"container/list"
	"errors"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// departures are the connections of a device that have ended here and wait for the
// peer's end: RDMA streams (see linger) and connections that the start-up refused (see
// farewell). Each holds a socket although nothing of the program's is left, so
// Options.MaxClosing bounds how many there are, and Options.MaxClosingPerPeer how many
// of one peer. Who would be one too many takes the place of the one that has waited
// longest: that one had the most time of all to see the end, and a peer that ends
// connections in a flood displaces its own.
//
// mu is taken by who holds linger.mu or farewell.mu, dropping by who holds farewell.mu;
// nothing is taken while either is held.
type departures struct {
	mu       sched.Mutex[locks.Departures]
	stopping bool
	all      *list.List                  // of departing, the oldest first; nil: none so far
	peers    map[netip.Addr]*list.List   // of *list.Element of all, the oldest first
	places   map[departing]*list.Element // in the list of its peer

	dropping sched.Mutex[locks.Dropping]
	dropped  [4096]byte // what farewells read
}

// departing is a connection that waits for the peer's end.
type departing interface {
	// cut closes the socket without waiting any longer. What TCP has taken, and the FIN,
	// it goes on to send; but with reset, if the peer did not take all, nothing is left of
	// the connection. It is called by who holds no lock, and may come when the socket is
	// closed.
	cut(reset bool)
	peer() netip.Addr // the peer, as limits go by it
}

// add notes that c waits. instead is who has to be cut for it, nil for nobody. It
// reports false if the device is being closed, and c can't wait.
func (d *departures) add(c departing, opts *Options) (instead departing, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopping {
		return nil, false
	}
	if d.all == nil {
		d.all, d.peers, d.places = list.New(), make(map[netip.Addr]*list.List), make(map[departing]*list.Element)
	}
	peer := c.peer()
	switch {
	case d.peers[peer] != nil && d.peers[peer].Len() >= opts.MaxClosingPerPeer:
		instead = d.peers[peer].Front().Value.(*list.Element).Value.(departing)
	case d.all.Len() >= opts.MaxClosing:
		instead = d.all.Front().Value.(departing)
	}
	if instead != nil {
		d.remove(instead)
	}
	if d.peers[peer] == nil {
		d.peers[peer] = list.New()
	}
	d.places[c] = d.peers[peer].PushBack(d.all.PushBack(c))
	return instead, true
}

// gone notes that the socket of c is closed.
func (d *departures) gone(c departing) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.remove(c)
}

// remove takes c out, if it is in. mu is held.
func (d *departures) remove(c departing) {
	place := d.places[c]
	if place == nil {
		return
	}
	delete(d.places, c)
	d.all.Remove(place.Value.(*list.Element))
	peer := c.peer()
	if d.peers[peer].Remove(place); d.peers[peer].Len() == 0 {
		delete(d.peers, peer)
	}
}

// stop cuts all, and lets no other wait.
func (d *departures) stop() {
	d.mu.Lock()
	d.stopping = true
	places := d.places
	d.all, d.peers, d.places = nil, nil, nil
	d.mu.Unlock()
	for c := range places {
		c.cut(false)
	}
}

// len is how many wait.
func (d *departures) len() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.places)
}

// farewell is a connection that ends in the start-up with something to be said: a
// rejecting Reply, or a Terminate. It is sent, then FIN; what the peer still sends is read
// and dropped until its FIN comes, because a close with unread octets is a reset, which
// could overtake what was sent. That takes no goroutine: it is the Handler of its Conn,
// and any number of peers can be refused.
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

// leave ends w with last, and returns at once. It takes over w.
func (d *device) leave(w *wire, last []byte) {
	w.release()
	f := &farewell{dev: d, conn: w.conn, out: last}
	f.mu.Lock() // Ready finds it taken, and is called again
	instead := f.begin()
	f.mu.Unlock()
	if instead != nil {
		instead.cut(true)
	}
}

// begin does what can be done at once. It returns who has to be cut. mu is held.
func (f *farewell) begin() (instead departing) {
	if f.dev.poller.Add(f.conn, f) != nil || f.step(turnLeast) {
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
func (f *farewell) peer() netip.Addr { return peerOf(f.conn) }

// Ready implements transport.Handler.
func (f *farewell) Ready(readable, writable bool) { f.ReadyAmong(readable, writable, 1) }

// ReadyAmong implements transport.Sharer.
func (f *farewell) ReadyAmong(_, _ bool, of int) {
	if !f.mu.TryLock() {
		return // readiness comes again
	}
	done := !f.gone && f.step(turnAmong(of))
	if done {
		f.close()
	}
	f.mu.Unlock()
	if done {
		f.dev.leaving.gone(f)
	}
}

// step does what can be done in a turn, and reports whether the socket can be closed. mu is
// held.
func (f *farewell) step(turn int) bool {
	return !f.send() || f.drain(turn) || f.fin && f.eof
}

// send sends the rest and the FIN. It reports false when the connection is lost. mu is
// held.
func (f *farewell) send() bool {
	for len(f.out) > 0 {
		n, err := writeRecords(f.conn, [][]byte{f.out}, []int{len(f.out)})
		f.out = f.out[n:]
		switch {
		case err == nil:
		case errors.Is(err, transport.ErrWouldBlock):
			f.blocked = true
			return f.dev.poller.WantWrite(f.conn, true) == nil
		default:
			return false
		}
	}
	if f.blocked {
		f.blocked = false
		if f.dev.poller.WantWrite(f.conn, false) != nil {
			return false
		}
	}
	if f.fin {
		return true
	}
	f.fin = true
	return f.conn.CloseWrite() == nil
}

// drain drops what has arrived, within the turn, and reports whether the connection is
// lost. mu is held.
func (f *farewell) drain(turn int) (lost bool) {
	if f.eof {
		return false
	}
	err := f.dev.leaving.drop(f.conn, turn)
	if err == nil || errors.Is(err, transport.ErrWouldBlock) {
		return false
	}
	f.eof = isEOF(err)
	return !f.eof || f.dev.poller.WantRead(f.conn, false) != nil // it is readable for ever
}

// drop reads what has arrived on conn and forgets it, within the turn. The error is nil if
// there may be more.
func (d *departures) drop(conn transport.Conn, turn int) error {
	d.dropping.Lock()
	defer d.dropping.Unlock()
	for total := 0; total < turn; {
		n, err := conn.Readv([][]byte{d.dropped[:]})
		if err != nil {
			return err
		}
		total += n
	}
	return nil
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
		f.drain(turnLeast) // a close with unread octets is a reset
	}
	f.close()
}
