// Package ddp is Direct Data Placement over MPA (RFC 5041): the headers of
// tagged and untagged segments, the segmentation of a message, and the checks
// that a data sink makes before it places a segment.
//
// The package turns octets into values and values into octets. It does no I/O,
// reads no clock, starts no goroutine and allocates nothing, so that an engine,
// a scripted peer that breaks the rules on purpose and a decoder of captures
// can all use it.
//
// # Codec and legality are separate
//
// [Header] carries every bit of a DDP header, the reserved ones included, and
// [Header.AppendTo] writes what it is given. That a version, a QN or an MSN is wrong is
// found by the Check functions, which return the *[iwarp.Error] that a Terminate message
// for it carries (RFC 5041 section 7.2).
//
// # Checking and committing are separate
//
// Whether an FPDU is good is known only when its CRC has been verified, which
// may be after its payload was placed. [UntaggedQueue.Check] therefore changes
// nothing; [UntaggedQueue.Commit] moves the queue on once the FPDU is proven
// good.
//
// # Codes where the RFC leaves a choice
//
//   - A ULPDU too short for its DDP header has no code in RFC 5041, whose
//     section 3 leaves segment lengths to the LLP. [ErrShortSegment] is the LLP's
//     own code for a ULPDU_Length that can't be true, 2/0/0x03.
//   - RFC 5041 section 7.1 requires that the buffer of an STag "allows Placement"
//     but section 7.2 has no code for missing rights. [ErrTaggedAccess] is the
//     code of the check it belongs to, invalid STag, 1/1/0x00.
//   - A segment that is wrong in several ways is reported for the first check it
//     fails. RFC 5041 section 7.1 sets no order; here QN, MSN and MO come before
//     the buffer, so that a wrong MSN is 1/2/0x03 even when no buffer is left.
//   - A zero-length untagged segment need not be checked (RFC 5041 section 7.1
//     speaks of non-zero-length segments), but it still opens or ends a message
//     and consumes a buffer, so its QN, MSN and MO are checked like any other's.
//
// # Limitations
//
//   - One DDP stream per LLP stream, in order: that is what MPA over TCP gives.
//     Untagged segments of one message must arrive in rising MO order without a
//     gap or overlap; RFC 5041 section 5.3 makes that order a SHOULD for the
//     sender, and a message in any other order is refused with an invalid MO.
//     Tagged segments may come in any TO order.
//   - On streams of the RDMA Consortium's version, zero-length messages are as in
//     RFC 5041. That consortium's DDP 1.0 has a rule for tagged ones only.
//   - The RsvdULP field is opaque. The ULP checks that it is the same in all segments of
//     a message.
package ddp
