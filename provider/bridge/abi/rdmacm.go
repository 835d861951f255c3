package abi

// Numbers of the commands that a program writes to /dev/infiniband/rdma_cm (RDMA_USER_CM_CMD_*).
const (
	CMCreateID     = 0
	CMDestroyID    = 1
	CMBindIP       = 2
	CMResolveIP    = 3
	CMResolveRoute = 4
	CMQueryRoute   = 5
	CMConnect      = 6
	CMListen       = 7
	CMAccept       = 8
	CMReject       = 9
	CMDisconnect   = 10
	CMInitQPAttr   = 11
	CMGetEvent     = 12
	CMGetOption    = 13
	CMSetOption    = 14
	CMNotify       = 15
	CMJoinIPMcast  = 16
	CMLeaveMcast   = 17
	CMMigrateID    = 18
	CMQuery        = 19
	CMBind         = 20
	CMResolveAddr  = 21
	CMJoinMcast    = 22
)

// Port spaces of CreateID (enum rdma_ucm_port_space).
const (
	PortSpaceIPoIB = 0x0002
	PortSpaceIB    = 0x013F
	PortSpaceTCP   = 0x0106
	PortSpaceUDP   = 0x0111
)

// Options of Query.
const (
	QueryAddr = 0
	QueryPath = 1
	QueryGID  = 2
)

// Levels and names of SetOption.
const (
	OptionID           = 0 // level
	OptionIB           = 1 // level
	OptionIDTOS        = 0
	OptionIDReuseaddr  = 1
	OptionIDAfonly     = 2
	OptionIDAckTimeout = 3
	OptionIBPath       = 1
)

// MaxPrivateData is RDMA_MAX_PRIVATE_DATA.
const MaxPrivateData = 256

// CMHeader begins every command (rdma_ucm_cmd_hdr). In and Out count bytes after the header.
type CMHeader struct {
	Cmd uint32 `c:"cmd"`
	In  uint16 `c:"in"`
	Out uint16 `c:"out"`
}

// CreateID is rdma_ucm_create_id.
type CreateID struct {
	UID      uint64 `c:"uid"`
	Response uint64 `c:"response"`
	PS       uint16 `c:"ps"`
	QPType   uint8  `c:"qp_type"`
	_        [5]uint8
}

// CreateIDResp is rdma_ucm_create_id_resp.
type CreateIDResp struct {
	ID uint32 `c:"id"`
}

// DestroyID is rdma_ucm_destroy_id. The answer is a DestroyResp.
type DestroyID struct {
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	_        uint32
}

// BindIP is rdma_ucm_bind_ip.
type BindIP struct {
	Response uint64   `c:"response"`
	Addr     Sockaddr `c:"addr"`
	ID       uint32   `c:"id"`
}

// Bind is rdma_ucm_bind.
type Bind struct {
	ID       uint32          `c:"id"`
	AddrSize uint16          `c:"addr_size"`
	Reserved uint16          `c:"reserved"` // 0
	Addr     SockaddrStorage `c:"addr"`
}

// ResolveIP is rdma_ucm_resolve_ip.
type ResolveIP struct {
	SrcAddr   Sockaddr `c:"src_addr"`
	DstAddr   Sockaddr `c:"dst_addr"`
	ID        uint32   `c:"id"`
	TimeoutMS uint32   `c:"timeout_ms"`
}

// ResolveAddr is rdma_ucm_resolve_addr.
type ResolveAddr struct {
	ID        uint32          `c:"id"`
	TimeoutMS uint32          `c:"timeout_ms"`
	SrcSize   uint16          `c:"src_size"`
	DstSize   uint16          `c:"dst_size"`
	Reserved  uint32          `c:"reserved"` // 0
	SrcAddr   SockaddrStorage `c:"src_addr"`
	DstAddr   SockaddrStorage `c:"dst_addr"`
}

// ResolveRoute is rdma_ucm_resolve_route.
type ResolveRoute struct {
	ID        uint32 `c:"id"`
	TimeoutMS uint32 `c:"timeout_ms"`
}

