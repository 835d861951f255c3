//go:build linux

package transport

import (
	"context"
	"os"
	"runtime"
	"sync"
	"unsafe"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/turns"
	"golang.org/x/sys/unix"
)

// tcpPoller watches sockets with one epoll instance, and parks with another one (see parker).
type tcpPoller struct {
	ep  fdRef // epoll: the sockets, level triggered
	reg registry
	parker
	sharing turns.Sharing
	queue   turnQueue
	closed  sync.Once
}

// NewPoller implements Network.
func (t *TCP) NewPoller() (Poller, error) {
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	p := &tcpPoller{ep: fdRef{fd: opened(ep)}}
	if err := p.queue.open(p.ep.fd); err != nil {
		p.ep.close()
		return nil, err
	}
	if err := p.parker.open(&p.ep); err != nil {
		p.queue.close()
		p.ep.close()
		return nil, err
	}
	return p, nil
}

// Add implements Poller.
func (p *tcpPoller) Add(conn Conn, h Handler) error {
	c, ok := conn.(*tcpConn)
	if !ok {
		return unix.EINVAL // a stream of another Network
	}
	if !c.ref.acquire() {
		return os.ErrClosed
	}
	defer c.ref.release()
	if !p.ep.acquire() {
		return os.ErrClosed
	}
	defer p.ep.release()

	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ref.closed() { // and Close will not remove it again
		return os.ErrClosed
	}
	if c.reg != nil {
		return unix.EEXIST
	}
	reg := &registration{poller: p, conn: c, handler: h, events: unix.EPOLLIN}
	reg.sharer, _ = h.(Sharer)
	p.reg.insert(reg)
	if err := unix.EpollCtl(p.ep.fd, unix.EPOLL_CTL_ADD, c.ref.fd, reg.event(reg.events)); err != nil {
		p.reg.remove(reg)
		return os.NewSyscallError("epoll_ctl", err)
	}
	c.reg = reg
	return nil
}

// Remove implements Poller.
func (p *tcpPoller) Remove(conn Conn) {
	c, ok := conn.(*tcpConn)
	if !ok {
		return
	}
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.reg == nil || c.reg.poller != p {
		return
	}
	_ = p.control(unix.EPOLL_CTL_DEL, c.reg, 0) // fails if epoll does not have it
	p.reg.remove(c.reg)
	c.reg = nil
}

// WantRead implements Poller.
func (p *tcpPoller) WantRead(c Conn, on bool) error { return p.want(c, unix.EPOLLIN, on) }

// WantWrite implements Poller.
func (p *tcpPoller) WantWrite(c Conn, on bool) error { return p.want(c, unix.EPOLLOUT, on) }

func (p *tcpPoller) want(conn Conn, event uint32, on bool) error {
	c, ok := conn.(*tcpConn)
	if !ok {
		return unix.EINVAL
	}
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	c.mu.Lock()
	reg := c.reg
	c.mu.Unlock()
	if reg == nil || reg.poller != p {
		return unix.ENOENT
	}
	events := reg.events &^ event
	if on {
		events |= event
	}
	return p.watch(reg, events)
}

// watch makes epoll watch for events. Without events it removes the socket from epoll, which would
// otherwise report a hangup forever. p.reg.mu is held.
func (p *tcpPoller) watch(reg *registration, events uint32) error {
	if events == reg.events {
		return nil
	}
	if reg.queued.Load() { // epoll has it, but watches for nothing until rewatch
		reg.events = events
		return nil
	}
	op := unix.EPOLL_CTL_MOD
	switch {
	case events == 0:
		op = unix.EPOLL_CTL_DEL
	case reg.events == 0:
		op = unix.EPOLL_CTL_ADD
	}
	err := p.control(op, reg, events)
	if err == nil {
		reg.events = events
	}
	return err
}

// control calls epoll_ctl for the socket of reg. p.reg.mu is held, and reg has not been removed. So
// the descriptor is open, because tcpConn.close removes reg before it gives up the descriptor.
func (p *tcpPoller) control(op int, reg *registration, events uint32) error {
	if !p.ep.acquire() {
		return os.ErrClosed
	}
	defer p.ep.release()
	return os.NewSyscallError("epoll_ctl", unix.EpollCtl(p.ep.fd, op, reg.conn.ref.fd, reg.event(events)))
}

// Poll implements Poller.
func (p *tcpPoller) Poll() int {
	p.parker.poll()
	served := p.Serve()
	if served > 0 {
		p.parker.poll()
	}
	return served
}

// Serve implements Poller.
func (p *tcpPoller) Serve() int {
	if !p.ep.acquire() {
		return 0
	}
	var events [policy.Round]unix.EpollEvent
	n := epollNow(p.ep.fd, events[:])
	p.ep.release()
	if n == 0 {
		return 0
	}
	return p.serve(events[:n])
}

