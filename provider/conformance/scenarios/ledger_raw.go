package scenarios

import "github.com/govs-rdma/govs/provider/conformance"

// Keys of what WantRefused finds.
const (
	keyTold      = "check:the Terminate names the fault"
	keyEnds      = "check:the connection ends after the Terminate"
	keyFIN       = "check:it closes with a FIN"
	keyTerminate = "observe:terminate"
	keyEnd       = "observe:end"
	keyEvents    = "observe:events"
	keyReceived  = "observe:responder.receive.wc"
	keySent      = "observe:initiator.send.wc"

	keyWireLayout  = "wire:to-*:terminate:layout"
	keyWireLength  = "wire:to-*:terminate:segment-length"
	keyWireMDR     = "wire:to-*:terminate:MDR"
	keyWireHeader  = "wire:to-*:terminate:header"
	keyWireError   = "wire:to-*:terminate:error"
	keyWireNoTerm  = "wire:to-*:terminate:missing"
	keyWireTerm    = "wire:to-*:terminate:extra"
	keyWireEnd     = "wire:to-*:end:*"
	keyWireReading = "wire:to-initiator:rdma-read-response:*"
)

// each pairs scenarios with keys.
func each(scenarios []string, keys ...string) [][2]string {
	var out [][2]string
	for _, k := range keys {
		out = append(out, on(k, scenarios...)...)
	}
	return out
}

// the names a few scenarios.
func the(scenarios ...string) []string { return scenarios }

// rawKernelsSeen are those on which the raw scenarios were run.
const rawKernelsSeen = "6.1.192, 6.12.117"

// rawLedger is what the raw scenarios have shown.
func rawLedger() conformance.Ledger {
	var l conformance.Ledger
	for _, part := range []conformance.Ledger{
		rawStartupLedger(), rawPrivateDataLedger(), rawFramingLedger(), rawTerminateLedger(),
		rawSegmentLedger(), rawReadLedger(), rawResponseLedger(), rawReportLedger(),
	} {
		l = append(l, part...)
	}
	for i := range l {
		l[i].Kernels = rawKernelsSeen
	}
	return append(l, rawFixedLedger()...)
}

// rawTerminateLedger is about the form of siw's Terminates, whatever they report.
func rawTerminateLedger() conformance.Ledger {
	var l conformance.Ledger
	all := the("mpa/*", "ddp/*", "rdmap/*")
	layouts := the("rdmap/terminate-layout", "rdmap/terminate-read-layout", "rdmap/terminate-version-layout")
	const layout = "siw packs the Terminate control field with C bit-fields: layer and type, and M, D and R, are in the wrong bits on x86."
	l = append(l, siwDiffers("siw-terminate-layout", "siw-terminate-layout.md", layout, "", true, each(all, keyWireLayout)...)...)
	l = append(l, siwDiffers("siw-terminate-layout", "siw-terminate-layout.md", layout, "", false,
		each(layouts, "check:the control field has the layout of RFC 5040 figure 8")...)...)

	// siw refuses the first message of RFC 7306.
	off := the("ext/immediate-off", "ext/atomic-off")
	l = append(l, siwDiffers("siw-terminate-layout", "siw-terminate-layout.md", layout, "", true, each(off, keyWireLayout)...)...)
	l = append(l, siwDiffers("siw-terminate-without-header", "siw-terminate-layout.md",
		"siw attaches nothing to a Terminate about a version, an opcode or a length; RFC 5040 "+
			"figure 10 requires length and DDP header.",
		"", true, each(off, keyWireMDR, keyWireHeader, keyWireLength)...)...)

	// Faults that siw finds before it has the whole header.
	bare := the("ddp/untagged-version-*", "ddp/tagged-version-*", "rdmap/version-*", "rdmap/write-version-*", "rdmap/opcode-*",
		"rdmap/read-too-short", "rdmap/terminated-control-cut", "rdmap/terminate-version-layout")
	l = append(l, siwDiffers("siw-terminate-without-header", "siw-terminate-layout.md",
		"siw attaches nothing to a Terminate about a version, an opcode or a length; RFC 5040 "+
			"figure 10 requires length and DDP header.",
		"", false, append(each(bare, keyWireMDR, keyWireHeader, keyWireLength),
			each(layouts[2:], "check:M and D are set: length and header of the segment are there", "check:the header of the segment is there")...)...)...)

	const length = "siw puts the length of the payload where RFC 5040 requires that of the DDP " +
		"segment, and 0 in Terminates about a Read."
	l = append(l, siwDiffers("siw-terminate-segment-length", "siw-terminate-layout.md", length, "", true, each(all, keyWireLength)...)...)
	l = append(l, siwDiffers("siw-terminate-segment-length", "siw-terminate-layout.md", length, "", false,
		each(layouts[:2], "check:the length is that of the segment, its header included")...)...)

	const rebuilt = "In a Terminate about a Read Request siw rebuilds the DDP header, with the Read's size in the MSN field."
	l = append(l, siwDiffers("siw-terminate-read-msn", "siw-terminate-layout.md", rebuilt, "", true, each(the("rdmap/read-*"), keyWireHeader)...)...)
	l = append(l, siwDiffers("siw-terminate-read-msn", "siw-terminate-layout.md", rebuilt, "", false,
		each(layouts[1:2], keyWireHeader, "check:the header is that of the segment at fault")...)...)
	return l
}

