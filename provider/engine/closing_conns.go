package engine

import (
	"container/heap"
	"container/list"
	"errors"
	"io"
	"net/netip"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
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

func isEOF(err error) bool { return errors.Is(err, io.EOF) }

// writeRecords writes to conn, with the limits of records if conn can keep them.
func writeRecords(conn transport.Conn, bufs [][]byte, records []int) (int, error) {
	if w, ok := conn.(transport.RecordWriter); ok {
		return w.WriteRecords(bufs, records)
	}
	return conn.Writev(bufs)
}
