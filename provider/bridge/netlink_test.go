package bridge

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestNetlink sends the requests with which libibverbs finds the device.
func TestNetlink(t *testing.T) {
	b, _ := newBridge(t, nil)
	ask := func(command, flags uint16, attrs ...abi.NLAttribute) []abi.NLMessage {
		t.Helper()
		request := abi.AppendNL(nil, &abi.NLMessage{Type: abi.NLType(command), Flags: 1 | flags,
			Seq: 7, Attrs: attrs})
		var list []abi.NLMessage
		for _, datagram := range b.Netlink(request, 99) {
			m, h, rest, err := abi.DecodeNL(datagram)
			if err != nil || len(rest) != 0 || h.Seq != 7 || h.PID != 99 {
				t.Fatalf("answer %x: %v, %d bytes after it", datagram, err, len(rest))
			}
			list = append(list, m)
		}
		return list
	}
	want := func(m *abi.NLMessage, attr uint16, value string) {
		t.Helper()
		if a, ok := m.Get(attr); !ok || a.Text() != value {
			t.Errorf("%s: attribute %d is %q, want %q", abi.FormatNL(m), attr, a.Text(), value)
		}
	}
	devices := ask(abi.NLGet, abi.NLFlagDump)
	if len(devices) != 2 || devices[1].Type != abi.NLMsgDone {
		t.Fatalf("the devices are %d messages", len(devices))
	}
	want(&devices[0], abi.NLDevName, "siw0")
	index, _ := devices[0].Get(abi.NLDevIndex)
	chardev := ask(abi.NLGetChardev, 0, index, abi.NLString(abi.NLChardevType, "uverbs"))
	if len(chardev) != 1 {
		t.Fatalf("the file of uverbs is %d messages", len(chardev))
	}
	want(&chardev[0], abi.NLChardevName, "uverbs0")
	if id, _ := chardev[0].Get(abi.NLUverbsDriverID); len(id.Value) != 4 ||
		id.Value[0] != abi.NLDriverSiw {
		t.Errorf("the driver is %x", id.Value)
	}
	for what, got := range map[string][]abi.NLMessage{
		"another device":  ask(abi.NLGet, 0, abi.NLU32(abi.NLDevIndex, 1)),
		"another client":  ask(abi.NLGetChardev, 0, abi.NLString(abi.NLChardevType, "issm")),
		"another command": ask(999, 0),
		"no type":         ask(abi.NLGetChardev, 0),
	} {
		if len(got) != 1 || got[0].Type != abi.NLMsgError {
			t.Errorf("%s: %d answers, want an error", what, len(got))
		}
	}
}

// TestNetlinkGarbled: bytes that are not a message get no answer and have no effect.
func TestNetlinkGarbled(t *testing.T) {
	b, _ := newBridge(t, nil)
	whole := abi.AppendNL(nil, &abi.NLMessage{Type: abi.NLType(abi.NLGet),
		Attrs: []abi.NLAttribute{abi.NLU32(abi.NLDevIndex, 0)}})
	for n := range whole {
		if got := b.Netlink(whole[:n], 1); len(got) != 0 {
			t.Errorf("%d bytes of a message: %d answers", n, len(got))
		}
	}
	if got := b.Netlink(whole, 1); len(got) != 1 {
		t.Errorf("the whole message: %d answers", len(got))
	}
}

// TestSysfs compares the files of sysfs with the answers of the commands.
func TestSysfs(t *testing.T) {
	b, prog := newBridge(t, nil)
	d := openDevice(t, b, prog)
	defer d.close()
	dir := t.TempDir()
	files, err := Sysfs(b.vctx, "")
	if err == nil {
		err = files.Write(dir)
	}
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) string {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(dir, "class/infiniband/siw0", name))
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(content))
	}
	var dev abi.QueryDeviceResp
	d.must(abi.UverbsQueryDevice, &abi.Response{}, nil, &dev, nil)
	digits := strings.ReplaceAll(read("node_guid"), ":", "")
	if got := strings.ToLower(hex(dev.NodeGUID[:])); got != digits {
		t.Errorf("the device's GUID is %s, in sysfs %s", got, digits)
	}
	if dev.VendorID != vendorID || dev.VendorPartID != vendorPartID {
		t.Errorf("the device's vendor is %#x, part %d", dev.VendorID, dev.VendorPartID)
	}
	var port abi.QueryPortResp
	d.must(abi.UverbsQueryPort, &abi.QueryPort{PortNum: 1}, nil, &port, nil)
	if got := read("ports/1/state"); got != "4: ACTIVE" || port.State != 4 {
		t.Errorf("the port's state is %d, in sysfs %s", port.State, got)
	}
	if got := read("ports/1/rate"); got != "2.5 Gb/sec (1X SDR)" || port.ActiveWidth != 1 ||
		port.ActiveSpeed != 1 {
		t.Errorf("the port's width is %d, its speed %d, in sysfs %s", port.ActiveWidth,
			port.ActiveSpeed, got)
	}
	if got := read("ports/1/cap_mask"); got != "0x00090000" || port.PortCapFlags != 0x90000 {
		t.Errorf("the port's capabilities are %#x, in sysfs %s", port.PortCapFlags, got)
	}
	if got := read("node_desc"); got != "Software iWARP stack" {
		t.Errorf("the device's description is %q", got)
	}
	// siw has only one MTU, the interface's.
	if port.MaxMTU != port.ActiveMTU {
		t.Errorf("the port is %s", abi.Format(port))
	}
	d.wantErrno("port 2", syscall.EINVAL, abi.UverbsQueryPort, &abi.QueryPort{PortNum: 2}, nil,
		&port, nil)
}

// TestRate: the kernel's text in sysfs for a width and a speed.
func TestRate(t *testing.T) {
	for _, x := range []struct {
		width, speed uint8
		want         string
	}{
		{0, 0, "2.5 Gb/sec (1X SDR)"},
		{1, 3, "2.5 Gb/sec (1X SDR)"}, // 3 is not a speed
		{2, 1, "10 Gb/sec (4X SDR)"},
		{2, 32, "100 Gb/sec (4X EDR)"},
		{1, 16, "14 Gb/sec (1X FDR)"},
	} {
		if got := rate(x.width, x.speed); got != x.want {
			t.Errorf("width %d, speed %d: %s, want %s", x.width, x.speed, got, x.want)
		}
	}
}

func hex(b []byte) string {
	const digits = "0123456789abcdef"
	s := ""
	for _, x := range b {
		s += string(digits[x>>4]) + string(digits[x&15])
	}
	return s
}