// Query is rdma_ucm_query, the request of QUERY_ROUTE and of QUERY.
type Query struct {
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	Option   uint32 `c:"option"`
}

// PathRec is ib_user_path_rec. For iWARP the kernel fills in only DGID and SGID.
type PathRec struct {
	DGID              [16]uint8 `c:"dgid"`
	SGID              [16]uint8 `c:"sgid"`
	DLID              [2]uint8  `c:"dlid"` // big-endian
	SLID              [2]uint8  `c:"slid"` // big-endian
	RawTraffic        uint32    `c:"raw_traffic"`
	FlowLabel         [4]uint8  `c:"flow_label"` // big-endian
	Reversible        uint32    `c:"reversible"`
	MTU               uint32    `c:"mtu"`
	Pkey              [2]uint8  `c:"pkey"` // big-endian
	HopLimit          uint8     `c:"hop_limit"`
	TrafficClass      uint8     `c:"traffic_class"`
	NumbPath          uint8     `c:"numb_path"`
	SL                uint8     `c:"sl"`
	MTUSelector       uint8     `c:"mtu_selector"`
	RateSelector      uint8     `c:"rate_selector"`
	Rate              uint8     `c:"rate"`
	PacketLifeTimeSel uint8     `c:"packet_life_time_selector"`
	PacketLifeTime    uint8     `c:"packet_life_time"`
	Preference        uint8     `c:"preference"`
}

// QueryRouteResp is rdma_ucm_query_route_resp.
type QueryRouteResp struct {
	NodeGUID   [8]uint8 `c:"node_guid"` // big-endian
	Route0     PathRec  `c:"ib_route[0]"`
	Route1     PathRec  `c:"ib_route[1]"`
	SrcAddr    Sockaddr `c:"src_addr"`
	DstAddr    Sockaddr `c:"dst_addr"`
	NumPaths   uint32   `c:"num_paths"`
	PortNum    uint8    `c:"port_num"`
	_          [3]uint8
	IBDevIndex uint32 `c:"ibdev_index"`
	_          uint32
}

// QueryAddrResp is rdma_ucm_query_addr_resp.
type QueryAddrResp struct {
	NodeGUID   [8]uint8 `c:"node_guid"` // big-endian
	PortNum    uint8    `c:"port_num"`
	_          uint8
	Pkey       uint16          `c:"pkey"`
	SrcSize    uint16          `c:"src_size"`
	DstSize    uint16          `c:"dst_size"`
	SrcAddr    SockaddrStorage `c:"src_addr"`
	DstAddr    SockaddrStorage `c:"dst_addr"`
	IBDevIndex uint32          `c:"ibdev_index"`
	_          uint32
}

// QueryPathResp is the beginning of rdma_ucm_query_path_resp. There are no paths for iWARP.
type QueryPathResp struct {
	NumPaths uint32 `c:"num_paths"`
	_        uint32
}

// ConnParam is rdma_ucm_conn_param.
type ConnParam struct {
	QPNum              uint32                `c:"qp_num"`
	Qkey               uint32                `c:"qkey"`
	PrivateData        [MaxPrivateData]uint8 `c:"private_data"`
	PrivateDataLen     uint8                 `c:"private_data_len"`
	SRQ                uint8                 `c:"srq"`
	ResponderResources uint8                 `c:"responder_resources"`
	InitiatorDepth     uint8                 `c:"initiator_depth"`
	FlowControl        uint8                 `c:"flow_control"`
	RetryCount         uint8                 `c:"retry_count"`
	RNRRetryCount      uint8                 `c:"rnr_retry_count"`
	Valid              uint8                 `c:"valid"`
}

// ECE is rdma_ucm_ece. Programs compiled with older headers leave it out.
type ECE struct {
	VendorID uint32 `c:"vendor_id"`
	AttrMod  uint32 `c:"attr_mod"`
}

