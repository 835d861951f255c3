package remote

import (
	"net"
	"net/netip"
	"slices"
	"sync"
)

// strangers holds up to most connections that have not proved that they know the secret.
type strangers struct {
	most int

	mu   sync.Mutex
	list []stranger // oldest first
}

type stranger struct {
	c    net.Conn
	from netip.Addr // as returned by group
}

// add adds a connection. If there are then too many, it closes the oldest one of the address with
// most connections, so a peer that opens many displaces its own.
func (s *strangers) add(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, stranger{c, group(c.RemoteAddr())})
	if len(s.list) <= s.most {
		return
	}
	count := make(map[netip.Addr]int)
	for _, x := range s.list {
		count[x.from]++
	}
	oldest := 0
	for i, x := range s.list {
		if count[x.from] > count[s.list[oldest].from] {
			oldest = i
		}
	}
	_ = s.list[oldest].c.Close()
	s.drop(oldest)
}

// remove removes a connection that has proved itself or has ended, if add has not already displaced
// it.
func (s *strangers) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range s.list {
		if x.c == c {
			s.drop(i)
			return
		}
	}
}

func (s *strangers) drop(i int) { s.list = slices.Delete(s.list, i, i+1) }

// group returns one address for all addresses that one peer can have, as in the engine's limits per
// peer: an IPv4 address, or the first 64 bits of an IPv6 address.
func group(a net.Addr) netip.Addr {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	addr := tcp.AddrPort().Addr().Unmap()
	if addr.Is4() || addr.IsLoopback() {
		return addr
	}
	prefix, _ := addr.Prefix(64) // removes the zone
	return prefix.Addr()
}
