// Package mpa is Marker PDU Aligned framing for TCP: the start-up frames and
// their negotiation (RFC 5044 section 7, RFC 6581), and the FPDUs and Markers
// of the Full Operation Phase (RFC 5044 section 4).
//
// The package converts between octets and values. It does no I/O, starts no goroutine and reads no
// clock; the caller passes the time. A value is not safe for concurrent use; distinct values are
// independent.
//
// # Start-up
//
// [Frame] is an MPA Request or Reply Frame, bit for bit, and [Enhanced] the four octets that RFC
// 6581 puts in front of its Private Data. [ParseFrame] works on a growing buffer and refuses a
// frame as early as possible.
//
// [Initiator] and [Responder] implement the rules. They build frames, judge the peer's frames, and
// return [Params], which describes the framing of both half connections and who may send first.
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
// There are three ways to use the framing:
//
//   - [AppendHeader], [CRC], [AppendTrailer], [ParseHeader] and [CheckCRC] are the parts of an
//     FPDU. They copy nothing, for callers that place payload directly and send from registered
//     memory. They do not support Markers.
//   - [Receiver] finds FPDUs in contiguous octets and returns the ULPDU in place. With Markers the
//     ULPDU is copied into the caller's scratch buffer.
//   - [Framer] and [Deframer] copy, and work with and without Markers. The Deframer takes the
//     stream in pieces of any size.
//
// # Errors
//
// A peer's fault is a *iwarp.Error of layer LLP, type MPA. Codes 5, 6 and 7 are reported to the
// peer with a Terminate message (RFC 6581 sections 9.1 to 9.3). Code 4 closes the TCP connection at
// once. After codes 2 and 3 MPA delivers nothing more, but leaves closing to the layer above (RFC
// 5044 section 8). Misuse by the caller is an ordinary error.
//
// # Limitations
//
//   - Revision 0, the RDMA Consortium's, follows RFC 5044 appendix C. It was not compared with that
//     consortium's own document, nor tested with another implementation.
//   - FPDUs are found in stream order only. Markers are generated and verified, but not used to
//     find FPDUs in TCP segments that arrive out of order, because a stream socket delivers its
//     octets in order (RFC 5044 section 6, case 2).
//   - With Markers, the ULPDU is copied in both directions, which is slower.
//   - An FPDU with a corrupted ULPDU_Length fails its CRC only after as many octets have arrived as
//     the corrupted field says.
//   - A receiver accepts ULPDU_Length up to 65535, above the 64768 that a sender may use (RFC 5044
//     section 3), because the field can carry it and siw sends up to it. With Markers, the FPDUPTR
//     of such a long FPDU is compared modulo 2^16.
//   - A ULPDU of any length is passed on. DDP checks that it has room for a DDP header.
package mpa
