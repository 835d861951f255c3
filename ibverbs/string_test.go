package ibverbs_test

import (
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/ibverbs"
)

// What objects print as, while they are open, after Close and as nil.
func TestStrings(t *testing.T) {
	o := newObjects(t)
	name := fmt.Sprintf("qp %d", o.qp.QPN())
	region := fmt.Sprintf("mr %#x", o.mr.LKey())
	attr, init, err := o.qp.Query()
	ok(t, err)
	for want, got := range map[string]fmt.Stringer{
		fmt.Sprintf("%s (%s, up to %d sends, %d receives)", name, attr.State, init.Cap.MaxSendWR, init.Cap.MaxRecvWR): o.qp,
		region + " (4096 octets, IBV_ACCESS_LOCAL_WRITE)":                                                             o.mr,
		fmt.Sprintf("cq of fake0 (%d completions, my cq)", o.cq.CQE()):                                                o.cq,
		"nil qp": (*ibverbs.QP)(nil),
		"nil mr": (*ibverbs.MR)(nil),
		"nil cq": (*ibverbs.CQ)(nil),
		"0":      ibverbs.Access(0),
		"IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ|0x100000":              ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead | 1<<20,
		"work request 0x7 of qp 5: IBV_WC_RECV, 8 octets":                     ibverbs.WC{WRID: 7, QPN: 5, Opcode: ibverbs.WCRecv, ByteLen: 8},
		"work request 0x7 of qp 5: IBV_WC_SEND":                               ibverbs.WC{WRID: 7, QPN: 5},
		"work request 0x7 of qp 5: IBV_WC_RECV, 0 octets, immediate data 0x9": ibverbs.WC{WRID: 7, QPN: 5, Opcode: ibverbs.WCRecv, Flags: ibverbs.WCWithImm, Imm: 9},
		"work request 0x7 of qp 5: IBV_WC_WR_FLUSH_ERR":                       ibverbs.WC{WRID: 7, QPN: 5, Status: ibverbs.WCWRFlushErr},
	} {
		if got.String() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	ok(t, o.qp.Close())
	ok(t, o.cq.Close())
	ok(t, o.mr.Close())
	for want, got := range map[string]fmt.Stringer{
		name + " (closed)": o.qp, region + " (closed)": o.mr, "cq of fake0 (closed)": o.cq,
	} {
		if got.String() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	ok(t, o.ch.Close())
	ok(t, o.pd.Close())
	ok(t, o.ctx.Close())
}
