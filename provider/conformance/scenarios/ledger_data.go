package scenarios

import "github.com/govs-rdma/govs/provider/conformance"

// rawFramingLedger is about siw's FPDUs.
func rawFramingLedger() conformance.Ledger {
	var l conformance.Ledger
	add := func(id, note, reason string, covers ...[2]string) {
		l = append(l, siwDiffers(id, note, reason, "", false, covers...)...)
	}
	add("siw-crc-split", "siw-crc-split.md",
		"siw finds the CRC of an FPDU wrong if a TCP segment ends inside it, because the second "+
			"part overwrites the first.",
		append(each(the("mpa/one-octet-at-a-time"), "check:the Read Request is answered", "observe:*", "wire:to-initiator:*"),
			each(the("mpa/split-anywhere"), "check:a Send after them is delivered",
				"check:each of the Writes is placed", "check:nothing else is sent", keyFIN,
				keyReceived, keyEnd, "wire:to-initiator:*")...)...)
	add("siw-places-before-crc", "siw-places-before-crc.md",
		"siw places payload as it comes and checks the CRC after it; RFC 5044 section 4.4 has "+
			"an FPDU with a wrong CRC dropped.",
		append(each(the("mpa/crc-wrong-send", "mpa/crc-zero", "mpa/crc-wrong-first"), "check:nothing is placed in the receive buffer"),
			append(each(the("mpa/crc-wrong-write", "mpa/crc-wrong-payload"), "check:nothing is placed in the window"),
				each(the("mpa/crc-wrong-response"), "check:nothing is placed in the sink")...)...)...)
	add("siw-responder-speaks-first", "siw-responder-speaks-first.md",
		"siw as responder sends before it has received a valid FPDU from the initiator; RFC "+
			"5044 section 7.1.2 requires that it waits.",
		append(each(the("mpa/responder-waits"), "check:nothing is sent while the initiator has said nothing", "observe:*", "wire:to-initiator:*"),
			each(the("mpa/crc-wrong-first"), "check:nothing is sent before the end", keyWireTerm)...)...)
	l = append(l, siwDiffers("siw-data-pending", "siw-terminate-reset.md",
		"siw closes the socket after a Terminate without reading what has come: the FIN may be "+
			"a reset.", "", true,
		each(the("mpa/terminate-with-data-pending", "ddp/drop-after-error", "mpa/drop-after-crc-error", "rdmap/two-errors"), keyEnd, keyWireEnd)...)...)
	add("siw-short-fpdu", "siw-header-checks.md",
		"For a ULPDU of 0 or 1 octets siw waits for a whole header, and reads on into the next FPDU.",
		each(the("mpa/ulpdu-length-0", "mpa/ulpdu-length-1"), keyTold, keyEnds, keyTerminate, keyEnd, keyWireNoTerm, keyWireEnd)...)
	return l
}

// rawSegmentLedger is about Sends and Writes to siw.
func rawSegmentLedger() conformance.Ledger {
	var l conformance.Ledger
	add := func(id, note, reason string, covers ...[2]string) {
		l = append(l, siwDiffers(id, note, reason, "", false, covers...)...)
	}
	add("siw-too-long-code", "siw-error-reports.md",
		"siw terminates a Send that is longer than the receive with the code for no buffer, 1/2/0x02, instead of 1/2/0x05.",
		each(the("ddp/send-too-long", "ddp/send-too-long-second"), keyTold, keyTerminate, keyWireError)...)
	add("siw-opcode-changed", "siw-header-checks.md",
		"siw closes without a Terminate when the opcode changes between the segments of a message.",
		each(the("rdmap/send-second-opcode", "rdmap/response-second-opcode"), keyTold, keyTerminate, keyWireNoTerm)...)
	add("siw-t-bit", "siw-header-checks.md",
		"siw selects the header's format by the opcode and ignores T: it reads the header in "+
			"the other format and reports an error of that.",
		each(the("rdmap/write-untagged", "rdmap/send-tagged"), keyTold, keyTerminate, keyEvents, keyWireError, keyWireHeader, keyWireMDR)...)
	add("siw-write-wrap", "siw-offset-wrap.md",
		"siw does not check whether TO plus length exceeds 2^64: it does not find the memory, "+
			"and reports a local error.",
		each(the("ddp/write-wrap"), keyTold, keyTerminate, keyEvents, keyWireError, keyWireHeader, keyWireMDR)...)
	add("siw-write-order", "siw-write-order.md",
		"siw accepts the segments of a Write only in rising order of TO, without gaps, and none "+
			"after an empty first one.",
		each(the("ddp/write-falling-offsets", "ddp/write-empty-first-segment"),
			"check:a Send after it is delivered", "check:the Write is in the window",
			"check:nothing else is sent",
			keyFIN, keyReceived, keyEvents, keyEnd, keyWireTerm, keyWireEnd)...)
	add("siw-invalidate-refused", "siw-invalidate.md",
		"siw completes a receive with an error if it can't invalidate the STag that the Send "+
			"names, and keeps the connection: it sends no Terminate.",
		append(each(the("rdmap/invalidate-unknown", "rdmap/invalidate-other-pd"), keyTold, keyEnds, keyTerminate, keyEnd, "wire:to-initiator:*"),
			each(the("rdmap/invalidate-refused-then-send"), "check:neither Send completes with success",
				"check:what comes before the end is at most a Terminate", "check:the connection ends",
				"check:nothing is placed in the second receive buffer", keyReceived, keyTerminate, keyEnd, "wire:to-initiator:*")...)...)
	add("siw-invalidate-unchecked", "siw-invalidate.md",
		"siw checks neither the key octet of an STag to invalidate nor any right: the peer can "+
			"invalidate every region of the PD.",
		each(the("rdmap/invalidate-wrong-key", "rdmap/invalidate-no-right"), "check:the receive completes with an error",
			keyTold, keyEnds, keyReceived, keyTerminate, keyEnd, "wire:to-initiator:*")...)
	add("siw-terminate-accepted", "siw-header-checks.md",
		"siw ends the connection at a Terminate on any queue, and reports one without a whole "+
			"control field as an FPDU that is too short.",
		each(the("rdmap/terminate-queue-0", "rdmap/terminated-control-cut"), keyTerminate, keyEvents, keyWireNoTerm, keyWireError)...)
	return l
}

