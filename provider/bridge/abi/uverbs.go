package abi

// Numbers of the uverbs commands that a program writes to /dev/infiniband/uverbs* (enum
// ib_uverbs_write_cmds).
const (
	UverbsGetContext        = 0
	UverbsQueryDevice       = 1
	UverbsQueryPort         = 2
	UverbsAllocPD           = 3
	UverbsDeallocPD         = 4
	UverbsRegMR             = 9
	UverbsReregMR           = 11
	UverbsDeregMR           = 13
	UverbsAllocMW           = 14
	UverbsDeallocMW         = 16
	UverbsCreateCompChannel = 17
	UverbsCreateCQ          = 18
	UverbsResizeCQ          = 19
	UverbsDestroyCQ         = 20
	UverbsReqNotifyCQ       = 23
	UverbsCreateQP          = 24
	UverbsQueryQP           = 25
	UverbsModifyQP          = 26
	UverbsDestroyQP         = 27
	UverbsPostSend          = 28
	UverbsPostRecv          = 29
	UverbsCreateSRQ         = 32
	UverbsModifySRQ         = 33
	UverbsQuerySRQ          = 34
	UverbsDestroySRQ        = 35
	UverbsPostSRQRecv       = 36
	UverbsCreateXSRQ        = 39
)

// UverbsExtended is set in a header's command if a UverbsExHeader follows.
const UverbsExtended = 0x80000000

// UverbsHeader begins every command (ib_uverbs_cmd_hdr). InWords and OutWords count words of four
// bytes, including the header. For an extended command they count words of eight bytes, without
// both headers.
type UverbsHeader struct {
	Command  uint32 `c:"command"`
	InWords  uint16 `c:"in_words"`
	OutWords uint16 `c:"out_words"`
}

// UverbsExHeader follows the header of an extended command (ib_uverbs_ex_cmd_hdr).
type UverbsExHeader struct {
	Response         uint64 `c:"response"`
	ProviderInWords  uint16 `c:"provider_in_words"`
	ProviderOutWords uint16 `c:"provider_out_words"`
	Reserved         uint32 `c:"cmd_hdr_reserved"`
}

// Response is a command that contains only the address of the answer: GET_CONTEXT, QUERY_DEVICE,
// ALLOC_PD and CREATE_COMP_CHANNEL of uverbs.
type Response struct {
	Response uint64 `c:"response"` // address
}

// GetContextResp is ib_uverbs_get_context_resp.
type GetContextResp struct {
	AsyncFD        uint32 `c:"async_fd"`
	NumCompVectors uint32 `c:"num_comp_vectors"`
}

