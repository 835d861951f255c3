// Package mpa is Marker PDU Aligned framing for TCP: the start-up frames and
// their negotiation (RFC 5044 section 7, RFC 6581), and the FPDUs and Markers
// of the Full Operation Phase (RFC 5044 section 4).
//
// The package turns octets into values and values into octets. It does no I/O,
// starts no goroutine and reads no clock; the caller passes time in. Nothing in
// it is safe for concurrent use on one value; distinct values are independent.
//
// # Start-up
//
// [Frame] is an MPA Request or Reply Frame, bit for bit, and [Enhanced] the
// four octets that RFC 6581 puts in front of its Private Data. [ParseFrame]
// works on a growing buffer and refuses as early as the octets allow.
//
// [Initiator] and [Responder] hold the rules: they build the frames, judge the
// peer's, and end in [Params], which says how both half connections are framed
// and who may send first.
//
//	i, err := mpa.NewInitiator(cfg, offer)
//	wire := i.AppendRequest(nil)                           // send it, collect octets
//	params, n, err := i.Receive(buf)                       // again while ErrShort
//
//	r, err := mpa.NewResponder(cfg)
//	request, n, err := r.Receive(buf)                      // again while ErrShort
//	wire, params, err := request.AppendAccept(nil, answer) // or AppendReject
//
// # Full Operation
//
// There are three ways to use the framing, by what the caller can afford:
//
//   - [AppendHeader], [CRC], [AppendTrailer], [ParseHeader] and [CheckCRC] are
//     the parts of an FPDU. A caller that places payload directly and sends
//     from registered memory uses these; nothing is copied. They know nothing
//     of Markers.
//   - [Receiver] finds FPDUs in contiguous octets and lends out the ULPDU where
//     it lies. With Markers the ULPDU is copied into the caller's scratch buffer.
//   - [Framer] and [Deframer] copy, work with and without Markers, and the
//     Deframer takes the stream in pieces of any size.
//
// # Errors
//
// What a peer sent wrong is a *iwarp.Error of layer LLP, type MPA. Those with
// codes 5, 6 and 7 are reported to the peer with a Terminate message (RFC 6581
// sections 9.1 to 9.3), code 4 closes the TCP connection at once, and after
// codes 2 and 3 MPA delivers nothing more but leaves closing to the layer above
// (RFC 5044 section 8). Misuse by the caller is an ordinary error.
//
// # Limitations
//
//   - Revision 0, the RDMA Consortium's, is as RFC 5044 appendix C describes it. It was
//     not compared with that consortium's own document, nor tried with another
//     implementation.
//   - FPDUs are found in stream order only. Markers are generated and verified,
//     but not used to find FPDUs in TCP segments that arrive out of order, because
//     a stream socket has its octets in order (RFC 5044 section 6, case 2).
//   - With Markers, the ULPDU is copied in both directions, which is slower.
//   - An FPDU whose ULPDU_Length was corrupted fails its CRC only after as many octets
//     have arrived as the corrupted field says.
//   - A receiver accepts ULPDU_Length up to 65535, above the 64768 that a sender
//     may use (RFC 5044 section 3), because the field can carry it and siw sends
//     up to it. With Markers, FPDUPTR of so long an FPDU is compared modulo 2^16.
//   - A ULPDU of any length is passed on. DDP checks that it has room for a DDP header.
package mpa
