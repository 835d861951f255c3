//go:build linux

package transport

import (
	"encoding/binary"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// turnQueue holds the streams that wait for a long turn while many do (see package turns). Epoll
// asks every stream that it reports, and a Poll serves few of the streams that have much to do.
// With 1,000 of them the asking took a fifth of the time (docs/benchmarks), and epoll reports a
// stream with one message after those that were ready before. So epoll does not watch the streams
// in the queue. serveQueued asks a stream when its turn comes. If the stream is not ready, or has
// nothing more to do after the turn, epoll watches it again, and reports it if it is ready
// nevertheless. So nothing is lost.
//
// While streams wait in the queue, epoll reports the eventfd. So the epoll instance is ready as
// long as there is something to do, and goroutines that wait for it wake (see parker). During its
// turn a stream is not in the list: the goroutine that serves it puts it back, or makes epoll watch
// it.
//
// registry.mu guards all fields but count.
type turnQueue struct {
	count       atomic.Int32 // queued streams, including those that have their turn
	first, last *registration
	fd          int // the eventfd
	closed      bool
}

// noSlot is the slot of the eventfd in epoll_event data.
const noSlot = -1

// enqueue puts a stream into the queue, and makes epoll stop watching it. If epoll refuses, enqueue
// returns false, and epoll watches the stream as before. If the stream is queued already or has
// left the poller, enqueue does nothing and returns true.
func (p *tcpPoller) enqueue(reg *registration) bool {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	if reg.removed.Load() || reg.queued.Load() {
		return true
	}
	// With no events and EPOLLONESHOT, epoll reports a hangup at most once.
	if p.control(unix.EPOLL_CTL_MOD, reg, unix.EPOLLONESHOT) != nil {
		return false
	}
	reg.queued.Store(true)
	p.queue.count.Add(1)
	p.queue.push(reg)
	return true
}

// dequeue returns the stream that has waited longest, and the events to watch for; nil if none
// waits. The stream is still queued: requeue or rewatch must follow.
func (p *tcpPoller) dequeue() (reg *registration, events uint32) {
	if p.queue.count.Load() == 0 {
		return nil, 0
	}
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	if reg = p.queue.pop(); reg != nil {
		events = reg.events
	}
	return reg, events
}

// requeue puts a stream back: at the end, or first if it has had no turn.
func (p *tcpPoller) requeue(reg *registration, first bool) {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	if first {
		p.queue.pushFirst(reg)
	} else {
		p.queue.push(reg)
	}
}

// rewatch makes epoll watch a stream again that has nothing more to do.
func (p *tcpPoller) rewatch(reg *registration) {
	p.reg.mu.Lock()
	defer p.reg.mu.Unlock()
	p.queue.left(reg)
	if reg.removed.Load() { // the socket may have been added again
		return
	}
	op := unix.EPOLL_CTL_MOD
	if reg.events == 0 {
		op = unix.EPOLL_CTL_DEL
	}
	_ = p.control(op, reg, reg.events) // fails if the socket or epoll is closed
}

// open makes the eventfd and puts it into the epoll instance ep.
func (q *turnQueue) open(ep int) error {
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	fd = opened(fd)
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: noSlot}
	if err := unix.EpollCtl(ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		_ = closeFD(fd)
		return os.NewSyscallError("epoll_ctl", err)
	}
	q.fd = fd
	return nil
}

// signal makes epoll report the eventfd from now on, or, with false, no more.
func (q *turnQueue) signal(on bool) {
	var count [8]byte
	switch {
	case q.closed:
	case on:
		binary.NativeEndian.PutUint64(count[:], 1)
		_, _ = unix.Write(q.fd, count[:])
	default:
		_, _ = unix.Read(q.fd, count[:])
	}
}

// left counts a stream that is not queued any more.
func (q *turnQueue) left(reg *registration) {
	reg.queued.Store(false)
	q.count.Add(-1)
}

func (q *turnQueue) push(reg *registration) {
	if q.last == nil {
		q.pushFirst(reg)
		return
	}
	q.last.next = reg
	q.last = reg
}

func (q *turnQueue) pushFirst(reg *registration) {
	reg.next = q.first
	q.first = reg
	if q.last == nil {
		q.last = reg
		q.signal(true)
	}
}

func (q *turnQueue) pop() *registration {
	reg := q.first
	if reg != nil {
		q.first, reg.next = reg.next, nil
		if q.first == nil {
			q.last = nil
			q.signal(false)
		}
	}
	return reg
}

// close removes the streams of a poller that closes.
func (q *turnQueue) close() {
	q.first, q.last = nil, nil
	q.closed = true
	_ = closeFD(q.fd)
}

// pollNow returns which of events the socket has at this moment, as epoll reports them; none if the
// socket is closed.
func (c *tcpConn) pollNow(events uint32) uint32 {
	if events == 0 || !c.ref.acquire() {
		return 0
	}
	defer c.ref.release()
	fd := unix.PollFd{Fd: int32(c.ref.fd), Events: int16(events)}
	var now unix.Timespec
	n, _, errno := unix.RawSyscall6(unix.SYS_PPOLL, uintptr(unsafe.Pointer(&fd)), 1,
		uintptr(unsafe.Pointer(&now)), 0, sigsetSize, 0)
	if errno != 0 || n == 0 {
		return 0
	}
	return uint32(uint16(fd.Revents))
}