// QueryDeviceResp is ib_uverbs_query_device_resp. The GUIDs are big-endian.
type QueryDeviceResp struct {
	FWVer              uint64   `c:"fw_ver"`
	NodeGUID           [8]uint8 `c:"node_guid"`
	SysImageGUID       [8]uint8 `c:"sys_image_guid"`
	MaxMRSize          uint64   `c:"max_mr_size"`
	PageSizeCap        uint64   `c:"page_size_cap"`
	VendorID           uint32   `c:"vendor_id"`
	VendorPartID       uint32   `c:"vendor_part_id"`
	HWVer              uint32   `c:"hw_ver"`
	MaxQP              uint32   `c:"max_qp"`
	MaxQPWR            uint32   `c:"max_qp_wr"`
	DeviceCapFlags     uint32   `c:"device_cap_flags"`
	MaxSGE             uint32   `c:"max_sge"`
	MaxSGERD           uint32   `c:"max_sge_rd"`
	MaxCQ              uint32   `c:"max_cq"`
	MaxCQE             uint32   `c:"max_cqe"`
	MaxMR              uint32   `c:"max_mr"`
	MaxPD              uint32   `c:"max_pd"`
	MaxQPRDAtom        uint32   `c:"max_qp_rd_atom"`
	MaxEERDAtom        uint32   `c:"max_ee_rd_atom"`
	MaxResRDAtom       uint32   `c:"max_res_rd_atom"`
	MaxQPInitRDAtom    uint32   `c:"max_qp_init_rd_atom"`
	MaxEEInitRDAtom    uint32   `c:"max_ee_init_rd_atom"`
	AtomicCap          uint32   `c:"atomic_cap"`
	MaxEE              uint32   `c:"max_ee"`
	MaxRDD             uint32   `c:"max_rdd"`
	MaxMW              uint32   `c:"max_mw"`
	MaxRawIPv6QP       uint32   `c:"max_raw_ipv6_qp"`
	MaxRawEthyQP       uint32   `c:"max_raw_ethy_qp"`
	MaxMcastGrp        uint32   `c:"max_mcast_grp"`
	MaxMcastQPAttach   uint32   `c:"max_mcast_qp_attach"`
	MaxTotalMcastQPAtt uint32   `c:"max_total_mcast_qp_attach"`
	MaxAH              uint32   `c:"max_ah"`
	MaxFMR             uint32   `c:"max_fmr"`
	MaxMapPerFMR       uint32   `c:"max_map_per_fmr"`
	MaxSRQ             uint32   `c:"max_srq"`
	MaxSRQWR           uint32   `c:"max_srq_wr"`
	MaxSRQSGE          uint32   `c:"max_srq_sge"`
	MaxPkeys           uint16   `c:"max_pkeys"`
	LocalCAAckDelay    uint8    `c:"local_ca_ack_delay"`
	PhysPortCnt        uint8    `c:"phys_port_cnt"`
	_                  [4]uint8
}

// ExQueryDevice is ib_uverbs_ex_query_device.
type ExQueryDevice struct {
	CompMask uint32 `c:"comp_mask"`
	Reserved uint32 `c:"reserved"`
}

// ExQueryDeviceResp is ib_uverbs_ex_query_device_resp. After response_length, siw only fills in the
// 64 flags of the device; the rest is zero.
type ExQueryDeviceResp struct {
	Base               QueryDeviceResp `c:"base"`
	CompMask           uint32          `c:"comp_mask"`
	ResponseLength     uint32          `c:"response_length"`
	ODPGeneralCaps     uint64          `c:"odp_caps.general_caps"`
	RCODPCaps          uint32          `c:"odp_caps.per_transport_caps.rc_odp_caps"`
	UCODPCaps          uint32          `c:"odp_caps.per_transport_caps.uc_odp_caps"`
	UDODPCaps          uint32          `c:"odp_caps.per_transport_caps.ud_odp_caps"`
	_                  uint32
	TimestampMask      uint64    `c:"timestamp_mask"`
	HCACoreClock       uint64    `c:"hca_core_clock"` // in kHz
	DeviceCapFlagsEx   uint64    `c:"device_cap_flags_ex"`
	RSSCaps            [4]uint32 `c:"rss_caps"`
	MaxWQTypeRQ        uint32    `c:"max_wq_type_rq"`
	RawPacketCaps      uint32    `c:"raw_packet_caps"`
	TMCaps             [6]uint32 `c:"tm_caps"`
	CQModerationCount  uint16    `c:"cq_moderation_caps.max_cq_moderation_count"`
	CQModerationPeriod uint16    `c:"cq_moderation_caps.max_cq_moderation_period"`
	_                  uint32
	MaxDMSize          uint64 `c:"max_dm_size"`
	XRCODPCaps         uint32 `c:"xrc_odp_caps"`
	_                  uint32
}

// QueryPort is ib_uverbs_query_port.
type QueryPort struct {
	Response uint64 `c:"response"`
	PortNum  uint8  `c:"port_num"`
	_        [7]uint8
}

