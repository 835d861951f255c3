package remote

import (
	"net"
	"testing"
)

// named is a connection of a peer.
type named struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (n *named) RemoteAddr() net.Addr { return n.from }
func (n *named) Close() error         { n.closed = true; return nil }

// TestStrangersDisplace: a new connection displaces the oldest one of the address with most
// connections.
func TestStrangersDisplace(t *testing.T) {
	s := &strangers{most: 4}
	from := func(ip string) *named {
		c := &named{from: &net.TCPAddr{IP: net.ParseIP(ip)}}
		s.add(c)
		return c
	}
	want := func(what string, displaced *named, others ...*named) {
		t.Helper()
		if !displaced.closed {
			t.Errorf("%s: the connection is still there", what)
		}
		for _, c := range others {
			if c.closed {
				t.Errorf("%s: displaces another connection", what)
			}
		}
	}
	honest := from("192.0.2.1")
	a, b, c := from("2001:db8::1"), from("2001:db8::2"), from("2001:db8::3")
	d := from("192.0.2.9")
	want("a fifth", a, honest, b, c, d)
	e := from("2001:db8::4")
	want("another of the peer that has most", b, honest, c, d, e)
	s.remove(honest)
	s.remove(a) // it has already been removed
	f, g := from("192.0.2.1"), from("192.0.2.1")
	want("with two peers that have two each", c, honest, d, e, f, g)
}
