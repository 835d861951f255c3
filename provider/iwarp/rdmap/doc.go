// Package rdmap is the Remote Direct Memory Access Protocol over DDP (RFC 5040) and its extensions
// (RFC 7306): opcodes, the headers of requests and Terminates, the rules for incoming messages, and
// the two queues of Reads in progress.
//
// The package does no I/O, reads no clock and starts no goroutine. Nothing on the path of a segment
// allocates: errors are package variables, actions are values, and the queues are made once per
// stream.
//
// # Receiving
//
// A [Receiver] gets the DDP header of each segment in the order of arrival and returns an [Action].
// The engine does what depends on memory:
//
//	h, n, err := ddp.ParseHeader(octets, ulpduLen) // err: 2/0/0x03
//	a, err := r.Begin(&h, ulpduLen-n)              // versions, opcode, queue, order
//	// a.Kind PlaceSend:        ddp.CheckUntagged against the receive buffer
//	// a.Kind PlaceWrite:       ddp.CheckTagged against the STag table
//	// ... place a.Len octets, verify the CRC of the FPDU ...
//	r.Commit(&a)                                    // only now the state moves
//
// If any of these steps returns an error: [NewTerminate], [Receiver.End], send the Terminate,
// close.
//
// # Codes where the RFC leaves a choice
//
//   - A Read Request beyond the IRD is DDP 1/2/0x02, no buffer. By RFC 5040 section 5.2.1 each
//     request consumes a buffer of queue 1, and by section 5.2.2 the data source provides as many
//     as were negotiated, so there is none for the excess one. siw answers RDMAP 0/2/0x07.
//   - A Read Response without a Read: unexpected opcode, 0/2/0x06. siw answers with DDP's local
//     catastrophic error.
//   - A message whose T bit does not fit its opcode, or whose opcode changes midway: unexpected
//     opcode, 0/2/0x06. A QN that does not fit: invalid QN, 1/2/0x01.
//   - A Read Request or Terminate that is too long, or not a single segment: message too long for
//     the buffer, 1/2/0x05, because the buffer of its queue has the size of its header. One that is
//     too short: RDMAP's unspecified remote operation error, 0/2/0xff. siw answers the latter with
//     MPA 2/0/0x03.
//
// # Extensions
//
// A stream has the messages of RFC 7306 if its receiver is made with [ReceiverConfig].Extensions;
// on other streams their opcodes are reserved. Their codes follow the same rules. Immediate Data
// that is not eight octets is an unspecified remote operation error, 0/2/0xff, because RDMAP checks
// the length (section 6.3). An unknown Atomic Operation Code is an unexpected opcode, 0/2/0x06.
//
// # Limitations
//
//   - Streams of the RDMA Consortium's version ([ReceiverConfig].RDMAC) follow RFC 5040 in all but
//     RV. They were not compared with that consortium's own document.
//   - A Read Response must fill its sink in ascending TO order. RFC 5041 section 5.3 makes that
//     order a SHOULD for the sender. With another order, the data sink would need a bitmap for each
//     Read to know that every octet was placed. Segments of a Write may come in any order.
//   - The Terminate layouts of siw and of the RFC cannot always be distinguished; see [Layout].
package rdmap
