package policy

import "math/bits"

const notSentSample = 2 * NotSentRecords // records over which the average length is taken

// NotSent bounds the bytes that a socket holds and TCP can't send yet. It is small, because each
// stream has one.
//
// The kernel sends what a socket holds when acknowledgements make room for it. Acknowledgements
// that come while a system call uses the socket wait for the end of that call, which then sends all
// for which they make room. A record is a packet of its own, which costs 2 to 3 us, and a socket's
// buffer of 4 MiB has room for 3,000 short ones. So a peer that acknowledges fast can make one call
// long: 12 ms were seen. It gets short records with an MSS that no FPDU fills, or with short Reads
// whose responses have pad. With a limit, turns of the engine send most records, and a turn is
// bounded.
type NotSent struct {
	octets  int32 // since the average was last taken
	records uint16
	power   uint8 // the limit is 2 to this power; 0: what the system allows
}

// Limit returns the limit in bytes, 0 for what the system allows.
func (n *NotSent) Limit() int {
	if n.power == 0 {
		return 0
	}
	return 1 << n.power
}

// Count counts what was put into a batch. It reports whether the limit has changed.
func (n *NotSent) Count(records, octets int) bool {
	n.records += uint16(records)
	n.octets += int32(octets)
	if n.records < notSentSample && n.octets < notSentSample/NotSentRecords*NotSentMost {
		return false
	}
	was := n.power
	n.power = uint8(bits.Len32(uint32(NotSentRecords*(n.octets/int32(n.records)) - 1)))
	if n.Limit() > NotSentMost {
		n.power = 0
	}
	n.records, n.octets = 0, 0
	return n.power != was
}
