package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// A soup is what one end does to the other at random: operations of all kinds
// and sizes, each with a slot of its own, so that afterwards all memory follows
// from what succeeded.
type soup struct {
	e, peer  *e2eEnd
	ops      []soupOp
	src      *guarded // of Sends and Writes, on e
	sink     *guarded // of Reads, on e
	target   *guarded // of Writes, and the source of Reads after it, on peer
	received *guarded // of Sends, on peer
	sends    int      // among ops
}

type soupOp struct {
	wr     provider.SendWR
	off, n int // of its slot, everywhere
}

const soupReceives = 256 // as many Sends at most

// newSoup plans count operations of about bytes each and posts the receives.
func newSoup(rnd *rand.Rand, e, peer *e2eEnd, count, octets int) *soup {
	s := &soup{e: e, peer: peer}
	total := 0
	for i := range count {
		n := rnd.IntN(octets)
		switch rnd.IntN(10) {
		case 0:
			n = 0
		case 1:
			n *= 20
		}
		op := soupOp{off: total, n: n}
		op.wr = provider.SendWR{WRID: uint64(i), Opcode: []provider.WROpcode{provider.WRSend, provider.WRRDMAWrite, provider.WRRDMARead}[rnd.IntN(3)]}
		if op.wr.Opcode == provider.WRSend {
			if s.sends == soupReceives-1 {
				op.wr.Opcode = provider.WRRDMAWrite
			} else {
				s.sends++
			}
		}
		if i == count-1 && op.wr.Opcode != provider.WRSend { // when it comes, all Writes are in place
			op.wr.Opcode = provider.WRSend
			s.sends++
		}
		for _, flag := range []provider.SendFlags{provider.SendSignaled, provider.SendSignaled, provider.SendFence, provider.SendSolicited} {
			if rnd.IntN(3) == 0 {
				op.wr.Flags |= flag
			}
		}
		s.ops = append(s.ops, op)
		total += n
	}
	s.ops[count-1].wr.Flags |= provider.SendSignaled
	seed := rnd.Uint64()
	s.src = e.filled(total, 0, seed)
	s.sink = e.region(total, provider.AccessLocalWrite)
	s.target = peer.register(2*max(total, 1), allRights, func(b []byte) { pattern(b[len(b)/2:], int(seed+1)) })
	s.received = peer.region(total, provider.AccessLocalWrite)
	for i := range s.ops {
		s.prepare(rnd, &s.ops[i])
	}
	return s
}

func (s *soup) prepare(rnd *rand.Rand, op *soupOp) {
	k := 1 + rnd.IntN(4)
	op.wr.RKey = s.target.RKey()
	op.wr.RemoteAddr = s.target.Addr() + uint64(op.off)
	switch op.wr.Opcode {
	case provider.WRSend:
		s.peer.recv(op.wr.WRID, split(s.received.Region, op.off, op.n, 5-k)...)
		fallthrough
	case provider.WRRDMAWrite:
		op.wr.SGList = split(s.src.Region, op.off, op.n, k)
	case provider.WRRDMARead:
		op.wr.RemoteAddr += s.target.Len() / 2
		op.wr.SGList = split(s.sink.Region, op.off, op.n, k)
	}
}

// post posts everything, batches at a time, and collects completions whenever
// the queue is full, until all signalled ones have come or the QP is in ERR.
func (s *soup) post(rnd *rand.Rand) ([]provider.WC, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var got []provider.WC
	wrs := make([]provider.SendWR, 0, len(s.ops))
	signalled := 0
	for i := range s.ops {
		wrs = append(wrs, s.ops[i].wr)
	}
	// A post to the full queue waits for a completion.
	for i := 31; i < len(wrs); i += 32 {
		wrs[i].Flags |= provider.SendSignaled
		s.ops[i].wr.Flags |= provider.SendSignaled
	}
	for len(wrs) > 0 {
		n, err := s.e.q.PostSend(wrs[:1+rnd.IntN(min(len(wrs), 20))])
		for _, wr := range wrs[:n] {
			if wr.Flags&provider.SendSignaled != 0 {
				signalled++
			}
		}
		wrs = wrs[n:]
		switch {
		case errors.Is(err, syscall.ENOMEM):
			wc, err := s.e.collect(ctx, s.e.scq, 1)
			if got = append(got, wc...); err != nil {
				return got, err
			}
		case err != nil:
			return got, err
		}
		if s.e.q.getState() == provider.QPErr {
			return got, nil
		}
	}
	for len(got) < signalled && s.e.q.getState() != provider.QPErr {
		wc, err := s.e.collect(ctx, s.e.scq, 1)
		if got = append(got, wc...); err != nil {
			return got, err
		}
	}
	return got, nil
}

