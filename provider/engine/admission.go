package engine

import (
	"net/netip"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// admission counts the connections that came to the listeners of a device, for Options.MaxAccepted
// and MaxAcceptedPerPeer. Without either it counts nothing. A connection counts from TCP's
// handshake until its RDMA stream has ended; then departures counts it, unless it is closed at
// once.
//
// Each call of an object that outlives its connection counts in the connection's place. Otherwise
// peers that connect, send a request and leave could make any number of calls.
type admission struct {
	mu    sched.Mutex[locks.Admission]
	all   int
	peers map[netip.Addr]int
}

// admit counts a connection from peer, or returns the name of the limit that forbids it.
func (d *device) admit(peer netip.Addr) (limitName string) {
	if !d.countsAccepted() {
		return ""
	}
	limit, each := d.opts.MaxAccepted, d.opts.eachAccepted(peer)
	a := &d.accepted
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case limit > 0 && a.all >= limit:
		return "MaxAccepted"
	case each > 0 && a.peers[peer] >= each:
		return "MaxAcceptedPerPeer"
	}
	if a.peers == nil {
		a.peers = make(map[netip.Addr]int)
	}
	a.all++
	a.peers[peer]++
	return ""
}

// discharge undoes admit for one connection.
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

// len returns how many connections are counted.
func (a *admission) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all
}

func (d *device) countsAccepted() bool {
	return d.opts.MaxAccepted > 0 || d.opts.MaxAcceptedPerPeer > 0
}

// eachAccepted returns how many connections peer, a result of peerGroup, may have; 0 means any
// number.
func (o *Options) eachAccepted(peer netip.Addr) int {
	switch {
	case o.MaxAcceptedPerPeer != 0:
		return max(0, o.MaxAcceptedPerPeer)
	case o.MaxAccepted < 0 || peer.IsLoopback():
		return 0
	}
	return max(1, o.MaxAccepted/2)
}

// discharge removes the connection of id from the count, once. id.mu is held.
func (id *cmID) discharge() {
	if id.admitted {
		id.admitted = false
		id.dev.discharge(peerGroup(id.remote.Addr()))
	}
}

// peerOf returns the address by which limits count a connection.
func peerOf(conn transport.Conn) netip.Addr { return peerGroup(conn.RemoteAddr().Addr()) }

// peerGroup returns one address for all addresses of one peer. An IPv4 address is one peer, even
// where an IPv6 socket has it in IPv4-mapped form. All IPv6 addresses with the same first 64 bits
// are one peer: a host that has one of them can have all 2^64, because that is the prefix of a link
// (RFC 4291 section 2.5.4, RFC 7421). The loopback address ::1 does not belong to a link, and has
// limits of its own.
func peerGroup(a netip.Addr) netip.Addr {
	if a = a.Unmap(); !a.Is6() || a.IsLoopback() {
		return a
	}
	p, _ := a.Prefix(64) // has no zone
	return p.Addr()
}
