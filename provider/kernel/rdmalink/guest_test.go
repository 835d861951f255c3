//go:build linux

package rdmalink

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider"
)

// TestLinks adds, lists and deletes links of siw and of rxe in the guest's kernel.
func TestLinks(t *testing.T) {
	if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{Link: "none", Rxe: true, Last: true})
		return
	}
	rxeLinks(t)
	links, err := List()
	if err != nil || len(links) != 0 {
		t.Fatalf("before anything is added: %+v, %v", links, err)
	}
	makeDummy(t, "d0")

	wantErrno(t, Add("siw0", "siw", "d9"), unix.ENODEV)
	wantErrno(t, Add("siw0", "nosuchtype", "d0"), unix.EINVAL)
	wantErrno(t, Delete("siw0"), unix.ENODEV)
	unprivileged(t, func() { wantErrno(t, Add("siw0", "siw", "d0"), unix.EPERM) })

	if err := Add("siw0", "siw", "d0"); err != nil {
		t.Fatal(err)
	}
	wantSiw0(t)
	wantErrno(t, Add("siw1", "siw", "d0"), unix.EEXIST)
	wantErrno(t, Add("siw0", "siw", "lo"), unix.ENFILE)
	unprivileged(t, func() {
		wantSiw0(t)
		wantErrno(t, Delete("siw0"), unix.EPERM)
	})
	fromAnotherNamespace(t)
	portsOfNoLink(t)

	longest := strings.Repeat("n", deviceNameMax-1)
	if err := Add(longest, "siw", "lo"); err != nil {
		t.Error(err)
	}
	if links, err = List(); err != nil || len(links) != 2 || links[1].Name != longest || links[1].Netdev() != "lo" {
		t.Errorf("with a second link on lo: %+v, %v", links, err)
	}
	for _, name := range []string{longest, "siw0"} {
		if err := Delete(name); err != nil {
			t.Error(err)
		}
	}
	if links, err = List(); err != nil || len(links) != 0 {
		t.Errorf("after all are deleted: %+v, %v", links, err)
	}
	wantErrno(t, Delete("siw0"), unix.ENODEV)
}

// rxeLinks finds the guest's initial link, deletes it, and makes another.
func rxeLinks(t *testing.T) {
	t.Helper()
	want := func(name, netdev string) {
		t.Helper()
		links, err := List()
		if err != nil || len(links) != 1 || len(links[0].Ports) != 1 {
			t.Fatalf("%+v, %v; want one link with one port", links, err)
		}
		link, port := links[0], links[0].Ports[0]
		if link.Name != name || link.NodeType != provider.NodeCA || link.Protocol != "roce" || link.Netdev() != netdev || link.NodeGUID == 0 {
			t.Errorf("%+v", link)
		}
		if port.Num != 1 || port.State != provider.PortActive || port.PhysState != 5 {
			t.Errorf("%+v, want port 1, active", port)
		}
	}
	want("rxe0", "d1")
	wantErrno(t, Add("rxe1", "rxe", "d1"), unix.EEXIST)
	if err := Delete("rxe0"); err != nil {
		t.Fatal(err)
	}
	wantErrno(t, Add("rxe1", "rxe", "d9"), unix.ENODEV)
	if err := Add("rxe1", "rxe", "d1"); err != nil {
		t.Fatal(err)
	}
	want("rxe1", "d1")
	if err := Delete("rxe1"); err != nil {
		t.Error(err)
	}
}

func makeDummy(t *testing.T, name string) {
	t.Helper()
	for _, args := range [][]string{
		{"link", "add", name, "type", "dummy"},
		{"link", "set", name, "up"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v\n%s", args, err, out)
		}
	}
}

func wantErrno(t *testing.T, err error, errno syscall.Errno) {
	t.Helper()
	var call *provider.Error
	if !errors.As(err, &call) || !errors.Is(err, errno) {
		t.Errorf("%v, want a *provider.Error around %v", err, errno)
		return
	}
	t.Log(err)
}

// wantSiw0 compares the list with sysfs and the network stack.
func wantSiw0(t *testing.T) {
	t.Helper()
	links, err := List()
	if err != nil || len(links) != 1 || len(links[0].Ports) != 1 {
		t.Fatalf("%+v, %v; want one link with one port", links, err)
	}
	link, port := links[0], links[0].Ports[0]
	text, err := os.ReadFile("/sys/class/infiniband/siw0/node_guid")
	if err != nil {
		t.Fatal(err)
	}
	g := link.NodeGUID
	guid := fmt.Sprintf("%04x:%04x:%04x:%04x", uint16(g>>48), uint16(g>>32), uint16(g>>16), uint16(g))
	if guid != strings.TrimSpace(string(text)) || g == 0 {
		t.Errorf("node GUID %s, sysfs says %s", guid, text)
	}
	d0, err := net.InterfaceByName("d0")
	if err != nil {
		t.Fatal(err)
	}
	if link.Name != "siw0" || link.NodeType != provider.NodeRNIC || link.Protocol != "iw" || link.Netdev() != "d0" {
		t.Errorf("%+v", link)
	}
	if port.Num != 1 || port.State != provider.PortActive || port.PhysState != 5 || int(port.NetdevIndex) != d0.Index {
		t.Errorf("%+v, want port 1, active, on interface %d", port, d0.Index)
	}
}

// unprivileged calls f on a thread without capabilities. The thread ends with f, so nothing else
// runs there.
func unprivileged(t *testing.T, f func()) {
	t.Helper()
	onOwnThread(func() {
		header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData // 64 bits in two halves
		if err := unix.Capset(&header, &none[0]); err != nil {
			t.Errorf("capset: %v", err)
			return
		}
		f()
	})
}

// fromAnotherNamespace lists the links from a network namespace without d0. The device is visible,
// because RDMA devices are shared. Its interface is not visible, and no link can be made on it.
func fromAnotherNamespace(t *testing.T) {
	t.Helper()
	onOwnThread(func() {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		links, err := List()
		if err != nil || len(links) != 1 || links[0].Name != "siw0" || links[0].Netdev() != "" {
			t.Errorf("in another network namespace: %+v, %v; want siw0 without an interface", links, err)
		}
		wantErrno(t, Add("siw1", "siw", "d0"), unix.ENODEV)
	})
}

// portsOfNoLink checks the answer by which List recognises that a link has been deleted.
func portsOfNoLink(t *testing.T) {
	t.Helper()
	conn, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer hangUp(conn)
	_, err = ports(conn, Link{Index: 0xffff})
	wantErrno(t, err, unix.EINVAL)
}

// onOwnThread runs f on its own thread and waits. f's goroutine stays locked to the thread, so the
// runtime ends the thread with it.
func onOwnThread(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		f()
	}()
	<-done
}
