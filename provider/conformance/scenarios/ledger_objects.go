package scenarios

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
)

// objectsLedger is what the scenarios of QPs' states and of regions have shown.
func objectsLedger() conformance.Ledger {
	const (
		initiator = conformance.RoleInitiator
		responder = conformance.RoleResponder
	)
	var l conformance.Ledger
	add := func(entries conformance.Ledger) { l = append(l, entries...) }

	add(siwDiffers("siw-states-taken", "siw-modify-qp.md",
		"ibv_modify_qp of siw returns 0 for changes that are not allowed, and does nothing, or "+
			"makes only the other changes of the call.",
		initiator, false, siwTakes()...))
	add(siwDiffers("siw-sqd-drops", "siw-modify-qp.md",
		"At SQD siw closes the connection at once and flushes the send queue, including Reads "+
			"that are not answered yet.",
		initiator, true, each(the("states/sqd-drains"), "check:"+sqdDone, "check:"+sqdArrives, "check:"+sqdTold)...))
	add(siwDiffers("siw-drained-untold", "siw-modify-qp.md",
		"siw ignores IBV_QP_EN_SQD_ASYNC_NOTIFY: IBV_EVENT_SQ_DRAINED comes when work in the "+
			"send queue is flushed.",
		initiator, false, on("check:"+sqdTold, "states/sqd-event")...))
	add(siwDiffers("siw-state-untold", "siw-query-qp.md",
		"siw before Linux 6.8 does not report a QP's state; later ones report INIT for a QP "+
			"that is not connected.",
		initiator, false, on("check:"+statesTold, "states/unconnected")...))

	add(siwDiffers("siw-short-page-crossing", "siw-short-page-crossing.md",
		"siw answers Reads of up to 32 octets that cross the end of a page with octets from elsewhere, under a good CRC.",
		responder, false, shortAcrossWrong()...))
	add(siwDiffers("siw-no-rereg", "siw-regions.md",
		"siw has no ibv_rereg_mr, and returns that error before it checks arguments.",
		responder, false, on("observe:errno.*", "memory/rereg-refused")...))
	for k := range l {
		l[k].Kernels = "6.1.192"
	}
	return l
}

// siwTakes are the changes of a QP's state that siw makes, or reports as made.
func siwTakes() [][2]string {
	out := on("check:"+noReturn, "states/sqd-event")
	for _, c := range unconnected {
		for k, to := range qpStates {
			byCM := to == ibverbs.QPRTS && c.from != ibverbs.QPErr // which siw refuses, too
			if !c.may[k] && !byCM {
				out = append(out, on("check:"+stateChange{c.from, to}.refused(), "states/unconnected")...)
			}
		}
	}
	for _, to := range beforeRTS {
		out = append(out, on("check:"+stateChange{ibverbs.QPRTS, to}.refused(), "states/connected")...)
	}
	for _, c := range badAttributes {
		out = append(out, on(fmt.Sprintf("check:%s: EINVAL", c.what), "states/attributes")...)
	}
	return out
}

// shortAcrossWrong are the Reads that siw answers with other octets.
func shortAcrossWrong() [][2]string {
	const slug = "read/short-across-pages"
	out := on("wire:to-initiator:rdma-read-response:octets", slug)
	for _, c := range shortAcrossPages {
		if c.wrong {
			out = append(out, on("check:"+shortAcross(c.n, c.before), slug)...)
		}
	}
	return out
}
