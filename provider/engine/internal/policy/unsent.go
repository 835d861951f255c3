package policy

import "math/bits"

const unsentSample = 2 * UnsentRecords // records over which the average length is taken

// Unsent bounds the bytes that a socket holds and TCP can't send yet. It is small, because each
// stream has one.
//
// The kernel sends what a socket holds when acknowledgements make room for it. Acknowledgements
// that come while a system call uses the socket wait for the end of that call, which then sends all
// for which they make room. A record is a packet of its own, which costs 2 to 3 us, and a socket's
// buffer of 4 MiB has room for 3,000 short ones. So a peer that acknowledges fast can make one call
// long: 12 ms were seen. It gets short records with an MSS that no FPDU fills, or with short Reads
// whose responses have pad. With a limit, turns of the engine send most records, and a turn is
// bounded.
type Unsent struct {
	octets  int32 // since the average was last taken
	records uint16
	power   uint8 // the limit is 2 to this power; 0: what the system allows
}

// Limit returns the limit in bytes, 0 for what the system allows.
func (u *Unsent) Limit() int {
	if u.power == 0 {
		return 0
	}
	return 1 << u.power
}

// Count counts what was put into a batch. It reports whether the limit has changed.
func (u *Unsent) Count(records, octets int) bool {
	u.records += uint16(records)
	u.octets += int32(octets)
	if u.records < unsentSample && u.octets < unsentSample/UnsentRecords*UnsentMost {
		return false
	}
	was := u.power
	u.power = uint8(bits.Len32(uint32(UnsentRecords*(u.octets/int32(u.records)) - 1)))
	if u.Limit() > UnsentMost {
		u.power = 0
	}
	u.records, u.octets = 0, 0
	return u.power != was
}
