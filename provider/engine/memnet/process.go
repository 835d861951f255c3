package memnet

import (
	"net/netip"
	"runtime"
)

// Reset resets every connection for which the function which returns true, as a host does when a
// process has ended: both ends see ECONNRESET after they have read the bytes that had arrived.
// Reset returns how many connections it has reset. It calls which with a lock of the connection
// held.
func (n *Network) Reset(which func(dialed, accepted netip.AddrPort) bool) int {
	n.mu.Lock()
	all := make([]*link, 0, len(n.links))
	for lk := range n.links {
		all = append(all, lk)
	}
	n.mu.Unlock()
	reset := 0
	for _, lk := range all {
		lk.mu.Lock()
		if which(lk.ends[dialed].local, lk.ends[accepted].local) {
			lk.resetBoth()
			reset++
		}
		lk.mu.Unlock()
	}
	return reset
}

// Use counts what is in use of a Network.
type Use struct {
	Ends  int // of connections, as long as they are not closed
	Ports int // bindings, listeners and connections on a port of their own
}

// Used returns what is in use.
func (n *Network) Used() Use {
	n.mu.Lock()
	defer n.mu.Unlock()
	var u Use
	for lk := range n.links {
		for i := range lk.ends {
			if !lk.ends[i].gone.Load() {
				u.Ends++
			}
		}
	}
	for _, k := range n.used {
		u.Ports += k
	}
	return u
}

// Told returns how often handlers were called, without the spurious calls.
func (n *Network) Told() uint64 { return n.told.Load() }

// forget drops a link whose ends are both closed, or that was never established.
func (n *Network) forget(lk *link) {
	n.mu.Lock()
	delete(n.links, lk)
	n.mu.Unlock()
}

// yield lets other goroutines run, as Options.Yield says. The caller holds no lock of this package.
func (n *Network) yield() {
	if n.opts.Yield <= 0 {
		return
	}
	x := mix(n.opts.Seed + n.drawn.Add(1))
	if x&3 != 0 { // three in four calls let nobody run, so that the others can for long
		return
	}
	for range (x >> 2) % uint64(n.opts.Yield+1) {
		runtime.Gosched()
	}
}

// mix spreads the bits of a counter (splitmix64).
func mix(z uint64) uint64 {
	z *= 0x9e3779b97f4a7c15
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
