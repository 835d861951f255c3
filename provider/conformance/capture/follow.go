package capture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Follower hands out the packets of a Wire while they come.
type Follower struct {
	c *wireCapture
}

// Follow begins to take the packets to and from a port. The kernel keeps those that Packets does
// not take in time, up to 64 MiB; Listen and Limit have no effect. Close it.
func (w *Wire) Follow(port uint16) (*Follower, error) {
	c, err := w.capture(port)
	if err != nil {
		return nil, err
	}
	c.size.all = new(atomic.Int64)
	return &Follower{c}, nil
}

// atATime is how many packets Packets takes at most.
const atATime = 4096

// Packets waits for packets until ctx ends, and calls take with those that have come, Ethernet
// header included. data is take's. The error is ctx.Err(), or one of the socket.
func (f *Follower) Packets(ctx context.Context, take func(data []byte, at time.Time)) error {
	defer context.AfterFunc(ctx, func() { _ = f.c.file.SetReadDeadline(time.Unix(1, 0)) })()
	err := f.c.raw.Read(func(fd uintptr) bool {
		n := 0
		for n < atATime && f.c.err == nil && f.c.receive(int(fd)) {
			n++
		}
		return n > 0
	})
	for _, p := range f.c.packets {
		take(p.data, p.time)
	}
	f.c.packets = nil
	f.c.size.end()
	switch {
	case f.c.err != nil:
		return f.c.err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("packet socket: %w", err)
	}
	return nil
}

// Close returns how many packets did not fit the kernel's queue.
func (f *Follower) Close() (dropped uint32, err error) {
	ctlErr := f.c.raw.Control(func(fd uintptr) {
		var s *unix.TpacketStats
		if s, err = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
			dropped = s.Drops
		}
	})
	return dropped, errors.Join(ctlErr, err, f.c.file.Close())
}
