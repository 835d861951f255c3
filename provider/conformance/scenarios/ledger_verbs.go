package scenarios

import "github.com/govs-rdma/govs/provider/conformance"

// kernelsSeen are those on which the suite was run.
const kernelsSeen = "6.1.192, 6.12.117"

// siwDiffers makes the entries of one fact: an entry per scenario and key, because an
// entry that covers too much would hide divergences that are not known yet.
func siwDiffers(id, note, reason string, as conformance.Role, sometimes bool, covers ...[2]string) conformance.Ledger {
	var l conformance.Ledger
	for _, c := range covers {
		l = append(l, conformance.LedgerEntry{
			ID: id, Scenario: c[0], Provider: "kernel", As: as, Key: c[1],
			Reason: reason, Kernels: kernelsSeen, Evidence: "kernel-notes/" + note, Sometimes: sometimes,
		})
	}
	return l
}

// withVariants limits entries to variants of the module.
func withVariants(l conformance.Ledger, variants ...string) conformance.Ledger {
	for i := range l {
		l[i].Variants = variants
	}
	return l
}

// on pairs scenarios with a key.
func on(key string, scenarios ...string) [][2]string {
	var out [][2]string
	for _, s := range scenarios {
		out = append(out, [2]string{s, key})
	}
	return out
}

func join(lists ...[][2]string) [][2]string {
	var out [][2]string
	for _, l := range lists {
		out = append(out, l...)
	}
	return out
}

