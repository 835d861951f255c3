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

// gate parks one goroutine until a socket of an epoll instance is ready. It is
// an epoll instance itself, which Go's netpoller watches, and holds the sockets'
// instance with EPOLLONESHOT: only armed does readiness pass through it. A
// goroutine that spins on the sockets' instance thus causes no wake-up as long
// as the gate is not armed, and one that parks costs no OS thread.
//
// While others spin, Wait does not arm the gate, until they stop or one of them
// calls attend, but looks at the sockets now and then, unless they do. A goroutine
// that woke for each arrival would take a CPU from them or from the peer, and serve
// what they would have served.
type gate struct {
	sockets *fdRef   // the instance that it holds
	wakeFD  fdRef    // eventfd, in the gate for good
	fd      int      // of file
	file    *os.File // the gate's own instance
	rc      syscall.RawConn

	closed   atomic.Bool
	polls    atomic.Uint32              // calls of Poll so far
	served   atomic.Uint32              // streams that they have served so far, policy.Round each at most
	work     atomic.Uint32              // what else Spin and Poll have counted so far
	attends  atomic.Uint32              // calls of Attend so far
	yielding atomic.Bool                // Wait leaves the sockets to goroutines that poll
	waiting  sched.Mutex[locks.Waiting] // of the one Wait in progress, with all below

	counted     counted // by spinning
	quietSince  time.Time
	armed       bool
	looked      bool // peek has been called since sleep began
	gotWake     bool // results of the last look through the gate
	gotSockets  bool
	hasDeadline bool
	done        <-chan struct{} // of the context that stop belongs to
	stop        func() bool

	look  func(fd uintptr) bool // peek, bound once so that Wait does not allocate
	admit struct {              // of arm
		control func(fd uintptr) // admitSockets, bound likewise
		on      bool
		err     error
	}
}

// The two things that a gate holds, as epoll_event data.
const (
	gateSockets = iota
	gateWake
)

func (g *gate) open(sockets *fdRef) error {
	g.sockets = sockets
	g.look, g.admit.control = g.peek, g.admitSockets
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

// populate fills the epoll instance fd, which it takes over, and gives it to
// Go's netpoller.
func (g *gate) populate(fd int) error {
	err := unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, g.wakeFD.fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: gateWake})
	if err == nil {
		err = unix.EpollCtl(fd, unix.EPOLL_CTL_ADD, g.sockets.fd, &unix.EpollEvent{Events: 0, Fd: gateSockets})
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // or else os.NewFile does not give it to the netpoller
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
			return os.ErrClosed // close has it, or a Wait that close is ending
		}
		return fmt.Errorf("poller: another goroutine waits: %w", unix.EBUSY)
	}
	defer g.waiting.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	g.follow(ctx)
	if !g.yielding.Load() && g.spinning() {
		if err := g.yield(g.counted.attends); err != nil {
			return g.result(ctx, err)
		}
	}
	for g.yielding.Load() {
		spins, err := g.sleep(time.Now().Add(policy.LookEvery))
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return g.result(ctx, err)
		}
		if g.spinning() {
			continue
		}
		if spins < policy.SpinsAwake {
			g.yielding.Store(false)
		}
		if g.socketsReady() {
			return g.result(ctx, nil)
		}
	}
	if !g.armed {
		if err := g.arm(true); err != nil {
			return g.result(ctx, err)
		}
	}
	attends := g.attends.Load()
	spins, err := g.sleep(time.Time{})
	if spins >= policy.SpinsParked || spins > 0 && !g.socketsReady() {
		err = errors.Join(err, g.yield(attends))
	}
	return g.result(ctx, err)
}

// yield leaves the sockets to goroutines that poll, unless one of them has called attend since
// there were so many calls: that one has not seen that the sockets are left to it.
func (g *gate) yield(attends uint32) error {
	g.yielding.Store(true)
	if g.attends.Load() != attends {
		g.yielding.Store(false)
		return nil
	}
	if g.armed { // what comes from now on is for goroutines that spin
		return g.arm(false)
	}
	return nil
}

// counted is what others have done so far.
type counted struct {
	polls, served, work, attends uint32
	at                           time.Time
}

