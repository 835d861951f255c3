package bridge

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/govs-rdma/govs/ibverbs"
)

// SysfsFiles maps names to contents of files that stand for those in sysfs and /dev. Names are
// relative to their folder.
type SysfsFiles map[string]string

// Sysfs returns the files that programs read for the device, which they know as name; "" means
// siw0. They correspond to the kernel's files for a siw device in /sys/class that libibverbs,
// librdmacm, libfabric, UCX and perftest read.
func Sysfs(vctx *ibverbs.Context, name string) (SysfsFiles, error) {
	if name == "" {
		name = defaultDevice
	}
	a, err := vctx.Query()
	if err != nil {
		return nil, err
	}
	port, err := vctx.QueryPort(1)
	if err != nil {
		return nil, err
	}
	gid, err := vctx.QueryGID(1, 0)
	if err != nil {
		return nil, err
	}
	dev, verbs := "class/infiniband/"+name, "class/infiniband_verbs/uverbs0"
	return SysfsFiles{
		dev + "/node_guid":      guid(a.NodeGUID),
		dev + "/sys_image_guid": guid(a.SysImageGUID),
		dev + "/node_type":      "4: RNIC",
		dev + "/node_desc":      "Software iWARP stack",
		dev + "/fw_ver":         a.FWVer,
		dev + "/device/infiniband_verbs/uverbs0/dev": fmt.Sprintf("%d:%d", uverbsMajor,
			uverbsMinor),
		dev + "/ports/1/state": fmt.Sprintf("%d: %s", port.State,
			portStates[uint8(port.State)]),
		dev + "/ports/1/phys_state": fmt.Sprintf("%d: %s", port.PhysState,
			physStates[port.PhysState]),
		dev + "/ports/1/cap_mask":       fmt.Sprintf("0x%08x", port.PortCapFlags|siwPortCaps),
		dev + "/ports/1/lid":            "0x0",
		dev + "/ports/1/lid_mask_count": "0",
		dev + "/ports/1/sm_lid":         "0x0",
		dev + "/ports/1/sm_sl":          "0",
		dev + "/ports/1/rate":           rate(port.ActiveWidth, port.ActiveSpeed),
		dev + "/ports/1/link_layer":     "Ethernet",
		dev + "/ports/1/gids/0":         formatGID(gid),
		verbs + "/abi_version":          "1",
		verbs + "/dev": fmt.Sprintf("%d:%d", uverbsMajor,
			uverbsMinor),
		verbs + "/ibdev":                     name,
		"class/infiniband_verbs/abi_version": "6",
		"class/misc/rdma_cm/abi_version":     fmt.Sprint(cmABI),
		"class/misc/rdma_cm/dev":             fmt.Sprintf("%d:%d", cmMajor, cmMinor),
		"dev/infiniband/uverbs0":             "",
		"dev/infiniband/rdma_cm":             "",
	}, nil
}

// Digest returns a name that depends on the contents of the files.
func (f SysfsFiles) Digest() string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(f)) {
		fmt.Fprintf(h, "%s\x00%s\x00", name, f[name])
	}
	return fmt.Sprintf("%x", h.Sum(nil)[:8])
}

// Write writes the files below dir, unless they exist. Others may write and read them at the same
// time, because each file appears complete.
func (f SysfsFiles) Write(dir string) error {
	for name, content := range f {
		path := filepath.Join(dir, filepath.FromSlash(name))
		want := content + "\n"
		if there, err := os.ReadFile(path); err == nil && string(there) == want {
			continue
		}
		if err := writeWhole(path, want); err != nil {
			return err
		}
	}
	return nil
}

func writeWhole(path, content string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	part, err := os.CreateTemp(filepath.Dir(filepath.Dir(path)), ".part-*")
	if err != nil {
		return err
	}
	_, err = part.WriteString(content)
	err = errors.Join(err, part.Chmod(0o444), part.Close())
	if err == nil {
		err = os.Rename(part.Name(), path)
	}
	if err != nil {
		_ = os.Remove(part.Name())
	}
	return err
}

func guid(v uint64) string {
	return fmt.Sprintf("%04x:%04x:%04x:%04x", v>>48, v>>32&0xffff, v>>16&0xffff, v&0xffff)
}

func formatGID(gid [16]byte) string {
	s := ""
	for i := 0; i < len(gid); i += 2 {
		s += fmt.Sprintf(":%04x", binary.BigEndian.Uint16(gid[i:]))
	}
	return s[1:]
}

var portStates = map[uint8]string{0: "NOP", 1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE",
	5: "ACTIVE_DEFER"}

var physStates = map[uint8]string{1: "Sleep", 2: "Polling", 3: "Disabled",
	4: "PortConfigurationTraining", 5: "LinkUp"}

// rate returns the text of sysfs for the speed of a port, as the kernel's rate_show does.
func rate(width, speed uint8) string {
	width, speed = linkSpeed(width, speed)
	lanes := map[uint8]int{1: 1, 2: 4, 4: 8, 8: 12, 16: 2}[width]
	s, ok := portSpeeds[speed]
	if !ok {
		s = portSpeeds[1]
	}
	tenths := max(lanes, 1) * s.tenths
	point := ""
	if tenths%10 != 0 {
		point = fmt.Sprintf(".%d", tenths%10)
	}
	return fmt.Sprintf("%d%s Gb/sec (%dX %s)", tenths/10, point, max(lanes, 1), s.name)
}

// portSpeeds maps enum ib_port_speed to the speed of one lane, in tenths of Gbit/s.
var portSpeeds = map[uint8]struct {
	name   string
	tenths int
}{1: {"SDR", 25}, 2: {"DDR", 50}, 4: {"QDR", 100}, 8: {"FDR10", 100}, 16: {"FDR", 140},
	32: {"EDR", 250}, 64: {"HDR", 500}}
