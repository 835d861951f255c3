package abi_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// layouts maps the structs of the kernel's headers to this package's.
var layouts = map[string]any{
	"ib_uverbs_cmd_hdr":                  abi.UverbsHeader{},
	"ib_uverbs_ex_cmd_hdr":               abi.UverbsExHeader{},
	"ib_uverbs_get_context":              abi.Response{},
	"ib_uverbs_query_device":             abi.Response{},
	"ib_uverbs_alloc_pd":                 abi.Response{},
	"ib_uverbs_create_comp_channel":      abi.Response{},
	"rdma_ucm_get_event":                 abi.Response{},
	"ib_uverbs_get_context_resp":         abi.GetContextResp{},
	"ib_uverbs_query_device_resp":        abi.QueryDeviceResp{},
	"ib_uverbs_ex_query_device":          abi.ExQueryDevice{},
	"ib_uverbs_ex_query_device_resp":     abi.ExQueryDeviceResp{},
	"ib_uverbs_query_port":               abi.QueryPort{},
	"ib_uverbs_query_port_resp":          abi.QueryPortResp{},
	"ib_uverbs_alloc_pd_resp":            abi.AllocPDResp{},
	"ib_uverbs_dealloc_pd":               abi.DeallocPD{},
	"ib_uverbs_reg_mr":                   abi.RegMR{},
	"ib_uverbs_reg_mr_resp":              abi.RegMRResp{},
	"ib_uverbs_rereg_mr":                 abi.ReregMR{},
	"ib_uverbs_rereg_mr_resp":            abi.ReregMRResp{},
	"ib_uverbs_dereg_mr":                 abi.DeregMR{},
	"ib_uverbs_alloc_mw":                 abi.AllocMW{},
	"ib_uverbs_alloc_mw_resp":            abi.AllocMWResp{},
	"ib_uverbs_dealloc_mw":               abi.DeallocMW{},
	"ib_uverbs_async_event_desc":         abi.AsyncEvent{},
	"ib_uverbs_comp_event_desc":          abi.CompEvent{},
	"ib_uverbs_create_comp_channel_resp": abi.CreateCompChannelResp{},
	"ib_uverbs_create_cq":                abi.CreateCQ{},
	"ib_uverbs_create_cq_resp":           abi.CreateCQResp{},
	"ib_uverbs_ex_create_cq":             abi.ExCreateCQ{},
	"ib_uverbs_ex_create_cq_resp":        abi.ExCreateCQResp{},
	"ib_uverbs_resize_cq":                abi.ResizeCQ{},
	"ib_uverbs_resize_cq_resp":           abi.ResizeCQResp{},
	"ib_uverbs_req_notify_cq":            abi.ReqNotifyCQ{},
	"ib_uverbs_destroy_cq":               abi.DestroyCQ{},
	"ib_uverbs_destroy_cq_resp":          abi.DestroyCQResp{},
	"ib_uverbs_global_route":             abi.GlobalRoute{},
	"ib_uverbs_ah_attr":                  abi.AHAttr{},
	"ib_uverbs_qp_attr":                  abi.QPAttr{},
	"ib_uverbs_create_qp":                abi.CreateQP{},
	"ib_uverbs_create_qp_resp":           abi.CreateQPResp{},
	"ib_uverbs_ex_create_qp":             abi.ExCreateQP{},
	"ib_uverbs_ex_create_qp_resp":        abi.ExCreateQPResp{},
	"ib_uverbs_qp_dest":                  abi.QPDest{},
	"ib_uverbs_query_qp":                 abi.QueryQP{},
	"ib_uverbs_query_qp_resp":            abi.QueryQPResp{},
	"ib_uverbs_modify_qp":                abi.ModifyQP{},
	"ib_uverbs_destroy_qp":               abi.DestroyQP{},
	"ib_uverbs_destroy_qp_resp":          abi.DestroyResp{},
	"ib_uverbs_destroy_srq_resp":         abi.DestroyResp{},
	"rdma_ucm_destroy_id_resp":           abi.DestroyResp{},
	"rdma_ucm_migrate_resp":              abi.DestroyResp{},
	"ib_uverbs_post_send":                abi.PostSend{},
	"ib_uverbs_post_send_resp":           abi.PostResp{},
	"ib_uverbs_post_recv_resp":           abi.PostResp{},
	"ib_uverbs_post_srq_recv_resp":       abi.PostResp{},
	"ib_uverbs_create_srq":               abi.CreateSRQ{},
	"ib_uverbs_create_srq_resp":          abi.CreateSRQResp{},
	"ib_uverbs_create_xsrq":              abi.CreateXSRQ{},
	"ib_uverbs_ex_modify_qp":             abi.ExModifyQP{},
	"ib_uverbs_ex_modify_qp_resp":        abi.ExModifyQPResp{},
	"ib_uverbs_modify_srq":               abi.ModifySRQ{},
	"ib_uverbs_query_srq":                abi.QuerySRQ{},
	"ib_uverbs_query_srq_resp":           abi.QuerySRQResp{},
	"ib_uverbs_destroy_srq":              abi.DestroySRQ{},

	"rdma_ucm_cmd_hdr":          abi.CMHeader{},
	"rdma_ucm_create_id":        abi.CreateID{},
	"rdma_ucm_create_id_resp":   abi.CreateIDResp{},
	"rdma_ucm_destroy_id":       abi.DestroyID{},
	"rdma_ucm_bind_ip":          abi.BindIP{},
	"rdma_ucm_bind":             abi.Bind{},
	"rdma_ucm_resolve_ip":       abi.ResolveIP{},
	"rdma_ucm_resolve_addr":     abi.ResolveAddr{},
	"rdma_ucm_resolve_route":    abi.ResolveRoute{},
	"rdma_ucm_query":            abi.Query{},
	"rdma_ucm_join_ip_mcast":    abi.JoinIPMcast{},
	"rdma_ucm_join_mcast":       abi.JoinMcast{},
	"ib_path_rec_data":          abi.PathRecData{},
	"ib_user_path_rec":          abi.PathRec{},
	"rdma_ucm_query_route_resp": abi.QueryRouteResp{},
	"rdma_ucm_query_addr_resp":  abi.QueryAddrResp{},
	"rdma_ucm_query_path_resp":  abi.QueryPathResp{},
	"rdma_ucm_conn_param":       abi.ConnParam{},
	"rdma_ucm_ece":              abi.ECE{},
	"rdma_ucm_connect":          abi.Connect{},
	"rdma_ucm_listen":           abi.Listen{},
	"rdma_ucm_accept":           abi.Accept{},
	"rdma_ucm_reject":           abi.Reject{},
	"rdma_ucm_disconnect":       abi.Disconnect{},
	"rdma_ucm_init_qp_attr":     abi.InitQPAttr{},
	"rdma_ucm_notify":           abi.Notify{},
	"rdma_ucm_event_resp":       abi.EventResp{},
	"rdma_ucm_set_option":       abi.SetOption{},
	"rdma_ucm_migrate_id":       abi.MigrateID{},

	"siw_uresp_alloc_ctx":  abi.SiwAllocCtxResp{},
	"siw_uresp_create_cq":  abi.SiwCreateCQResp{},
	"siw_uresp_create_qp":  abi.SiwCreateQPResp{},
	"siw_ureq_reg_mr":      abi.SiwRegMRReq{},
	"siw_uresp_reg_mr":     abi.SiwRegMRResp{},
	"siw_uresp_create_srq": abi.SiwCreateSRQResp{},
	"siw_sge":              abi.SiwSGE{},
	"siw_sqe":              abi.SiwSQE{},
	"siw_rqe":              abi.SiwRQE{},
	"siw_cqe":              abi.SiwCQE{},
	"siw_cq_ctrl":          abi.SiwCQCtrl{},

	"nlmsghdr": abi.NLHeader{},
}

