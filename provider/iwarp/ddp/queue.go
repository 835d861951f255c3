package ddp

import (
	"encoding/binary"
	"math"
)

// FirstMSN is the MSN of the first message of every untagged queue.
//
//rfc:5041 DDP-4.3-05 MSN starts at 1 per QN
const FirstMSN = 1

// UntaggedQueue is the receive state of one untagged queue of a stream: the current message and how
// much of it has been received. Segments arrive in order, as TCP delivers them.
//
// It is not safe for concurrent use. A copy is independent of the original.
type UntaggedQueue struct {
	qn     uint32
	msn    uint32
	offset uint32
	open   bool
}

// NewUntaggedQueue returns the state of queue qn before its first message. msn is the sequence
// number of that message: [FirstMSN] on a real stream, any other value in a test of the wrap at
// 2^32.
func NewUntaggedQueue(qn, msn uint32) UntaggedQueue {
	return UntaggedQueue{qn: qn, msn: msn}
}

// QN returns the queue's number.
func (q *UntaggedQueue) QN() uint32 { return q.qn }

// MSN returns the sequence number of the current message: the unfinished one if there is one,
// otherwise the next.
func (q *UntaggedQueue) MSN() uint32 { return q.msn }

// Offset returns the number of committed octets of the current message. The next segment must have
// this MO.
func (q *UntaggedQueue) Offset() uint32 { return q.offset }

// Open reports whether a message has started and not ended.
func (q *UntaggedQueue) Open() bool { return q.open }

// Check verifies QN, MSN and MO of an untagged segment with payloadLen octets of payload.
// It changes nothing. [CheckUntagged] checks whether there is a buffer that is large
// enough.
//
// Errors, in the order of the checks: [ErrInvalidQN], [ErrMSNRange],
// [ErrInvalidMO], [ErrMessageLength].
//
//rfc:5041 DDP-5.3-05 Message delivered at most once
//rfc:5041 DDP-5.3-06 Delivery in send order
func (q *UntaggedQueue) Check(h *Header, payloadLen int) error {
	switch {
	//rfc:5041 DDP-7.1u1-01 Untagged: QN valid
	case h.QN != q.qn:
		return ErrInvalidQN
	//rfc:5041 DDP-7.1u5-01 Untagged: MSN in legal range
	case h.MSN != q.msn:
		return ErrMSNRange
	//rfc:5041 DDP-7.1u3-01 Untagged: MO within buffer
	case h.MO != q.offset:
		return ErrInvalidMO
	//rfc:5041 DDP-7.1u-01 Untagged: MO+len does not wrap 2^32
	case uint64(h.MO)+uint64(payloadLen) > math.MaxUint32:
		return ErrMessageLength
	}
	return nil
}

// Whole parses a ULPDU that is an untagged message of one segment and the next one of the queue: T
// clear, L set, DV 1, and the requirements of Check. The payload is a part of ulpdu. It returns
// false for any other ULPDU, or one that is too short; [Parse] and Check distinguish these.
func (q *UntaggedQueue) Whole(ulpdu []byte) (payload []byte, ulpCtl uint8, ok bool) {
	if len(ulpdu) < UntaggedHeaderLen || ulpdu[0]&^ctlReservedMask != ctlLast|Version || q.open {
		return nil, 0, false
	}
	p := ulpdu[:UntaggedHeaderLen]
	if binary.BigEndian.Uint32(p[6:]) != q.qn || binary.BigEndian.Uint32(p[10:]) != q.msn || binary.BigEndian.Uint32(p[14:]) != 0 {
		return nil, 0, false
	}
	return ulpdu[UntaggedHeaderLen:], p[1], true
}

// Commit advances the queue past a segment that Check accepted, once its CRC has been verified.
// After a segment with L set the next message is expected; its MSN is the following one modulo
// 2^32.
//
//rfc:5041 DDP-4.3-06 MSN increments by 1 per message per QN
//rfc:5041 DDP-4.3-07 MSN wraps 0xFFFFFFFF to 0
func (q *UntaggedQueue) Commit(last bool, payloadLen int) {
	if last {
		q.msn++
		q.offset = 0
		q.open = false
		return
	}
	q.offset += uint32(payloadLen)
	q.open = true
}
