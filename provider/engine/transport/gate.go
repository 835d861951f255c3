//go:build linux

package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lookAround is how often Wait looks at the sockets while other goroutines keep
// polling them.
const lookAround = time.Millisecond

// gate parks one goroutine until a socket of an epoll instance is ready. It is
// an epoll instance itself, which Go's netpoller watches, and holds the sockets'
// instance with EPOLLONESHOT: only armed does readiness pass through it. A
// goroutine that spins on the sockets' instance thus causes no wake-up as long
// as the gate is not armed, and one that parks costs no OS thread.
//
// What tells the two apart is whether anybody polled while Wait was parked. If
// so Wait does not arm again, but looks at the sockets at intervals, until
// nobody has polled during one of them.
type gate struct {
	sockets *fdRef   // the instance that it holds
	wakeFD  fdRef    // eventfd, in the gate for good
	file    *os.File // the gate's own instance
	rc      syscall.RawConn

	polled  atomic.Bool // somebody called Poll since it was last cleared
	waiting sync.Mutex  // of the one Wait in progress, with all below

	pollersActive bool
	armed         bool
	gotWake       bool // results of the last look through the gate
	gotSockets    bool
	armErr        error
	hasDeadline   bool
	done          <-chan struct{} // of the context that stop belongs to
	stop          func() bool

	look  func(fd uintptr) bool // peek and rearm, bound once so that Wait does not allocate
	admit func(fd uintptr)
}

// The two things that a gate holds, as epoll_event data.
const (
	gateSockets = iota
	gateWake
)

func (g *gate) open(sockets *fdRef) error {
	g.sockets = sockets
	g.look, g.admit = g.peek, g.rearm
	wakeFD, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("eventfd", err)
	}
	g.wakeFD.fd = wakeFD
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		g.wakeFD.close()
		return os.NewSyscallError("epoll_create1", err)
	}
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
		_ = unix.Close(fd)
		return err
	}
	g.file = os.NewFile(uintptr(fd), "poller")
	if g.rc, err = g.file.SyscallConn(); err == nil {
		err = g.file.SetReadDeadline(time.Time{}) // fails if the netpoller has not taken it
	}
	if err != nil {
		_ = g.file.Close()
	}
	return err
}

func (g *gate) notePoll() {
	if !g.polled.Load() { // a load is cheaper than a store when many spin
		g.polled.Store(true)
	}
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
		return fmt.Errorf("poller: another goroutine waits: %w", unix.EBUSY)
	}
	defer g.waiting.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	g.follow(ctx)
	for g.pollersActive {
		g.polled.Store(false)
		err := g.sleep(time.Now().Add(lookAround))
		g.pollersActive = g.polled.Load()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return g.result(ctx, err)
		}
		if g.socketsReady() {
			return nil
		}
	}
	if err := g.arm(); err != nil {
		return g.result(ctx, err)
	}
	g.polled.Store(false)
	err := g.sleep(time.Time{})
	g.pollersActive = g.polled.Load()
	return g.result(ctx, err)
}

func (g *gate) result(ctx context.Context, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil {
		return ctxErr
	}
	if errors.Is(err, os.ErrClosed) {
		return os.ErrClosed
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

// arm lets readiness of the sockets through, once.
func (g *gate) arm() error {
	if g.armed {
		return nil
	}
	if err := g.rc.Control(g.admit); err != nil {
		return err
	}
	g.armed = g.armErr == nil
	return g.armErr
}

func (g *gate) rearm(fd uintptr) {
	if !g.sockets.acquire() {
		g.armErr = os.ErrClosed
		return
	}
	defer g.sockets.release()
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLONESHOT, Fd: gateSockets}
	g.armErr = os.NewSyscallError("epoll_ctl", unix.EpollCtl(int(fd), unix.EPOLL_CTL_MOD, g.sockets.fd, &ev))
}

// sleep parks until something came through the gate or the deadline passes.
func (g *gate) sleep(deadline time.Time) error {
	if g.hasDeadline || !deadline.IsZero() {
		if err := g.file.SetReadDeadline(deadline); err != nil {
			return err
		}
		g.hasDeadline = !deadline.IsZero()
	}
	if err := g.rc.Read(g.look); err != nil {
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

// peek takes from the gate what came through.
func (g *gate) peek(fd uintptr) bool {
	var events [2]unix.EpollEvent
	n, _ := epollNow(int(fd), events[:])
	g.gotWake, g.gotSockets = false, false
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
	n, _ := epollNow(g.sockets.fd, events[:])
	return n > 0
}

func (g *gate) close() {
	_ = g.file.Close() // ends a Wait in progress
	g.waiting.Lock()
	defer g.waiting.Unlock()
	if g.stop != nil {
		g.stop()
	}
	g.wakeFD.close()
}
