//go:build linux

package transport

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
)

// calls records how a handler is called.
type calls struct {
	readable, writable, all int
	then                    func()
}

func (c *calls) Ready(readable, writable bool) {
	c.all++
	if readable {
		c.readable++
	}
	if writable {
		c.writable++
	}
	if c.then != nil {
		c.then()
	}
}

// TestServe: each reported stream is called with what epoll reported of it, wherever removed
// streams stand among them. A stream that is removed during the Poll is not called.
func TestServe(t *testing.T) {
	network := NewTCP(nil)
	poller := testkit.Must(network.NewPoller())(t)
	defer poller.Close()
	p := poller.(*tcpPoller)
	l := testkit.Must(network.Listen(loopback, 0))(t)
	defer l.Close()
	const streams = 5
	var conns [streams]Conn
	var told [streams]calls
	var events []unix.EpollEvent
	for i, what := range []uint32{
		unix.EPOLLIN, unix.EPOLLIN, unix.EPOLLHUP, unix.EPOLLERR | unix.EPOLLOUT, unix.EPOLLIN,
	} {
		c := testkit.Must(network.Dial(context.Background(), loopback, l.Addr()))(t)
		defer c.Close()
		testkit.OK(t, p.Add(c, &told[i]))
		ev := *c.(*tcpConn).reg.event(what)
		conns[i], events = c, append(events, ev)
	}
	p.Remove(conns[1])                                   // before Poll looks it up
	told[0].then = func() { p.Remove(conns[streams-1]) } // and after that
	p.serve(events)
	want := [streams]calls{
		{readable: 1, all: 1}, {}, {readable: 1, all: 1}, {readable: 1, writable: 1, all: 1}, {},
	}
	for i, got := range told {
		got.then = nil
		if got, want := fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want[i]); got != want {
			t.Errorf("stream %d was told %s, want %s", i, got, want)
		}
	}
}
