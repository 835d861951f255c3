//go:build !race

package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// What a bad Ethernet does to the frames of each direction.
const (
	badDelay   = 5 * time.Millisecond
	badLost    = 0.01 // of all frames
	badDoubled = 0.01
	badEarly   = 0.05 // are not delayed, and come before others
	badQueue   = 1000 // frames under way; those beyond are lost
)

// A badEthernet joins two network namespaces by an interface "bad" in each. The frames between them
// go through this process, which loses, doubles and reorders some of them, as the kernel's
// netem does. Kernels of virtual machines often lack netem; TAP devices are everywhere.
type badEthernet struct {
	lost, doubled, early atomic.Int64
}

// newBadEthernet begins to carry frames, until the test ends.
func newBadEthernet(t *testing.T, in, out namespace, n network, seed uint64) *badEthernet {
	t.Helper()
	e := &badEthernet{}
	near, far := tap(t, in), tap(t, out)
	var carrying sync.WaitGroup
	carrying.Go(func() { e.carry(near, far, rand.New(rand.NewPCG(seed, 0))) })
	carrying.Go(func() { e.carry(far, near, rand.New(rand.NewPCG(seed, 1))) })
	t.Cleanup(func() {
		testkit.OK(t, errors.Join(near.Close(), far.Close()))
		carrying.Wait()
	})
	n.up(t, string(in), "bad", n.near)
	n.up(t, string(out), "bad", n.far)
	return e
}

// tap makes the interface "bad" in a namespace. Reading the file returns the frames that the
// namespace sends there, and writing sends frames to the namespace.
func tap(t *testing.T, ns namespace) *os.File {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) && os.Getenv("REQUIRE_SIW") != "1" {
			t.Skip("there is no /dev/net/tun")
		}
		t.Fatalf("opening /dev/net/tun: %v", err)
	}
	name := string(ns) // unique on the host, where the interface is at first
	ifr := testkit.Must(unix.NewIfreq(name))(t)
	ifr.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		_ = unix.Close(fd)
		t.Fatalf("making the TAP interface %s: %v", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { _ = f.Close() }) // it may be closed already
	ip(t, fmt.Sprintf("link set %s netns %s name bad", name, ns))
	return f
}

// carry carries the frames of one direction until a file is closed.
func (e *badEthernet) carry(from, to *os.File, random *rand.Rand) {
	type late struct {
		frame []byte
		due   time.Time
	}
	queue := make(chan late, badQueue)
	var delivering sync.WaitGroup
	defer delivering.Wait()
	defer close(queue)
	delivering.Go(func() {
		for l := range queue {
			time.Sleep(time.Until(l.due))
			_, _ = to.Write(l.frame) // an interface that is down accepts none
		}
	})
	send := func(frame []byte) {
		if random.Float64() < badEarly {
			e.early.Add(1)
			_, _ = to.Write(frame)
			return
		}
		select {
		case queue <- late{frame, time.Now().Add(badDelay)}:
		default:
			e.lost.Add(1)
		}
	}
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		if err != nil {
			return
		}
		if random.Float64() < badLost {
			e.lost.Add(1)
			continue
		}
		frame := bytes.Clone(buf[:n])
		send(frame)
		if random.Float64() < badDoubled {
			e.doubled.Add(1)
			send(frame)
		}
	}
}

// lossOnly names the environment variable that makes TestRunPeerLoss run other scenarios.
const lossOnly = "GOVS_LOSS_ONLY"

// TestRunPeerLoss runs scenarios between two network namespaces over an Ethernet that loses,
// doubles and reorders frames. TCP repairs all of that, and the layers above must not notice,
// however late and in whatever pieces their bytes come. The control connection is not under test,
// so it has its own network.
func TestRunPeerLoss(t *testing.T) {
	vmtest.NeedPackages(t, "guest")
	only := os.Getenv(lossOnly)
	limit := 5 * time.Minute
	if only != "" {
		limit = time.Hour
	}
	in, out := namespaces(t, network{netip.MustParsePrefix("198.51.100.1/24"),
		netip.MustParsePrefix("198.51.100.2/24"), 1500})
	seed := rand.Uint64()
	bad := newBadEthernet(t, in, out, network{netip.MustParsePrefix("203.0.113.1/24"),
		netip.MustParsePrefix("203.0.113.2/24"), 1500}, seed)
	agent, addr := startAgent(t, out.cmd(self(t, "agent", "--listen", "198.51.100.2:0", "--addr", "203.0.113.2",
		"--interface", "bad", "--provider", "engine", "--scale", "4")))
	run := startCmd(t, in.cmd(self(t, "run", "--peer", addr, "--addr", "203.0.113.1", "--no-tshark",
		"--scale", "4", "--verbose", "--only", cmp.Or(only, "send/one-mib,write/one-mib,read/one-mib,"+
			"order/fence,conn/reject,conn/many-at-once,protection/write-beyond-end"))))
	select {
	case <-run.done:
	case <-time.After(limit):
	}
	run.want(t, exitPassed, "captures from the wire", "engine->engine@peer engine@peer->engine", "the suite passed")
	if !t.Failed() { // then it has been printed
		t.Logf("%s", run.stdout.String())
	}
	testkit.OK(t, agent.cmd.Process.Signal(os.Interrupt))
	agent.want(t, exitPassed)
	t.Logf("of the frames %d were lost, %d doubled, %d early (seed %d)", bad.lost.Load(), bad.doubled.Load(),
		bad.early.Load(), seed)
	if bad.lost.Load() == 0 || bad.doubled.Load() == 0 || bad.early.Load() == 0 {
		t.Error("the Ethernet was good")
	}
}
