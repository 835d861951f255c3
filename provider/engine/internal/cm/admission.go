package cm

import (
	"net/netip"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// admission counts the connections that came to the listeners of a Manager, for Config.MaxAccepted
// and MaxAcceptedPerPeer. Without either it counts nothing. A connection counts from TCP's
// handshake until its RDMA stream has ended; then the device's bound of closing connections counts
// it, unless it is closed at once.
//
// Each call of an object that outlives its connection counts in the connection's place. Otherwise
// peers that connect, send a request and leave could make any number of calls.
type admission struct {
	mu    sched.Mutex[locks.Admission]
	all   int
	peers map[netip.Addr]int
}

// admit counts a connection from peer, or returns the name of the limit that forbids it.
func (m *Manager) admit(peer netip.Addr) (limitName string) {
	if !m.cfg.countsAccepted() {
		return ""
	}
	limit, each := m.cfg.MaxAccepted, m.cfg.eachAccepted(peer)
	a := &m.accepted
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

// CountOrphan counts a call of an object that outlives a counted connection of peer. It may exceed
// the limit, because the call exists already. The connection must still be counted.
func (m *Manager) CountOrphan(peer netip.Addr) {
	a := &m.accepted
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all++
	a.peers[peer]++
}

// Discharge removes one connection, or one call, of peer from the count.
func (m *Manager) Discharge(peer netip.Addr) {
	if !m.cfg.countsAccepted() {
		return
	}
	a := &m.accepted
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.peers[peer]--; a.peers[peer] == 0 {
		delete(a.peers, peer)
	}
}

// Accepted returns how many connections and calls are counted.
func (m *Manager) Accepted() int {
	m.accepted.mu.Lock()
	defer m.accepted.mu.Unlock()
	return m.accepted.all
}

func (c *Config) countsAccepted() bool { return c.MaxAccepted > 0 || c.MaxAcceptedPerPeer > 0 }

// eachAccepted returns how many connections peer, a result of PeerOf, may have; 0 means any number.
func (c *Config) eachAccepted(peer netip.Addr) int {
	switch {
	case c.MaxAcceptedPerPeer != 0:
		return max(0, c.MaxAcceptedPerPeer)
	case c.MaxAccepted < 0 || peer.IsLoopback():
		return 0
	}
	return max(1, c.MaxAccepted/2)
}

// discharge removes the connection of id from the count, once. id.mu is held.
func (id *ID) discharge() {
	if id.admitted {
		id.admitted = false
		id.m.Discharge(peerGroup(id.remote.Addr()))
	}
}

// PeerOf returns the address by which limits count a connection.
func PeerOf(conn transport.Conn) netip.Addr { return peerGroup(conn.RemoteAddr().Addr()) }

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
