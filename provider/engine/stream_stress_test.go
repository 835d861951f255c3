package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// busy is a side's memory: src is only read and dst only written, both by itself
// and by the peer, so that no byte is touched by two without order.
type busy struct{ src, dst *region }

func newBusy(s *side) busy {
	const size = 1 << 18
	b := busy{s.reg(size, provider.AccessRemoteRead), s.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)}
	for range 64 {
		s.recv(provider.RecvWR{SGList: []provider.SGE{b.dst.sge(0, size)}})
	}
	return b
}

// traffic keeps a side busy until its QP fails: Writes, Reads and Sends of random
// length, posted and polled by several goroutines.
func traffic(s *side, mine, theirs busy, seed uint64, wg *sync.WaitGroup) {
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(seed, 1))
		for i := uint64(0); ; i++ {
			off := rng.IntN(len(mine.src.b))
			n := rng.IntN(min(len(mine.src.b)-off, 1<<rng.IntN(18)) + 1)
			wr := provider.SendWR{WRID: i, Flags: provider.SendSignaled, Opcode: []provider.WROpcode{provider.WRSend, provider.WRRDMAWrite, provider.WRRDMARead}[rng.IntN(3)]}
			from, to := mine.src, theirs.dst
			if wr.Opcode == provider.WRRDMARead {
				from, to = mine.dst, theirs.src
			}
			wr.SGList, wr.RemoteAddr, wr.RKey = []provider.SGE{from.sge(off, n)}, to.to(off), to.m.STag()
			for s.qp.getState() == provider.QPRTS {
				n, err := s.qp.PostSend([]provider.SendWR{wr})
				if n == 1 {
					break
				}
				if errno := provider.Errno(err); errno != syscall.ENOMEM && errno != syscall.EINVAL && !errors.Is(err, os.ErrClosed) {
					s.t.Error(err)
				}
				runtime.Gosched()
			}
			if s.qp.getState() != provider.QPRTS {
				return
			}
		}
	})
	wg.Go(func() {
		var wc [8]provider.WC
		for {
			n, err := s.cq.Poll(wc[:])
			if err != nil {
				s.t.Error(err)
				return
			}
			for _, c := range wc[:n] {
				if c.Status != provider.WCSuccess {
					return
				}
				if c.Opcode == provider.WCRecv {
					if _, err := s.qp.PostRecv([]provider.RecvWR{{SGList: []provider.SGE{mine.dst.sge(0, len(mine.dst.b))}}}); err != nil {
						return
					}
				}
			}
			runtime.Gosched()
		}
	})
}

// TestEndsUnderTraffic: a connection may end in every way at any time, also while
// both sides send, receive, post and poll. Nothing hangs, panics, races or leaks.
func TestEndsUnderTraffic(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for name, network := range map[string]func() transport.Network{
		"mem": func() transport.Network {
			return memnet.New(&memnet.Options{Seed: rng.Uint64(), Cut: true, Window: 50_000})
		},
		"TCP": func() transport.Network { return testkit.Must(tcpNetwork(Options{}))(t) },
	} {
		addr := tcpAddr
		if name == "mem" {
			addr = memAddr
		}
		for what, end := range map[string]func(a, b *side, m *region){
			"Close":           func(a, b *side, _ *region) { testkit.OK(t, a.qp.Close()) },
			"Close of both":   func(a, b *side, _ *region) { go a.qp.Close(); testkit.OK(t, b.qp.Close()) },
			"disconnect":      func(a, b *side, _ *region) { a.qp.disconnect() },
			"disconnect both": func(a, b *side, _ *region) { a.qp.disconnect(); b.qp.disconnect() },
			"abort":           func(a, b *side, _ *region) { a.qp.abort(fmt.Errorf("enough")) },
			"ERR":             func(a, b *side, _ *region) { testkit.OK(t, a.modify(provider.QPErr)) },
			"SQE": func(a, b *side, _ *region) {
				// Nothing holds the Sends back, so that the receives may have run out before.
				if err := b.modify(provider.QPSQE); err != nil && b.qp.getState() != provider.QPErr {
					t.Fatal(err)
				}
			},
			"deregistration": func(a, b *side, m *region) { testkit.OK(t, m.m.Close()) },
		} {
			for round := range 2 {
				t.Run(fmt.Sprintf("%s/%s/%d", name, what, round), func(t *testing.T) {
					opts := Options{CloseTimeout: 500 * time.Millisecond}
					a, b := pair(t, network(), addr, opts, sideOptions{}, params(round > 0))
					ma, mb := newBusy(a), newBusy(b)
					var wg sync.WaitGroup
					traffic(a, ma, mb, rng.Uint64(), &wg)
					traffic(b, mb, ma, rng.Uint64(), &wg)
					time.Sleep(time.Duration(rng.IntN(8)) * time.Millisecond)
					end(a, b, ma.src)
					a.wantDown("one side")
					b.wantDown("the other side")
					wg.Wait()
					for _, s := range []*side{a, b} {
						select {
						case err := <-s.down:
							t.Errorf("down twice: %v", err)
						default:
						}
					}
				})
			}
		}
	}
}

// TestEveryWorkRequestCompletes: whatever is posted when a connection ends gives
// exactly one completion each.
func TestEveryWorkRequestCompletes(t *testing.T) {
	for round := range 20 {
		network := testkit.Must(tcpNetwork(Options{}))(t)
		a, b := pair(t, network, tcpAddr, Options{}, sideOptions{cap: provider.QPCap{MaxSendWR: 4096, MaxRecvWR: 4096, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 16384}, params(true))
		m := a.reg(64, 0)
		dst := b.reg(64, everything)
		const n = 3000
		for i := range n {
			if i < 2000 {
				b.recv(provider.RecvWR{WRID: uint64(i), SGList: []provider.SGE{dst.sge(0, 64)}})
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range n {
				a.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{m.sge(0, 64)}})
			}
		})
		time.Sleep(time.Duration(round) * 50 * time.Microsecond)
		testkit.OK(t, b.modify(provider.QPErr))
		wg.Wait()
		for i := range n {
			if wc := a.poll(); wc.WRID != uint64(i) {
				t.Fatalf("completion %d is of %d", i, wc.WRID)
			}
		}
		a.noWC("no more")
		for i := range 2000 {
			if wc := b.poll(); wc.WRID != uint64(i) {
				t.Fatalf("completion %d is of %d", i, wc.WRID)
			}
		}
		b.noWC("no more")
	}
}
