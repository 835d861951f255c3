package engine

import (
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/engine/transport"
)

// A lane is a progress goroutine's part of a device: the poller that it serves. Connections in the
// start-up, and refused ones, are in the first lane. A stream enters the lane that has the fewest
// streams, and stays there until its socket is closed. So one goroutine keeps its order, its turns
// and its data in the caches.
type lane struct {
	poller  transport.Poller
	streams atomic.Int32 // that have not ended
}

// leave is called once for each result of choose, when the stream has ended.
func (l *lane) leave() { l.streams.Add(-1) }

// lanes are the lanes of a device.
type lanes struct {
	all  []*lane
	next atomic.Uint32 // where the next Poll begins
}

// open makes n lanes.
func (l *lanes) open(network transport.Network, n int) error {
	for range n {
		poller, err := network.NewPoller()
		if err != nil {
			l.close()
			return err
		}
		l.all = append(l.all, &lane{poller: poller})
	}
	return nil
}

// close closes the pollers. Their goroutines have ended, or were never started.
func (l *lanes) close() {
	for _, each := range l.all {
		_ = each.poller.Close()
	}
}

// first returns the poller of connections that have no stream.
func (l *lanes) first() transport.Poller { return l.all[0].poller }

// choose returns the lane for a new stream. Streams that begin at the same time may give one lane a
// few more than another.
func (l *lanes) choose() *lane {
	best := l.all[0]
	for _, each := range l.all[1:] {
		if each.streams.Load() < best.streams.Load() {
			best = each
		}
	}
	best.streams.Add(1)
	return best
}

// Poll polls one lane after the other until one has something ready, and returns for how many
// streams. Each call begins with another lane. It skips lanes without streams; connections that
// have ended and wait for their peers are served by the lane's own goroutine.
func (l *lanes) Poll() int {
	if len(l.all) == 1 {
		return l.all[0].poller.Poll()
	}
	return l.untilReady(transport.Poller.Poll)
}

// Serve polls once, for a goroutine that will not poll again, and takes no lease.
func (l *lanes) Serve() int { return l.untilReady(transport.Poller.Serve) }

func (l *lanes) untilReady(look func(transport.Poller) int) int {
	at := int(l.next.Add(1) % uint32(len(l.all)))
	for range l.all {
		if each := l.all[at]; at == 0 || each.streams.Load() > 0 {
			if n := look(each.poller); n > 0 {
				return n
			}
		}
		if at++; at == len(l.all) {
			at = 0
		}
	}
	return 0
}

// Attend makes all progress goroutines take their streams over at once.
func (l *lanes) Attend() {
	for _, each := range l.all {
		each.poller.Attend()
	}
}
