//go:build linux

package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"golang.org/x/sys/unix"
)

// epoch is the zero of the times of leases.
var epoch = time.Now()

// parker parks one goroutine until a socket of an epoll instance is ready. It is an epoll instance
// itself, which Go's netpoller watches, and contains the sockets' instance with EPOLLONESHOT, so
// readiness passes through only after arming. While the parker is not armed, a goroutine that spins
// on the sockets' instance therefore causes no wake-up. A parked goroutine holds no OS thread.
//
// While others hold the lease (policy.Leased), Wait does not arm the parker. A goroutine that woke
// for each arrival would take a CPU from them or from the peer, and serve what they would have
// served.
type parker struct {
	sockets *fdRef   // the instance that it contains
	wakeFD  fdRef    // eventfd, always watched
	fd      int      // of file
	file    *os.File // the parker's own instance
	rc      syscall.RawConn

	closed   atomic.Bool
	polls    atomic.Uint32              // Polls since a goroutine was last about to sleep
	polled   atomic.Int64               // when the last of them began or ended, since epoch; 0: no lease
	yielding atomic.Bool                // Wait leaves the sockets to goroutines that poll
	waiting  sched.Mutex[locks.Waiting] // of the one Wait in progress, with all below

	armed       bool
	peeked      bool // peek has been called since sleep began
	gotWake     bool // results of the last peek
	gotSockets  bool
	hasDeadline bool
	done        <-chan struct{} // of the context that stop belongs to
	stop        func() bool

	peekFunc func(fd uintptr) bool // peek, bound once so that Wait does not allocate
	admit    struct {              // arguments of arm
		control func(fd uintptr) // admitSockets, bound likewise
		on      bool
		err     error
	}
}

// What a parker's instance watches, as epoll_event data.
const (
	fromSockets = iota
	fromWake
)

func (p *parker) open(sockets *fdRef) error {
	p.sockets = sockets
	p.peekFunc, p.admit.control = p.peek, p.admitSockets
	wakeFD, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	p.wakeFD.fd = opened(wakeFD)
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		p.wakeFD.close()
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := p.populate(opened(fd)); err != nil {
		p.wakeFD.close()
		return fmt.Errorf("poller: %w", err)
	}
	return nil
}

// populate fills the epoll instance fd, which it takes over, and gives it to Go's netpoller.
func (p *parker) populate(fd int) error {
	err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, p.wakeFD.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: fromWake})
	if err == nil {
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, p.sockets.fd, &unix.EpollEvent{Events: 0, Fd: fromSockets})
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // or os.NewFile does not give it to the netpoller
	}
	if err != nil {
		_ = closeFD(fd)
		return err
	}
	p.fd, p.file = fd, os.NewFile(uintptr(fd), "poller")
	if p.rc, err = p.file.SyscallConn(); err == nil {
		err = p.file.SetReadDeadline(time.Time{}) // fails if the netpoller has not taken it
	}
	if err != nil {
		closing(fd)
		_ = p.file.Close()
	}
	return err
}

func (p *parker) wake() {
	if !p.wakeFD.acquire() {
		return
	}
	defer p.wakeFD.release()
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(p.wakeFD.fd, one[:]) // EAGAIN: it has been woken 2^64 times already
}

func (p *parker) wait(ctx context.Context) error {
	if !p.waiting.TryLock() {
		if p.closed.Load() {
			return os.ErrClosed // close holds it, or a Wait that close is ending
		}
		return fmt.Errorf("poller: another goroutine waits: %w", unix.EBUSY)
	}
	defer p.waiting.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	p.follow(ctx)
	for {
		var until time.Time // it sleeps without a limit
		if p.yield() {
			until = time.Now().Add(policy.LeaseTime)
		}
		if on := until.IsZero(); p.armed != on {
			if err := p.arm(on); err != nil {
				return p.result(ctx, err)
			}
		}
		err := p.sleep(until)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err == nil && !p.gotWake && p.leased(): // the arrivals are for those that poll
		default:
			return p.result(ctx, err)
		}
	}
}

