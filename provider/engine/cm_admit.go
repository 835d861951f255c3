package engine

import (
	"net/netip"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// admission counts the connections that came to the listeners of a device, for
// Options.MaxAccepted and MaxAcceptedPerPeer. Without either it counts nothing.
type admission struct {
	mu    sched.Mutex[locks.Admission]
	all   int
	peers map[netip.Addr]int
}

// admit counts a connection from peer, and reports false if there may be none.
func (d *device) admit(peer netip.Addr) bool {
	if !d.countsAccepted() {
		return true
	}
	limit, each := d.opts.MaxAccepted, d.opts.MaxAcceptedPerPeer
	a := &d.accepted
	a.mu.Lock()
	defer a.mu.Unlock()
	if limit > 0 && a.all >= limit || each > 0 && a.peers[peer] >= each {
		return false
	}
	if a.peers == nil {
		a.peers = make(map[netip.Addr]int)
	}
	a.all++
	a.peers[peer]++
	return true
}

// discharge takes a connection back that admit counted.
func (d *device) discharge(peer netip.Addr) {
	if !d.countsAccepted() {
		return
	}
	a := &d.accepted
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.peers[peer]--; a.peers[peer] == 0 {
		delete(a.peers, peer)
	}
}

func (d *device) countsAccepted() bool {
	return d.opts.MaxAccepted > 0 || d.opts.MaxAcceptedPerPeer > 0
}

// discharge takes the connection of id back, once. id.mu is held.
func (id *cmID) discharge() {
	if id.admitted {
		id.admitted = false
		id.dev.discharge(id.remote.Addr())
	}
}

// peerOf is the address that limits go by.
func peerOf(conn transport.Conn) netip.Addr { return conn.RemoteAddr().Addr() }