// QueryPortResp is ib_uverbs_query_port_resp.
type QueryPortResp struct {
	PortCapFlags  uint32 `c:"port_cap_flags"`
	MaxMsgSz      uint32 `c:"max_msg_sz"`
	BadPkeyCntr   uint32 `c:"bad_pkey_cntr"`
	QkeyViolCntr  uint32 `c:"qkey_viol_cntr"`
	GIDTblLen     uint32 `c:"gid_tbl_len"`
	PkeyTblLen    uint16 `c:"pkey_tbl_len"`
	LID           uint16 `c:"lid"`
	SMLID         uint16 `c:"sm_lid"`
	State         uint8  `c:"state"`
	MaxMTU        uint8  `c:"max_mtu"`
	ActiveMTU     uint8  `c:"active_mtu"`
	LMC           uint8  `c:"lmc"`
	MaxVLNum      uint8  `c:"max_vl_num"`
	SMSL          uint8  `c:"sm_sl"`
	SubnetTimeout uint8  `c:"subnet_timeout"`
	InitTypeReply uint8  `c:"init_type_reply"`
	ActiveWidth   uint8  `c:"active_width"`
	ActiveSpeed   uint8  `c:"active_speed"`
	PhysState     uint8  `c:"phys_state"`
	LinkLayer     uint8  `c:"link_layer"`
	Flags         uint8  `c:"flags"`
	_             uint8
}

// AllocPDResp is ib_uverbs_alloc_pd_resp.
type AllocPDResp struct {
	PDHandle uint32 `c:"pd_handle"`
}

// DeallocPD is ib_uverbs_dealloc_pd.
type DeallocPD struct {
	PDHandle uint32 `c:"pd_handle"`
}

// RegMR is ib_uverbs_reg_mr.
type RegMR struct {
	Response    uint64 `c:"response"`
	Start       uint64 `c:"start"` // address
	Length      uint64 `c:"length"`
	HCAVA       uint64 `c:"hca_va"`
	PDHandle    uint32 `c:"pd_handle"`
	AccessFlags uint32 `c:"access_flags"`
}

// RegMRResp is ib_uverbs_reg_mr_resp.
type RegMRResp struct {
	MRHandle uint32 `c:"mr_handle"`
	LKey     uint32 `c:"lkey"`
	RKey     uint32 `c:"rkey"`
}

// ReregMR is ib_uverbs_rereg_mr.
type ReregMR struct {
	Response    uint64 `c:"response"`
	MRHandle    uint32 `c:"mr_handle"`
	Flags       uint32 `c:"flags"`
	Start       uint64 `c:"start"`
	Length      uint64 `c:"length"`
	HCAVA       uint64 `c:"hca_va"`
	PDHandle    uint32 `c:"pd_handle"`
	AccessFlags uint32 `c:"access_flags"`
}

// ReregMRResp is ib_uverbs_rereg_mr_resp.
type ReregMRResp struct {
	LKey uint32 `c:"lkey"`
	RKey uint32 `c:"rkey"`
}

// DeregMR is ib_uverbs_dereg_mr.
type DeregMR struct {
	MRHandle uint32 `c:"mr_handle"`
}

// AllocMW is ib_uverbs_alloc_mw.
type AllocMW struct {
	Response uint64 `c:"response"`
	PDHandle uint32 `c:"pd_handle"`
	MWType   uint8  `c:"mw_type"`
	_        [3]uint8
}

// AllocMWResp is ib_uverbs_alloc_mw_resp.
type AllocMWResp struct {
	MWHandle uint32 `c:"mw_handle"`
	RKey     uint32 `c:"rkey"`
}

// DeallocMW is ib_uverbs_dealloc_mw.
type DeallocMW struct {
	MWHandle uint32 `c:"mw_handle"`
}

// AsyncEvent is what a program reads from the descriptor of GetContextResp
// (ib_uverbs_async_event_desc).
type AsyncEvent struct {
	Element   uint64 `c:"element"` // the user handle of the object, or the number of the port
	EventType uint32 `c:"event_type"`
	Reserved  uint32 `c:"reserved"`
}

// CompEvent is what a program reads from a completion channel (ib_uverbs_comp_event_desc).
type CompEvent struct {
	CQHandle uint64 `c:"cq_handle"` // the user handle of the CQ
}