// serve serves the streams that epoll has reported. Epoll reports streams beyond those of one round
// first in the next.
func (p *tcpPoller) serve(events []unix.EpollEvent) (served int) {
	var ready [policy.Round]*registration
	var round turns.Round
	round.Begin(&p.sharing)
	n, long := 0, 0
	for i := range events {
		if reg := p.reg.lookup(&events[i]); reg != nil {
			ready[n], events[n] = reg, events[i]
			n++
			if reg.turns.Long() {
				long++
			}
		}
	}
	if long >= policy.Few || long > 0 && p.queue.count.Load() > 0 {
		n = p.enqueueLong(ready[:n], events)
	}
	for _, reg := range ready[:n] {
		round.Add(&reg.turns)
	}
	for i, budget := round.Next(); i >= 0; i, budget = round.Next() {
		used, more := ready[i].ready(events[i].Events, budget)
		round.Done(i, used, more)
		served++
	}
	return served + p.serveQueue(&round)
}

// enqueueLong moves the long streams among ready to the queue, and returns how many streams remain.
func (p *tcpPoller) enqueueLong(ready []*registration, events []unix.EpollEvent) (n int) {
	for i, reg := range ready {
		if reg.turns.Long() && p.enqueue(reg) {
			continue
		}
		ready[n], events[n] = reg, events[i]
		n++
	}
	return n
}

// serveQueue serves streams of the queue in the rest of the round, and returns how many. Streams
// that were not ready count, because others may be ready.
func (p *tcpPoller) serveQueue(round *turns.Round) (served int) {
	for {
		reg, events := p.dequeue()
		if reg == nil {
			return served
		}
		budget := round.Queued(&reg.turns)
		if budget == 0 {
			p.requeue(reg, true)
			return served
		}
		p.serveQueued(round, reg, events, budget)
		served++
	}
}

// serveQueued gives a stream of the queue its turn, if it is ready. If the handler panics or ends
// the goroutine, other goroutines serve the stream later.
func (p *tcpPoller) serveQueued(round *turns.Round, reg *registration, events uint32, budget int) {
	used, more := 2*policy.CallCost, false // to find a stream not ready takes two system calls
	defer func() {
		round.DoneQueued(&reg.turns, used, more)
		if more {
			p.requeue(reg, false)
		} else {
			p.rewatch(reg)
		}
	}()
	if now := reg.conn.pollNow(events); now != 0 {
		used, more = reg.ready(now, budget)
	}
}

// ready calls the handler with the events that epoll has reported, unless the stream was removed
// since.
func (r *registration) ready(events uint32, budget int) (used int, more bool) {
	if r.removed.Load() {
		return 0, false
	}
	readable := events&(unix.EPOLLIN|unix.EPOLLERR|unix.EPOLLHUP) != 0
	writable := events&unix.EPOLLOUT != 0
	if r.sharer != nil {
		return r.sharer.ReadyTurn(readable, writable, budget)
	}
	r.handler.Ready(readable, writable)
	return 4 * policy.CallCost, false // it wakes a goroutine
}

// sigsetSize is the size of the kernel's signal set in bytes.
const sigsetSize = 8

// epollNow calls epoll_pwait without waiting and without a signal mask. Linux has epoll_wait only
// on its older architectures: arm64, riscv64 and loong64 lack it. The call bypasses the Go
// scheduler (RawSyscall), because the kernel never sleeps in it, and a poller that spins would
// spend more time on informing the scheduler than on the call. After a failure it returns no
// events, and the callers try again.
func epollNow(ep int, events []unix.EpollEvent) int {
	n, _, errno := unix.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, sigsetSize)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// epollLast calls epoll_pwait for a goroutine that parks if there are no events, in the netpoller
// or for policy.LeaseTime. With one P the scheduler sees the call, as it sees the calls of a
// net.Conn. That keeps the runtime's monitor thread awake. We infer that its timers keep a CPU from
// halting for so long that it is woken late: round trips between two ends that sleep took 1.24
// times as long as over a net.Conn, and take 1.05 with it. With several Ps, a call that the
// scheduler sees costs more than it gains: 1.12 of a net.Conn's time instead of 0.94.
func epollLast(ep int, events []unix.EpollEvent) int {
	if runtime.GOMAXPROCS(0) > 1 {
		return epollNow(ep, events)
	}
	n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT, uintptr(ep),
		uintptr(unsafe.Pointer(unsafe.SliceData(events))), uintptr(len(events)), 0, 0, sigsetSize)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// Wait implements Poller.
func (p *tcpPoller) Wait(ctx context.Context) error { return p.parker.wait(ctx) }

// Wake implements Poller.
func (p *tcpPoller) Wake() { p.parker.wake() }

// BeforeSleep implements Poller.
func (p *tcpPoller) BeforeSleep() { p.parker.endLease() }

// Close implements Poller.
func (p *tcpPoller) Close() error {
	p.closed.Do(func() {
		p.ep.close()
		p.reg.mu.Lock()
		p.queue.close()
		for _, reg := range p.reg.removeAll() {
			reg.conn.mu.Lock()
			reg.conn.reg = nil
			reg.conn.mu.Unlock()
		}
		p.reg.mu.Unlock()
		p.parker.close()
	})
	return nil
}
