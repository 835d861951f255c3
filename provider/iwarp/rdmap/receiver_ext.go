package rdmap

import "github.com/govs-rdma/govs/provider/iwarp/ddp"

// beginImmediate checks an Immediate Data message, which is in sequence with the Sends.
//
//rfc:7306 EXT-6.3-02 Immediate consumes one receive buffer
//rfc:7306 EXT-6.3-03 Immediates delivered in order with Sends
//rfc:7306 EXT-6.3-05 Receiver checks for exactly 8 octets of immediate data
func (r *Receiver) beginImmediate(a *Action, h *ddp.Header) error {
	if err := r.send.Check(h, a.Len); err != nil {
		return err
	}
	switch {
	case r.send.Open():
		return ErrOpcodeChanged
	case a.Len != ImmediateLen, !a.Last:
		return ErrImmediateLength
	}
	a.Kind = TakeImmediate
	a.First = true
	if r.afterWrite && !(r.tagged.open && r.tagged.op == OpWrite) {
		a.AfterWrite, a.Written = true, r.written
	}
	return nil
}

// ForgetWrite records that the last Write that has ended was not a program's, so Immediate Data
// after it does not belong to a Write.
func (r *Receiver) ForgetWrite() { r.afterWrite = false }

// beginAtomicRequest accepts an Atomic Request, which is in sequence with the Read Requests and
// takes one of their places.
//
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
//rfc:7306 EXT-5.2.1-06 Atomic request consumes one QN1 buffer
//rfc:7306 EXT-5.2.2-03 Responder has QN1 buffers for reads plus atomics
func (r *Receiver) beginAtomicRequest(a *Action, h *ddp.Header) error {
	if err := r.read.Check(h, a.Len); err != nil {
		return err
	}
	switch {
	case r.in.Full():
		return ErrReadDepth
	case a.Len > AtomicRequestLen, !a.Last:
		return ErrLongAtomicRequest
	case a.Len < AtomicRequestLen:
		return ErrShortAtomicRequest
	}
	a.Kind = TakeAtomicRequest
	a.First = true
	return nil
}

// beginAtomicResponse accepts the response to the oldest outstanding request, which must be an
// atomic one. Queue 3 has a buffer for each outstanding request, so an excess response has no
// request.
//
//rfc:7306 EXT-5.2.2-04 Requester has QN3 buffers for all outstanding atomics
//rfc:7306 EXT-5.2.2-06 Invalid atomic response surfaces an error
func (r *Receiver) beginAtomicResponse(a *Action, h *ddp.Header) error {
	if err := r.atomic.Check(h, a.Len); err != nil {
		return err
	}
	read := r.out.Front()
	switch {
	case read == nil, !read.Atomic:
		return ErrUnsolicitedAtomic
	case a.Len > AtomicResponseLen, !a.Last:
		return ErrLongAtomicResponse
	case a.Len < AtomicResponseLen:
		return ErrShortAtomicResponse
	}
	a.Kind = TakeAtomicResponse
	a.First = true
	a.Read = *read
	return nil
}
