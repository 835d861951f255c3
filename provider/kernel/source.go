//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// source is a file descriptor of a C library that becomes readable when events arrive. Goroutines
// wait on it through Go's network poller.
//
// One goroutine at a time reads; it has the turn. The poller would queue the others, but a
// goroutine in that queue cannot be cancelled.
type source struct {
	f    *os.File
	raw  syscall.RawConn
	turn chan struct{} // full while a goroutine has the turn
}

// newSource makes fd non-blocking and duplicates it. C keeps its own descriptor, which is then
// non-blocking too, because both share the flag.
func newSource(fd int, name string) (*source, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, err
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(dup), name)
	// For descriptors that the poller does not support, os.NewFile uses blocking calls without
	// reporting an error.
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		return nil, errors.Join(fmt.Errorf("%s can't be polled: %w", name, err), f.Close())
	}
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &source{f: f, raw: raw, turn: make(chan struct{}, 1)}, nil
}

// wait calls try, with the turn, now and whenever there may be something to read, until try returns
// true or an error. It returns nil early when wake has something, which it takes. It returns
// ctx.Err() when ctx is done, and os.ErrClosed when life is done: the life of the waiting object.
// Several objects may use one source.
func (s *source) wait(ctx, life context.Context, wake <-chan struct{}, try func() (bool, error)) error {
	// Events that are already there need no wait.
	select {
	case s.turn <- struct{}{}:
		done, err := false, life.Err()
		if err == nil {
			done, err = try()
		} else {
			err = os.ErrClosed
		}
		<-s.turn
		if done || err != nil {
			return err
		}
	default:
	}

	either, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(life, cancel)()

	select {
	case s.turn <- struct{}{}:
	case <-wake:
		return nil
	case <-either.Done():
		return whyDone(ctx, life)
	}
	defer func() { <-s.turn }()
	return s.read(either, func() error { return whyDone(ctx, life) }, try)
}

// read waits in the poller. The caller has the turn.
func (s *source) read(ctx context.Context, why func() error, try func() (bool, error)) error {
	expired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = s.f.SetReadDeadline(time.Unix(1, 0))
		close(expired)
	})
	defer func() {
		if !stop() {
			<-expired
			_ = s.f.SetReadDeadline(time.Time{})
		}
	}()
	var tryErr error
	err := s.raw.Read(func(uintptr) bool {
		var done bool
		done, tryErr = try()
		return done || tryErr != nil
	})
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return why()
	case err != nil:
		return err
	}
	return tryErr
}

func whyDone(ctx, life context.Context) error {
	if life.Err() != nil {
		return os.ErrClosed
	}
	return ctx.Err()
}

// close closes the descriptor once no goroutine has the turn, and keeps the turn. The lives of all
// waiting objects must have ended.
func (s *source) close() {
	s.turn <- struct{}{}
	_ = s.f.Close()
}

// again reports whether err means that a non-blocking descriptor has nothing to read.
func again(err error) bool { return err == syscall.EAGAIN }

// interrupted reports whether a signal interrupted a call. The caller must repeat the call at once
// instead of waiting, because the poller reports each change once.
func interrupted(err error) bool { return err == syscall.EINTR }