// check compares memory and completions with the plan, all of which succeeded.
func (s *soup) check(t *testing.T, sends, recvs []provider.WC) {
	t.Helper()
	sink := bytes.Repeat([]byte{0xa5}, len(octetsOf(s.sink.Region)))
	target := bytes.Repeat([]byte{0xa5}, len(octetsOf(s.target.Region))/2)
	received := bytes.Repeat([]byte{0xa5}, len(octetsOf(s.received.Region)))
	for _, op := range s.ops {
		from := octetsOf(s.src.Region)[op.off:][:op.n]
		switch op.wr.Opcode {
		case provider.WRSend:
			copy(received[op.off:], from)
			if len(recvs) == 0 || recvs[0].WRID != op.wr.WRID || recvs[0].Status != provider.WCSuccess || int(recvs[0].ByteLen) != op.n {
				t.Fatalf("Send %d of %d bytes: completions %+v", op.wr.WRID, op.n, recvs)
			}
			recvs = recvs[1:]
		case provider.WRRDMAWrite:
			copy(target[op.off:], from)
		case provider.WRRDMARead:
			copy(sink[op.off:], octetsOf(s.target.Region)[len(target)+op.off:][:op.n])
		}
		if op.wr.Flags&provider.SendSignaled != 0 {
			if len(sends) == 0 || sends[0].WRID != op.wr.WRID || sends[0].Status != provider.WCSuccess {
				t.Fatalf("work request %d: completions %+v", op.wr.WRID, sends)
			}
			sends = sends[1:]
		}
	}
	testkit.Equal(t, "completions too many", len(sends)+len(recvs), 0)
	if !bytes.Equal(octetsOf(s.sink.Region), sink) ||
		!bytes.Equal(octetsOf(s.target.Region)[:len(target)], target) || !bytes.Equal(octetsOf(s.received.Region), received) {
		t.Error("memory is not as it should be")
	}
	s.canaries(t)
}

func (s *soup) canaries(t *testing.T) {
	t.Helper()
	for _, r := range []*guarded{s.src, s.sink, s.target, s.received} {
		testkit.Equal(t, "bytes beside it are as before", r.untouched(0, len(octetsOf(r.Region))), true)
	}
}

var soupSetup = e2eSetup{
	cap: provider.QPCap{MaxSendWR: 64, MaxRecvWR: soupReceives, MaxSendSGE: 4, MaxRecvSGE: 4},
	cqe: 1024, depth: 3,
}

// TestE2ESoup lets both ends do everything at once. Each posts more work requests than its queue
// has places.
func TestE2ESoup(t *testing.T) {
	onWires(t, nil, func(t *testing.T, w e2eWire) {
		seed := w.net.Seed + 1
		rnd := rand.New(rand.NewPCG(seed, 2))
		a, b := newE2EPair(t, w, soupSetup)
		there, back := newSoup(rnd, a, b, 100, 4000), newSoup(rnd, b, a, 100, 4000)
		var sends [2][]provider.WC
		var wg sync.WaitGroup
		for i, s := range []*soup{there, back} {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			wg.Go(func() {
				var err error
				if sends[i], err = s.post(rnd); err != nil {
					t.Errorf("%v after %d completions (%v)", err, len(sends[i]), s.e.q.Cause())
				}
			})
		}
		wg.Wait()
		there.check(t, sends[0], b.wait(b.rcq, there.sends))
		back.check(t, sends[1], a.wait(a.rcq, back.sends))
	})
}

// drain polls what is there.
func drain(t *testing.T, c *cq) []provider.WC {
	t.Helper()
	wc := make([]provider.WC, c.CQE())
	n := testkit.Must(c.Poll(wc))(t)
	return wc[:n]
}