// poll is called when a Poll begins, and again when it ends if it served streams.
func (p *parker) poll() {
	if p.polls.Add(1) >= policy.LeasePolls {
		p.polled.Store(int64(time.Since(epoch)))
	}
}

// leased reports whether goroutines that poll hold the lease.
func (p *parker) leased() bool {
	return policy.Leased(time.Duration(p.polled.Load()), time.Since(epoch))
}

// yield leaves the sockets to the goroutines that hold the lease, and reports whether some do. A
// goroutine that calls endLease at the same time either sees yielding, or is seen by yield.
func (p *parker) yield() bool {
	if !p.leased() {
		p.yielding.Store(false)
		return false
	}
	p.yielding.Store(true)
	if p.leased() {
		return true
	}
	p.yielding.Store(false)
	return false
}

// endLease ends the lease.
func (p *parker) endLease() {
	p.polls.Store(0)
	p.polled.Store(0)
	if p.yielding.Load() && p.yielding.Swap(false) {
		p.wake()
	}
}

func (p *parker) result(ctx context.Context, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if p.closed.Load() {
		return os.ErrClosed // the netpoller has an error of its own for this
	}
	return err
}

// follow makes the end of ctx wake the parker. Calls with the same context share that, so a
// progress loop does not allocate for each Wait.
func (p *parker) follow(ctx context.Context) {
	if ctx.Done() == p.done {
		return
	}
	if p.stop != nil {
		p.stop()
	}
	p.done, p.stop = ctx.Done(), nil
	if p.done != nil {
		p.stop = context.AfterFunc(ctx, p.wake)
	}
}

// arm lets readiness of the sockets through once, or, with false, no more.
func (p *parker) arm(on bool) error {
	p.admit.on = on
	if err := p.rc.Control(p.admit.control); err != nil {
		return err
	}
	p.armed = on && p.admit.err == nil
	return p.admit.err
}

func (p *parker) admitSockets(fd uintptr) {
	if !p.sockets.acquire() {
		p.admit.err = os.ErrClosed
		return
	}
	defer p.sockets.release()
	ev := unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: fromSockets}
	if p.admit.on {
		ev.Events |= unix.EPOLLIN
	}
	p.admit.err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, p.sockets.fd, &ev))
}

// sleep parks until the parker's instance reports something or the deadline passes.
func (p *parker) sleep(deadline time.Time) error {
	p.gotWake, p.gotSockets = false, false
	if p.hasDeadline || !deadline.IsZero() {
		if err := p.file.SetReadDeadline(deadline); err != nil {
			return err
		}
		p.hasDeadline = !deadline.IsZero()
	}
	p.peeked = false
	if err := p.rc.Read(p.peekFunc); err != nil {
		return err
	}
	if p.gotSockets {
		p.armed = false
	}
	if p.gotWake && p.wakeFD.acquire() {
		var count [8]byte
		_, _ = unix.Read(p.wakeFD.fd, count[:])
		p.wakeFD.release()
	}
	return nil
}

// peek takes what the parker's instance reports. A second call means that the netpoller was woken
// because something is ready, which also shows at the sockets and in the next peek. So peek
// does not ask, and the parker stays armed. That saves a goroutine that waits for one arrival after
// another two system calls at each. While others spin, the parker must be disarmed after that.
func (p *parker) peek(fd uintptr) bool {
	p.gotWake, p.gotSockets = false, false
	if p.peeked && !p.yielding.Load() {
		return true
	}
	p.peeked = true
	var events [2]unix.EpollEvent
	n := epollLast(int(fd), events[:])
	for _, ev := range events[:n] {
		p.gotWake = p.gotWake || ev.Fd == fromWake
		p.gotSockets = p.gotSockets || ev.Fd == fromSockets
	}
	return n > 0
}

func (p *parker) close() {
	p.closed.Store(true)
	closing(p.fd)
	_ = p.file.Close() // ends a Wait in progress
	p.waiting.Lock()
	defer p.waiting.Unlock()
	if p.stop != nil {
		p.stop()
	}
	p.wakeFD.close()
}
