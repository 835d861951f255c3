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

// gate parks one goroutine until a socket of an epoll instance is ready. It is an epoll instance
// itself, which Go's netpoller watches, and contains the sockets' instance with EPOLLONESHOT, so
// readiness passes through only after arming. While the gate is not armed, a goroutine that spins
// on the sockets' instance therefore causes no wake-up. A parked goroutine holds no OS thread.
//
// While others hold the lease (policy.Leased), Wait does not arm the gate. A goroutine that woke
// for each arrival would take a CPU from them or from the peer, and serve what they would have
// served.
type gate struct {
	sockets *fdRef   // the instance that it contains
	wakeFD  fdRef    // eventfd, in the gate for good
	fd      int      // of file
	file    *os.File // the gate's own instance
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

// The two entries of a gate, as epoll_event data.
const (
	gateSockets = iota
	gateWake
)

func (g *gate) open(sockets *fdRef) error {
	g.sockets = sockets
	g.peekFunc, g.admit.control = g.peek, g.admitSockets
	wakeFD, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	opened(wakeFD)
	g.wakeFD.fd = wakeFD
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		g.wakeFD.close()
		return os.NewSyscallError("epoll_create1", err)
	}
	opened(fd)
	if err := g.populate(fd); err != nil {
		g.wakeFD.close()
		return fmt.Errorf("poller: %w", err)
	}
	return nil
}

// populate fills the epoll instance fd, which it takes over, and gives it to Go's netpoller.
func (g *gate) populate(fd int) error {
	err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, g.wakeFD.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: gateWake})
	if err == nil {
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, g.sockets.fd, &unix.EpollEvent{Events: 0, Fd: gateSockets})
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // or os.NewFile does not give it to the netpoller
	}
	if err != nil {
		_ = closeFD(fd)
		return err
	}
	g.fd, g.file = fd, os.NewFile(uintptr(fd), "poller")
	if g.rc, err = g.file.SyscallConn(); err == nil {
		err = g.file.SetReadDeadline(time.Time{}) // fails if the netpoller has not taken it
	}
	if err != nil {
		closing(fd)
		_ = g.file.Close()
	}
	return err
}

func (g *gate) wake() {
	if !g.wakeFD.acquire() {
		return
	}
	defer g.wakeFD.release()
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, _ = unix.Write(g.wakeFD.fd, one[:]) // EAGAIN: it has been woken 2^64 times already
}

func (g *gate) wait(ctx context.Context) error {
	if !g.waiting.TryLock() {
		if g.closed.Load() {
			return os.ErrClosed // close holds it, or a Wait that close is ending
		}
		return fmt.Errorf("poller: another goroutine waits: %w", unix.EBUSY)
	}
	defer g.waiting.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	g.follow(ctx)
	for {
		var until time.Time // it sleeps without a limit
		if g.yield() {
			until = time.Now().Add(policy.LeaseTime)
		}
		if on := until.IsZero(); g.armed != on {
			if err := g.arm(on); err != nil {
				return g.result(ctx, err)
			}
		}
		err := g.sleep(until)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
		case err == nil && !g.gotWake && g.leased(): // the arrivals are for those that poll
		default:
			return g.result(ctx, err)
		}
	}
}

// poll is called when a Poll begins, and again when it ends if it served streams.
func (g *gate) poll() {
	if g.polls.Add(1) >= policy.LeasePolls {
		g.polled.Store(int64(time.Since(epoch)))
	}
}

// leased reports whether goroutines that poll hold the lease.
func (g *gate) leased() bool {
	return policy.Leased(time.Duration(g.polled.Load()), time.Since(epoch))
}

// yield leaves the sockets to the goroutines that hold the lease, and reports whether some do. A
// goroutine that calls endLease at the same time either sees yielding, or is seen by yield.
func (g *gate) yield() bool {
	if !g.leased() {
		g.yielding.Store(false)
		return false
	}
	g.yielding.Store(true)
	if g.leased() {
		return true
	}
	g.yielding.Store(false)
	return false
}

// endLease ends the lease.
func (g *gate) endLease() {
	g.polls.Store(0)
	g.polled.Store(0)
	if g.yielding.Load() && g.yielding.Swap(false) {
		g.wake()
	}
}

func (g *gate) result(ctx context.Context, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if g.closed.Load() {
		return os.ErrClosed // the netpoller has an error of its own for this
	}
	return err
}

// follow makes the end of ctx wake the gate. Calls with the same context share that, so a progress
// loop does not allocate for each Wait.
func (g *gate) follow(ctx context.Context) {
	if ctx.Done() == g.done {
		return
	}
	if g.stop != nil {
		g.stop()
	}
	g.done, g.stop = ctx.Done(), nil
	if g.done != nil {
		g.stop = context.AfterFunc(ctx, g.wake)
	}
}

// arm lets readiness of the sockets through once, or, with false, no more.
func (g *gate) arm(on bool) error {
	g.admit.on = on
	if err := g.rc.Control(g.admit.control); err != nil {
		return err
	}
	g.armed = on && g.admit.err == nil
	return g.admit.err
}

func (g *gate) admitSockets(fd uintptr) {
	if !g.sockets.acquire() {
		g.admit.err = os.ErrClosed
		return
	}
	defer g.sockets.release()
	ev := unix.EpollEvent{Events: unix.EPOLLONESHOT, Fd: gateSockets}
	if g.admit.on {
		ev.Events |= unix.EPOLLIN
	}
	g.admit.err = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, g.sockets.fd, &ev))
}

// sleep parks until something came through the gate or the deadline passes.
func (g *gate) sleep(deadline time.Time) error {
	g.gotWake, g.gotSockets = false, false
	if g.hasDeadline || !deadline.IsZero() {
		if err := g.file.SetReadDeadline(deadline); err != nil {
			return err
		}
		g.hasDeadline = !deadline.IsZero()
	}
	g.peeked = false
	if err := g.rc.Read(g.peekFunc); err != nil {
		return err
	}
	if g.gotSockets {
		g.armed = false
	}
	if g.gotWake && g.wakeFD.acquire() {
		var count [8]byte
		_, _ = unix.Read(g.wakeFD.fd, count[:])
		g.wakeFD.release()
	}
	return nil
}

// peek takes from the gate what came through. A second call means that the netpoller was woken
// because something came through, which also shows at the sockets and in the next peek. So peek
// does not ask, and the gate stays armed. That saves a goroutine that waits for one arrival after
// another two system calls at each. While others spin, the gate must be shut after something came
// through.
func (g *gate) peek(fd uintptr) bool {
	g.gotWake, g.gotSockets = false, false
	if g.peeked && !g.yielding.Load() {
		return true
	}
	g.peeked = true
	var events [2]unix.EpollEvent
	n := epollLast(int(fd), events[:])
	for _, ev := range events[:n] {
		g.gotWake = g.gotWake || ev.Fd == gateWake
		g.gotSockets = g.gotSockets || ev.Fd == gateSockets
	}
	return n > 0
}

func (g *gate) close() {
	g.closed.Store(true)
	closing(g.fd)
	_ = g.file.Close() // ends a Wait in progress
	g.waiting.Lock()
	defer g.waiting.Unlock()
	if g.stop != nil {
		g.stop()
	}
	g.wakeFD.close()
}
