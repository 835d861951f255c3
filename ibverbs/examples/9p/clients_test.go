package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9/p9test"
	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

// TestSilentClients: TCP connections that send nothing don't keep a client out, however many come.
func TestSilentClients(t *testing.T) {
	server := exampletest.Start(t, "--tcp", "--clients", "4", "--listen", exampletest.Host()+":0", t.TempDir())
	for range 3 {
		for range 20 {
			silent, err := net.Dial("tcp", server.Addr)
			if err != nil {
				t.Fatal(err)
			}
			defer silent.Close()
		}
		useTCP(t, server.Addr)
	}
}

// TestClients checks which client gets a place, and which one is displaced for it.
func TestClients(t *testing.T) {
	s := newClients(4)
	new := func(addr string) (*client, context.Context) {
		ctx, end := context.WithCancelCause(t.Context())
		return &client{from: peerGroup(netip.MustParseAddr(addr)), end: end}, ctx
	}
	want := func(what string, c *client, in, full bool) {
		t.Helper()
		if gotIn, gotFull := s.try(c); gotIn != in || gotFull != full {
			t.Errorf("%s: in %v, full %v, want %v and %v", what, gotIn, gotFull, in, full)
		}
	}
	a, _ := new("2001:db8::1")
	b, bCtx := new("2001:db8::2")
	want("the first", a, true, false)
	want("the second of a peer", b, true, false)
	s.spoken(a)
	s.spoken(b)
	c, _ := new("2001:db8::3")
	want("one above its share", c, false, false)
	b.spoke = false
	d, dCtx := new("127.0.0.1")
	e, eCtx := new("127.0.0.1")
	want("one of this host", d, true, false)
	want("another", e, true, false)
	f, _ := new("127.0.0.1")
	want("a third, with all places taken", f, false, true)
	if dCtx.Err() == nil || bCtx.Err() != nil || eCtx.Err() != nil {
		t.Error("not the oldest silent client of the address that has most is displaced")
	}
	want("the same, while one is leaving", f, false, true)
	if eCtx.Err() != nil {
		t.Error("two are displaced for one")
	}
	s.leave(d)
	if !s.enter(t.Context(), f) {
		t.Error("no place, after one has left")
	}
	for _, x := range s.list {
		s.spoken(x)
	}
	g, gCtx := new("192.0.2.1")
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if s.enter(over, g) || gCtx.Err() != nil {
		t.Error("one enters where everybody has spoken")
	}
}

// TestClientsOfOneAddress: where an address has its share, its silent clients make room for it.
func TestClientsOfOneAddress(t *testing.T) {
	s := newClients(4)
	var left [3]bool
	var list [3]*client
	for i := range list {
		list[i] = &client{from: netip.MustParseAddr("192.0.2.1"), end: func(error) { left[i] = true }}
	}
	for _, c := range list[:2] {
		if in, _ := s.try(c); !in {
			t.Error("a client within the share gets no place")
		}
	}
	if in, full := s.try(list[2]); in || !full || left != [3]bool{true} {
		t.Errorf("one more: in %v, may wait %v, displaced %v", in, full, left)
	}
	s.leave(list[0])
	if in, _ := s.try(list[2]); !in {
		t.Error("no place when the silent one has left")
	}
}

// pipes is a server with four places, whose connections are pipes.
type pipes struct {
	t     *testing.T
	conns chan connection
}

