//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider"
)

func TestMain(m *testing.M) {
	if os.Getenv(tryOpening) != "" {
		tryToOpen()
		return
	}
	goleak.VerifyTestMain(m)
}

func TestObjectIsClosedOnceAndLast(t *testing.T) {
	var o object
	destroyed := 0
	destroy := func() error { destroyed++; return nil }
	if err := o.hold(); err != nil {
		t.Fatal(err)
	}
	if err := o.close(destroy); err != syscall.EBUSY || destroyed != 0 {
		t.Errorf("with a child: %v, destroyed %d times", err, destroyed)
	}
	o.release()
	if err := o.close(func() error { return syscall.EIO }); err != syscall.EIO {
		t.Errorf("destroy fails: %v", err)
	}
	if err := o.enter(); err != nil {
		t.Errorf("after a failed close: %v", err)
	} else {
		o.leave()
	}
	for range 2 {
		if err := o.close(destroy); err != nil || destroyed != 1 {
			t.Errorf("close: %v, destroyed %d times", err, destroyed)
		}
	}
	if err := o.hold(); err != os.ErrClosed {
		t.Errorf("hold after close: %v", err)
	}
}

func TestHoldAllHoldsAllOrNone(t *testing.T) {
	var a, b object
	if err := b.close(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := holdAll(&a, &b); err != os.ErrClosed {
		t.Errorf("holdAll: %v", err)
	}
	if n := a.children.Load(); n != 0 {
		t.Errorf("%d children left on the first", n)
	}
}

func TestRegistryDoesNotReuseNumbers(t *testing.T) {
	var r registry[string]
	a := r.add("a")
	r.remove(a)
	b := r.add("b")
	if a == b {
		t.Errorf("%d was used again", a)
	}
	if _, ok := r.get(a); ok {
		t.Error("what was removed is still there")
	}
	if v, ok := r.get(b); !ok || v != "b" {
		t.Errorf("get: %q, %v", v, ok)
	}
}

// pipeSource is a source over a pipe, with a try that reads one byte.
func pipeSource(t *testing.T) (src *source, write func(), try func() (bool, error)) {
	t.Helper()
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	src, err := newSource(fds[0], "pipe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
		}
	})
	write = func() {
		if _, err := unix.Write(fds[1], []byte{1}); err != nil {
			t.Error(err)
		}
	}
	try = func() (bool, error) {
		n, err := unix.Read(fds[0], make([]byte, 1))
		if errno, ok := err.(syscall.Errno); ok && again(errno) {
			return false, nil
		}
		return n == 1, err
	}
	return src, write, try
}

func TestSourceWaitsAndIsCancelled(t *testing.T) {
	src, write, try := pipeSource(t)
	life, end := context.WithCancel(context.Background())
	background := context.Background()

	write()
	if err := src.wait(background, life, nil, try); err != nil {
		t.Errorf("something is there: %v", err)
	}
	time.AfterFunc(10*time.Millisecond, write)
	if err := src.wait(background, life, nil, try); err != nil {
		t.Errorf("something comes: %v", err)
	}
	short, cancel := context.WithTimeout(background, 10*time.Millisecond)
	defer cancel()
	if err := src.wait(short, life, nil, try); err != context.DeadlineExceeded {
		t.Errorf("nothing comes: %v", err)
	}
	// The cancelled call leaves nothing that would end the next.
	time.AfterFunc(10*time.Millisecond, write)
	if err := src.wait(background, life, nil, try); err != nil {
		t.Errorf("after one that was cancelled: %v", err)
	}
	if err := src.wait(background, life, nil, func() (bool, error) { return false, syscall.EIO }); err != syscall.EIO {
		t.Errorf("try fails: %v", err)
	}

	// One call has the turn, one waits for the turn, and one is woken from outside.
	wake := make(chan struct{}, 1)
	results := make(chan error, 3)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() { results <- src.wait(background, life, nil, try) })
	}
	time.Sleep(20 * time.Millisecond)
	wake <- struct{}{}
	if err := src.wait(background, life, wake, try); err != nil {
		t.Errorf("woken: %v", err)
	}
	end()
	wg.Wait()
	for range 2 {
		if err := <-results; err != os.ErrClosed {
			t.Errorf("its life is over: %v", err)
		}
	}
	src.close()
	if err := src.wait(background, life, nil, try); err != os.ErrClosed {
		t.Errorf("closed: %v", err)
	}
}

func TestSourceRefusesWhatCantBePolled(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := newSource(int(f.Fd()), "file"); err == nil {
		t.Error("a regular file was taken")
	}
}

func TestReleaseAtLeast(t *testing.T) {
	for _, c := range []struct {
		release string
		want    bool
	}{
		{"6.1.0-56-amd64", false}, {"6.8.0", true}, {"6.12.117+deb12", true}, {"7.0-rc1", true}, {"5.19", false}, {"6", false}, {"", false}, {"x.y", false},
	} {
		if got := releaseAtLeast(c.release, 6, 8); got != c.want {
			t.Errorf("%q: %v", c.release, got)
		}
	}
}

func TestMTUOctets(t *testing.T) {
	for mtu, want := range []int{0, 256, 512, 1024, 2048, 4096, 0} {
		if got := mtuOctets(uint32(mtu)); got != want {
			t.Errorf("enum ibv_mtu %d: %d bytes, want %d", mtu, got, want)
		}
	}
}