// A program that has much to do makes few polls: each moves 1 MiB, or it answers 64 messages after
// each. It spins, too, if no goroutine has called attend for policy.Quiet, and each
// policy.LookEvery has enough polls and pieces of work: polls, octets that they have moved, and
// completions that were taken. Were there fewer polls, streams would wait that the program does not
// read itself. But policy.ServedPerPoll streams that a poll has served count as another poll: where
// 1,000 connections are busy, each poll serves policy.Round of them and the program answers as
// many, so that four do not fit into a millisecond. One such poll is not enough. Where N streams
// are ready all the time, each waits for N/policy.Round polls. There are two in a millisecond at
// least.

// spinning reports whether others have spun since the count began, as programs do that have much to
// do. Then the next count begins, as it does after policy.LookEvery and after a call of attend.
func (g *gate) spinning() bool {
	now := counted{g.polls.Load(), g.served.Load(), g.work.Load(), g.attends.Load(), time.Now()}
	last := &g.counted
	if now.attends != last.attends {
		*last, g.quietSince = now, now.at
		return false
	}
	long := now.at.Sub(last.at)
	times := uint64(max(long/policy.LookEvery, 1))
	polls := uint64(now.polls-last.polls) + uint64(now.served-last.served)/policy.ServedPerPoll
	spins := now.at.Sub(g.quietSince) > policy.Quiet && polls >= policy.PollsLeast*times &&
		polls+uint64(now.work-last.work) >= policy.WorkLeast*times
	if spins || long >= policy.LookEvery {
		*last = now
	}
	return spins
}

// count counts what a poll has done: it has served so many streams, with so many octets. Those of
// the queue come in addition to policy.Round, and some of them turn out not to be ready.
func (g *gate) count(served, spent int) {
	g.served.Add(uint32(min(served, policy.Round)))
	if spent >= policy.SpinOctets {
		g.work.Add(uint32(spent / policy.SpinOctets))
	}
}

// attend ends the yielding. The count is for a Wait that is about to begin with
// it: that one sees the count if attend does not see it yielding.
func (g *gate) attend() {
	g.attends.Add(1)
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

// follow makes the end of ctx wake the gate. Calls with the same context share
// that, so that a progress loop does not allocate for each Wait.
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

// arm lets readiness of the sockets through, once, or with false no more.
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

// sleep parks until something came through the gate or the deadline passes, and
// counts the polls of others meanwhile.
func (g *gate) sleep(deadline time.Time) (spins uint32, err error) {
	if g.hasDeadline || !deadline.IsZero() {
		if err := g.file.SetReadDeadline(deadline); err != nil {
			return 0, err
		}
		g.hasDeadline = !deadline.IsZero()
	}
	before := g.polls.Load()
	g.looked = false
	if err := g.rc.Read(g.look); err != nil {
		return g.polls.Load() - before, err
	}
	if g.gotSockets {
		g.armed = false
	}
	if g.gotWake && g.wakeFD.acquire() {
		var count [8]byte
		_, _ = unix.Read(g.wakeFD.fd, count[:])
		g.wakeFD.release()
	}
	return g.polls.Load() - before, nil
}

// peek takes from the gate what came through. When it is called once more, the
// netpoller has been woken because something did: what that is shows at the sockets as
// well, and in the next peek. So the gate stays armed, too, which spares a goroutine that
// waits for one arrival after another two system calls at each. While others spin, the
// gate has to be shut after what came through.
func (g *gate) peek(fd uintptr) bool {
	g.gotWake, g.gotSockets = false, false
	if g.looked && !g.yielding.Load() {
		return true
	}
	g.looked = true
	var events [2]unix.EpollEvent
	n := epollLast(int(fd), events[:])
	for _, ev := range events[:n] {
		g.gotWake = g.gotWake || ev.Fd == gateWake
		g.gotSockets = g.gotSockets || ev.Fd == gateSockets
	}
	return n > 0
}

func (g *gate) socketsReady() bool {
	if !g.sockets.acquire() {
		return true // closed: arm says so
	}
	defer g.sockets.release()
	var events [1]unix.EpollEvent
	n := epollNow(g.sockets.fd, events[:])
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
