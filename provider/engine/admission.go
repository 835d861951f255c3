package engine

import (
	"net/netip"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// admission counts the connections that came to the listeners of a device, for
// Options.MaxAccepted and MaxAcceptedPerPeer. Without either it counts nothing. A
// connection is counted from TCP's handshake until its RDMA stream has ended. From then
// on departures counts it, unless it is closed at once. And instead of it each call of an
// object is counted that was begun for it and is not over: otherwise peers that come, ask
// and leave could make any number of calls.
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

// eachAccepted is how many connections peer, a result of peerGroup, may have; 0 for any
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

// discharge takes the connection of id back, once. id.mu is held.
func (id *cmID) discharge() {
	if id.admitted {
		id.admitted = false
		id.dev.discharge(peerGroup(id.remote.Addr()))
	}
}

// peerOf is the address that limits go by.
func peerOf(conn transport.Conn) netip.Addr { return peerGroup(conn.RemoteAddr().Addr()) }

// peerGroup returns a in place of all addresses that one peer has: an IPv4 address is
// one peer, also where an IPv6 socket has it in IPv4-mapped form, and of IPv6 addresses
// those with the same first 64 bits. A host that has one of these can have all 2^64,
// because that is the prefix of a link (RFC 4291 section 2.5.4, RFC 7421). The loopback
// address ::1 is not one of a link's, and has limits of its own.
func peerGroup(a netip.Addr) netip.Addr {
	if a = a.Unmap(); !a.Is6() || a.IsLoopback() {
		return a
	}
	p, _ := a.Prefix(64) // has no zone
	return p.Addr()
}
