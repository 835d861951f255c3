package engine

import (
	"errors"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// txTask is the present work of the transmit side: a message, or work of the send queue that sends
// nothing.
type txTask uint8

const (
	taskNone           txTask = iota
	taskSendOrWrite           // a Send or Write of the send queue
	taskReadRequest           // a Read of the send queue
	taskReadResponse          // the response to the peer's oldest Read Request
	taskRTR                   // the RTR indication (RFC 6581 section 9.2)
	taskImmediate             // the Immediate Data of a WQE (RFC 7306 section 6)
	taskAtomicRequest         // an atomic operation of the send queue (section 5)
	taskAtomicResponse        // the response to one of the peer's atomic operations
	taskMemory                // an operation of the send queue on our own memory: nothing is sent
)

// sender is the transmit side of a stream.
type sender struct {
	s *stream
	q *qp // the stream's

	records transport.RecordWriter // the Conn; nil if it does not know records

	mu      sched.Mutex[locks.TX] // guards the fields after moved
	work    sched.Bool            // the holder of mu has to transmit once more
	blocked sched.Bool            // the socket is full and the poller watches for room
	room    sched.Bool            // the poller has seen room since
	sole    sched.Bool            // during a poll of the program: it polls for no other stream (see sendBudget)

	// moved is how many bytes were sent, by which others see whether the peer takes any.
	moved atomic.Uint64

	format   frames.Format
	task     txTask
	answered bool         // the last message was a response, so the send queue is next
	rtr      mpa.RTR      // RTR indication still to be sent
	mssAge   uint8        // batches filled since format has the EMSS
	batch    policy.Batch // how many bytes one call sends

	b    *frames.Batch // nil while nothing is in flight
	held *frames.Held  // replaces b while the socket has been full for long

	budget int32 // the rest of the turn's budget (see tx_transmit.go)

	notSent policy.NotSent

	next uint32 // WQE that is sent next, or is being sent
	seg  ddp.Segmenter

	sendMSN, readMSN, atomicMSN uint32 // of the next message

	resp rdmap.InboundRead // the Read or atomic operation being answered

	fetches *messageFetches // of the message being sent, nil if its payload comes from memory

	fault *ending // found while filling; it counts once everything before it is sent
	err   error   // the socket can't be written any more
}

func (tx *sender) init(s *stream) {
	tx.records, _ = s.conn.(transport.RecordWriter)
	tx.format = frames.NewFormat(s.params.CRC, s.params.MarkersTx, s.params.RDMAC)
	tx.batch = policy.NewBatch()
	tx.sendMSN, tx.readMSN, tx.atomicMSN = ddp.FirstMSN, ddp.FirstMSN, ddp.FirstMSN
	if sendsRTR(s.params.PeerToPeer, s.params.WaitFirstFPDU) {
		tx.rtr = s.params.RTR
	}
}

// fetching reports whether the transmit side waits for an object. tx.mu is held.
func (tx *sender) fetching() bool { return tx.fetches != nil && tx.fetches.waiting() }

// stop ends the transmit side and returns, as records, what must still be sent: the rest of the
// FPDU that is partly sent, and then the Terminate of e. rx.mu and tx.mu are held.
//
//rfc:5040 RDMAP-5.4-05 Nothing sent after Terminate
//rfc:5040 RDMAP-7.1-02 Terminate at the earliest opportunity
func (tx *sender) stop(e *ending) [][]byte {
	var rest []byte
	tx.restoreBatch()
	dead := tx.err != nil || e.lost || tx.s.at() == phaseFINSent
	if tx.b != nil {
		if !dead {
			rest = tx.b.Remainder()
		}
		tx.dropBatch()
	}
	if dead {
		return nil
	}
	var out [][]byte
	if len(rest) > 0 {
		out = append(out, rest)
	}
	if e.terminate != nil && tx.s.maySend.Load() {
		out = append(out, tx.format.Terminate(e.terminate))
	}
	return out
}

// undo removes from the batch those FPDUs of the message being sent of which the socket has taken
// nothing. It does nothing after a fault, whose Terminate counts built FPDUs as sent.
func (tx *sender) undo() {
	if tx.fault != nil || tx.task != taskSendOrWrite && tx.task != taskReadResponse {
		return
	}
	tx.b.Undo(&tx.seg)
}

// run transmits as stream.resume does, but does not settle, because the receive side does so when
// it releases its lock. budget bounds everything that this call sends, even if more is posted while
// it runs. tx.run returns how much of the budget it used, and whether the turn ended before the
// work did.
func (tx *sender) run(budget int) (used int, more bool) {
	if !tx.mu.TryLock() {
		// The holder looks at tx.work after it has released the lock.
		tx.work.Store(true)
		if !tx.mu.TryLock() {
			return 0, false
		}
	}
	budget = tx.sendBudget(budget)
	tx.budget = int32(budget)
	left := tx.oneTurn()
	for tx.work.Load() && tx.mu.TryLock() {
		left = tx.oneTurn()
	}
	return max(budget-left, 0), left <= 0 && tx.blocked.Load()
}

// unlock releases tx.mu, and then does the work that others have left to its holder. Every
// goroutine that holds tx.mu for anything but a turn releases it with tx.unlock, and calls settle
// once it holds no lock.
func (tx *sender) unlock() {
	tx.mu.Unlock()
	if tx.work.Load() {
		tx.run(policy.BudgetMost)
	}
}

// oneTurn transmits, releases tx.mu, and returns the rest of the budget. It defers the release, as
// rx.oneTurn does, because a panic must reach the program: with the lock held, the program would
// hang in the Close that it has probably deferred.
func (tx *sender) oneTurn() (left int) {
	defer tx.mu.Unlock()
	if tx.work.Load() {
		tx.work.Store(false)
	}
	tx.transmit()
	return int(tx.budget)
}

// withError takes an earlier error of writing into account, because a reset that was reported to
// the writer is not reported to the reader again.
func (tx *sender) withError(e *ending) *ending {
	tx.mu.Lock()
	defer tx.unlock()
	if tx.err != nil {
		e.lost = true
		if !errors.Is(tx.err, syscall.EPIPE) {
			e.cause = tx.err
		}
	}
	return e
}
