package engine

import (
	"errors"
	"runtime"
	"sync"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// fullPoller has no room for one more connection, and lets a test in before it says so.
type fullPoller struct {
	transport.Poller
	before func()
}

func (p *fullPoller) Add(transport.Conn, transport.Handler) error {
	p.before()
	return syscall.ENOSPC
}

// TestStartFailsWhileSomebodyPosts: a stream that the poller does not take holds nothing,
// though the program has found the QP in RTS and posted more than the socket takes.
func TestStartFailsWhileSomebodyPosts(t *testing.T) {
	network := memnet.New(&memnet.Options{Window: 1000})
	s := newSide(t, Options{Network: network}, sideOptions{})
	q := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	mine, theirs := connectTransport(t, network, memAddr)
	m := s.reg(100_000, provider.AccessLocalWrite)
	poller := s.dev.poller
	var posts sync.WaitGroup
	s.dev.poller = &fullPoller{Poller: poller, before: func() {
		posts.Go(func() {
			_, err := q.PostSend([]provider.SendWR{{Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{m.sge(0, 100_000)}}})
			ok(t, err)
		})
		for st := q.stream.Load(); !st.over(); {
			runtime.Gosched() // the socket is full, and the poller doesn't watch it
		}
	}}
	err := q.start(mine, params(true), nil, func(error) { t.Error("onDown is called") })
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("start: %v", err)
	}
	posts.Wait()
	s.dev.poller = poller
	if n := s.dev.prog.batches.lent(); n != 0 {
		t.Errorf("%d batches are held", n)
	}
	ok(t, mine.Close())
	ok(t, theirs.Close())
	ok(t, q.Close())
	ok(t, m.m.Close())
}
