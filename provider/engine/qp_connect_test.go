package engine

import (
	"errors"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// fullNetwork has pollers whose Add fails.
type fullNetwork struct {
	*memnet.Network
	before func() // is called before Add returns the error
}

func (n *fullNetwork) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	return &fullPoller{p, n}, err
}

type fullPoller struct {
	transport.Poller
	n *fullNetwork
}

func (p *fullPoller) Add(transport.Conn, transport.Handler) error {
	p.n.before()
	return syscall.ENOSPC
}

// TestStartFailsWhileSomebodyPosts: a stream whose poller refuses it holds nothing in the end,
// even if the program has found the QP in RTS and has posted more than the socket takes.
func TestStartFailsWhileSomebodyPosts(t *testing.T) {
	network := &fullNetwork{Network: memnet.New(&memnet.Options{Window: 1000})}
	s := newSide(t, Options{Network: network}, sideOptions{})
	q := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	mine, theirs := connectTransport(t, network, memAddr)
	m := s.reg(100_000, provider.AccessLocalWrite)
	network.before = func() {
		_, err := q.PostSend([]provider.SendWR{{Opcode: provider.WRSend,
			Flags: provider.SendSignaled, SGList: []provider.SGE{m.sge(0, 100_000)}}})
		testkit.OK(t, err)
	}
	err := q.start(mine, params(true), nil, func(error) { t.Error("onDown is called") })
	if !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("start: %v", err)
	}
	if n := s.dev.prog.batches.Lent(); n != 0 {
		t.Errorf("%d batches are lent", n)
	}
	testkit.OK(t, mine.Close())
	testkit.OK(t, theirs.Close())
	testkit.OK(t, q.Close())
	testkit.OK(t, m.m.Close())
}
