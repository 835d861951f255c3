package engine

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"go.uber.org/goleak"
)

// children are the second processes of tests that have two, by the environment variable that has
// this binary run one instead of the tests. Each is called with the variable's value.
var children = map[string]func(t *testing.T, value string){}

func TestMain(m *testing.M) {
	for name, run := range children {
		if value := os.Getenv(name); value != "" {
			runChild(func(t *testing.T) { run(t, value) })
		}
	}
	goleak.VerifyTestMain(m)
}

// runChild runs one child as the only test, and ends the process with its status.
func runChild(run func(t *testing.T)) {
	all := func(_, _ string) (bool, error) { return true, nil }
	testing.Main(all, []testing.InternalTest{{Name: "child", F: func(t *testing.T) {
		defer goleak.VerifyNone(t)
		run(t)
	}}}, nil, nil)
}

// noNetwork is a network whose pollers never have anything, for tests of
// objects that need no wire. It has nothing else: using it panics.
type noNetwork struct{ transport.Network }

func (noNetwork) NewPoller() (transport.Poller, error) {
	return &noPoller{wake: make(chan struct{}, 1), done: make(chan struct{})}, nil
}

type noPoller struct {
	transport.Poller
	wake chan struct{}
	done chan struct{}
	once sync.Once
}

func (p *noPoller) Poll() int { return 0 }

func (p *noPoller) Serve() int { return 0 }

func (p *noPoller) Spin(int) {}

func (p *noPoller) BeforeSleep() {}

func (p *noPoller) Wake() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *noPoller) Wait(ctx context.Context) error {
	select {
	case <-p.wake:
		return nil
	case <-p.done:
		return os.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *noPoller) Close() error {
	p.once.Do(func() { close(p.done) })
	return nil
}

// wantErr fails the test unless err is a *provider.Error with want in it.
func wantErr(t testing.TB, err, want error) {
	t.Helper()
	var perr *provider.Error
	if !errors.As(err, &perr) || !errors.Is(err, want) {
		t.Fatalf("error %v, want a *provider.Error with %v", err, want)
	}
}

// errOf is the error of a call that returns something beside it.
func errOf[T any](_ T, err error) error { return err }

// unwired opens a device on noNetwork and closes it when the test ends.
func unwired(t testing.TB) *device {
	t.Helper()
	d := testkit.Must(New(&Options{Network: noNetwork{}}).Open(""))(t).(*device)
	t.Cleanup(func() { testkit.OK(t, d.Close()) })
	return d
}
