//go:build !race

package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// A namespace is the name of a network namespace.
type namespace string

// cmd returns a command that runs in the namespace, with the secret of agents.
func (ns namespace) cmd(cmd *exec.Cmd) *exec.Cmd {
	n := exec.Command("ip", append([]string{"netns", "exec", string(ns)}, cmd.Args...)...)
	n.Env = append(cmd.Environ(), secretVariable+"="+testSecret)
	n.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return n
}

// A network has two network namespaces that an Ethernet joins.
type network struct {
	near, far netip.Prefix // addresses of the interfaces "near" and "far"
	mtu       int
}

// namespaces makes the network, and returns both namespaces: in has interface "near", and out
// "far".
func namespaces(t *testing.T, n network) (in, out namespace) {
	t.Helper()
	testkit.NeedRoot(t, "network namespaces need root")
	a, b := fmt.Sprintf("govs-a%d", os.Getpid()), fmt.Sprintf("govs-b%d", os.Getpid())
	for _, ns := range []string{a, b} {
		ip(t, "netns add "+ns)
		t.Cleanup(func() { ip(t, "netns del "+ns) })
		ip(t, "-n "+ns+" link set lo up")
	}
	ip(t, "-n "+a+" link add near type veth peer name far netns "+b)
	n.up(t, a, "near", n.near)
	n.up(t, b, "far", n.far)
	return namespace(a), namespace(b)
}

// up gives an interface its MTU and address.
func (n *network) up(t *testing.T, ns, dev string, addr netip.Prefix) {
	t.Helper()
	noDAD := "" // duplicate address detection would take a second
	if addr.Addr().Is6() {
		noDAD = " nodad"
	}
	ip(t, fmt.Sprintf("-n %s link set %s mtu %d", ns, dev, n.mtu))
	ip(t, fmt.Sprintf("-n %s addr add %v dev %s%s", ns, addr, dev, noDAD))
	ip(t, fmt.Sprintf("-n %s link set %s up", ns, dev))
}

// networkOnly names the environment variable that makes TestRunNamespaces run other scenarios. They
// must include a message of 1 MiB.
const networkOnly = "GOVS_NETWORK_ONLY"

// TestRunNamespaces runs scenarios between two network namespaces, whose frames are captured at
// either end: over IPv4 and IPv6, and over an Ethernet of 1500 and of 9000 bytes, and of the 1496
// and 1504 that a VLAN's tag leaves or needs. FPDUs are as long as a packet can hold.
func TestRunNamespaces(t *testing.T) {
	vmtest.NeedPackages(t, "guest")
	const few = "send/one-mib,write/one-mib,read/one-mib,protection/write-beyond-end,mpa/request-markers"
	four := network{netip.MustParsePrefix("198.51.100.1/24"),
		netip.MustParsePrefix("198.51.100.2/24"), 1500}
	six := network{netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("2001:db8::2/64"), 1500}
	withMTU := func(mtu int) network { return network{four.near, four.far, mtu} }
	for _, c := range []struct {
		name string
		network
		only string
	}{
		{"IPv4", four, few + ",order/fence,order/mixed-both-ways,conn/reject,conn/no-listener,conn/shutdown," +
			"protection/read-no-right,memory/iova,rdmap/response-second-to"},
		{"jumbo", withMTU(9000), few},
		{"within a tag", withMTU(1496), "write/one-mib,protection/write-beyond-end"},
		{"with a tag", withMTU(1504), "write/one-mib,protection/write-beyond-end"},
		{"IPv6", six, few + ",conn/reject,rdmap/response-second-to"},
	} {
		t.Run(c.name, func(t *testing.T) {
			runNamespaces(t, c.network, cmp.Or(os.Getenv(networkOnly), c.only))
		})
	}
}

func runNamespaces(t *testing.T, n network, only string) {
	in, out := namespaces(t, n)
	listen := netip.AddrPortFrom(n.far.Addr(), 0).String()
	agent, addr := startAgent(t, out.cmd(self(t, "agent", "--listen", listen, "--provider", "engine")))
	dir := t.TempDir()
	startCmd(t, in.cmd(self(t, "run", "--peer", addr, "--no-tshark", "--report", dir, "--scale", "2", "--only",
		only))).want(t, exitPassed, "the suite passed")
	longest := 0
	for _, r := range readReport(t, filepath.Join(dir, "report.json")).Results {
		if !strings.Contains(r.Initiator+r.Responder, conformance.AtPeer) {
			continue
		}
		if r.CaptureSource != "wire" || r.Capture == "" ||
			r.CaptureAtPeer == "" && r.Scenario != "conn/no-listener" {
			t.Errorf("%s %s->%s: captured %q (%s) and there %q", r.Scenario, r.Initiator, r.Responder,
				r.Capture, r.CaptureSource, r.CaptureAtPeer)
			continue
		}
		if r.Kind == "verbs" { // the scripted peer is free in this
			longest = max(longest, longestFPDU(t, filepath.Join(dir, r.Capture), r.Port))
		}
	}
	if longest > n.mtu || longest < n.mtu-100 {
		t.Errorf("the longest FPDU has %d bytes, over an MTU of %d", longest, n.mtu)
	}
	testkit.OK(t, agent.cmd.Process.Signal(os.Interrupt))
	agent.want(t, exitPassed, "captures: wire")
}

// longestFPDU returns the length of the longest FPDU of a run, in bytes.
func longestFPDU(t *testing.T, file string, port uint16) int {
	t.Helper()
	longest := 0
	for _, conn := range testkit.Must(wire.ReadFile(file, port))(t).Conns {
		for i := range conn.Frames {
			if f := &conn.Frames[i]; f.Kind == wire.KindFPDU {
				longest = max(longest, len(f.Octets))
			}
		}
	}
	return longest
}