// rawReportLedger is about what siw reports to its program.
func rawReportLedger() conformance.Ledger {
	var l conformance.Ledger
	l = append(l, siwDiffers("siw-receive-general-error", "siw-error-reports.md",
		"siw completes the receive that a faulty Send had taken with IBV_WC_GENERAL_ERR; the engine flushes it.", "", false,
		each(the("ddp/send-msn-*", "ddp/send-mo-*", "ddp/send-second-*", "ddp/send-queue-*", "rdmap/send-second-opcode", "rdmap/send-tagged",
			"mpa/crc-wrong-send", "mpa/crc-zero", "mpa/crc-wrong-first"), keyReceived)...)...)
	l = append(l, siwDiffers("siw-read-general-error", "siw-error-reports.md",
		"siw completes a Read whose response was wrong with IBV_WC_GENERAL_ERR; the engine flushes it, or reports its length.", "", false,
		each(the("mpa/crc-wrong-response", "rdmap/response-other-*", "rdmap/response-too-*", "rdmap/response-empty", "rdmap/response-second-opcode"),
			keySent)...)...)
	l = append(l, siwDiffers("siw-sq-drained", "siw-error-reports.md",
		"siw raises IBV_EVENT_SQ_DRAINED only when it flushes work that it had not begun; the "+
			"engine raises it for a Read that was waiting, too.", "", false,
		each(the("mpa/crc-wrong-response", "rdmap/local-fault", "rdmap/response-other-*", "rdmap/response-too-*", "rdmap/response-empty",
			"rdmap/response-second-opcode", "rdmap/response-crossed", "rdmap/response-last-missing", "rdmap/response-never"), keyEvents)...)...)
	l = append(l, siwDiffers("siw-events", "siw-error-reports.md",
		"siw raises no event for a Read Request with a wrong MSN, and IBV_EVENT_QP_ACCESS_ERR for a Write to a region that was invalidated.", "", false,
		each(the("rdmap/read-msn-*", "rdmap/invalidate"), keyEvents)...)...)
	l = append(l, siwDiffers("siw-local-errors-alike", "siw-error-reports.md",
		"siw reports every local fault of send work as IBV_WC_LOC_QP_OP_ERR.", "", false,
		each(the("rdmap/local-fault"), "observe:responder.send.wc")...)...)
	l = append(l, siwDiffers("siw-solicited-never", "siw-solicited-arming.md",
		"A CQ of siw that is armed for solicited completions gives no event for any receive.", "", false,
		each(the("rdmap/solicited-event"), "check:the solicited one does")...)...)
	return l
}
