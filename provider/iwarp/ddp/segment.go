package ddp

// MinMULPDU is the smallest MULPDU that MPA ever offers, in octets (RFC 5044
// section 4.5).
const MinMULPDU = 128

// MaxPayload returns the maximum payload of a segment of at most mulpdu octets, or zero if there is
// no room for any.
func MaxPayload(mulpdu int, tagged bool) int {
	if tagged {
		return max(mulpdu-TaggedHeaderLen, 0)
	}
	return max(mulpdu-UntaggedHeaderLen, 0)
}

// Segment is one segment's share of a message.
type Segment struct {
	Offset uint32 // octets of the message before this segment
	Len    int    // octets of payload in this segment
	Last   bool   // the segment is the message's last: its L bit
}

// MO returns the message offset of an untagged segment.
//
//rfc:5041 DDP-5.2-05 Untagged MO = offset of first payload octet
func (s Segment) MO() uint32 { return s.Offset }

// TO returns the tagged offset of the segment of a message that starts at base.
//
//rfc:5041 DDP-5.2-06 Tagged TO = initial TO + offset
func (s Segment) TO(base uint64) uint64 { return base + uint64(s.Offset) }

// Segmenter cuts a message into segments, in ascending offset order and each as large as the MULPDU
// allows (RFC 5041 section 5.2). A message without octets becomes one empty segment.
//
// The zero Segmenter is for an empty untagged message. A Segmenter is not safe for concurrent use;
// a copy continues independently from the state of the original.
//
//rfc:5041 DDP-5.2-01 Segments no larger than MULPDU
//rfc:5041 DDP-5.2-08 Zero-length message uses exactly one segment
//rfc:5041 DDP-5.3-02 Segments sent in rising MO/TO order
type Segmenter struct {
	length uint32
	next   uint32
	tagged bool
	done   bool
}

// NewSegmenter returns the segmenter of a message of length octets. Its type limits a ULP message
// to less than 2^32 octets.
//
//rfc:5041 DDP-5.2-02 ULP message shorter than 2^32
func NewSegmenter(length uint32, tagged bool) Segmenter {
	return Segmenter{length: length, tagged: tagged}
}

// Next returns the next segment, whose header and payload together take at most mulpdu octets. The
// MULPDU may change from call to call; segments already returned keep their size, as RFC 5041
// section 3 demands.
//
// It returns false when the message is finished, and also when mulpdu has no room for any payload
// but the message still has some. MPA offers no such MULPDU (see [MinMULPDU]); Done distinguishes
// the two.
//
//rfc:5041 DDP-3-01 A change of MULPDU re-segments nothing already posted
//rfc:5041 DDP-4.1-04 L=1 on the last segment of each message
//rfc:5041 DDP-4.1-05 L=0 on all segments but the last
func (s *Segmenter) Next(mulpdu int) (Segment, bool) {
	if s.done {
		return Segment{}, false
	}
	left := s.length - s.next
	n := uint32(min(uint64(left), uint64(MaxPayload(mulpdu, s.tagged))))
	if n == 0 && left != 0 {
		return Segment{}, false
	}
	seg := Segment{Offset: s.next, Len: int(n), Last: n == left}
	s.next += n
	s.done = seg.Last
	return seg, true
}

// Done reports whether the last segment was returned.
func (s *Segmenter) Done() bool { return s.done }

// Remaining returns the number of octets of the message that are not in a segment yet.
func (s *Segmenter) Remaining() uint32 { return s.length - s.next }
