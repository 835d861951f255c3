package main

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// inside runs a command in a network namespace.
type inside func(*exec.Cmd) *exec.Cmd

// A network is two network namespaces that are joined by an Ethernet.
type network struct {
	near, far netip.Prefix // addresses of the interfaces "near" and "far"
	mtu       int
}

// namespaces makes the network, and returns what runs a command in either namespace: in where
// interface "near" is, out where "far" is.
func namespaces(t *testing.T, n network) (in, out inside) {
	t.Helper()
	if os.Getuid() != 0 {
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.Fatal("network namespaces need root")
		}
		t.Skip("network namespaces need root")
	}
	a, b := fmt.Sprintf("govs-a%d", os.Getpid()), fmt.Sprintf("govs-b%d", os.Getpid())
	noDAD := "" // duplicate address detection would take a second
	if n.near.Addr().Is6() {
		noDAD = " nodad"
	}
	for _, line := range []string{
		"netns add " + a, "netns add " + b,
		"-n " + a + " link add near type veth peer name far netns " + b,
		fmt.Sprintf("-n %s link set near mtu %d", a, n.mtu), fmt.Sprintf("-n %s link set far mtu %d", b, n.mtu),
		"-n " + a + " addr add " + n.near.String() + " dev near" + noDAD,
		"-n " + b + " addr add " + n.far.String() + " dev far" + noDAD,
		"-n " + a + " link set near up", "-n " + b + " link set far up",
		"-n " + a + " link set lo up", "-n " + b + " link set lo up",
	} {
		args := strings.Fields(line)
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v\n%s", line, err, out)
		}
		if args[0] == "netns" {
			t.Cleanup(func() { testkit.OK(t, exec.Command("ip", "netns", "del", args[2]).Run()) })
		}
	}
	of := func(ns string) inside {
		return func(cmd *exec.Cmd) *exec.Cmd {
			n := exec.Command("ip", append([]string{"netns", "exec", ns}, cmd.Args...)...)
			n.Env, n.SysProcAttr = append(cmd.Environ(), secretVariable+"="+testSecret), &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			return n
		}
	}
	return of(a), of(b)
}

// TestRunNamespaces runs scenarios between two network namespaces, whose frames are captured at
// either end: over IPv4 and IPv6, and over an Ethernet of 1500 and of 9000 octets. FPDUs are as long
// as fits one packet.
func TestRunNamespaces(t *testing.T) {
	vmtest.NeedPackages(t, "guest")
	const few = "send/one-mib,write/one-mib,read/one-mib,protection/write-beyond-end,mpa/request-markers"
	four := network{netip.MustParsePrefix("198.51.100.1/24"), netip.MustParsePrefix("198.51.100.2/24"), 1500}
	six := network{netip.MustParsePrefix("2001:db8::1/64"), netip.MustParsePrefix("2001:db8::2/64"), 1500}
	jumbo := network{four.near, four.far, 9000}
	for _, c := range []struct {
		name string
		network
		only string
	}{
		{"IPv4", four, few + ",order/fence,order/mixed-both-ways,conn/reject,conn/no-listener,conn/shutdown," +
			"protection/read-no-right,memory/iova,rdmap/response-second-to"},
		{"jumbo", jumbo, few},
		{"IPv6", six, few + ",conn/reject,rdmap/response-second-to"},
	} {
		t.Run(c.name, func(t *testing.T) { runNamespaces(t, c.network, c.only) })
	}
}

