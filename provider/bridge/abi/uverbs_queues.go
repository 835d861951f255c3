package abi

// CreateCompChannelResp is ib_uverbs_create_comp_channel_resp.
type CreateCompChannelResp struct {
	FD uint32 `c:"fd"`
}

// CreateCQ is ib_uverbs_create_cq.
type CreateCQ struct {
	Response    uint64 `c:"response"`
	UserHandle  uint64 `c:"user_handle"`
	CQE         uint32 `c:"cqe"`
	CompVector  uint32 `c:"comp_vector"`
	CompChannel int32  `c:"comp_channel"` // descriptor, or -1
	Reserved    uint32 `c:"reserved"`
}

// CreateCQResp is ib_uverbs_create_cq_resp.
type CreateCQResp struct {
	CQHandle uint32 `c:"cq_handle"`
	CQE      uint32 `c:"cqe"`
}

// ExCreateCQ is ib_uverbs_ex_create_cq.
type ExCreateCQ struct {
	UserHandle  uint64 `c:"user_handle"`
	CQE         uint32 `c:"cqe"`
	CompVector  uint32 `c:"comp_vector"`
	CompChannel int32  `c:"comp_channel"` // descriptor, or -1
	CompMask    uint32 `c:"comp_mask"`
	Flags       uint32 `c:"flags"`
	Reserved    uint32 `c:"reserved"`
}

// ExCreateCQResp is ib_uverbs_ex_create_cq_resp.
type ExCreateCQResp struct {
	Base           CreateCQResp `c:"base"`
	CompMask       uint32       `c:"comp_mask"`
	ResponseLength uint32       `c:"response_length"`
}

// ResizeCQ is ib_uverbs_resize_cq.
type ResizeCQ struct {
	Response uint64 `c:"response"`
	CQHandle uint32 `c:"cq_handle"`
	CQE      uint32 `c:"cqe"`
}

// ResizeCQResp is ib_uverbs_resize_cq_resp.
type ResizeCQResp struct {
	CQE uint32 `c:"cqe"`
	_   uint32
}

// ReqNotifyCQ is ib_uverbs_req_notify_cq.
type ReqNotifyCQ struct {
	CQHandle      uint32 `c:"cq_handle"`
	SolicitedOnly uint32 `c:"solicited_only"`
}

// DestroyCQ is ib_uverbs_destroy_cq.
type DestroyCQ struct {
	Response uint64 `c:"response"`
	CQHandle uint32 `c:"cq_handle"`
	Reserved uint32 `c:"reserved"`
}

// DestroyCQResp is ib_uverbs_destroy_cq_resp: the numbers of events that the program has received.
// libibverbs waits until as many are acknowledged.
type DestroyCQResp struct {
	CompEventsReported  uint32 `c:"comp_events_reported"`
	AsyncEventsReported uint32 `c:"async_events_reported"`
}

// GlobalRoute is ib_uverbs_global_route.
type GlobalRoute struct {
	DGID         [16]uint8 `c:"dgid"`
	FlowLabel    uint32    `c:"flow_label"`
	SGIDIndex    uint8     `c:"sgid_index"`
	HopLimit     uint8     `c:"hop_limit"`
	TrafficClass uint8     `c:"traffic_class"`
	_            uint8
}

// AHAttr is ib_uverbs_ah_attr.
type AHAttr struct {
	GRH         GlobalRoute `c:"grh"`
	DLID        uint16      `c:"dlid"`
	SL          uint8       `c:"sl"`
	SrcPathBits uint8       `c:"src_path_bits"`
	StaticRate  uint8       `c:"static_rate"`
	IsGlobal    uint8       `c:"is_global"`
	PortNum     uint8       `c:"port_num"`
	_           uint8
}

