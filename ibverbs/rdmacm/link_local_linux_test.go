package rdmacm_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
)

// TestLinkLocal connects over link-local addresses with zones, in a network namespace that has one.
// A device of the kernel uses its interface's address, in the guest.
func TestLinkLocal(t *testing.T) {
	if onKernel() {
		testLinkLocal(t, linkLocalOf(t, ondevice.Netdev()))
		return
	}
	if os.Getenv("GOVS_LINK_LOCAL") == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLinkLocal$", "-test.v")
		cmd.Env = append(os.Environ(), "GOVS_LINK_LOCAL=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
		if os.Getuid() != 0 {
			cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
			cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		}
		out, err := cmd.CombinedOutput()
		if errors.Is(err, syscall.EPERM) && os.Getuid() != 0 && os.Getenv("REQUIRE_SIW") != "1" {
			t.Skip("this system lets only root make a network namespace")
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	ip(t, "link set lo up")
	ip(t, "address add fe80::7/64 dev lo nodad")
	testLinkLocal(t, netip.MustParseAddr("fe80::7%lo"))
}
