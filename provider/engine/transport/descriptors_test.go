//go:build linux

package transport

import (
	"context"
	"net/netip"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestTrackDescriptors: the descriptors reported open are those of a connection, its listener and a
// poller, and all of them are reported closed again.
func TestTrackDescriptors(t *testing.T) {
	var mu sync.Mutex
	open, most, opens := map[int]bool{}, 0, 0
	TrackDescriptors(func(fd int, is bool) {
		mu.Lock()
		defer mu.Unlock()
		if !is {
			delete(open, fd)
			return
		}
		if open[fd] {
			t.Errorf("descriptor %d was opened twice", fd)
		}
		open[fd] = true
		opens++
		most = max(most, len(open))
	})
	defer tracker.Store(nil)
	n := NewTCP(nil)
	l := testkit.Must(n.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 1))(t)
	a := testkit.Must(n.Dial(context.Background(), netip.AddrPort{}, l.Addr()))(t)
	b := testkit.Must(l.Accept(context.Background()))(t)
	if most != 3 {
		t.Errorf("a listener and both ends of a connection were %d descriptors, want 3", most)
	}
	if opens != 4 { // and while it waits, the end that connects has another one
		t.Errorf("a listener and a connection opened %d descriptors, want 4", opens)
	}
	testkit.OK(t, a.Close())
	testkit.OK(t, b.Close())
	testkit.OK(t, l.Close())
	most = 0
	p := testkit.Must(n.NewPoller())(t)
	if most != 4 {
		t.Errorf("a poller was %d descriptors, want 4", most)
	}
	testkit.OK(t, p.Close())
	if len(open) != 0 {
		t.Errorf("reported open after all was closed: %v", open)
	}
}
