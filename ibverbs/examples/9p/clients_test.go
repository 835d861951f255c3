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
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
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

// silence is a Transport of a client that sends nothing.
type silence struct{ p9.Transport }

func (silence) Receive(ctx context.Context) (p9.Message, error) {
	<-ctx.Done()
	return p9.Message{}, ctx.Err()
}

// TestFirstMessage: a client has a limited time for its first message.
func TestFirstMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		l := &listener{Transport: silence{}, spoken: func() { t.Error("the client has spoken") }}
		_, err := l.Receive(t.Context())
		if err == nil || !strings.Contains(err.Error(), fmt.Sprint("nothing for ", firstMessage)) ||
			time.Since(began) != firstMessage {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
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