// constants maps names of the headers to their values here.
var constants = map[string]int64{
	"IB_USER_VERBS_CMD_GET_CONTEXT":         abi.UverbsGetContext,
	"IB_USER_VERBS_CMD_QUERY_DEVICE":        abi.UverbsQueryDevice,
	"IB_USER_VERBS_CMD_QUERY_PORT":          abi.UverbsQueryPort,
	"IB_USER_VERBS_CMD_ALLOC_PD":            abi.UverbsAllocPD,
	"IB_USER_VERBS_CMD_DEALLOC_PD":          abi.UverbsDeallocPD,
	"IB_USER_VERBS_CMD_REG_MR":              abi.UverbsRegMR,
	"IB_USER_VERBS_CMD_REREG_MR":            abi.UverbsReregMR,
	"IB_USER_VERBS_CMD_DEREG_MR":            abi.UverbsDeregMR,
	"IB_USER_VERBS_CMD_ALLOC_MW":            abi.UverbsAllocMW,
	"IB_USER_VERBS_CMD_DEALLOC_MW":          abi.UverbsDeallocMW,
	"IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL": abi.UverbsCreateCompChannel,
	"IB_USER_VERBS_CMD_CREATE_CQ":           abi.UverbsCreateCQ,
	"IB_USER_VERBS_CMD_RESIZE_CQ":           abi.UverbsResizeCQ,
	"IB_USER_VERBS_CMD_DESTROY_CQ":          abi.UverbsDestroyCQ,
	"IB_USER_VERBS_CMD_REQ_NOTIFY_CQ":       abi.UverbsReqNotifyCQ,
	"IB_USER_VERBS_CMD_CREATE_QP":           abi.UverbsCreateQP,
	"IB_USER_VERBS_CMD_QUERY_QP":            abi.UverbsQueryQP,
	"IB_USER_VERBS_CMD_MODIFY_QP":           abi.UverbsModifyQP,
	"IB_USER_VERBS_CMD_DESTROY_QP":          abi.UverbsDestroyQP,
	"IB_USER_VERBS_CMD_POST_SEND":           abi.UverbsPostSend,
	"IB_USER_VERBS_CMD_POST_RECV":           abi.UverbsPostRecv,
	"IB_USER_VERBS_CMD_CREATE_SRQ":          abi.UverbsCreateSRQ,
	"IB_USER_VERBS_CMD_MODIFY_SRQ":          abi.UverbsModifySRQ,
	"IB_USER_VERBS_CMD_QUERY_SRQ":           abi.UverbsQuerySRQ,
	"IB_USER_VERBS_CMD_DESTROY_SRQ":         abi.UverbsDestroySRQ,
	"IB_USER_VERBS_CMD_POST_SRQ_RECV":       abi.UverbsPostSRQRecv,
	"IB_USER_VERBS_CMD_FLAG_EXTENDED":       abi.UverbsExtended,

	"RDMA_USER_CM_CMD_CREATE_ID":     abi.CMCreateID,
	"RDMA_USER_CM_CMD_DESTROY_ID":    abi.CMDestroyID,
	"RDMA_USER_CM_CMD_BIND_IP":       abi.CMBindIP,
	"RDMA_USER_CM_CMD_RESOLVE_IP":    abi.CMResolveIP,
	"RDMA_USER_CM_CMD_RESOLVE_ROUTE": abi.CMResolveRoute,
	"RDMA_USER_CM_CMD_QUERY_ROUTE":   abi.CMQueryRoute,
	"RDMA_USER_CM_CMD_CONNECT":       abi.CMConnect,
	"RDMA_USER_CM_CMD_LISTEN":        abi.CMListen,
	"RDMA_USER_CM_CMD_ACCEPT":        abi.CMAccept,
	"RDMA_USER_CM_CMD_REJECT":        abi.CMReject,
	"RDMA_USER_CM_CMD_DISCONNECT":    abi.CMDisconnect,
	"RDMA_USER_CM_CMD_INIT_QP_ATTR":  abi.CMInitQPAttr,
	"RDMA_USER_CM_CMD_GET_EVENT":     abi.CMGetEvent,
	"RDMA_USER_CM_CMD_GET_OPTION":    abi.CMGetOption,
	"RDMA_USER_CM_CMD_SET_OPTION":    abi.CMSetOption,
	"RDMA_USER_CM_CMD_NOTIFY":        abi.CMNotify,
	"RDMA_USER_CM_CMD_JOIN_IP_MCAST": abi.CMJoinIPMcast,
	"RDMA_USER_CM_CMD_LEAVE_MCAST":   abi.CMLeaveMcast,
	"RDMA_USER_CM_CMD_MIGRATE_ID":    abi.CMMigrateID,
	"RDMA_USER_CM_CMD_QUERY":         abi.CMQuery,
	"RDMA_USER_CM_CMD_BIND":          abi.CMBind,
	"RDMA_USER_CM_CMD_RESOLVE_ADDR":  abi.CMResolveAddr,
	"RDMA_USER_CM_CMD_JOIN_MCAST":    abi.CMJoinMcast,
	"RDMA_PS_IPOIB":                  abi.PortSpaceIPoIB,
	"RDMA_PS_IB":                     abi.PortSpaceIB,
	"RDMA_PS_TCP":                    abi.PortSpaceTCP,
	"RDMA_PS_UDP":                    abi.PortSpaceUDP,
	"RDMA_USER_CM_QUERY_ADDR":        abi.QueryAddr,
	"RDMA_USER_CM_QUERY_PATH":        abi.QueryPath,
	"RDMA_USER_CM_QUERY_GID":         abi.QueryGID,
	"RDMA_OPTION_ID":                 abi.OptionID,
	"RDMA_OPTION_IB":                 abi.OptionIB,
	"RDMA_OPTION_ID_TOS":             abi.OptionIDTOS,
	"RDMA_OPTION_ID_REUSEADDR":       abi.OptionIDReuseaddr,
	"RDMA_OPTION_ID_AFONLY":          abi.OptionIDAfonly,
	"RDMA_OPTION_ID_ACK_TIMEOUT":     abi.OptionIDAckTimeout,
	"RDMA_OPTION_IB_PATH":            abi.OptionIBPath,
	"RDMA_MAX_PRIVATE_DATA":          abi.MaxPrivateData,

	"SIW_ABI_VERSION":            abi.SiwABI,
	"SIW_MAX_SGE":                abi.SiwMaxSGE,
	"SIW_MAX_INLINE":             abi.SiwMaxInline,
	"SIW_INVAL_UOBJ_KEY":         abi.SiwInvalidKey,
	"SIW_OP_WRITE":               abi.SiwWrite,
	"SIW_OP_READ":                abi.SiwRead,
	"SIW_OP_READ_LOCAL_INV":      abi.SiwReadLocalInv,
	"SIW_OP_SEND":                abi.SiwSend,
	"SIW_OP_SEND_WITH_IMM":       abi.SiwSendWithImm,
	"SIW_OP_SEND_REMOTE_INV":     abi.SiwSendRemoteInv,
	"SIW_OP_FETCH_AND_ADD":       abi.SiwFetchAndAdd,
	"SIW_OP_COMP_AND_SWAP":       abi.SiwCompAndSwap,
	"SIW_OP_RECEIVE":             abi.SiwReceive,
	"SIW_OP_READ_RESPONSE":       abi.SiwReadResponse,
	"SIW_OP_INVAL_STAG":          abi.SiwInvalSTag,
	"SIW_OP_REG_MR":              abi.SiwRegMR,
	"SIW_WQE_VALID":              abi.SiwWQEValid,
	"SIW_WQE_INLINE":             abi.SiwWQEInline,
	"SIW_WQE_SIGNALLED":          abi.SiwWQESignalled,
	"SIW_WQE_SOLICITED":          abi.SiwWQESolicited,
	"SIW_WQE_READ_FENCE":         abi.SiwWQEReadFence,
	"SIW_WQE_REM_INVAL":          abi.SiwWQERemInval,
	"SIW_WQE_COMPLETED":          abi.SiwWQECompleted,
	"SIW_NOTIFY_SOLICITED":       abi.SiwNotifySolicited,
	"SIW_NOTIFY_NEXT_COMPLETION": abi.SiwNotifyNextCompletion,
	"SIW_NOTIFY_MISSED_EVENTS":   abi.SiwNotifyMissedEvents,
	"SIW_WC_SUCCESS":             abi.SiwWCSuccess,
	"SIW_WC_LOC_LEN_ERR":         abi.SiwWCLocLenErr,
	"SIW_WC_LOC_PROT_ERR":        abi.SiwWCLocProtErr,
	"SIW_WC_LOC_QP_OP_ERR":       abi.SiwWCLocQPOpErr,
	"SIW_WC_WR_FLUSH_ERR":        abi.SiwWCWRFlushErr,
	"SIW_WC_BAD_RESP_ERR":        abi.SiwWCBadRespErr,
	"SIW_WC_LOC_ACCESS_ERR":      abi.SiwWCLocAccessErr,
	"SIW_WC_REM_ACCESS_ERR":      abi.SiwWCRemAccessErr,
	"SIW_WC_REM_INV_REQ_ERR":     abi.SiwWCRemInvReqErr,
	"SIW_WC_GENERAL_ERR":         abi.SiwWCGeneralErr,

	"RDMA_NLDEV_ATTR_DEV_INDEX":          abi.NLDevIndex,
	"RDMA_NLDEV_ATTR_DEV_NAME":           abi.NLDevName,
	"RDMA_NLDEV_ATTR_PORT_INDEX":         abi.NLPortIndex,
	"RDMA_NLDEV_ATTR_CAP_FLAGS":          abi.NLCapFlags,
	"RDMA_NLDEV_ATTR_FW_VERSION":         abi.NLFWVersion,
	"RDMA_NLDEV_ATTR_NODE_GUID":          abi.NLNodeGUID,
	"RDMA_NLDEV_ATTR_SYS_IMAGE_GUID":     abi.NLSysImageGUID,
	"RDMA_NLDEV_ATTR_LID":                abi.NLLID,
	"RDMA_NLDEV_ATTR_SM_LID":             abi.NLSMLID,
	"RDMA_NLDEV_ATTR_LMC":                abi.NLLMC,
	"RDMA_NLDEV_ATTR_PORT_STATE":         abi.NLPortState,
	"RDMA_NLDEV_ATTR_PORT_PHYS_STATE":    abi.NLPortPhysState,
	"RDMA_NLDEV_ATTR_DEV_NODE_TYPE":      abi.NLDevNodeType,
	"RDMA_NLDEV_ATTR_NDEV_INDEX":         abi.NLNetdevIndex,
	"RDMA_NLDEV_ATTR_NDEV_NAME":          abi.NLNetdevName,
	"RDMA_NLDEV_ATTR_DEV_PROTOCOL":       abi.NLDevProtocol,
	"RDMA_NLDEV_ATTR_CHARDEV_TYPE":       abi.NLChardevType,
	"RDMA_NLDEV_ATTR_CHARDEV_NAME":       abi.NLChardevName,
	"RDMA_NLDEV_ATTR_CHARDEV_ABI":        abi.NLChardevABI,
	"RDMA_NLDEV_ATTR_CHARDEV":            abi.NLChardev,
	"RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID":   abi.NLUverbsDriverID,
	"RDMA_NLDEV_ATTR_DEV_DIM":            abi.NLDevDim,
	"RDMA_NLDEV_SYS_ATTR_NETNS_MODE":     abi.NLNetnsMode,
	"RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK":   abi.NLCopyOnFork,
	"NETLINK_RDMA":                       abi.NLFamily,
	"RDMA_NL_NLDEV":                      abi.NLNLDev,
	"RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, 7)": int64(abi.NLType(7)),
	"RDMA_NLDEV_CMD_GET":                 abi.NLGet,
	"RDMA_NLDEV_CMD_PORT_GET":            abi.NLPortGet,
	"RDMA_NLDEV_CMD_SYS_GET":             abi.NLSysGet,
	"RDMA_NLDEV_CMD_GET_CHARDEV":         abi.NLGetChardev,
	"RDMA_DRIVER_SIW":                    abi.NLDriverSiw,
	"NLMSG_ERROR":                        abi.NLMsgError,
	"NLMSG_DONE":                         abi.NLMsgDone,
	"NLM_F_MULTI":                        abi.NLFlagMulti,
	"NLM_F_ACK":                          abi.NLFlagAck,
	"NLM_F_DUMP":                         abi.NLFlagDump,

	"AF_UNSPEC": abi.FamilyUnspec, "AF_INET": abi.FamilyINET, "AF_INET6": abi.FamilyINET6,
	"AF_IB":                             abi.FamilyIB,
	"(long)sizeof(struct sockaddr_in)":  abi.SizeofSockaddrIn,
	"(long)sizeof(struct sockaddr_in6)": abi.SizeofSockaddrIn6,
	"(long)sizeof(((struct rdma_ucm_event_resp*)0)->param)": abi.EventParamSize,
}

