package recording

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// kinds maps fields to the kind of object that their values stand for. Equal values in fields of
// one kind stand for the same object.
var kinds = map[string]string{
	"pd_handle": "pd", "mr_handle": "mr", "mw_handle": "mw", "qp_handle": "qp", "srq_handle": "srq",
	"cq_handle": "cq", "send_cq_handle": "cq", "recv_cq_handle": "cq", "base.cq_handle": "cq",
	"base.qp_handle": "qp",

	"qpn": "qpn", "base.qpn": "qpn", "qp_id": "qpn", "qp_num": "qpn", "conn_param.qp_num": "qpn",
	"param.conn.qp_num": "qpn", "dest_qp_num": "qpn",

	"rq_psn": "psn", "sq_psn": "psn", // programs choose these at random

	"lkey": "stag", "rkey": "stag", "stag": "stag",
	"cq_id": "cqid", "srqn": "srqn", "dev_id": "dev",
	"cq_key": "map", "sq_key": "map", "rq_key": "map", "srq_key": "map",
	"async_fd": "fd", "fd": "fd", "comp_channel": "fd",

	"user_handle": "object", "uid": "object", "start": "memory", "hca_va": "memory",
	"node_guid": "guid", "sys_image_guid": "guid", "base.node_guid": "guid",
	"base.sys_image_guid": "guid",
	"ib_route[0].dgid":    "gid", "ib_route[0].sgid": "gid",
}

// addresses are fields for which only zero and nonzero are distinguished.
var addresses = map[string]bool{"response": true, "optval": true}

// defined lists, by command, the fields whose value stands for a new object, even if the value was
// used before.
var defined = map[string][]string{
	"uverbs.get_context":         {"async_fd"},
	"uverbs.alloc_pd":            {"answer.pd_handle"},
	"uverbs.reg_mr":              {"answer.mr_handle", "answer.lkey"},
	"uverbs.create_comp_channel": {"answer.fd"},
	"uverbs.create_cq":           {"request.user_handle", "answer.cq_handle", "answer.cq_id"},
	"uverbs.ex_create_cq": {"request.user_handle", "answer.base.cq_handle",
		"answer.cq_id"},
	"uverbs.ex_create_qp": {"request.user_handle", "answer.base.qp_handle",
		"answer.base.qpn"},
	"uverbs.create_qp":  {"request.user_handle", "answer.qp_handle", "answer.qpn"},
	"uverbs.create_srq": {"request.user_handle", "answer.srq_handle", "answer.srqn"},
	"rdma_cm.create_id": {"request.uid", "answer.id"},
	"rdma_cm.accept":    {"request.uid"},
}

// value returns the parts that replace a field's value.
func (n *naming) value(e *Entry, command string, p *Message, f *abi.Field) []any {
	switch v := f.Value.Interface().(type) {
	case abi.Sockaddr:
		return n.address(v[:])
	case abi.SockaddrStorage:
		return n.address(v[:])
	}
	kind := kinds[f.Name]
	if e.File == CM && f.Name == "id" {
		kind = "id"
	}
	zero := f.Value.IsZero()
	switch {
	case addresses[f.Name] && !zero:
		return []any{"address"}
	case f.Name == "comp_events_reported" && !n.silent[n.destroyed]:
		return []any{"any"}
	case f.Name == "rq_key" && p.Value.(*abi.SiwCreateQPResp).NumRQE == 0:
		return []any{text(f)} // no queue
	case kind == "":
		return []any{text(f)}
	case zero && mayBeNone(kind):
		return []any{"0"}
	case f.Value.Kind() == reflect.Int32 && f.Value.Int() == -1:
		return []any{"-1"} // no descriptor
	}
	value := text(f)
	for _, name := range defined[command] {
		if name == p.Name+"."+f.Name {
			delete(n.objects, kind+" "+value)
		}
	}
	if v, ok := p.Value.(*abi.EventResp); ok && f.Name == "id" && v.Event == connectRequest {
		delete(n.objects, kind+" "+value)
	}
	return []any{n.name(kind, value)}
}

// note records whether a new CQ has a channel.
func (n *naming) note(e *Entry, parts []Message) {
	var cq any
	silent := false
	for _, p := range parts {
		switch v := p.Value.(type) {
		case *abi.CreateCQ:
			silent = v.CompChannel == -1
		case *abi.ExCreateCQ:
			silent = v.CompChannel == -1
		case *abi.CreateCQResp:
			cq = v.CQHandle
		case *abi.ExCreateCQResp:
			cq = v.Base.CQHandle
		case *abi.DestroyCQ:
			n.destroyed = v.CQHandle
		}
	}
	if cq, ok := cq.(uint32); ok && e.File == Uverbs {
		n.silent[cq] = silent
	}
}

// mayBeNone reports whether 0 means no object of a kind.
func mayBeNone(kind string) bool {
	switch kind {
	case "pd", "mr", "mw", "qp", "srq", "cq", "id", "map", "dev":
		return false
	}
	return true
}

// Offsets in struct sockaddr_ib of its GID and its service id; the last two bytes of the service id
// are a port.
const (
	ibGID  = 8
	ibSID  = 24
	ibPort = ibSID + 6
)

// address formats an address of IP or InfiniBand with the names of its parts.
func (n *naming) address(b []byte) []any {
	var s abi.SockaddrStorage
	copy(s[:], b)
	ap, err := s.AddrPort()
	octets := func(b []byte) string { return string(appendOctets(nil, b)) }
	switch {
	case s.Family() == abi.FamilyIB:
		gid, port := b[ibGID:ibSID], b[ibPort:ibPort+2]
		parts := []any{"ib:", octets(b[2:ibGID]), ":"}
		if slices.Max(gid) == 0 {
			parts = append(parts, "any")
		} else {
			parts = append(parts, n.name("gid", octets(gid)))
		}
		return append(parts, ":", octets(b[ibSID:ibPort]), n.port(binary.BigEndian.Uint16(port)),
			":", octets(b[ibPort+2:]))
	case err != nil:
		return []any{"x", octets(b)}
	case !ap.Addr().IsValid():
		return []any{"unspec"}
	}
	parts := []any{fmt.Sprintf("family%d:", s.Family())}
	if ap.Addr().IsUnspecified() {
		parts = append(parts, "any")
	} else {
		parts = append(parts, n.name("ip", ap.Addr().String()))
	}
	return append(parts, ":", n.port(ap.Port()))
}

func (n *naming) port(port uint16) any {
	if port == 0 {
		return "0"
	}
	return n.name("port", fmt.Sprint(port))
}
