package remote

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestSlowNetwork: a message that takes longer than the patience arrives as long as its bytes keep
// arriving. A peer that stops in the middle of a message counts as gone.
func TestSlowNetwork(t *testing.T) {
	const octets, piece = 1 << 20, 1 << 14
	for what, c := range map[string]struct {
		carried int // bytes that the network carries
		want    error
	}{"slow": {2 * octets, nil}, "stops": {octets / 2, os.ErrDeadlineExceeded}} {
		synctest.Test(t, func(t *testing.T) {
			near, from := net.Pipe()
			to, far := net.Pipe()
			defer func() {
				for _, end := range []net.Conn{near, from, to, far} {
					_ = end.Close()
				}
			}()
			go func() {
				b := make([]byte, piece)
				for carried := 0; carried < c.carried; {
					n, err := from.Read(b)
					if err != nil {
						return
					}
					time.Sleep(Patience / 10)
					if _, err := to.Write(b[:n]); err != nil {
						return
					}
					carried += n
				}
			}()
			sent := make(chan error, 1)
			key := make([]byte, 32)
			go func() {
				sent <- newConn(near, key, key, 0).write(&message{kind: kindBeat, body: make([]byte, octets)})
			}()
			m, err := newConn(far, key, key, 0).read()
			if !errors.Is(err, c.want) || err == nil && len(m.body) != octets {
				t.Errorf("%s: %d bytes, %v", what, len(m.body), err)
			}
			if err := <-sent; !errors.Is(err, c.want) {
				t.Errorf("%s: sending: %v", what, err)
			}
		})
	}
}

// TestByeDoesNotWait: an end that leaves does not wait for a long message that goes out slowly,
// here for a minute.
func TestByeDoesNotWait(t *testing.T) {
	const patience = 100 * time.Millisecond
	near, far := net.Pipe()
	c := newConn(near, nil, nil, patience)
	sent := make(chan error, 1)
	go func() { sent <- c.write(&message{kind: kindBeat, body: make([]byte, maxBody)}) }()
	b := make([]byte, pieceOctets)
	if _, err := far.Read(b); err != nil { // the writer has the lock
		t.Fatal(err)
	}
	read := make(chan struct{})
	var pieces atomic.Int32
	go func() {
		defer close(read)
		for _, err := far.Read(b); err == nil; _, err = far.Read(b) {
			pieces.Add(1)
			time.Sleep(patience / 2)
		}
	}()
	c.bye("it was stopped")
	if n := pieces.Load(); n > maxBody/pieceOctets/2 {
		t.Errorf("%d of %d pieces have gone out before it leaves", n, maxBody/pieceOctets)
	}
	_ = near.Close()
	if err := <-sent; err == nil {
		t.Error("the message was sent")
	}
	<-read
}