// TestE2EManyConnections: connections at rest cost no goroutine and no buffer,
// and end one by one without a trace.
func TestE2EManyConnections(t *testing.T) {
	onWires(t, plain, func(t *testing.T, w e2eWire) {
		const conns = 150
		s := e2eSetup{cap: provider.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: conns * 8}
		network, addr := w.network()
		a, b := newE2EEnd(t, w, network, s), newE2EEnd(t, w, network, s)
		down := make(chan error, 2*conns)
		var as, bs [conns]*qp
		before := runtime.NumGoroutine()
		src, dst := a.filled(100, 0, 1), b.region(100*conns, provider.AccessLocalWrite)
		s.complete()
		for i := range conns {
			as[i], bs[i] = a.newQP(s), b.newQP(s)
			e2eConnect(t, w, s, network, addr, as[i], bs[i], down, down)
			testkit.Must(bs[i].PostRecv([]provider.RecvWR{
				{WRID: uint64(i), SGList: []provider.SGE{sge(dst.Region, 100*i, 100)}}, {WRID: uint64(i)},
			}))(t)
		}
		for i, q := range as {
			testkit.Must(q.PostSend([]provider.SendWR{{WRID: uint64(i), Opcode: provider.WRSend,
				Flags: provider.SendSignaled, SGList: []provider.SGE{sge(src.Region, 0, 100)}}}))(t)
		}
		seen := map[uint64]bool{}
		for _, wc := range b.wait(b.rcq, conns) {
			seen[wc.WRID] = wc.Status == provider.WCSuccess && wc.ByteLen == 100 && wc.QPN == bs[wc.WRID].qpn
		}
		for i := range conns {
			if !seen[uint64(i)] || !bytes.Equal(octetsOf(dst.Region)[100*i:][:100], octetsOf(src.Region)) {
				t.Errorf("connection %d: nothing came", i)
			}
		}
		a.wait(a.scq, conns)
		// A timer's goroutine may be at work.
		waitFor(t, "connections have no goroutines", func() bool { return runtime.NumGoroutine() <= before })
		for i, q := range as {
			if q.stream.Load().holdsBuffers() || bs[i].stream.Load().holdsBuffers() {
				t.Fatalf("connection %d holds a buffer at rest", i)
			}
			if i%2 == 0 {
				testkit.OK(t, q.Close())
			} else {
				testkit.OK(t, bs[i].Close())
			}
		}
		for range 2 * conns {
			<-down
		}
		for _, wc := range b.wait(b.rcq, conns) {
			testkit.Equal(t, "the status", wc.Status, provider.WCWRFlushErr)
		}
	})
}

