package scenarios

import "github.com/govs-rdma/govs/provider/conformance"

// bridgeDiffers makes the entries of one fact about the bridge: C's libraries over the engine.
func bridgeDiffers(id, evidence, reason string, as conformance.Role,
	covers ...[2]string) conformance.Ledger {
	var l conformance.Ledger
	for _, c := range covers {
		l = append(l, conformance.LedgerEntry{
			ID: id, Scenario: c[0], Provider: "bridge", As: as, Key: c[1],
			Reason: reason, Kernels: "any: the bridge uses none", Evidence: evidence,
		})
	}
	return l
}

// bridgeLedger is what the scenarios have shown over the bridge: what it answers as siw does, what
// libibverbs, librdmacm and libsiw leave out, and options that it is not opened with. On the wire
// there is only what follows from these.
func bridgeLedger() conformance.Ledger {
	const (
		initiator = conformance.RoleInitiator
		responder = conformance.RoleResponder

		notes = "kernel-notes/"
		doc   = "docs/exec.md"
	)
	var l conformance.Ledger
	add := func(id, evidence, reason string, as conformance.Role, covers ...[2]string) {
		l = append(l, bridgeDiffers(id, evidence, reason, as, covers...)...)
	}

	// As siw.
	add("bridge-states-taken", notes+"siw-modify-qp.md",
		"As with siw, ibv_modify_qp returns 0 for changes that are not allowed, and does nothing.",
		initiator, append(siwTakes(), on("check:"+statesTold, "states/unconnected")...)...)
	add("bridge-reject-status", notes+"siw-reject.md",
		"As with siw, a rejection is reported as ECONNRESET.", initiator,
		each(the("conn/reject", "mpa/reply-rejects-*"),
			"check:the status is that of a peer's program")...)
	add("bridge-no-rereg", notes+"siw-regions.md",
		"As with siw, there is no ibv_rereg_mr, which is the error before arguments are checked.",
		responder, on("observe:errno.*", "memory/rereg-refused")...)

	// The libraries.
	add("bridge-no-with-inv", notes+"siw-solicited-arming.md",
		"libsiw does not report to a receiver which STag a Send with Invalidate ended.", responder,
		on("check:the receive says that a key was invalidated",
			"send/with-invalidate", "send/solicited-with-invalidate")...)
	add("bridge-sge-limit-ignored", notes+"libsiw-sge-limit.md",
		"libsiw accepts up to six SGEs, whatever the QP was made for.", initiator,
		each(the("queue/too-many-sges"), "check:the Send is refused with EINVAL",
			"check:the receive is refused with EINVAL", "wire:to-responder:send:extra")...)
	add("bridge-iova-page", doc,
		"The kernel's interface takes an address for a region only if it is like the memory's own "+
			"within a page.", responder,
		each(the("memory/iova-last"), "check:there is a region with an address of its own",
			"check:a Terminate says why the connection ends", "observe:*", "wire:to-*")...)
	add("bridge-private-data", doc,
		"rdma_cm's events have room for 255 octets of private data; the rest does not reach the "+
			"program.", responder,
		on("check:with its private data", "mpa/request-private-data-508")...)

	return append(l, bridgeOptionsLedger()...)
}

// bridgeOptionsLedger is about scenarios whose options the bridge can't be given.
func bridgeOptionsLedger() conformance.Ledger {
	add := func(as conformance.Role, covers ...[2]string) conformance.Ledger {
		return bridgeDiffers("bridge-options", "docs/exec.md",
			"The bridge's engine has the options that it was started with for all scenarios: CRC, "+
				"no peer-to-peer mode, no second attempt with revision 1.", as, covers...)
	}
	const (
		initiator = conformance.RoleInitiator
		responder = conformance.RoleResponder
	)
	first := the("conn/responder-first-write", "conn/responder-first-read")
	opens := the("mpa/opens-with-send", "mpa/opens-with-write", "mpa/opens-with-read")
	l := add(initiator, join(
		each(first, "check:initiator's receive completions arrive",
			"check:the responder's Send arrives first", "check:with all its octets",
			"observe:initiator.receive.wc", "wire:to-responder:request:ABCD",
			"wire:to-initiator:reply:ABCD"),
		each(first[:1], "wire:to-responder:rdma-write:missing"),
		each(first[1:], "wire:to-responder:rdma-read-request:missing",
			"wire:to-initiator:rdma-read-response:missing"),
		each(opens, "check:it asks for a peer-to-peer connection",
			"check:it offers the message that it is to open connections with",
			"observe:initiator.receive.wc", "wire:to-responder:request:ABCD"),
		each(opens[:1], "wire:to-responder:send:*"),
		each(opens[1:2], "wire:to-responder:rdma-write:missing"),
		each(opens[2:], "wire:to-responder:rdma-read-request:missing"),
		each(the("mpa/fallback"), "check:a second connection comes", "observe:*",
			"wire:to-responder:end:how", "wire:connection:missing"))...)
	return append(l, add(responder, each(the("mpa/crc-off"), "check:neither side asks for CRCs",
		"observe:*", "wire:to-initiator:rdma-read-response:missing")...)...)
}