// rawReadLedger is about Read Requests to siw.
func rawReadLedger() conformance.Ledger {
	var l conformance.Ledger
	add := func(id, note, reason string, sometimes bool, covers ...[2]string) {
		l = append(l, siwDiffers(id, note, reason, "", sometimes, covers...)...)
	}
	add("siw-remote-read-unchecked", "siw-remote-read-unchecked.md",
		"siw serves RDMA Reads of regions without the remote read right.", false,
		each(the("rdmap/read-no-right", "rdmap/read-private"), keyTold, keyEnds, keyTerminate, keyEnd, keyEvents, keyWireNoTerm, keyWireEnd, keyWireReading)...)
	add("siw-read-request-unchecked", "siw-header-checks.md",
		"siw checks none of QN, MO and L of a Read Request.", false,
		each(the("rdmap/read-queue-0", "rdmap/read-mo-not-zero", "rdmap/read-not-last"), keyTold, keyEnds, keyTerminate, keyEnd, keyEvents, keyWireNoTerm, keyWireEnd, keyWireReading)...)
	add("siw-read-request-length", "siw-header-checks.md",
		"siw closes without a Terminate at a Read Request that is too long, and reports one "+
			"that is cut short as an FPDU that is too short.", false,
		each(the("rdmap/read-too-long", "rdmap/read-too-short"), keyTold, keyTerminate, keyWireNoTerm, keyWireError)...)
	add("siw-read-wrap", "siw-offset-wrap.md",
		"siw does not check whether source TO plus size exceeds 2^64: it does not find the "+
			"memory, and closes without a Terminate.", false,
		each(the("rdmap/read-wrap"), keyTold, keyTerminate, keyWireNoTerm)...)
	add("siw-read-4-gib", "siw-offset-wrap.md",
		"siw reports an invalid STag for a Read of 2^32-1 octets, because it takes the size for "+
			"a negative number.", false,
		each(the("rdmap/read-4-gib"), keyTold, keyTerminate, keyWireError)...)
	add("siw-read-beyond-ird", "siw-read-depth.md",
		"siw accepts one Read Request more than agreed while it is idle, and reports the next "+
			"as 0/2/0x07.", false,
		each(the("rdmap/read-beyond-ird"), keyTerminate, keyEvents, keyWireError, keyWireHeader, keyWireMDR, keyWireReading)...)
	add("siw-no-terminate-while-sending", "siw-read-depth.md",
		"siw sends no Terminate while it is sending a message, here a Read Response.", true,
		each(the("rdmap/read-beyond-ird"),
			"check:the Terminate says that the peer asked for too much", keyWireNoTerm)...)
	add("siw-zero-length-read", "siw-zero-length-read.md",
		"siw answers a zero-length Read that waits for an earlier Read with that Read's octets.", false,
		each(the("rdmap/read-zero-length-busy"), "check:with nothing", "wire:to-initiator:rdma-read-response:*")...)
	return l
}

// rawResponseLedger is about siw's own Reads.
func rawResponseLedger() conformance.Ledger {
	var l conformance.Ledger
	add := func(id, note, reason string, sometimes bool, covers ...[2]string) {
		l = append(l, siwDiffers(id, note, reason, "", sometimes, covers...)...)
	}
	add("siw-response-segments", "siw-read-responses.md",
		"siw checks STag and TO of a Read Response only in its first segment.", false,
		each(the("rdmap/response-second-stag", "rdmap/response-second-to"), keyTold, keyEnds, "check:the Read does not complete with success",
			keySent, keyTerminate, keyEnd, keyEvents, keyWireNoTerm, keyWireEnd)...)
	add("siw-response-unasked", "siw-read-responses.md",
		"siw reports a Read Response without a Read as a local catastrophic error of DDP, 1/0/0x00.", false,
		each(the("rdmap/response-unasked"), keyTerminate, keyWireError, keyWireHeader, keyWireMDR)...)
	add("siw-read-lost", "siw-read-responses.md",
		"If a Read Response is wrong, siw completes the Read that it should have answered, "+
			"but not the Reads after it.", false,
		each(the("rdmap/response-crossed"), "check:initiator's send completions arrive", keySent)...)
	add("siw-read-depth-rounded", "siw-read-depth.md",
		"siw rounds read depths up to a power of two and has that many Reads outstanding.", true,
		each(the("rdmap/reads-outstanding"), "check:no more than three are outstanding", "observe:reads.outstanding")...)
	return l
}
