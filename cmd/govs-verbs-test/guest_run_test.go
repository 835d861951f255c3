//go:build !race

package main

import (
	"encoding/json"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestWithKernelDevice makes the subcommands find, make, use and delete kernel devices. Each
// command that lists devices is a new process: librdmacm keeps the devices open that it has
// listed, and the deletion of a siw link waits until they are closed.
func TestWithKernelDevice(t *testing.T) {
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	t.Run("devices", listDevices)
	t.Run("devices -v", devicesAsDevinfo)
	t.Run("link", changeLinks)
	t.Run("run", runOverKernel)
	t.Run("devices that can't be used", unusableDevices)
}

func listDevices(t *testing.T) {
	process(t, words("devices"), exitPassed, parts("govs0   engine", "siw0    kernel", "  d0  "), parts("auto takes kernel: siw0 is usable: a QP was made on it"))
	p := process(t, words("devices --json --provider kernel"), exitPassed, nil, nil)
	var rows []deviceRow
	if err := json.Unmarshal([]byte(p.stdout.String()), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 1 || rows[0].Name != "siw0" || rows[0].Netdev != "d0" || rows[0].State != "IBV_PORT_ACTIVE" || rows[0].Attr == nil || rows[0].Attr.MaxSGERd != 1 {
		t.Errorf("devices: %+v", rows)
	}
}

// devicesAsDevinfo: each line of devices -v is a line of ibv_devinfo -v, in the same order, and the
// further lines of ibv_devinfo are known.
func devicesAsDevinfo(t *testing.T) {
	out, err := exec.Command("ibv_devinfo", "-v", "-d", "siw0").Output()
	if err != nil {
		t.Fatal(err)
	}
	ours := process(t, words("devices -v --provider kernel"), exitPassed, nil, nil).stdout.String()
	head, tail, _ := strings.Cut(ours, "\tprovider:")
	if !strings.Contains(tail, "\tkernel\n\tmax_inline_data:\t\t80\n") {
		t.Errorf("at the end: %q", tail)
	}
	at := 0
	var more []string
	theirs := strings.Split(string(out), "\n")
	for _, line := range strings.Split(strings.TrimSuffix(head, "\n"), "\n") {
		if strings.Contains(line, "GID[") {
			continue // ibv_devinfo skips a GID whose lower half is zero
		}
		for ; at < len(theirs) && theirs[at] != line; at++ {
			more = append(more, theirs[at])
		}
		if at == len(theirs) {
			t.Fatalf("not a line of ibv_devinfo's, or not in its order: %q\n%s\n%s", line, ours, out)
		}
		at++
	}
	known := regexp.MustCompile(`ee_|_ee:|rdd|raw_|mcast|max_ah|fmr|odp|SUPPORT|timestamp|core clock|cap_flags_ex|tso|rss|rwq|rx_hash|wq_type|` +
		`pacing|rate_limit|tag matching|lid:|lmc|cap_flags2|vl_num|_cntr|sm_sl|subnet|init_type`)
	for _, line := range more {
		if !known.MatchString(line) {
			t.Errorf("ibv_devinfo has %q and we have not", line)
		}
	}
}

// ip runs ip(8).
func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.Command("ip", words(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

func changeLinks(t *testing.T) {
	ip(t, "link add d7 type dummy")
	start(t, words("link add siw7 --netdev d7")...).want(t, exitPassed, nil, nil)
	start(t, words("link")...).want(t, exitPassed, parts("LINK", "siw0  iw", "siw7  iw", "  d7  "), nil)
	list := start(t, words("link list --json")...)
	list.want(t, exitPassed, nil, nil)
	var rows []linkRow
	if err := json.Unmarshal([]byte(list.stdout.String()), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 2 || rows[0].Name != "siw0" || rows[1].Name != "siw7" || rows[1].Netdev != "d7" || rows[1].Protocol != "iw" || rows[1].Port != 1 {
		t.Errorf("links: %+v", rows)
	}
	start(t, words("link add siw8 --netdev d7")...).want(t, exitUsage, nil, parts("file exists"))
	start(t, words("link add siw8 --netdev d8")...).want(t, exitUsage, nil, parts("no such device"))
	start(t, words("link delete siw7")...).want(t, exitPassed, nil, nil)
	start(t, words("link del siw7")...).want(t, exitUsage, nil, parts("no such device"))
	list = start(t, words("link")...)
	list.want(t, exitPassed, nil, nil)
	if strings.Contains(list.stdout.String(), "siw7") {
		t.Errorf("after the deletion:\n%s", &list.stdout)
	}
	ip(t, "link delete d7")
}

// runOverKernel runs one pairing; ci/suite runs all.
func runOverKernel(t *testing.T) {
	only := "run --require-siw --scale 6 --no-tshark --only " + oneVerbs + "," + oneRaw
	process(t, words(only+" --initiator kernel --responder engine"), exitPassed, parts(
		"pairings kernel->engine\n", "3 PASS: the suite passed",
	), nil)
}

func unusableDevices(t *testing.T) {
	withoutSiw(t)
	overKernel := words("run --initiator kernel")
	t.Cleanup(func() { // other tests use the same guest
		ip(t, "link set d0 up")
		start(t, words("link add siw0 --netdev d0")...).want(t, exitPassed, nil, nil)
		process(t, words("devices"), exitPassed, parts("siw0    kernel"), parts("auto takes kernel: "))
	})
	ip(t, "addr flush dev d0")
	process(t, overKernel, exitUsage, nil, parts("siw0: d0 under it has no address; ip addr add 192.0.2.1/24 dev d0 adds one"))
	ip(t, "addr add "+siwAddr+"/24 dev d0")
	ip(t, "link set d0 down")
	process(t, overKernel, exitUsage, nil, parts("siw0: its port is IBV_PORT_DOWN"))
	process(t, words("devices"), exitPassed, parts("IBV_PORT_DOWN"), parts("auto takes engine: "))

	start(t, words("link delete siw0")...).want(t, exitPassed, nil, nil)
	process(t, overKernel, exitUsage, nil, parts("the kernel has no RDMA device; govs-verbs-test link add siw0 --netdev NETDEV adds one"))
	process(t, words("devices --provider kernel"), exitPassed, parts("DEVICE"), nil)
	start(t, words("link")...).want(t, exitPassed, nil,
		parts("no RDMA links; govs-verbs-test link add siw0 --netdev NETDEV adds one"))
	process(t, append(words("ping --provider kernel"), addrOf(1)), exitUsage, nil, parts("there is no RDMA device"))
}
