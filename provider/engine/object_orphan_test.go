package engine

import (
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestFetchedIsNoOrphan: when a stream ends, pieces of a message that an object has given
// already don't count in MaxAccepted, not even for a moment: a connection that came in that
// moment, at the last place, would be reset.
func TestFetchedIsNoOrphan(t *testing.T) {
	network := memnet.New(nil)
	side := newSide(t, Options{Network: network, MaxAccepted: 1}, sideOptions{})
	conn, theirs := connectTransport(t, network, memAddr)
	defer conn.Close()
	defer theirs.Close()
	d := side.dev
	s := &stream{dev: d, conn: conn, admitted: true}
	m := new(messageFetches)
	for m.n < len(m.pieces) {
		f := &objectFetch{payload: d.chunks.get(), ahead: m.n > 0}
		f.state.Store(fetchDone)
		if f.ahead {
			d.prog.ahead.Add(1)
		}
		m.pieces[m.n] = f
		m.n++
	}
	s.tx.fetches = m

	d.accepted.mu.Lock() // a goroutine that counts waits here
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.tx.endFetch(s)
	}()
	select {
	case <-ended:
	case <-time.After(time.Second):
		t.Error("pieces that are there were counted as calls of an object")
	}
	if d.accepted.peers == nil {
		d.accepted.peers = make(map[netip.Addr]int) // for counting, if that happens
	}
	d.accepted.mu.Unlock()
	<-ended
	if n, ahead := d.chunks.lent(), d.prog.ahead.Load(); n != 0 || ahead != 0 || d.accepted.all != 0 {
		t.Errorf("%d chunks are lent, %d pieces are ahead, %d are counted", n, ahead, d.accepted.all)
	}
}