func runNamespaces(t *testing.T, n network, only string) {
	in, out := namespaces(t, n)
	listen := netip.AddrPortFrom(n.far.Addr(), 0).String()
	agent, addr := startAgent(t, out(self(t, "agent", "--listen", listen, "--provider", "engine")))
	dir := t.TempDir()
	startCmd(t, in(plain(t, "run", "--peer", addr, "--no-tshark", "--report", dir, "--scale", "2", "--only",
		only))).want(t, exitPassed, "the suite passed")
	longest := 0
	for _, r := range readReport(t, filepath.Join(dir, "report.json")).Results {
		if !strings.Contains(r.Initiator+r.Responder, conformance.AtPeer) {
			continue
		}
		if r.CaptureSource != "wire" || r.Capture == "" || r.CaptureAtPeer == "" && r.Scenario != "conn/no-listener" {
			t.Errorf("%s %s->%s: captured %q (%s) and there %q", r.Scenario, r.Initiator, r.Responder, r.Capture,
				r.CaptureSource, r.CaptureAtPeer)
			continue
		}
		if r.Kind == "verbs" { // the scripted peer does as it likes
			longest = max(longest, longestFPDU(t, filepath.Join(dir, r.Capture), r.Port))
		}
	}
	if longest > n.mtu || longest < n.mtu-100 {
		t.Errorf("the longest FPDU has %d octets, over an MTU of %d", longest, n.mtu)
	}
	testkit.OK(t, agent.cmd.Process.Signal(os.Interrupt))
	agent.want(t, exitPassed, "captures: wire")
}

// longestFPDU is the length of the longest FPDU of a run, in octets.
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

// lossOnly is the environment variable that has TestRunPeerLoss run other scenarios than its own.
const lossOnly = "GOVS_LOSS_ONLY"

// badNetwork is what netem does to each direction: the times are those of one way.
const badNetwork = "delay 5ms loss 1% duplicate 1% reorder 5%"

// TestRunPeerLoss runs scenarios between two network namespaces that lose, double and reorder
// packets. It is in the guest for the sake of the kernel's sch_netem. TCP repairs all of that, and
// the layers above it must not notice, however late and in whatever pieces their octets come.
func TestRunPeerLoss(t *testing.T) {
	only := os.Getenv(lossOnly)
	o := vmtest.Options{}
	if only != "" {
		o.Env, o.Timeout = []string{lossOnly + "=" + only}, time.Hour
	}
	if !inGuest(t, o) {
		return
	}
	limit := patience
	if only == "" {
		only = "read/one-mib,order/fence,conn/reject,protection/write-beyond-end"
	} else {
		limit = time.Hour
	}
	in, out := namespaces(t, network{netip.MustParsePrefix("198.51.100.1/24"),
		netip.MustParsePrefix("198.51.100.2/24"), 1500})
	for dev, at := range map[string]inside{"near": in, "far": out} {
		args := strings.Fields("qdisc add dev " + dev + " root netem " + badNetwork)
		if text, err := at(exec.Command("tc", args...)).CombinedOutput(); err != nil {
			t.Fatalf("tc %s: %v\n%s", strings.Join(args, " "), err, text)
		}
	}
	agent, addr := startAgent(t, out(self(t, "agent", "--listen", "198.51.100.2:0", "--provider", "engine",
		"--scale", "10")))
	run := startCmd(t, in(self(t, "run", "--peer", addr, "--no-tshark", "--scale", "10", "--verbose", "--only", only)))
	select {
	case <-run.done:
	case <-time.After(limit):
	}
	run.want(t, exitPassed, "engine->engine@peer engine@peer->engine", "the suite passed")
	t.Logf("%s", run.stdout.String())
	testkit.OK(t, agent.cmd.Process.Signal(os.Interrupt))
	agent.want(t, exitPassed)
	lost := 0
	for dev, at := range map[string]inside{"near": in, "far": out} {
		text := string(testkit.Must(at(exec.Command("tc", "-s", "qdisc", "show", "dev", dev)).Output())(t))
		m := regexp.MustCompile(`dropped (\d+)`).FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("tc -s: %s", text)
		}
		lost += testkit.Must(strconv.Atoi(m[1]))(t)
	}
	if lost == 0 {
		t.Error("no packet was lost")
	}
	t.Logf("%d packets were lost", lost)
}
