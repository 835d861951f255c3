package engine

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/freelist"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// chunk is a pooled buffer, for a batch, or for payload to or from an object.
type chunk = frames.Chunk

// device is an open device, the root of all other objects. Its children count themselves with
// refs.Hold.
type device struct {
	refs   refs.Count
	opts   Options // complete
	memory *memory.Table
	async  asyncQueue
	poller eventLoops
	prog   progressState
	stalls stalls
	chunks freelist.List[chunk] // copies of payload that is being sent

	tally tally
	log   logger

	cm      *cm.Manager
	closing closingConns
	streams sync.WaitGroup // streams whose onDown has not returned yet
	tasks   sync.WaitGroup // goroutines of spawn

	pds, cqs, qps, srqs refs.Limit

	fatal atomic.Bool

	qpnMu   sched.Mutex[locks.QPNumbers]
	qpns    map[uint32]*qp // in use; nil while the QP is being made
	nextQPN uint32
}

// newDevice makes a device without pollers and connection manager.
func newDevice(opts Options) *device {
	d := &device{opts: opts, memory: memory.NewTable(memory.Config{
		Extensions: opts.Extensions, MaxMR: maxMR, MaxMW: maxMW,
	}), qpns: make(map[uint32]*qp)}
	d.async.init(maxAsync)
	d.log.open(opts.Logger)
	d.chunks.New = func() *chunk { return new(chunk) }
	d.chunks.Idle = func(*chunk) bool { return true } // its content has no meaning
	d.pds.Max, d.cqs.Max, d.qps.Max, d.srqs.Max = maxPD, maxCQ, maxQP, maxSRQ
	var b [4]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	d.nextQPN = binary.LittleEndian.Uint32(b[:])
	return d
}

// Name implements provider.Device.
func (d *device) Name() string { return DeviceName }

// Close implements provider.Device. When it returns nil the device has no
// goroutine left.
func (d *device) Close() error {
	const op = "ibv_close_device"
	first, busy := d.refs.End()
	if busy {
		return failBusy(op, DeviceName, "PDs, CQs or channels")
	}
	if first {
		d.streams.Wait() // QPs are closed when they are flushed, and onDown comes after that
		d.stopProgress()
		d.cm.Wait()
		d.tasks.Wait() // the last step of each may be to let the program close the device
		d.poller.close()
		d.async.close()
		d.log.draining.Wait()
	}
	return nil
}

// stopProgress ends the progress goroutines and waits until they have ended. There are no QPs any
// more. It closes lingering connections at once.
func (d *device) stopProgress() {
	d.closing.stop()
	d.stalls.stop()
	d.prog.cancel()
	<-d.prog.ended
}

// spawn calls f on a goroutine that Close waits for. The device must not be closed yet: the caller
// holds something of it, or is a check of stalls.
func (d *device) spawn(f func()) {
	d.tasks.Add(1)
	sched.Go(func() {
		defer d.tasks.Done()
		f()
	})
}

// allocQPN counts a QP and gives it a number that no other has: 24 bits, as in
// libibverbs, and never 0 or 1, which InfiniBand reserves.
func (d *device) allocQPN() (uint32, error) {
	if err := d.qps.Take(); err != nil {
		d.tally.refuse("MaxQP")
		return 0, err
	}
	d.qpnMu.Lock()
	defer d.qpnMu.Unlock()
	for {
		qpn := d.nextQPN & 0xffffff
		d.nextQPN++
		if _, used := d.qpns[qpn]; !used && qpn > 1 {
			d.qpns[qpn] = nil
			return qpn, nil
		}
	}
}

// list enters a QP under its number.
func (d *device) list(q *qp) {
	d.qpnMu.Lock()
	d.qpns[q.qpn] = q
	d.qpnMu.Unlock()
}

// giveQPN returns the number, so that another QP may have it.
func (d *device) giveQPN(qpn uint32) {
	d.qpnMu.Lock()
	delete(d.qpns, qpn)
	d.qpnMu.Unlock()
	d.qps.Give()
}

// errDeviceFatal is why connections end and can't be made once the device has failed.
var errDeviceFatal = fmt.Errorf("the device has failed; close it and open another: %w", syscall.EIO)

// raise queues an asynchronous event. It never blocks.
func (d *device) raise(e provider.AsyncEvent) { d.async.raise(e) }

// forget drops the events that match, because their object is being closed.
func (d *device) forget(match func(provider.AsyncEvent) bool) { d.async.forget(match) }

// pd is a protection domain. Its children are MRs, MWs, QPs and SRQs.
type pd struct {
	memory.Domain
	dev *device
}

// AllocPD implements provider.Device.
func (d *device) AllocPD() (provider.PD, error) {
	const op = "ibv_alloc_pd"
	if !d.refs.Hold() {
		return nil, failClosed(op, DeviceName)
	}
	if err := d.pds.Take(); err != nil {
		d.refs.Drop()
		return nil, fail(op, DeviceName, err)
	}
	return &pd{dev: d, Domain: memory.Domain{Table: d.memory}}, nil
}

func (p *pd) name() string { return "pd" }

// Close implements provider.PD.
func (p *pd) Close() error {
	first, busy := p.Refs.End()
	if busy {
		return failBusy("ibv_dealloc_pd", p.name(), "MRs, MWs, QPs or SRQs")
	}
	if first {
		p.dev.pds.Give()
		p.dev.refs.Drop()
	}
	return nil
}