func TestMillisRoundUpAndSaturate(t *testing.T) {
	for d, want := range map[time.Duration]int{-1: 0, 0: 0, 1: 1, time.Millisecond: 1, time.Second + 1: 1001, 1 << 62: 1<<31 - 1} {
		if got := millis(d); got != want {
			t.Errorf("%d: %d ms, want %d", d, got, want)
		}
	}
}

// On a host without an RDMA device, the error contains an errno and a remedy.
func TestNoDeviceIsAClearError(t *testing.T) {
	if New().Name() != "kernel" {
		t.Errorf("Name: %s", New().Name())
	}
	dev, err := New().Open("no-such-device")
	if err == nil {
		t.Fatalf("opened %s", dev.Name())
	}
	var e *provider.Error
	if !errors.As(err, &e) || provider.Errno(err) == 0 {
		t.Errorf("%v is no *provider.Error with an errno", err)
	}
	infos, err := New().Devices()
	if err != nil && provider.Errno(err) == 0 {
		t.Errorf("Devices: %v", err)
	}
	t.Logf("Open: %v; Devices: %v, %v", e, infos, err)
}

// Events that no call fetches are limited: the oldest are kept, and the number of later ones is
// reported once. Closing an object drops its events.
func TestAsyncEventsAreBounded(t *testing.T) {
	d := &device{name: "siw0", wake: make(chan struct{}, 1)}
	gone := &qp{}
	for i := range maxEvents + 3 {
		d.pushEvent(provider.AsyncEvent{Type: provider.EventPortErr, Port: uint8(i)})
	}
	for i := range maxEvents {
		if e, err := d.AsyncEvent(t.Context()); err != nil || e.Port != uint8(i) {
			t.Fatalf("event %d is of port %d, %v", i, e.Port, err)
		}
	}
	if !d.hasEvent() {
		t.Error("nothing to tell of what was lost")
	}
	_, err := d.AsyncEvent(t.Context())
	if !errors.Is(err, syscall.ENOBUFS) || !strings.Contains(err.Error(), "3 events lost") {
		t.Errorf("what was lost: %v", err)
	}
	d.pushEvent(provider.AsyncEvent{Type: provider.EventQPFatal, QP: gone})
	d.pushEvent(provider.AsyncEvent{Type: provider.EventPortActive, Port: 1})
	d.forgetEvents(func(e provider.AsyncEvent) bool { return e.QP == provider.QP(gone) })
	if e, err := d.AsyncEvent(t.Context()); err != nil || e.Type != provider.EventPortActive {
		t.Errorf("after the QP's end: %v, %v", e.Type, err)
	}
	if d.hasEvent() {
		t.Error("an event too many")
	}
}

// TestPostWhileAccepting: the peer may send, and the program answer, before rdma_accept has
// returned. PostSend waits for rdma_accept.
func TestPostWhileAccepting(t *testing.T) {
	i := new(id)
	own, foreign := &qp{dev: &device{siw: true}, id: i}, &qp{dev: &device{siw: true}}
	foreign.connector.Store(i)
	for _, q := range []*qp{own, foreign} {
		if _, err := q.PostSend(nil); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("not connected: %v, want EINVAL", err)
		}
		i.mu.Lock() // as Accept
		posted := make(chan error, 1)
		go func() {
			_, err := q.PostSend(nil)
			posted <- err
		}()
		for q.sqMu.TryLock() {
			q.sqMu.Unlock()
			if len(posted) > 0 {
				t.Errorf("PostSend has not waited for the Accept: %v", <-posted)
				i.mu.Unlock()
				return
			}
		}
		q.connected.Store(true)
		i.mu.Unlock()
		if err := <-posted; err != nil {
			t.Errorf("after the Accept: %v", err)
		}
	}
}

// TestStuck: a full send queue stays full if everything in it is unsignalled, and the device
// frees places only when signalled work is reported.
func TestStuck(t *testing.T) {
	// unsignalled, signalled
	u, s := provider.SendWR{}, provider.SendWR{Flags: provider.SendSignaled}
	for _, c := range []struct {
		name     string
		siw, rxe bool
		all      bool
		wrs      []provider.SendWR
		want     bool
	}{
		{"nothing signalled", false, false, false, []provider.SendWR{u, u, u}, true},
		{"one signalled before a full queue", false, false, false, []provider.SendWR{s, u, u, u},
			true},
		{"one signalled in the queue", false, false, false, []provider.SendWR{u, s, u, u}, false},
		{"all signalled", false, false, true, []provider.SendWR{u, u, u}, false},
		{"siw", true, false, false, []provider.SendWR{u, u, u}, false},
		{"rxe", false, true, false, []provider.SendWR{u, u, u}, false},
	} {
		q := &qp{dev: &device{libsiw: c.siw, rxe: c.rxe}}
		q.init = provider.QPInitAttr{SQSigAll: c.all, Cap: provider.QPCap{MaxSendWR: 3}}
		for i := range c.wrs { // one at a time, as long as the queue has room
			q.countSilent(c.wrs[i : i+1])
		}
		if q.stuck() != c.want {
			t.Errorf("%s: stuck %v", c.name, q.stuck())
		}
	}
}