// serving begins to serve, until the test ends.
func serving(t *testing.T) *pipes {
	t.Helper()
	s := &pipes{t, make(chan connection)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&options{clients: 4}).clientsOf(ctx, func() (connection, error) {
			select {
			case c := <-s.conns:
				return c, nil
			case <-ctx.Done():
				return connection{}, ctx.Err()
			}
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return s
}

// connect connects a client from an address.
func (s *pipes) connect(from string) net.Conn {
	near, far := net.Pipe()
	server := p9.NewServer(p9.NewFS(fstest.MapFS{}), p9.Limits{})
	s.conns <- connection{
		from:   netip.AddrPortFrom(netip.MustParseAddr(from), 1),
		refuse: func() { _ = far.Close() },
		serve: func(ctx context.Context, hear func(p9.Transport) p9.Transport) error {
			defer func() { _ = far.Close() }()
			return server.Serve(ctx, hear(p9.NewStream(far, msize, 1, sendTimeout)))
		},
	}
	s.t.Cleanup(func() { _ = near.Close() })
	return near
}

// attach begins a session on a connection, and returns nil if the server does not serve it.
func attach(conn net.Conn) *p9test.Client {
	c, err := p9test.New(p9test.Stream{Conn: conn}, msize)
	if err == nil {
		err = c.Attach(0)
	}
	if err != nil {
		return nil
	}
	return c
}

// TestSilentAfterMessage: a client that has sent a message keeps its place, however long it is
// silent after it. Those of one address take half of the places at most, so that another address
// has the rest. When two addresses have all places, others wait until a client leaves.
func TestSilentAfterMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serving(t)
		var conns []net.Conn
		var idle []*p9test.Client
		for _, from := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.2"} {
			conn := s.connect(from)
			c := attach(conn)
			if c == nil {
				t.Fatalf("a client of %s gets no place", from)
			}
			conns, idle = append(conns, conn), append(idle, c)
			if len(idle) == 2 && attach(s.connect(from)) != nil {
				t.Errorf("%s has more than half of the places", from)
			}
		}
		waits := s.connect("192.0.2.3")
		served := make(chan bool, 1)
		go func() { served <- attach(waits) != nil }()
		time.Sleep(30 * 24 * time.Hour)
		select {
		case <-served:
			t.Error("one more client is served while all places are taken")
		default:
		}
		for i, c := range idle {
			if _, err := c.Attr(0); err != nil {
				t.Errorf("client %d has lost its place: %v", i, err)
			}
		}
		_ = conns[0].Close()
		if !<-served {
			t.Error("the client that waits gets no place after another has left")
		}
	})
}

// TestFirstMessage: a client has a limited time from connecting to its first message, even if its
// connection is not accepted by then.
func TestFirstMessage(t *testing.T) {
	for what, accepted := range map[string]bool{"silent": true, "not accepted": false} {
		synctest.Test(t, func(t *testing.T) {
			s := newClients(1)
			ctx, end := context.WithCancelCause(t.Context())
			c := &client{name: "it", end: end}
			began := time.Now()
			err := s.serve(ctx, c, connection{
				serve: func(ctx context.Context, hear func(p9.Transport) p9.Transport) error {
					if !accepted {
						<-ctx.Done()
						return ctx.Err()
					}
					near, far := net.Pipe()
					defer func() { _, _ = near.Close(), far.Close() }()
					server := p9.NewServer(p9.NewFS(fstest.MapFS{}), p9.Limits{})
					return server.Serve(ctx, hear(p9.NewStream(far, msize, 1, sendTimeout)))
				},
			})
			if err == nil || !strings.Contains(err.Error(), fmt.Sprint("sent nothing for ", firstMessage)) ||
				c.spoke || time.Since(began) != firstMessage {
				t.Errorf("%s: after %v: %v", what, time.Since(began), err)
			}
		})
	}
}

// TestAcceptFails: without descriptors the server pauses, for at most a second, and goes on.
func TestAcceptFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		o := &options{clients: 1}
		tries, served := 0, false
		err := o.clientsOf(ctx, func() (connection, error) {
			if tries++; tries <= 12 {
				return connection{}, syscall.EMFILE
			}
			if served {
				stop()
				return connection{}, io.EOF
			}
			served = true
			return connection{from: netip.MustParseAddrPort("127.0.0.1:1"),
				serve: func(context.Context, func(p9.Transport) p9.Transport) error { return nil }}, nil
		})
		if err != nil || !served {
			t.Errorf("served %v, %v", served, err)
		}
	})
}