// TestLayouts compares this package's layouts and constants with the field offsets and constants
// that a C compiler reports for the kernel's headers.
func TestLayouts(t *testing.T) {
	var program, want strings.Builder
	program.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include <netinet/in.h>\n#include <sys/socket.h>\n" +
		"#include <linux/netlink.h>\n#include <rdma/rdma_netlink.h>\n" +
		"#include <rdma/ib_user_ioctl_verbs.h>\n" +
		"#include <rdma/rdma_user_cm.h>\n#include <rdma/siw-abi.h>\n" +
		"#define SAY(text, value) printf(\"%s %ld\\n\", text, (long)(value))\nint main(void) {\n")
	say := func(text, value string, here int64) {
		fmt.Fprintf(&program, "\tSAY(%q, %s);\n", text, value)
		fmt.Fprintf(&want, "%s %d\n", text, here)
	}
	for name, msg := range layouts {
		say("sizeof "+name, "sizeof(struct "+name+")", int64(abi.Size(msg)))
		for _, f := range abi.Fields(msg) {
			say(name+"."+f.Name, "offsetof(struct "+name+", "+f.Name+")", int64(f.Offset))
			say(name+"."+f.Name+", size", "sizeof(((struct "+name+" *)0)->"+f.Name+")", int64(f.Size))
		}
	}
	for name, value := range constants {
		say(name, name, value)
	}
	program.WriteString("\treturn 0;\n}\n")
	if got := compiled(t, program.String()); got != want.String() {
		there, here := strings.Split(got, "\n"), strings.Split(want.String(), "\n")
		for i := range min(len(there), len(here)) {
			if there[i] != here[i] {
				t.Errorf("C says %s, here it is %s", there[i], here[i])
			}
		}
	}
}