// QPAttr is ib_uverbs_qp_attr, the answer to INIT_QP_ATTR of rdma_cm.
type QPAttr struct {
	QPAttrMask    uint32 `c:"qp_attr_mask"`
	QPState       uint32 `c:"qp_state"`
	CurQPState    uint32 `c:"cur_qp_state"`
	PathMTU       uint32 `c:"path_mtu"`
	PathMigState  uint32 `c:"path_mig_state"`
	Qkey          uint32 `c:"qkey"`
	RQPSN         uint32 `c:"rq_psn"`
	SQPSN         uint32 `c:"sq_psn"`
	DestQPNum     uint32 `c:"dest_qp_num"`
	QPAccessFlags uint32 `c:"qp_access_flags"`
	AHAttr        AHAttr `c:"ah_attr"`
	AltAHAttr     AHAttr `c:"alt_ah_attr"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	PkeyIndex     uint16 `c:"pkey_index"`
	AltPkeyIndex  uint16 `c:"alt_pkey_index"`
	EnSQDNotify   uint8  `c:"en_sqd_async_notify"`
	SQDraining    uint8  `c:"sq_draining"`
	MaxRDAtomic   uint8  `c:"max_rd_atomic"`
	MaxDestRDAtom uint8  `c:"max_dest_rd_atomic"`
	MinRNRTimer   uint8  `c:"min_rnr_timer"`
	PortNum       uint8  `c:"port_num"`
	Timeout       uint8  `c:"timeout"`
	RetryCnt      uint8  `c:"retry_cnt"`
	RNRRetry      uint8  `c:"rnr_retry"`
	AltPortNum    uint8  `c:"alt_port_num"`
	AltTimeout    uint8  `c:"alt_timeout"`
	_             [5]uint8
}

// CreateQP is ib_uverbs_create_qp.
type CreateQP struct {
	Response      uint64 `c:"response"`
	UserHandle    uint64 `c:"user_handle"`
	PDHandle      uint32 `c:"pd_handle"`
	SendCQHandle  uint32 `c:"send_cq_handle"`
	RecvCQHandle  uint32 `c:"recv_cq_handle"`
	SRQHandle     uint32 `c:"srq_handle"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	SQSigAll      uint8  `c:"sq_sig_all"`
	QPType        uint8  `c:"qp_type"`
	IsSRQ         uint8  `c:"is_srq"`
	_             uint8
}

