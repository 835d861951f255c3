package capture

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestFollow: packets come while the connection is open, but packets of other ports do not.
func TestFollow(t *testing.T) {
	w := onWire(t)
	x, other := listen(t, "tcp4", "127.0.0.1:0"), listen(t, "tcp4", "127.0.0.1:0")
	f, err := w.Follow(x.port)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const octets, answer = 100000, 2000
	other.run(t, make([]byte, octets), make([]byte, answer))
	x.run(t, make([]byte, octets), make([]byte, answer))
	var ends lifetimes
	size, fins := 0, 0
	for fins < 2 {
		err := f.Packets(ctx, func(data []byte, at time.Time) {
			from, to, flags, ok := segmentOf(data)
			if !ok || from.Port() != x.port && to.Port() != x.port {
				t.Errorf("a packet from %v to %v, want port %d", from, to, x.port)
			}
			if time.Since(at).Abs() > 2*time.Minute {
				t.Errorf("a packet of %v", at)
			}
			if flags&tcpFIN != 0 {
				fins++
			}
			ends.see(data)
			size += len(data)
		})
		if err != nil {
			t.Fatalf("after %d octets: %v", size, err)
		}
	}
	if size < octets+answer || !ends.all() {
		t.Errorf("%d octets, want %d and the headers; all connections have ended: %v", size, octets+answer, ends.all())
	}
	ended, stop := context.WithCancel(ctx)
	time.AfterFunc(10*time.Millisecond, stop)
	for err = nil; err == nil; { // an ACK may still come
		err = f.Packets(ended, func([]byte, time.Time) {})
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a context that ends: %v", err)
	}
	if dropped, err := f.Close(); dropped != 0 || err != nil {
		t.Errorf("Close: %d packets dropped, %v", dropped, err)
	}
}