// compiled returns the output of a C program.
func compiled(t *testing.T, program string) string {
	t.Helper()
	if _, err := exec.LookPath("cc"); err != nil {
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.Fatalf("there is no C compiler: %v", err)
		}
		t.Skipf("there is no C compiler: %v", err)
	}
	dir := t.TempDir()
	source, binary := filepath.Join(dir, "layouts.c"), filepath.Join(dir, "layouts")
	testkit.OK(t, os.WriteFile(source, []byte(program), 0o600))
	if out, err := exec.Command("cc", "-o", binary, source).CombinedOutput(); err != nil {
		t.Fatalf("cc: %v\n%s", err, out)
	}
	return string(testkit.Must(exec.Command(binary).Output())(t))
}

// TestEveryFieldHasAName: a field without a name would not be compared.
func TestEveryFieldHasAName(t *testing.T) {
	for name, msg := range layouts {
		v := reflect.TypeOf(msg)
		for i := range v.NumField() {
			if f := v.Field(i); f.Name != "_" && f.Tag.Get("c") == "" {
				t.Errorf("%s: %s has no name of C", name, f.Name)
			}
		}
	}
}

// TestCommands: every message of the tables is compared with the kernel's headers, and a command
// has an address for its answer exactly if it has an answer.
func TestCommands(t *testing.T) {
	known := map[reflect.Type]bool{}
	for _, layout := range layouts {
		known[reflect.TypeOf(layout)] = true
	}
	tables := map[string]map[uint32]abi.Command{
		"uverbs": abi.UverbsCommands, "extended": abi.UverbsExCommands, "rdma_cm": abi.CMCommands,
	}
	for table, commands := range tables {
		for number, c := range commands {
			for _, msg := range []any{c.Request, c.DriverRequest, c.Response, c.DriverResponse} {
				if msg != nil && !known[reflect.TypeOf(msg)] {
					t.Errorf("%s %d, %s: %T is compared with nothing", table, number, c.Name, msg)
				}
			}
			address := slices.ContainsFunc(abi.Fields(c.Request),
				func(f abi.Field) bool { return f.Name == "response" })
			// The kernel's headers have an address for BIND_IP, although it has no answer.
			if answers := c.Response != nil; table != "extended" && address != answers && c.Name != "bind_ip" {
				t.Errorf("%s %d, %s: an answer: %v, an address for it: %v", table, number, c.Name, answers, address)
			}
		}
	}
	for option, want := range map[uint32]any{
		abi.QueryAddr: abi.QueryAddrResp{}, abi.QueryPath: abi.QueryPathResp{},
		abi.QueryGID: abi.QueryAddrResp{}, 3: nil,
	} {
		if got, err := abi.QueryResponse(option); got != want || (err != nil) != (want == nil) {
			t.Errorf("query, option %d: %T, error %v", option, got, err)
		}
	}
}
