package scenarios

import "github.com/govs-rdma/govs/provider/conformance"

// rawStartupLedger is about siw's start-up frames.
func rawStartupLedger() conformance.Ledger {
	const note = "siw-start-up.md"
	var l conformance.Ledger
	add := func(id, reason string, sometimes bool, covers ...[2]string) {
		l = append(l, siwDiffers(id, note, reason, "", sometimes, covers...)...)
	}
	add("siw-accepts-revision-0", "siw serves Requests of revision 0, which RFC 5044 has closed, as those of revision 1.", false,
		each(the("mpa/request-revision-0"), "check:the provider closes the connection", "check:the program does not hear of it",
			"observe:refusal", "wire:to-initiator:reply:*", keyEnd, keyWireEnd)...)
	add("siw-echoes-revision", "siw rejects in the revision of the Request, also 0, so the peer "+
		"does not learn which revision siw supports.", false,
		each(the("rdmac/request-refused"), "check:it has the revision that would have been understood", "wire:to-initiator:reply:revision")...)
	add("siw-rejects-short-enhanced",
		"siw answers a Request that has S and too little private data with a rejecting Reply, "+
			"instead of closing the connection.", false,
		each(the("mpa/request-enhanced-too-short"), "check:nothing is sent before the end", "wire:to-initiator:reply:extra")...)
	add("siw-private-data-limit", "siw refuses start-up frames whose PD_Length is above 256; "+
		"RFC 5044 allows 512.", false,
		each(the("mpa/request-private-data-253", "mpa/request-private-data-508"), "check:the request reaches the program", "observe:*", "wire:to-initiator:*")...)
	add("siw-no-markers", "siw can't send Markers: it rejects a Request that asks for them, and "+
		"reports a Reply that asks for them as a rejection.", false,
		append(each(the("mpa/request-markers"), "check:the request reaches the program", "observe:*", "wire:to-initiator:*"),
			each(the("mpa/reply-markers"), "check:the provider takes the reply", "observe:*", "wire:to-responder:*")...)...)
	add("siw-depth-not-negotiated", "siw takes the depth 0x3fff, which leaves the depth to the "+
		"programs (RFC 6581 section 9.1), for a number, and answers with its own.", false,
		each(the("mpa/request-depth-16383"), "check:16383 means that the programs see to the depths, and is answered with the same",
			"observe:reply.depth", "wire:to-initiator:reply:*RD")...)
	add("siw-echoes-bits", "siw's Reply repeats bits of the Request that it does not know: the "+
		"reserved ones, and R, which makes the Reply a rejection.", false,
		append(each(the("mpa/request-reserved-bits"), "check:the reserved bits of the Reply are zero", "wire:to-initiator:reply:reserved"),
			append(each(the("mpa/request-reject-bit"), "check:it is accepted", "observe:*", "wire:to-initiator:*"),
				each(the("mpa/request-revision-1-s"), "wire:to-initiator:reply:S")...)...)...)
	add("siw-resets", "siw closes the socket with octets unread when it refuses a start-up "+
		"frame, so TCP sends a reset.", false,
		each(the("mpa/request-private-data-513", "mpa/request-pd-length-65535", "mpa/request-data-behind", "mpa/request-http", "mpa/reply-data-behind", "rdmac/no-start-up"),
			keyEnd, keyWireEnd, keyTerminate)...)
	add("siw-terminates-bad-reply", "siw sends a Terminate about a Reply whose key is wrong before it closes.", false,
		each(the("mpa/reply-key-*", "mpa/reply-is-request"), keyTerminate, "wire:to-responder:*")...)
	add("siw-unenhanced-reply", "siw reports a Reply without enhanced data as a rejection.", false,
		each(the("mpa/reply-revision-0", "mpa/reply-revision-1", "mpa/reply-unenhanced", "rdmac/reply-refused"), "observe:connect")...)
	add("siw-rtr-choice", "Of the messages that can open a peer-to-peer connection siw names one, Write if it may and even if it is not offered.", false,
		each(the("mpa/peer-to-peer-write", "mpa/peer-to-peer-send"), "observe:reply.rtr", "wire:to-initiator:reply:ABCD")...)
	add("siw-crc-not-asked", "siw asks for CRC only if it was built with mpa_crc_required; RFC 5044 section 4.4 makes CRC the default.", false,
		each(the("mpa/request-form"), "check:it asks for CRCs, as is the default")...)
	for i := range l {
		if l[i].ID == "siw-crc-not-asked" {
			l[i].Variants, l[i].Evidence = []string{"default", "p2p"}, "kernel-notes/siw-crc-default.md"
		}
	}
	l = append(l, siwDiffers("siw-crc-not-replied", "siw-crc-default.md",
		"siw's Reply has C only if the Request has it, even if siw was built to require CRC.", "", false,
		each(the("mpa/request-no-crc"), "check:it asks for CRCs, as is the default")...)...)
	l = append(l, siwDiffers("engine-read-depth-rounded", "siw-read-depth.md",
		"The engine announces the next power of two, because siw rounds up to that; siw "+
			"announces the number that the program gave.", "", false,
		each(the("mpa/request-form"), "wire:to-responder:request:IRD")...)...)
	l = append(l, siwDiffers("siw-reject-status", "siw-reject.md",
		"siw reports a rejection as ECONNRESET, so that rdma_is_consumer_reject is false.", "", false,
		each(the("mpa/reply-rejects-*"), "check:the status is that of a peer's program")...)...)
	l = append(l, siwDiffers("siw-reject-depths", "siw-reject.md",
		"siw repeats the request's depths in a rejecting reply.", "", false,
		each(the("mpa/reject", "mpa/private-data-rejecting-251"), "wire:to-initiator:reply:*RD")...)...)
	l = append(l, withVariants(siwDiffers("siw-peer-to-peer", "siw-start-up.md",
		"siw asks for peer-to-peer mode only if it was built to; it then opens the connection with a Write without payload.", conformance.RoleInitiator, true,
		each(the("mpa/*", "ddp/*", "rdmap/*", "rdmac/*"), "wire:to-responder:request:ABCD", "wire:to-responder:rdma-write:extra", "wire:to-responder:rdma-read-request:source")...), "p2p")...)
	l = append(l, siwOpens()...)
	l = append(l, siwDiffers("siw-no-fallback", note,
		"siw makes no second attempt with revision 1, which RFC 6581 section 10 permits but "+
			"does not require.", conformance.RoleInitiator, false,
		each(the("mpa/fallback"), "check:a second connection comes", "observe:*", "wire:to-responder:end:how", "wire:connection:missing")...)...)
	l = append(l, siwDiffers("siw-start-up-in-pieces", "siw-start-up-in-pieces.md",
		"A start-up frame that comes in many pieces can leave siw's connection manager waiting for octets that have come.", "", true,
		append(each(the("mpa/request-one-octet-at-a-time"), "check:the request reaches the program", "observe:*", "wire:to-initiator:*"),
			each(the("mpa/reply-one-octet-at-a-time"), "check:the program's call comes back", "observe:*", "wire:to-responder:*")...)...)...)
	return l
}