// verbsLedger is what the verbs scenarios have shown.
func verbsLedger() conformance.Ledger {
	const (
		initiator = conformance.RoleInitiator
		responder = conformance.RoleResponder
	)
	var l conformance.Ledger
	add := func(entries conformance.Ledger) { l = append(l, entries...) }

	terminates := []string{
		"send/with-invalidate", "send/solicited-with-invalidate", "protection/write-*", "protection/receive-too-small", "protection/no-receive", "srq/empty",
		"protection/read-bad-key", "protection/read-wrong-key-octet", "protection/read-beyond-end", "protection/read-before-start",
		"protection/read-other-pd", "protection/read-closed-region", "protection/read-flushes",
	}
	add(siwDiffers("siw-terminate-layout", "siw-terminate-layout.md",
		"siw packs the Terminate control field with C bit-fields: layer and type, and M, D and R, are in the wrong bits on x86.",
		responder, false, on("wire:to-initiator:terminate:layout", terminates...)...))
	add(siwDiffers("siw-terminate-segment-length", "siw-terminate-layout.md",
		"siw puts the length of the payload where RFC 5040 requires that of the DDP segment, "+
			"and 0 in Terminates about a Read.",
		responder, false, on("wire:to-initiator:terminate:segment-length", terminates...)...))
	add(siwDiffers("siw-terminate-read-msn", "siw-terminate-layout.md",
		"In a Terminate about a Read Request siw rebuilds the DDP header, with the Read's size in the MSN field.",
		responder, false, on("wire:to-initiator:terminate:header", terminates[6:]...)...))

	add(withVariants(siwDiffers("siw-crc-not-asked", "siw-crc-default.md",
		"siw asks for CRC only if it was built with mpa_crc_required; RFC 5044 section 4.4 makes CRC the default.",
		initiator, false, on("check:the Request has C set", "mpa/crc-default")...), "default", "p2p"))
	add(siwDiffers("siw-solicited-never", "siw-solicited-arming.md",
		"A CQ of siw that is armed for solicited completions gives no event for any receive.",
		responder, false, on("check:the solicited Send gives an event", "send/solicited", "send/solicited-with-invalidate")...))
	add(siwDiffers("libsiw-no-with-inv", "siw-solicited-arming.md",
		"libsiw does not report to a receiver which STag a Send with Invalidate ended: "+
			"completions have no flags.",
		responder, false, on("check:the receive says that a key was invalidated", "send/with-invalidate", "send/solicited-with-invalidate")...))

	add(siwDiffers("siw-completes-out-of-order", "siw-completion-order.md",
		"siw completes a Send before the Read that was posted before it; RFC 5040 section 5.5 "+
			"requires completions in the order of posting.",
		initiator, true, join(on("check:the Read completes first", "order/read-then-send"), on("check:the Send second", "order/read-then-send"),
			on("observe:initiator.send.wc", "order/read-then-send"))...))
	add(siwDiffers("siw-read-depth-rounded", "siw-read-depth.md",
		"siw rounds read depths up to a power of two and has that many Reads outstanding.",
		initiator, true, on("check:no more Reads are outstanding than agreed", "read/depth-3")...))
	add(siwDiffers("engine-read-depth-rounded", "siw-read-depth.md",
		"The engine announces the next power of two, because siw rounds up to that; siw "+
			"announces the number that the program gave.",
		"", true, join(on("wire:to-responder:request:IRD", "read/depth-3"), on("wire:to-initiator:reply:IRD", "read/depth-3"))...))

	add(siwDiffers("siw-reject-status", "siw-reject.md",
		"siw reports a rejection as ECONNRESET, so that rdma_is_consumer_reject is false.",
		initiator, false, on("check:the status is that of a peer's program", "conn/reject")...))
	add(siwDiffers("siw-reject-depths", "siw-reject.md",
		"siw repeats the request's depths in a rejecting reply.",
		responder, false, join(on("wire:to-initiator:reply:IRD", "conn/reject"), on("wire:to-initiator:reply:ORD", "conn/reject"))...))

	add(siwDiffers("siw-no-remote-access-error", "siw-error-reports.md",
		"siw does not evaluate the peer's Terminate: a Read that was refused completes as flushed.",
		initiator, false, each(the("protection/read-bad-key", "protection/read-wrong-key-octet", "protection/read-beyond-end",
			"protection/read-before-start", "protection/read-no-right", "protection/read-other-pd", "protection/read-closed-region"),
			"check:it fails because of the peer's memory", keySent)...))
	add(siwDiffers("siw-local-errors-alike", "siw-error-reports.md",
		"siw reports every local fault of send work as IBV_WC_LOC_QP_OP_ERR.",
		initiator, false, each(the("protection/local-bad-key", "protection/local-beyond-end"), "check:the error is that memory is protected", keySent)...))
	add(siwDiffers("siw-interrupted-send-fails", "siw-error-reports.md",
		"siw completes work that it is sending when the peer's Terminate comes as failed.",
		initiator, true, each(the("protection/write-bad-key", "protection/write-wrong-key-octet", "protection/write-beyond-end",
			"protection/write-before-start", "protection/write-no-right", "protection/write-other-pd", "protection/write-closed-region",
			"protection/write-flushes", "protection/receive-too-small", "protection/no-receive"), keySent)...))
	add(siwDiffers("siw-too-long-code", "siw-error-reports.md",
		"siw terminates a Send that is longer than the receive with the code for no buffer, 1/2/0x02, instead of 1/2/0x05.",
		responder, false, each(the("protection/receive-too-small"), "check:it gives the reason", keyWireError)...))
	add(siwDiffers("siw-remote-read-unchecked", "siw-remote-read-unchecked.md",
		"siw serves RDMA Reads of regions without the remote read right.",
		responder, false, join(on("check:the Read fails", "protection/read-no-right"), on("check:a Terminate says why the connection ends", "protection/read-no-right"),
			on("observe:initiator.send.wc", "protection/read-no-right"),
			on("wire:to-initiator:rdma-read-response:extra", "protection/read-no-right"), on("wire:to-initiator:terminate:missing", "protection/read-no-right"))...))

	add(siwDiffers("siw-query-state", "siw-query-qp.md",
		"siw before Linux 6.8 does not report a QP's state, and the provider returns QPUnknown; "+
			"later ones report INIT for a QP that is not connected.",
		initiator, false, on("check:and is in the state RESET", "objects/query")...))
	add(siwDiffers("libsiw-sge-limit-ignored", "libsiw-sge-limit.md",
		"libsiw accepts up to six SGEs, whatever the QP was made for.",
		initiator, false, each(the("queue/too-many-sges"), "check:the Send is refused with EINVAL", "check:the receive is refused with EINVAL",
			"wire:to-responder:send:extra")...))
	return l
}