// Connect is rdma_ucm_connect.
type Connect struct {
	ConnParam ConnParam `c:"conn_param"`
	ID        uint32    `c:"id"`
	_         uint32
	ECE       ECE `c:"ece"`
}

// Listen is rdma_ucm_listen.
type Listen struct {
	ID      uint32 `c:"id"`
	Backlog uint32 `c:"backlog"`
}

// Accept is rdma_ucm_accept.
type Accept struct {
	UID       uint64    `c:"uid"`
	ConnParam ConnParam `c:"conn_param"`
	ID        uint32    `c:"id"`
	_         uint32
	ECE       ECE `c:"ece"`
}

// Reject is rdma_ucm_reject.
type Reject struct {
	ID             uint32 `c:"id"`
	PrivateDataLen uint8  `c:"private_data_len"`
	Reason         uint8  `c:"reason"`
	_              [2]uint8
	PrivateData    [MaxPrivateData]uint8 `c:"private_data"`
}

// Disconnect is rdma_ucm_disconnect.
type Disconnect struct {
	ID uint32 `c:"id"`
}

// InitQPAttr is rdma_ucm_init_qp_attr. The answer is a QPAttr.
type InitQPAttr struct {
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	QPState  uint32 `c:"qp_state"`
}

// Notify is rdma_ucm_notify.
type Notify struct {
	ID    uint32 `c:"id"`
	Event uint32 `c:"event"`
}

// EventResp is rdma_ucm_event_resp, the answer to GET_EVENT, with the parameters of a connection;
// iWARP has no other events. The fields after Param are left out if the program has no room for
// them.
type EventResp struct {
	UID    uint64    `c:"uid"`
	ID     uint32    `c:"id"`
	Event  uint32    `c:"event"`
	Status uint32    `c:"status"`
	Param  ConnParam `c:"param.conn"`
	_      [EventParamSize - connParamSize]uint8
	_      uint32
	ECE    ECE `c:"ece"`
}

// EventParamSize is the size of the union that contains EventResp.Param, in bytes.
const EventParamSize = 304

const connParamSize = 272

// SetOption is rdma_ucm_set_option.
type SetOption struct {
	OptVal  uint64 `c:"optval"` // address
	ID      uint32 `c:"id"`
	Level   uint32 `c:"level"`
	OptName uint32 `c:"optname"`
	OptLen  uint32 `c:"optlen"`
}

// MigrateID is rdma_ucm_migrate_id. The answer is a DestroyResp.
type MigrateID struct {
	Response uint64 `c:"response"`
	ID       uint32 `c:"id"`
	FD       uint32 `c:"fd"` // of the channel that the id is on
}

// JoinIPMcast is rdma_ucm_join_ip_mcast. The answer is a CreateIDResp.
type JoinIPMcast struct {
	Response uint64   `c:"response"`
	UID      uint64   `c:"uid"`
	Addr     Sockaddr `c:"addr"`
	ID       uint32   `c:"id"`
}

// Values of JoinMcast.JoinFlags.
const (
	JoinFullMember         = 0
	JoinSendOnlyFullMember = 1
)

// JoinMcast is rdma_ucm_join_mcast. The answer is a CreateIDResp.
type JoinMcast struct {
	Response  uint64          `c:"response"`
	UID       uint64          `c:"uid"`
	ID        uint32          `c:"id"`
	AddrSize  uint16          `c:"addr_size"`
	JoinFlags uint16          `c:"join_flags"`
	Addr      SockaddrStorage `c:"addr"`
}

// PathRecData is ib_path_rec_data: a path of InfiniBand, in the answer to QUERY and in the value of
// OptionIBPath.
type PathRecData struct {
	Flags   uint32    `c:"flags"`
	_       uint32    // reserved
	PathRec [64]uint8 `c:"path_rec"`
}

// PathPrimary is the required value of PathRecData.Flags: IB_PATH_GMP, IB_PATH_PRIMARY and
// IB_PATH_BIDIRECTIONAL.
const PathPrimary = 1 | 1<<1 | 1<<3 | 1<<5
