package object

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// named returns an object that is open under parents.
func named(t *testing.T, name string, parents ...*Object) *Object {
	t.Helper()
	o := new(Object)
	o.Describe(KindContext, name)
	if err := o.Open("make_"+name, parents...); err != nil {
		t.Fatal(err)
	}
	return o
}

func nothing() error { return nil }

// A Close that comes while the object is moved waits, so that neither parent
// ends up with a child that is gone.
func TestCloseDuringMove(t *testing.T) {
	from, to := named(t, "from"), named(t, "to")
	o := named(t, "child", from)
	closed := make(chan error, 1)
	err := o.Move("move", from, to, func() error {
		go func() { closed <- o.Close(nothing) }()
		select {
		case <-closed:
			t.Error("closed while it was moved")
		case <-time.After(20 * time.Millisecond):
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := <-closed; err != nil {
		t.Error(err)
	}
	for _, parent := range []*Object{from, to} {
		if err := parent.Close(nothing); err != nil {
			t.Errorf("%s: %v", parent.Name(), err)
		}
	}
	if err := o.Move("move", from, to, nothing); !errors.Is(err, os.ErrClosed) {
		t.Errorf("moving a closed object: %v", err)
	}
}

// A move that fails leaves everything as it was.
func TestFailedMove(t *testing.T) {
	from, to := named(t, "from"), named(t, "to")
	o := named(t, "child", from)
	no := errors.New("no")
	if err := o.Move("move", from, to, func() error { return no }); err != no {
		t.Errorf("got %v, want the error of the work itself", err)
	}
	if err := to.Close(nothing); err != nil {
		t.Errorf("the parent that it did not come to: %v", err)
	}
	if err := o.Move("move", from, to, nothing); !errors.Is(err, os.ErrClosed) {
		t.Errorf("to a closed parent: %v", err)
	}
	if err := from.Close(nothing); err == nil {
		t.Error("the old parent closed before its child")
	}
	for _, x := range []*Object{o, from} {
		if err := x.Close(nothing); err != nil {
			t.Errorf("%s: %v", x.Name(), err)
		}
	}
}

// A retired object whose close fails with its last child is not lost: Close of the context says
// why it fails, and tries again.
func TestRetiredCloseFails(t *testing.T) {
	root := new(Object)
	root.Describe(KindContext, "root")
	root.Root()
	parent := named(t, "parent", root)
	parent.List(parent)
	child := named(t, "child", parent)
	busy := errors.New("busy")
	failures := 2
	err := parent.Retire(func() error {
		if failures > 0 {
			failures--
			return busy
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := root.Close(nothing); err == nil || errors.Is(err, busy) || failures < 2 {
		t.Errorf("the context is closed before the child: %v", err)
	}
	if err := child.Close(nothing); err != nil {
		t.Error(err)
	}
	if err := root.Close(nothing); !errors.Is(err, busy) {
		t.Errorf("the context's close while the object can't be closed: %v", err)
	}
	if err := root.Close(nothing); err != nil || !parent.Closed() {
		t.Errorf("the last close: %v", err)
	}
}

// TestBecause: the errno is the last word, once, and the first that is found.
func TestBecause(t *testing.T) {
	inner := fmt.Errorf("the peer is gone: %w (%w)", syscall.EPIPE, io.EOF)
	err := Because(inner, syscall.ECONNRESET)
	if want := inner.Error() + ": connection reset by peer"; err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
	if provider.Errno(err) != syscall.ECONNRESET || !errors.Is(err, syscall.EPIPE) || !errors.Is(err, io.EOF) {
		t.Errorf("%v wraps errno %d first, or not all errors", err, provider.Errno(err))
	}
	twice := Because(fmt.Errorf("TCP broke: %w", syscall.ECONNRESET), syscall.ECONNRESET)
	if want := "TCP broke: connection reset by peer"; twice.Error() != want {
		t.Errorf("got %q, want %q", twice, want)
	}
}