// rawPrivateDataLedger is about the length that siw gives with what it sends.
func rawPrivateDataLedger() conformance.Ledger {
	return siwDiffers("siw-private-data-length", "siw-private-data-length.md",
		"siw counts the octets of an enhanced start-up frame's private data modulo 256: from 252 on PD_Length is wrong.", "", false,
		append(each(the("mpa/private-data-sent-252", "mpa/private-data-sent-255"),
			"check:the Request is as long as its PD_Length says", "check:the Request has the program's private data", "wire:to-responder:*"),
			each(the("mpa/private-data-rejecting-252", "mpa/private-data-rejecting-255", "mpa/private-data-accepting-252"),
				"check:the Reply is as long as its PD_Length says", "check:the Reply has the program's private data", "wire:to-initiator:*")...)...)
}

// siwOpens is about which connections siw makes peer-to-peer, and how it opens them,
// which no option changes.
func siwOpens() conformance.Ledger {
	differs := func(sometimes bool, covers ...[2]string) conformance.Ledger {
		return siwDiffers("siw-peer-to-peer", "siw-start-up.md",
			"siw asks for peer-to-peer mode only if it was built to; it then opens the connection with a Write without payload.", conformance.RoleInitiator, sometimes, covers...)
	}
	const offers = "check:it offers the message that it is to open connections with"
	all := the("mpa/opens-with-send", "mpa/opens-with-write", "mpa/opens-with-read")
	l := withVariants(differs(false, join(
		each(all, offers, "check:it asks for a peer-to-peer connection", "observe:initiator.receive.wc", "wire:to-responder:request:ABCD"),
		each(the("mpa/opens-with-send"), "wire:to-responder:send:*"),
		each(the("mpa/opens-with-write"), "wire:to-responder:rdma-write:missing"),
		each(the("mpa/opens-with-read"), "wire:to-responder:rdma-read-request:missing"))...), "default", "crc")
	// Without the initiator's message, a responder that keeps to RFC 5044 section 7.1.2
	// rule 4 sends nothing; siw sends.
	first := the("conn/responder-first-write", "conn/responder-first-read")
	l = append(l, withVariants(differs(true, each(first, "check:initiator's receive completions arrive",
		"check:the responder's Send arrives first", "check:with all its octets", "observe:initiator.receive.wc")...), "default", "crc")...)
	l = append(l, withVariants(differs(false, join(
		each(first, "wire:to-responder:request:ABCD", "wire:to-initiator:reply:ABCD"),
		each(first[:1], "wire:to-responder:rdma-write:missing"),
		each(first[1:], "wire:to-responder:rdma-read-request:missing", "wire:to-initiator:rdma-read-response:missing"))...), "default", "crc")...)
	// A siw that is built for it offers several messages, of which the responder chooses
	// one.
	l = append(l, withVariants(differs(true, join(
		each(first, "wire:to-responder:request:ABCD", "wire:to-initiator:reply:ABCD"),
		each(first[:1], "wire:to-responder:rdma-write:STag"),
		each(first[1:], "wire:to-responder:rdma-write:extra", "wire:to-responder:rdma-read-request:*", "wire:to-initiator:rdma-read-response:missing"))...), "p2p")...)
	return append(l, withVariants(differs(false, join(
		each(all, offers),
		each(the("mpa/opens-with-send"), "check:its MSN counts the message that opened the connection if that was a Send", "wire:to-responder:send:*"),
		each(the("mpa/opens-with-write"), "wire:to-responder:rdma-write:STag"),
		each(the("mpa/opens-with-read"), "wire:to-responder:rdma-read-request:missing"))...), "p2p")...)
}
