package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
)

// firstMessage is how long a client may take from connecting to its first message.
const firstMessage = 10 * time.Second

// What ends a client that has sent no message: others came, or its time is over.
var (
	errDisplaced = errors.New("it has sent nothing, and others came")
	errSilent    = fmt.Errorf("it has sent nothing for %v", firstMessage)
)

// clients are the served clients, whose number most limits. One address has at most half of the
// places. Above that, a new client displaces a silent client of its address, or is refused.
// Connections within the host have no such limit. A client that has sent a message keeps its place
// until it leaves.
type clients struct {
	most int
	left chan struct{} // has a token after a client has left

	mu   sync.Mutex
	list []*client // oldest first
}

// client is a served client.
type client struct {
	name      string
	from      netip.Addr
	end       context.CancelCauseFunc
	spoke     bool // it has sent its first message
	displaced bool // it must leave
}

func newClients(most int) *clients { return &clients{most: most, left: make(chan struct{}, 1)} }

// enter lets c in, or returns false. If all places are taken, it displaces a client that has sent
// nothing, and waits until some client has left.
func (s *clients) enter(ctx context.Context, c *client) bool {
	for {
		in, full := s.try(c)
		if in || !full {
			return in
		}
		select {
		case <-s.left:
		case <-ctx.Done():
			return false
		}
	}
}

// try tries to enter; full says that another try may succeed when a client has left.
func (s *clients) try(c *client) (in, full bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !c.from.IsLoopback() && s.count(c.from, func(*client) bool { return true }) >= max(1, s.most/2):
		return false, s.displace(func(x *client) bool { return x.from == c.from })
	case len(s.list) < s.most:
		s.list = append(s.list, c)
		return true, false
	}
	s.displace(func(*client) bool { return true })
	return false, true
}

// displace makes a client leave that has sent nothing and for which may is true, unless one is
// leaving already: the oldest client of the address with most silent clients. It reports whether a
// client for which may is true is leaving.
func (s *clients) displace(may func(*client) bool) bool {
	silent := func(c *client) bool { return !c.spoke }
	var oldest *client
	for _, c := range s.list {
		switch {
		case c.displaced && may(c):
			return true
		case silent(c) && may(c) && (oldest == nil || s.count(c.from, silent) > s.count(oldest.from, silent)):
			oldest = c
		}
	}
	if oldest == nil {
		return false
	}
	oldest.displaced = true
	oldest.end(errDisplaced)
	return true
}

// count returns how many clients of an address satisfy such.
func (s *clients) count(from netip.Addr, such func(*client) bool) (n int) {
	for _, c := range s.list {
		if c.from == from && such(c) {
			n++
		}
	}
	return n
}

// leave frees the place of c.
func (s *clients) leave(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range s.list {
		if x == c {
			s.list = append(s.list[:i], s.list[i+1:]...)
			break
		}
	}
	select {
	case s.left <- struct{}{}:
	default:
	}
}

// spoken notes that c has sent its first message.
func (s *clients) spoken(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.spoke = true
}

// connection is an accepted connection: refuse closes it, and serve serves it over the transport
// that hear returns.
type connection struct {
	from   netip.AddrPort
	refuse func()
	serve  func(ctx context.Context, hear func(p9.Transport) p9.Transport) error
}

// clientsOf serves the connections that accept returns until ctx ends.
func (o *options) clientsOf(ctx context.Context, accept func() (connection, error)) error {
	var running sync.WaitGroup
	defer running.Wait()
	all := newClients(o.clients)
	pause := acceptPauseMin
	for {
		conn, err := accept()
		if ctx.Err() != nil {
			if err == nil {
				conn.refuse()
			}
			return nil
		}
		if err != nil {
			// The error concerns one client, or memory or descriptors for one more are missing.
			fmt.Fprintln(os.Stderr, "9p:", err)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			pause = min(2*pause, acceptPauseMax)
			continue
		}
		pause = acceptPauseMin
		its, end := context.WithCancelCause(ctx)
		c := &client{name: conn.from.String(), from: peerGroup(conn.from.Addr()), end: end}
		if !all.enter(ctx, c) {
			end(nil)
			conn.refuse()
			if ctx.Err() == nil {
				fmt.Fprintf(os.Stderr, "9p: %s: refused: its address has half of the --clients\n", c.name)
			}
			continue
		}
		running.Go(func() {
			defer end(nil)
			defer all.leave(c)
			if err := all.serve(its, c, conn); err != nil {
				fmt.Fprintln(os.Stderr, "9p:", err)
			}
		})
	}
}

// How long accepting pauses after a failure, the first time and at most, as net/http does.
const (
	acceptPauseMin = 5 * time.Millisecond
	acceptPauseMax = time.Second
)

// peerGroup returns one address for all addresses that a host can have: an IPv4 address, or the
// first 64 bits of an IPv6 address.
func peerGroup(a netip.Addr) netip.Addr {
	if a = a.Unmap(); a.Is4() || a.IsLoopback() {
		return a
	}
	prefix, _ := a.Prefix(64) // has no zone
	return prefix.Addr()
}

// serve serves c, and logs when it connects and leaves. After its first message c may be silent for
// as long as it likes, because Linux sends nothing while nobody uses the mount, and does not
// connect again.
func (s *clients) serve(ctx context.Context, c *client, conn connection) error {
	fmt.Printf("%s: connected\n", c.name)
	late := time.AfterFunc(firstMessage, func() { c.end(errSilent) })
	defer late.Stop()
	err := conn.serve(ctx, func(t p9.Transport) p9.Transport {
		return &listener{Transport: t, spoken: func() {
			late.Stop()
			s.spoken(c)
		}}
	})
	if errors.Is(err, context.Canceled) {
		err = context.Cause(ctx) // may be errDisplaced or errSilent
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	fmt.Printf("%s: left\n", c.name)
	return nil
}

// listener is a Transport that reports the first message.
type listener struct {
	p9.Transport
	spoken func() // nil after the first message
}

// Receive implements p9.Transport.
func (l *listener) Receive(ctx context.Context) (p9.Message, error) {
	m, err := l.Transport.Receive(ctx)
	if err == nil && l.spoken != nil {
		l.spoken()
		l.spoken = nil
	}
	return m, err
}
