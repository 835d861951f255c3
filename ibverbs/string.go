package ibverbs

import (
	"fmt"

	"github.com/govs-rdma/govs/provider"
)

// What the objects print as, for log lines. A String method may be called at any time,
// also on an object that is nil or closed, and takes no lock that a caller can hold.

// String says which QP it is, its state and its sizes:
// "qp 17 (IBV_QPS_RTS, up to 64 sends, 64 receives)".
func (qp *QP) String() string {
	if qp == nil || qp.p == nil {
		return "nil qp"
	}
	attr, init, err := qp.Query()
	if err != nil {
		return qp.obj.Name() + " (closed)"
	}
	receives := fmt.Sprintf("%d receives", init.Cap.MaxRecvWR)
	if qp.srq != nil {
		receives = "receives of an srq"
	}
	return fmt.Sprintf("%s (%s, up to %d sends, %s)", qp.obj.Name(), attr.State, init.Cap.MaxSendWR, receives)
}

// String says which MR it is, its length and its rights:
// "mr 0x1f00 (4096 octets, IBV_ACCESS_LOCAL_WRITE)".
func (mr *MR) String() string {
	p := mr.p()
	switch {
	case p == nil:
		return "nil mr"
	case mr.obj.Closed():
		return mr.obj.Name() + " (closed)"
	}
	return fmt.Sprintf("%s (%d octets, %s)", mr.obj.Name(), p.Len(), p.Access())
}

// String says of which device the CQ is, and how much it holds. A cookie that is a
// string, or has a String method, is part of it: "cq of siw0 (64 completions, requests)".
func (cq *CQ) String() string {
	switch {
	case cq == nil || cq.p == nil:
		return "nil cq"
	case cq.obj.Closed():
		return cq.obj.Name() + " (closed)"
	}
	s := fmt.Sprintf("%s (%d completions", cq.obj.Name(), cq.p.CQE())
	switch cookie := cq.cookie.(type) {
	case string:
		s += ", " + cookie
	case fmt.Stringer:
		s += ", " + cookie.String()
	}
	return s + ")"
}

var (
	_ fmt.Stringer = (*QP)(nil)
	_ fmt.Stringer = (*MR)(nil)
	_ fmt.Stringer = (*CQ)(nil)
	_ fmt.Stringer = provider.WC{}
	_ fmt.Stringer = provider.Access(0)
)