// CreateQPResp is ib_uverbs_create_qp_resp.
type CreateQPResp struct {
	QPHandle      uint32 `c:"qp_handle"`
	QPN           uint32 `c:"qpn"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	_             uint32
}

// ExCreateQP is ib_uverbs_ex_create_qp.
type ExCreateQP struct {
	UserHandle      uint64 `c:"user_handle"`
	PDHandle        uint32 `c:"pd_handle"`
	SendCQHandle    uint32 `c:"send_cq_handle"`
	RecvCQHandle    uint32 `c:"recv_cq_handle"`
	SRQHandle       uint32 `c:"srq_handle"`
	MaxSendWR       uint32 `c:"max_send_wr"`
	MaxRecvWR       uint32 `c:"max_recv_wr"`
	MaxSendSGE      uint32 `c:"max_send_sge"`
	MaxRecvSGE      uint32 `c:"max_recv_sge"`
	MaxInlineData   uint32 `c:"max_inline_data"`
	SQSigAll        uint8  `c:"sq_sig_all"`
	QPType          uint8  `c:"qp_type"`
	IsSRQ           uint8  `c:"is_srq"`
	_               uint8
	CompMask        uint32 `c:"comp_mask"`
	CreateFlags     uint32 `c:"create_flags"`
	RWQIndTblHandle uint32 `c:"rwq_ind_tbl_handle"`
	SourceQPN       uint32 `c:"source_qpn"`
}

// ExCreateQPResp is ib_uverbs_ex_create_qp_resp.
type ExCreateQPResp struct {
	Base           CreateQPResp `c:"base"`
	CompMask       uint32       `c:"comp_mask"`
	ResponseLength uint32       `c:"response_length"`
}

// QPDest is ib_uverbs_qp_dest.
type QPDest struct {
	DGID         [16]uint8 `c:"dgid"`
	FlowLabel    uint32    `c:"flow_label"`
	DLID         uint16    `c:"dlid"`
	_            uint16
	SGIDIndex    uint8 `c:"sgid_index"`
	HopLimit     uint8 `c:"hop_limit"`
	TrafficClass uint8 `c:"traffic_class"`
	SL           uint8 `c:"sl"`
	SrcPathBits  uint8 `c:"src_path_bits"`
	StaticRate   uint8 `c:"static_rate"`
	IsGlobal     uint8 `c:"is_global"`
	PortNum      uint8 `c:"port_num"`
}

// QueryQP is ib_uverbs_query_qp.
type QueryQP struct {
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	AttrMask uint32 `c:"attr_mask"`
}

// QueryQPResp is ib_uverbs_query_qp_resp.
type QueryQPResp struct {
	Dest          QPDest `c:"dest"`
	AltDest       QPDest `c:"alt_dest"`
	MaxSendWR     uint32 `c:"max_send_wr"`
	MaxRecvWR     uint32 `c:"max_recv_wr"`
	MaxSendSGE    uint32 `c:"max_send_sge"`
	MaxRecvSGE    uint32 `c:"max_recv_sge"`
	MaxInlineData uint32 `c:"max_inline_data"`
	Qkey          uint32 `c:"qkey"`
	RQPSN         uint32 `c:"rq_psn"`
	SQPSN         uint32 `c:"sq_psn"`
	DestQPNum     uint32 `c:"dest_qp_num"`
	QPAccessFlags uint32 `c:"qp_access_flags"`
	PkeyIndex     uint16 `c:"pkey_index"`
	AltPkeyIndex  uint16 `c:"alt_pkey_index"`
	QPState       uint8  `c:"qp_state"`
	CurQPState    uint8  `c:"cur_qp_state"`
	PathMTU       uint8  `c:"path_mtu"`
	PathMigState  uint8  `c:"path_mig_state"`
	SQDraining    uint8  `c:"sq_draining"`
	MaxRDAtomic   uint8  `c:"max_rd_atomic"`
	MaxDestRDAtom uint8  `c:"max_dest_rd_atomic"`
	MinRNRTimer   uint8  `c:"min_rnr_timer"`
	PortNum       uint8  `c:"port_num"`
	Timeout       uint8  `c:"timeout"`
	RetryCnt      uint8  `c:"retry_cnt"`
	RNRRetry      uint8  `c:"rnr_retry"`
	AltPortNum    uint8  `c:"alt_port_num"`
	AltTimeout    uint8  `c:"alt_timeout"`
	SQSigAll      uint8  `c:"sq_sig_all"`
	_             [5]uint8
}

// ModifyQP is ib_uverbs_modify_qp. There is no answer.
type ModifyQP struct {
	Dest          QPDest `c:"dest"`
	AltDest       QPDest `c:"alt_dest"`
	QPHandle      uint32 `c:"qp_handle"`
	AttrMask      uint32 `c:"attr_mask"`
	Qkey          uint32 `c:"qkey"`
	RQPSN         uint32 `c:"rq_psn"`
	SQPSN         uint32 `c:"sq_psn"`
	DestQPNum     uint32 `c:"dest_qp_num"`
	QPAccessFlags uint32 `c:"qp_access_flags"`
	PkeyIndex     uint16 `c:"pkey_index"`
	AltPkeyIndex  uint16 `c:"alt_pkey_index"`
	QPState       uint8  `c:"qp_state"`
	CurQPState    uint8  `c:"cur_qp_state"`
	PathMTU       uint8  `c:"path_mtu"`
	PathMigState  uint8  `c:"path_mig_state"`
	EnSQDNotify   uint8  `c:"en_sqd_async_notify"`
	MaxRDAtomic   uint8  `c:"max_rd_atomic"`
	MaxDestRDAtom uint8  `c:"max_dest_rd_atomic"`
	MinRNRTimer   uint8  `c:"min_rnr_timer"`
	PortNum       uint8  `c:"port_num"`
	Timeout       uint8  `c:"timeout"`
	RetryCnt      uint8  `c:"retry_cnt"`
	RNRRetry      uint8  `c:"rnr_retry"`
	AltPortNum    uint8  `c:"alt_port_num"`
	AltTimeout    uint8  `c:"alt_timeout"`
	_             [2]uint8
}

// ExModifyQP is ib_uverbs_ex_modify_qp.
type ExModifyQP struct {
	Base      ModifyQP `c:"base"`
	RateLimit uint32   `c:"rate_limit"`
	Reserved  uint32   `c:"reserved"`
}

// ExModifyQPResp is ib_uverbs_ex_modify_qp_resp.
type ExModifyQPResp struct {
	CompMask       uint32 `c:"comp_mask"`
	ResponseLength uint32 `c:"response_length"`
}

// DestroyQP is ib_uverbs_destroy_qp.
type DestroyQP struct {
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	Reserved uint32 `c:"reserved"`
}

// DestroyResp is the answer to DESTROY_QP and DESTROY_SRQ of uverbs and to DESTROY_ID and
// MIGRATE_ID of rdma_cm. It has the number of events that the program has received; the library
// waits until as many are acknowledged.
type DestroyResp struct {
	EventsReported uint32 `c:"events_reported"`
}

// PostSend is the beginning of ib_uverbs_post_send. libsiw writes nothing else, because the work
// requests are in the queue that it shares with siw.
type PostSend struct {
	Response uint64 `c:"response"`
	QPHandle uint32 `c:"qp_handle"`
	WRCount  uint32 `c:"wr_count"`
	SGECount uint32 `c:"sge_count"`
	WQESize  uint32 `c:"wqe_size"`
}

// PostResp is the answer to POST_SEND, POST_RECV and POST_SRQ_RECV.
type PostResp struct {
	BadWR uint32 `c:"bad_wr"`
}

// CreateSRQ is ib_uverbs_create_srq.
type CreateSRQ struct {
	Response   uint64 `c:"response"`
	UserHandle uint64 `c:"user_handle"`
	PDHandle   uint32 `c:"pd_handle"`
	MaxWR      uint32 `c:"max_wr"`
	MaxSGE     uint32 `c:"max_sge"`
	SRQLimit   uint32 `c:"srq_limit"`
}

// CreateXSRQ is ib_uverbs_create_xsrq, whose answer is a CreateSRQResp.
type CreateXSRQ struct {
	Response   uint64 `c:"response"`
	UserHandle uint64 `c:"user_handle"`
	SRQType    uint32 `c:"srq_type"`
	PDHandle   uint32 `c:"pd_handle"`
	MaxWR      uint32 `c:"max_wr"`
	MaxSGE     uint32 `c:"max_sge"`
	SRQLimit   uint32 `c:"srq_limit"`
	MaxNumTags uint32 `c:"max_num_tags"`
	XRCDHandle uint32 `c:"xrcd_handle"`
	CQHandle   uint32 `c:"cq_handle"`
}

// CreateSRQResp is ib_uverbs_create_srq_resp.
type CreateSRQResp struct {
	SRQHandle uint32 `c:"srq_handle"`
	MaxWR     uint32 `c:"max_wr"`
	MaxSGE    uint32 `c:"max_sge"`
	SRQN      uint32 `c:"srqn"`
}

// ModifySRQ is ib_uverbs_modify_srq.
type ModifySRQ struct {
	SRQHandle uint32 `c:"srq_handle"`
	AttrMask  uint32 `c:"attr_mask"`
	MaxWR     uint32 `c:"max_wr"`
	SRQLimit  uint32 `c:"srq_limit"`
}

// QuerySRQ is ib_uverbs_query_srq.
type QuerySRQ struct {
	Response  uint64 `c:"response"`
	SRQHandle uint32 `c:"srq_handle"`
	Reserved  uint32 `c:"reserved"`
}

// QuerySRQResp is ib_uverbs_query_srq_resp.
type QuerySRQResp struct {
	MaxWR    uint32 `c:"max_wr"`
	MaxSGE   uint32 `c:"max_sge"`
	SRQLimit uint32 `c:"srq_limit"`
	_        uint32
}

// DestroySRQ is ib_uverbs_destroy_srq.
type DestroySRQ struct {
	Response  uint64 `c:"response"`
	SRQHandle uint32 `c:"srq_handle"`
	Reserved  uint32 `c:"reserved"`
}
