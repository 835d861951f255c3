package engine

import (
	"errors"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

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
