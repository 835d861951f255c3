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
