package abi

import "fmt"

// Command has the name of a command and the layouts of its messages, as zero values. Nil means that
// the message does not exist.
type Command struct {
	Name           string // in the kernel's headers, in lower case and without their prefix
	Request        any    // after the header
	DriverRequest  any    // added by libsiw
	Response       any
	DriverResponse any // added by siw
}

// UverbsCommands are the uverbs commands that programs write, by number.
var UverbsCommands = map[uint32]Command{
	UverbsGetContext:        {"get_context", Response{}, nil, GetContextResp{}, SiwAllocCtxResp{}},
	UverbsQueryDevice:       {"query_device", Response{}, nil, QueryDeviceResp{}, nil},
	UverbsQueryPort:         {"query_port", QueryPort{}, nil, QueryPortResp{}, nil},
	UverbsAllocPD:           {"alloc_pd", Response{}, nil, AllocPDResp{}, nil},
	UverbsDeallocPD:         {"dealloc_pd", DeallocPD{}, nil, nil, nil},
	UverbsRegMR:             {"reg_mr", RegMR{}, SiwRegMRReq{}, RegMRResp{}, SiwRegMRResp{}},
	UverbsReregMR:           {"rereg_mr", ReregMR{}, nil, ReregMRResp{}, nil},
	UverbsDeregMR:           {"dereg_mr", DeregMR{}, nil, nil, nil},
	UverbsAllocMW:           {"alloc_mw", AllocMW{}, nil, AllocMWResp{}, nil},
	UverbsDeallocMW:         {"dealloc_mw", DeallocMW{}, nil, nil, nil},
	UverbsCreateCompChannel: {"create_comp_channel", Response{}, nil, CreateCompChannelResp{}, nil},
	UverbsCreateCQ:          {"create_cq", CreateCQ{}, nil, CreateCQResp{}, SiwCreateCQResp{}},
	UverbsResizeCQ:          {"resize_cq", ResizeCQ{}, nil, ResizeCQResp{}, nil},
	UverbsDestroyCQ:         {"destroy_cq", DestroyCQ{}, nil, DestroyCQResp{}, nil},
	UverbsReqNotifyCQ:       {"req_notify_cq", ReqNotifyCQ{}, nil, nil, nil},
	UverbsCreateQP:          {"create_qp", CreateQP{}, nil, CreateQPResp{}, SiwCreateQPResp{}},
	UverbsQueryQP:           {"query_qp", QueryQP{}, nil, QueryQPResp{}, nil},
	UverbsModifyQP:          {"modify_qp", ModifyQP{}, nil, nil, nil},
	UverbsDestroyQP:         {"destroy_qp", DestroyQP{}, nil, DestroyResp{}, nil},
	UverbsPostSend:          {"post_send", PostSend{}, nil, PostResp{}, nil},
	UverbsCreateSRQ:         {"create_srq", CreateSRQ{}, nil, CreateSRQResp{}, SiwCreateSRQResp{}},
	UverbsCreateXSRQ:        {"create_xsrq", CreateXSRQ{}, nil, CreateSRQResp{}, SiwCreateSRQResp{}},
	UverbsModifySRQ:         {"modify_srq", ModifySRQ{}, nil, nil, nil},
	UverbsQuerySRQ:          {"query_srq", QuerySRQ{}, nil, QuerySRQResp{}, nil},
	UverbsDestroySRQ:        {"destroy_srq", DestroySRQ{}, nil, DestroyResp{}, nil},
}

// UverbsExCommands are the extended uverbs commands that programs write, by number. The address of
// the answer is in the UverbsExHeader.
var UverbsExCommands = map[uint32]Command{
	UverbsQueryDevice: {"ex_query_device", ExQueryDevice{}, nil, ExQueryDeviceResp{}, nil},
	UverbsCreateCQ:    {"ex_create_cq", ExCreateCQ{}, nil, ExCreateCQResp{}, SiwCreateCQResp{}},
	UverbsCreateQP:    {"ex_create_qp", ExCreateQP{}, nil, ExCreateQPResp{}, SiwCreateQPResp{}},
	UverbsModifyQP:    {"ex_modify_qp", ExModifyQP{}, nil, ExModifyQPResp{}, nil},
}

// CMCommands are the commands of rdma_cm, by number. The answer to QUERY depends on its option, and
// may be QUERY_ROUTE's; see QueryResponse.
var CMCommands = map[uint32]Command{
	CMCreateID:     {"create_id", CreateID{}, nil, CreateIDResp{}, nil},
	CMDestroyID:    {"destroy_id", DestroyID{}, nil, DestroyResp{}, nil},
	CMBindIP:       {"bind_ip", BindIP{}, nil, nil, nil},
	CMResolveIP:    {"resolve_ip", ResolveIP{}, nil, nil, nil},
	CMResolveRoute: {"resolve_route", ResolveRoute{}, nil, nil, nil},
	CMQueryRoute:   {"query_route", Query{}, nil, QueryRouteResp{}, nil},
	CMConnect:      {"connect", Connect{}, nil, nil, nil},
	CMListen:       {"listen", Listen{}, nil, nil, nil},
	CMAccept:       {"accept", Accept{}, nil, nil, nil},
	CMReject:       {"reject", Reject{}, nil, nil, nil},
	CMDisconnect:   {"disconnect", Disconnect{}, nil, nil, nil},
	CMInitQPAttr:   {"init_qp_attr", InitQPAttr{}, nil, QPAttr{}, nil},
	CMGetEvent:     {"get_event", Response{}, nil, EventResp{}, nil},
	CMSetOption:    {"set_option", SetOption{}, nil, nil, nil},
	CMNotify:       {"notify", Notify{}, nil, nil, nil},
	CMJoinIPMcast:  {"join_ip_mcast", JoinIPMcast{}, nil, CreateIDResp{}, nil},
	CMLeaveMcast:   {"leave_mcast", DestroyID{}, nil, DestroyResp{}, nil},
	CMJoinMcast:    {"join_mcast", JoinMcast{}, nil, CreateIDResp{}, nil},
	CMMigrateID:    {"migrate_id", MigrateID{}, nil, DestroyResp{}, nil},
	CMQuery:        {"query", Query{}, nil, QueryAddrResp{}, nil},
	CMBind:         {"bind", Bind{}, nil, nil, nil},
	CMResolveAddr:  {"resolve_addr", ResolveAddr{}, nil, nil, nil},
}

// QueryResponse returns the layout, as a zero value, of the answer to a Query with an option.
func QueryResponse(option uint32) (any, error) {
	switch option {
	case QueryAddr, QueryGID:
		return QueryAddrResp{}, nil
	case QueryPath:
		return QueryPathResp{}, nil
	}
	return nil, fmt.Errorf("query has no option %d", option)
}
