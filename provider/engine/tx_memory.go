package engine

import (
	"github.com/govs-rdma/govs/provider"

	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

// doMemory does the work of WQE next. The batch uses no region. doMemory waits for uses by others,
// which last as long as a copy.
func (tx *sender) doMemory() {
	q := tx.q
	w := q.sq.at(tx.next)
	var err error
	if w.op == provider.WRLocalInv {
		err = q.peer.InvalidateLocal(w.immOrInv)
	} else {
		o := q.sq.memoryAt(tx.next)
		err = o.Do(&q.peer, w.rkey)
		*o = memory.Work{}
	}
	if err != nil {
		tx.failMemory(err)
		return
	}
	q.finishWQE(tx.next)
	tx.next++
}

// memoryAhead does the next work on our own memory of the send queue when no message can begin: in
// the middle of a response, with a full socket, or on a responder that must not send yet. So no
// peer delays an invalidation by not reading. The batch uses no region then, because its bytes were
// copied or sent.
//
//rfc:5041 DDP-8.3-2-01 STag validity can be revoked any time
func (tx *sender) memoryAhead() {
	sq := &tx.q.sq
	for (tx.task == taskNone || tx.task == taskReadResponse) &&
		tx.fault == nil && !tx.s.over() && tx.next != sq.tail.Load() {
		w := sq.at(tx.next)
		if !memoryOps.has(w.op) || w.flags&provider.SendFence != 0 && tx.s.outstanding.Len() > 0 ||
			tx.b != nil && !tx.b.Released() {
			return
		}
		tx.doMemory()
	}
}

// undoMemory undoes work on our own memory that is done but will be reported as flushed, because an
// earlier post is not over. A program that sees the flush does not expect that peers can reach the
// region. The newest work is undone first, because a window may be bound to a region that was
// registered before it. rx.mu and tx.mu are held, and neither side uses a region any more.
func (tx *sender) undoMemory() {
	sq := &tx.q.sq
	sq.done.Lock()
	head := sq.head
	sq.done.Unlock()
	// head is at most next. With != instead, a fault that breaks this would cost 2^32 rounds.
	for i := tx.next; int32(i-head) > 0; {
		i--
		w := sq.at(i)
		if !w.finished || w.op != provider.WRBindMW && w.op != opRegMR {
			continue
		}
		tx.q.peer.Undo(w.rkey)
	}
}

// failMemory gives up at WQE next, as failWork does for messages.
//
//rfc:5040 RDMAP-7.1-1-01 Local error: Terminate without headers
func (tx *sender) failMemory(err error) {
	tx.q.failSend(tx.next, provider.WCMWBindErr)
	tx.fault = endTerminate(err, nil, 0, nil)
	tx.fault.event, tx.fault.raise = provider.EventQPFatal, true
}
