package provider

import (
	"fmt"
	"strings"
)

// GIDType is a kind of GID (enum ibv_gid_type). A GID of iWARP has the first of them.
type GIDType uint32

// Kinds of GIDs.
const (
	GIDTypeIB     GIDType = 0
	GIDTypeRoCEv1 GIDType = 1
	GIDTypeRoCEv2 GIDType = 2
)

var gidTypeNames = []string{"IBV_GID_TYPE_IB", "IBV_GID_TYPE_ROCE_V1", "IBV_GID_TYPE_ROCE_V2"}

// String returns the C name.
func (t GIDType) String() string { return name(gidTypeNames, int(t), "ibv_gid_type") }

// AtomicCap is the scope in which atomic operations are atomic (enum ibv_atomic_cap).
type AtomicCap int

// Degrees of atomicity.
const (
	AtomicNone AtomicCap = 0 // there are no atomic operations
	AtomicHCA  AtomicCap = 1 // among the operations of one device
	AtomicGlob AtomicCap = 2 // among those and the CPU's
)

var atomicCapNames = []string{"IBV_ATOMIC_NONE", "IBV_ATOMIC_HCA", "IBV_ATOMIC_GLOB"}

// String returns the C name.
func (c AtomicCap) String() string { return name(atomicCapNames, int(c), "ibv_atomic_cap") }

// DeviceCap is a set of optional capabilities of a device (enum ibv_device_cap_flags).
type DeviceCap uint64

// Capabilities of a device.
const (
	DeviceResizeMaxWR         DeviceCap = 1 << 0
	DeviceBadPkeyCntr         DeviceCap = 1 << 1
	DeviceBadQkeyCntr         DeviceCap = 1 << 2
	DeviceRawMulti            DeviceCap = 1 << 3
	DeviceAutoPathMig         DeviceCap = 1 << 4
	DeviceChangePhyPort       DeviceCap = 1 << 5
	DeviceUDAVPortEnforce     DeviceCap = 1 << 6
	DeviceCurrQPStateMod      DeviceCap = 1 << 7 // Modify checks QPAttrCurState
	DeviceShutdownPort        DeviceCap = 1 << 8
	DeviceInitType            DeviceCap = 1 << 9
	DevicePortActiveEvent     DeviceCap = 1 << 10 // EventPortActive is raised
	DeviceSysImageGUID        DeviceCap = 1 << 11
	DeviceRCRNRNakGen         DeviceCap = 1 << 12
	DeviceSRQResize           DeviceCap = 1 << 13
	DeviceNNotifyCQ           DeviceCap = 1 << 14
	DeviceMemWindow           DeviceCap = 1 << 17
	DeviceUDIPCsum            DeviceCap = 1 << 18
	DeviceXRC                 DeviceCap = 1 << 20
	DeviceMemMgtExtensions    DeviceCap = 1 << 21 // local invalidate, Send with Invalidate, registration by work request
	DeviceMemWindowType2A     DeviceCap = 1 << 23
	DeviceMemWindowType2B     DeviceCap = 1 << 24
	DeviceRCIPCsum            DeviceCap = 1 << 25
	DeviceRawIPCsum           DeviceCap = 1 << 26
	DeviceManagedFlowSteering DeviceCap = 1 << 29
)

var deviceCapNames = map[int]string{
	0: "RESIZE_MAX_WR", 1: "BAD_PKEY_CNTR", 2: "BAD_QKEY_CNTR", 3: "RAW_MULTI", 4: "AUTO_PATH_MIG", 5: "CHANGE_PHY_PORT",
	6: "UD_AV_PORT_ENFORCE", 7: "CURR_QP_STATE_MOD", 8: "SHUTDOWN_PORT", 9: "INIT_TYPE", 10: "PORT_ACTIVE_EVENT", 11: "SYS_IMAGE_GUID",
	12: "RC_RNR_NAK_GEN", 13: "SRQ_RESIZE", 14: "N_NOTIFY_CQ", 17: "MEM_WINDOW", 18: "UD_IP_CSUM", 20: "XRC", 21: "MEM_MGT_EXTENSIONS",
	23: "MEM_WINDOW_TYPE_2A", 24: "MEM_WINDOW_TYPE_2B", 25: "RC_IP_CSUM", 26: "RAW_IP_CSUM", 29: "MANAGED_FLOW_STEERING",
}

// Names returns the names of the capabilities, lowest bit first: the C names without IBV_DEVICE_,
// and a number for a bit without a name.
func (c DeviceCap) Names() []string {
	var names []string
	for bit := range 64 {
		if c&(1<<bit) == 0 {
			continue
		}
		if n, ok := deviceCapNames[bit]; ok {
			names = append(names, n)
		} else {
			names = append(names, fmt.Sprintf("%#x", uint64(1)<<bit))
		}
	}
	return names
}

// String returns the C names, joined by "|"; "0" for none.
func (c DeviceCap) String() string {
	names := c.Names()
	if len(names) == 0 {
		return "0"
	}
	for i, n := range names {
		if n[0] != '0' {
			names[i] = "IBV_DEVICE_" + n
		}
	}
	return strings.Join(names, "|")
}