// TestE2EConcurrent makes many goroutines use one QP at once, in every way, while it is closed.
// Every accepted work request completes once.
func TestE2EConcurrent(t *testing.T) {
	onWires(t, func(w e2eWire) bool { return plain(w) || w.real }, func(t *testing.T, w e2eWire) {
		const posters, each = 4, 150
		a, b := newE2EPair(t, w, e2eSetup{
			cap: provider.QPCap{MaxSendWR: 32, MaxRecvWR: posters * each, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 8},
			cqe: 8 * posters * each, sig: true})
		const n = 2000
		src := a.filled(n, 0, 1)
		sink := a.region(n*posters, provider.AccessLocalWrite)
		target := b.region(n, allRights)
		source := b.filled(n, provider.AccessRemoteRead, 2)
		var accepted, completed atomic.Int64
		var posting, polling sync.WaitGroup
		stop := make(chan struct{})
		for range posters * each {
			b.recv(1)
		}
		for p := range posters {
			posting.Go(func() {
				for i := 0; i < 3*each; {
					wr := provider.SendWR{Opcode: []provider.WROpcode{provider.WRSend, provider.WRRDMAWrite, provider.WRRDMARead}[i%3], WRID: uint64(p)}
					switch wr.Opcode {
					case provider.WRSend:
						wr.Flags, wr.Inline = provider.SendInline, nil
					case provider.WRRDMAWrite:
						wr.SGList, wr.RemoteAddr, wr.RKey = []provider.SGE{sge(src.Region, 0, n)}, target.Addr(), target.RKey()
					case provider.WRRDMARead:
						wr.SGList, wr.RemoteAddr, wr.RKey = []provider.SGE{sge(sink.Region, p*n, n)}, source.Addr(), source.RKey()
					}
					if p%2 == 1 && wr.Opcode != provider.WRSend { // no two may write the same bytes at once
						wr.SGList = nil
					}
					k, err := a.q.PostSend([]provider.SendWR{wr})
					accepted.Add(int64(k))
					i += k
					if errors.Is(err, syscall.ENOMEM) {
						runtime.Gosched()
					} else if err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		for range 3 {
			polling.Go(func() {
				wc := make([]provider.WC, 3)
				for {
					k := testkit.Must(a.scq.Poll(wc))(t)
					completed.Add(int64(k))
					for _, c := range wc[:k] {
						if c.Err() != nil {
							t.Errorf("%v (%v)", c.Err(), a.q.Cause())
						}
					}
					if k == 0 {
						select {
						case <-stop:
							return
						default:
							runtime.Gosched()
						}
					}
				}
			})
		}
		polling.Go(func() { // everything else that may be called
			for {
				select {
				case <-stop:
					return
				default:
				}
				_, _, err := a.q.Query()
				testkit.OK(t, err)
				_ = a.q.Cause()
				testkit.OK(t, a.scq.ReqNotify(false))
				runtime.Gosched()
			}
		})
		posting.Wait()
		for begin := time.Now(); completed.Load() < accepted.Load(); runtime.Gosched() {
			if w.real && time.Since(begin) > patience {
				t.Fatalf("%d of %d completions", completed.Load(), accepted.Load())
			}
		}
		close(stop)
		polling.Wait()
		b.wait(b.rcq, posters*each)
		b.recv(2)
		a.send(provider.SendWR{Opcode: provider.WRSend}) // when it comes, all Writes are in place
		b.wait(b.rcq, 1)
		a.wait(a.scq, 1)
		checkMessage(t, "write", target, 0, octetsOf(src.Region))
		for p := 0; p < posters; p += 2 {
			testkit.EqualBytes(t, fmt.Sprintf("what poster %d has read", p),
				octetsOf(sink.Region)[p*n:][:n], octetsOf(source.Region))
		}

		var closing sync.WaitGroup
		var late atomic.Int64
		for i := range 2 {
			closing.Go(func() {
				for {
					k, err := a.q.PostSend([]provider.SendWR{{Opcode: provider.WRRDMAWrite}})
					late.Add(int64(k))
					if err != nil && !errors.Is(err, syscall.ENOMEM) {
						return
					}
					runtime.Gosched()
				}
			})
			closing.Go(func() { testkit.OK(t, []*e2eEnd{a, a}[i].q.Close()) })
			closing.Go(func() { testkit.OK(t, b.q.Close()) })
		}
		closing.Wait()
		testkit.Equal(t, "completions of work requests posted while closing",
			a.scq.seen.Load()+int64(a.scq.losses), late.Load())
	})
}

// TestE2EPostOnCompletion: when a completion is seen, the place of its work
// request is free. Several goroutines poll, and whoever gets the completion of
// the only work request posts the next one.
func TestE2EPostOnCompletion(t *testing.T) {
	onWires(t, plain, func(t *testing.T, w e2eWire) {
		const pollers, posts = 3, 20000
		a, b := newE2EPair(t, w, e2eSetup{cap: provider.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}})
		target := b.region(8, allRights)
		src := a.filled(8, 0, 1)
		write := []provider.SendWR{{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
			SGList: []provider.SGE{sge(src.Region, 0, 8)}, RemoteAddr: target.Addr(), RKey: target.RKey()}}
		var left atomic.Int64
		left.Store(posts)
		a.send(write[0])
		var wg sync.WaitGroup
		for range pollers {
			wg.Go(func() {
				var wc [1]provider.WC
				for left.Load() > 0 {
					if n, err := a.scq.Poll(wc[:]); n == 0 || wc[0].Err() != nil {
						if err != nil || wc[0].Err() != nil {
							t.Error(err, wc[0].Err())
							left.Store(0)
						}
						runtime.Gosched()
						continue
					}
					if left.Add(-1) == 0 {
						return
					}
					if _, err := a.q.PostSend(write); err != nil {
						t.Errorf("with %d to go: %v", left.Load(), err)
						left.Store(0)
					}
				}
			})
		}
		wg.Wait()
	})
}

// TestEveryWorkRequestCompletes: whatever is posted when a connection ends gives
// exactly one completion each.
//
//rfc:5041 DDP-3-02 Accepted segments are delivered or error reported
func TestEveryWorkRequestCompletes(t *testing.T) {
	for round := range 20 {
		network := testkit.Must(tcpNetwork(Options{}))(t)
		a, b := pair(t, network, tcpAddr, Options{}, sideOptions{cap: provider.QPCap{MaxSendWR: 4096,
			MaxRecvWR: 4096, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 16384}, params(true))
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
				a.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRSend,
					Flags: provider.SendSignaled, SGList: []provider.SGE{m.sge(0, 64)}})
			}
		})
		time.Sleep(time.Duration(round) * 50 * time.Microsecond)
		testkit.OK(t, b.modify(provider.QPErr))
		wg.Wait()
		for i := range n {
			testkit.Equal(t, "the next completion of a", a.poll().WRID, uint64(i))
		}
		a.noWC("no more")
		for i := range 2000 {
			testkit.Equal(t, "the next completion of b", b.poll().WRID, uint64(i))
		}
		b.noWC("no more")
	}
}
