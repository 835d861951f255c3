//go:build cgo && linux && !nokernel

package kernel

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider"
)

// TestSiwRemoval: a program whose siw device is removed gets an event of the connection manager for
// each id. No asynchronous event reports the removal, not even IBV_EVENT_DEVICE_FATAL, and the
// removal waits until the program ends (kernel-notes/siw-link-delete.md).
func TestSiwRemoval(t *testing.T) {
	if os.Getenv("GOVS_REMOVED") != "" {
		beRemoved(t)
		return
	}
	if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{Last: true})
		return
	}
	// This process must not open a device, or the removal would wait for it too.
	child := exec.Command(os.Args[0], "-test.run=^TestSiwRemoval$", "-test.v")
	child.Env = append(os.Environ(), "GOVS_REMOVED=1")
	stdin := testkit.Must(child.StdinPipe())(t)
	stdout := testkit.Must(child.StdoutPipe())(t)
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string
	lines := bufio.NewScanner(stdout)
	until := func(word string) {
		t.Helper()
		for lines.Scan() {
			said = append(said, lines.Text())
			if lines.Text() == word {
				return
			}
		}
		_ = child.Wait()
		t.Fatalf("the program ended without %q:\n%s", word, strings.Join(said, "\n"))
	}
	until("open")
	removed := make(chan error, 1)
	go func() {
		out, err := exec.Command("rdma", "link", "delete", "siw0").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("rdma link delete: %w: %s", err, out)
		}
		removed <- err
	}()
	until(provider.CMDeviceRemoval.String())
	select {
	case err := <-removed:
		t.Errorf("the removal is through while the program is there: %v", err)
		removed <- err
	default:
	}
	closeAll(t, stdin)
	for lines.Scan() {
		said = append(said, lines.Text())
	}
	if err := child.Wait(); err != nil || !slices.ContainsFunc(said, func(s string) bool { return strings.HasPrefix(s, "--- PASS: ") }) {
		t.Errorf("the program: %v\n%s", err, strings.Join(said, "\n"))
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
}

// beRemoved is the program. It makes objects of each kind and closes them at the end.
func beRemoved(t *testing.T) {
	s := newSide(t)
	l := s.listen()
	events, stop := context.WithCancel(context.Background())
	asked := make(chan struct{})
	go func() {
		defer close(asked)
		for {
			ev, err := s.dev.AsyncEvent(events)
			if err != nil {
				return
			}
			t.Errorf("an asynchronous event: %s", ev.Type)
		}
	}()
	fmt.Println("open")
	ctx, cancel := context.WithTimeout(events, 2*time.Minute)
	defer cancel()
	ev := testkit.Must(s.ec.Next(ctx))(t)
	if ev.Type != provider.CMDeviceRemoval || ev.ID != l {
		t.Errorf("%s of %v, want the removal of the listener", ev.Type, ev.ID)
	}
	fmt.Println(provider.CMDeviceRemoval)
	_, _ = io.ReadAll(os.Stdin)
	stop()
	<-asked
	closeAll(t, l)
}