// progressState is what a device needs to move data for all its QPs.
type progressState struct {
	batches    freelist.List[frames.Batch]
	contexts   freelist.List[rxContext]
	parts      freelist.List[rxPart]
	kept       atomic.Int64 // contexts that streams keep between turns
	partsMost  int64        // upper limit of partOctets
	partOctets atomic.Int64 // of long parts
	ahead      atomic.Int64 // pieces that are read ahead from objects

	polls atomic.Uint64 // polls of some streams (policy.Polls)
	ready atomic.Bool   // streams had something when an outside poller last polled all
	steps chan struct{} // capacity policy.StepsAtOnce
	woken atomic.Bool   // a goroutine of a start-up was woken and may not have run yet

	cancel  context.CancelFunc
	running atomic.Int32  // progress goroutines
	ended   chan struct{} // closed when the last of them has ended
	first   chan struct{} // closed when the first loop's has ended: the others go on if its poller fails

	netpolled  atomic.Int64  // when pollNetpoller last woke the netpoller, as a time since epoch
	netpolling atomic.Bool   // a goroutine is in pollNetpoller
	awake      chan struct{} // has a token if the first progress goroutine has run since it was taken
}

// keepContext reports whether one more stream may keep its receive context, because part of a long
// FPDU has come. It may until it has stood still from one check of stalled streams to the next.
func (p *progressState) keepContext() bool {
	if p.kept.Add(1) <= policy.ContextsKept {
		return true
	}
	p.kept.Add(-1)
	return false
}

// An eventLoop is a progress goroutine's part of a device: the poller that it serves. Connections
// in the start-up, and refused ones, are in the first loop. A stream enters the loop that has the
// fewest streams, and stays there until its socket is closed. So one goroutine keeps its order, its
// turns and its data in the caches.
type eventLoop struct {
	poller  transport.Poller
	streams atomic.Int32 // that have not ended
}

// unassign is called once for each result of assign, when the stream has ended.
func (l *eventLoop) unassign() { l.streams.Add(-1) }

// eventLoops are the event loops of a device.
type eventLoops struct {
	all  []*eventLoop
	next atomic.Uint32 // where the next Poll begins
}

// open makes n loops.
func (l *eventLoops) open(network transport.Network, n int) error {
	for range n {
		poller, err := network.NewPoller()
		if err != nil {
			l.close()
			return err
		}
		l.all = append(l.all, &eventLoop{poller: poller})
	}
	return nil
}

// close closes the pollers. Their goroutines have ended, or were never started.
func (l *eventLoops) close() {
	for _, each := range l.all {
		_ = each.poller.Close()
	}
}

// first returns the poller of connections that have no stream.
func (l *eventLoops) first() transport.Poller { return l.all[0].poller }

// assign returns the loop for a new stream. Streams that begin at the same time may give one loop a
// few more than another.
func (l *eventLoops) assign() *eventLoop {
	best := l.all[0]
	for _, each := range l.all[1:] {
		if each.streams.Load() < best.streams.Load() {
			best = each
		}
	}
	best.streams.Add(1)
	return best
}

// Poll polls one loop after the other until one has something ready, and returns for how many
// streams. Each call begins with another loop. It skips loops without streams; connections that
// have ended and wait for their peers are served by the loop's own goroutine.
func (l *eventLoops) Poll() int {
	if len(l.all) == 1 {
		return l.all[0].poller.Poll()
	}
	return l.untilReady(transport.Poller.Poll)
}

// Serve polls once, for a goroutine that will not poll again, and takes no lease.
func (l *eventLoops) Serve() int { return l.untilReady(transport.Poller.Serve) }

func (l *eventLoops) untilReady(poll func(transport.Poller) int) int {
	at := int(l.next.Add(1) % uint32(len(l.all)))
	for range l.all {
		if each := l.all[at]; at == 0 || each.streams.Load() > 0 {
			if n := poll(each.poller); n > 0 {
				return n
			}
		}
		if at++; at == len(l.all) {
			at = 0
		}
	}
	return 0
}

// BeforeSleep makes all progress goroutines take their streams over at once.
func (l *eventLoops) BeforeSleep() {
	for _, each := range l.all {
		each.poller.BeforeSleep()
	}
}

// maxTermCodes is how many codes of Terminates a device counts singly. It is bounded, because peers
// choose the codes that they send.
const maxTermCodes = 64

// tally is what a device counts of itself and of closed QPs. All of it is rare.
type tally struct {
	connections, failures, lost atomic.Uint64

	mu         sched.Mutex[locks.Tally]
	closed     provider.QPStats // sums
	refused    map[string]uint64
	terminates map[provider.TerminateCount]uint64 // Count is 0 in the keys
	others     uint64
}

// refuse counts something that a limit refused or ended.
func (t *tally) refuse(limit string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused == nil {
		t.refused = make(map[string]uint64)
	}
	t.refused[limit]++
}

func (t *tally) terminate(e *provider.TerminateError) {
	key := provider.TerminateCount{Remote: e.Remote, Layer: e.Layer, EType: e.EType, Code: e.ECode}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.terminates[key]; !known && len(t.terminates) >= maxTermCodes {
		t.others++
		return
	}
	if t.terminates == nil {
		t.terminates = make(map[provider.TerminateCount]uint64)
	}
	t.terminates[key]++
}

// add adds st to the sums of closed QPs.
func (t *tally) add(q *qp, st *provider.QPStats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum(&t.closed, st)
	q.summed = true
}

func sum(to, st *provider.QPStats) {
	to.Sent.Add(&st.Sent)
	to.Received.Add(&st.Received)
	to.FlushedSends += st.FlushedSends
	to.FlushedRecvs += st.FlushedRecvs
	to.CRCErrors += st.CRCErrors
}
