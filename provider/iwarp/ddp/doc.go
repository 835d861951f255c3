// Package ddp is Direct Data Placement over MPA (RFC 5041): the headers of
// tagged and untagged segments, the segmentation of a message, and the checks
// that a data sink makes before it places a segment.
//
// The package converts between octets and values. It does no I/O, reads no clock, starts no
// goroutine and allocates nothing. So an engine, a scripted peer that breaks the rules on purpose
// and a decoder of captures can all use it.
//
// # Codec and legality are separate
//
// [Header] carries every bit of a DDP header, including the reserved ones, and [Header.AppendTo]
// writes them unchecked. The Check functions find wrong versions, QNs or MSNs, and return the
// *[iwarp.Error] for the Terminate message (RFC 5041 section 7.2).
//
// # Checking and committing are separate
//
// An FPDU is known to be good only after its CRC has been verified, which may be after its payload
// was placed. So [UntaggedQueue.Check] changes nothing, and [UntaggedQueue.Commit] advances the
// queue once the CRC has been verified.
//
// # Codes where the RFC leaves a choice
//
//   - A ULPDU too short for its DDP header has no code in RFC 5041, whose section 3 leaves segment
//     lengths to the LLP. [ErrShortSegment] is the LLP's own code for a ULPDU_Length that cannot be
//     true, 2/0/0x03.
//   - RFC 5041 section 7.1 requires that the buffer of an STag "allows Placement" but section 7.2
//     has no code for missing rights. [ErrTaggedAccess] is the code of the check it belongs to,
//     invalid STag, 1/1/0x00.
//   - A segment with several faults is reported for the first check that fails. RFC 5041 section
//     7.1 sets no order; here QN, MSN and MO come before the buffer, so a wrong MSN is 1/2/0x03
//     even when no buffer is left.
//   - A zero-length untagged segment need not be checked (RFC 5041 section 7.1 speaks of
//     non-zero-length segments). But it still opens or ends a message and consumes a buffer, so its
//     QN, MSN and MO are checked too.
//
// # Limitations
//
//   - There is one DDP stream per LLP stream, in order, because MPA over TCP provides that.
//     Untagged segments of a message must arrive in ascending MO order without a gap or overlap.
//     RFC 5041 section 5.3 makes that order a SHOULD for the sender; a message in any other order
//     is refused with an invalid MO. Tagged segments may arrive in any TO order.
//   - On streams of the RDMA Consortium's version, zero-length messages follow RFC 5041. That
//     consortium's DDP 1.0 has a rule only for tagged ones.
//   - The RsvdULP field is opaque. The ULP checks that it is the same in all segments of a message.
package ddp
