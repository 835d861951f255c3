// Package provider is the contract between the public verbs API (package ibverbs) and its
// implementations: the engine (iWARP in Go over TCP) and the kernel (libibverbs and librdmacm). It
// holds value types, interfaces and errors. Its only logic prints and classifies them. It imports
// the standard library only.
//
// Enumerations have the numeric values of libibverbs and librdmacm, so the kernel provider passes
// them through. Their String methods return the C names, so people can search for them.
//
// # Rules that hold for every implementation
//
// Every method may be called concurrently with every other, even with Close of the same object,
// unless its comment says otherwise. After Close, methods return an [*Error] that wraps
// [os.ErrClosed]; Close itself is idempotent. Closing an object that others still depend on fails
// with EBUSY and changes nothing. Methods that wait take a context and hold no OS thread while they
// wait.
//
// A failed call returns an [*Error], which unwraps to the errno of the C call with the same name. A
// feature that a provider does not offer is an [*UnsupportedError]. A completion's status is data,
// not an error of Poll. A protocol fault, of the peer or found by the peer, is a [*TerminateError].
package provider

import "context"

// A Provider lists and opens devices.
type Provider interface {
	// Name returns a short stable name: "engine" or "kernel".
	Name() string

	// Devices lists the devices that can be opened (ibv_get_device_list).
	Devices() ([]DeviceInfo, error)

	// Open opens a device by name, or the first device if name is empty (ibv_open_device). It
	// returns ENODEV if there is no such device.
	Open(name string) (Device, error)
}

// DeviceInfo describes a device that is not open (struct ibv_device).
type DeviceInfo struct {
	Name      string
	Provider  string // Provider.Name of the provider that lists it
	NodeType  NodeType
	Transport TransportType
	NodeGUID  uint64 // host order
	Netdev    string // the network interface underneath, empty if none or unknown
}

// A Device is an open device (struct ibv_context).
//
// AsyncEvent waits for an event; each event goes to one caller, and Close wakes all callers. Events
// are kept, up to a bound, until they are fetched. Events beyond the bound are counted, and one
// call returns ENOBUFS with their number. Closing an object drops its events.
type Device interface {
	Name() string
	Transport() TransportType                           // ibv_device.transport_type; it never changes
	Query() (DeviceAttr, error)                         // ibv_query_device
	QueryPort(port uint8) (PortAttr, error)             // ibv_query_port; ports count from 1
	QueryGID(port uint8, index int) (GID, error)        // ibv_query_gid
	QueryGIDTable() ([]GIDEntry, error)                 // ibv_query_gid_table: the valid entries of all ports
	QueryPkey(port uint8, index int) (uint16, error)    // ibv_query_pkey, in host order; iWARP has no P_Keys
	AllocPD() (PD, error)                               // ibv_alloc_pd
	CreateCompChannel() (CompChannel, error)            // ibv_create_comp_channel
	CreateCQ(init CQInitAttr) (CQ, error)               // ibv_create_cq
	CreateEventChannel() (EventChannel, error)          // rdma_create_event_channel
	AsyncEvent(ctx context.Context) (AsyncEvent, error) // ibv_get_async_event, acknowledged before it returns
	Close() error                                       // ibv_close_device
}

// GID is a global identifier in network order (union ibv_gid). On iWARP its
// first six bytes are the interface's MAC address.
type GID [16]byte

// GIDEntry is a valid entry of a GID table (struct ibv_gid_entry).
type GIDEntry struct {
	GID     GID
	Index   int
	Port    uint32
	Type    GIDType
	Ifindex uint32 // of the network interface underneath, 0 for none
}

// DeviceAttr holds a device's limits and capabilities (struct ibv_device_attr, without the fields
// for InfiniBand's datagrams and multicast). A limit of zero means that the device does not have
// that kind of object.
type DeviceAttr struct {
	FWVer           string
	NodeGUID        uint64
	SysImageGUID    uint64
	MaxMRSize       uint64 // bytes
	PageSizeCap     uint64 // bit n set: pages of 2^n bytes
	VendorID        uint32
	VendorPartID    uint32
	HWVer           uint32
	MaxQP           int
	MaxQPWR         int // work requests outstanding on one queue
	DeviceCapFlags  DeviceCap
	MaxSGE          int // scatter/gather entries per WR other than RDMA Read
	MaxSGERd        int // scatter/gather entries per RDMA Read
	MaxCQ           int
	MaxCQE          int
	MaxMR           int
	MaxPD           int
	MaxQPRdAtom     int // RDMA Reads and atomics inbound on one QP (IRD)
	MaxResRdAtom    int // the same for the whole device
	MaxQPInitRdAtom int // RDMA Reads and atomics outbound on one QP (ORD)
	AtomicCap       AtomicCap
	MaxMW           int
	MaxSRQ          int
	MaxSRQWR        int
	MaxSRQSGE       int
	PhysPortCnt     uint8
	MaxInline       int // bytes; not in ibv_device_attr, 0 if unknown
	LocalCAAckDelay uint8
	MaxPkeys        uint16
	NumCompVectors  int // ibv_context.num_comp_vectors: CQInitAttr.CompVector is below it
}

// PortAttr describes a port (struct ibv_port_attr).
type PortAttr struct {
	State        PortState
	MaxMTU       int // bytes
	ActiveMTU    int // bytes
	GIDTblLen    int
	PortCapFlags uint32
	MaxMsgSz     uint32 // bytes
	PkeyTblLen   uint16
	LinkLayer    uint8 // 1 InfiniBand, 2 Ethernet
	PhysState    uint8 // 5 LinkUp
	ActiveWidth  uint8 // lanes: 1 for 1, 2 for 4, 4 for 8, 8 for 12, 16 for 2; 0 if the port has no lanes
	ActiveSpeed  uint8 // per lane: 1 for 2.5 Gbit/s, higher values as in enum ib_port_speed; 0 as above
}

// AsyncEvent reports something that happened to an object outside of any call (struct
// ibv_async_event). Exactly one of the fields beside Type names the object.
type AsyncEvent struct {
	Type AsyncEventType
	QP   QP
	CQ   CQ
	SRQ  SRQ
	Port uint8
}
