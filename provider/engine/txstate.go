package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
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

// txState is the transmit side of a stream; txMu guards it.
type txState struct {
	format   frames.Format
	task     txTask
	answered bool         // the last message was a response, so the send queue is next
	rtr      mpa.RTR      // RTR indication still to be sent
	mssAge   uint8        // batches filled since format has the EMSS
	batch    policy.Batch // how many bytes one call sends

	b    *frames.Batch // nil while nothing is in flight
	held *frames.Held  // replaces b while the socket has been full for long

	turn int32 // the rest of the turn (see stream_turn.go)

	unsent policy.Unsent

	next uint32 // WQE that is sent next, or is being sent
	seg  ddp.Segmenter
	resp rdmap.InboundRead // the Read or atomic operation being answered

	sendMSN, readMSN, atomicMSN uint32 // of the next message

	fetches *messageFetches // of the message being sent, nil if its payload comes from memory

	fault *ending // found while filling; it counts once everything before it is sent
	err   error   // the socket can't be written any more
}

func (t *txState) init(s *stream) {
	t.format = frames.NewFormat(s.params.CRC, s.params.MarkersTx, s.params.RDMAC)
	t.batch = policy.NewBatch()
	t.sendMSN, t.readMSN, t.atomicMSN = ddp.FirstMSN, ddp.FirstMSN, ddp.FirstMSN
	if sendsRTR(s.params.PeerToPeer, s.params.WaitFirstFPDU) {
		t.rtr = s.params.RTR
	}
}

// stop ends the transmit side and returns, as records, what must still be sent: the rest of the
// FPDU that is partly sent, and then the Terminate of e. rxMu and txMu are held.
//
//rfc:5040 RDMAP-5.4-05 Nothing sent after Terminate
//rfc:5040 RDMAP-7.1-02 Terminate at the earliest opportunity
func (t *txState) stop(s *stream, e *ending) [][]byte {
	var rest []byte
	t.endFetch(s)
	s.restoreBatch()
	dead := t.err != nil || e.lost || s.at() == phaseFINSent
	if t.b != nil {
		if !dead {
			rest = t.b.Remainder()
		}
		s.dropBatch()
	}
	if dead {
		return nil
	}
	var out [][]byte
	if len(rest) > 0 {
		out = append(out, rest)
	}
	if e.terminate != nil && s.maySend.Load() {
		out = append(out, t.format.Terminate(e.terminate))
	}
	return out
}

// undo removes from the batch those FPDUs of the message being sent of which the socket has taken
// nothing. It does nothing after a fault, whose Terminate counts built FPDUs as sent.
func (t *txState) undo() {
	if t.fault != nil || t.task != taskSendOrWrite && t.task != taskReadResponse {
		return
	}
	t.b.Undo(&t.seg)
}

// holdBatch copies what is left of the batch, until the socket has room, and gives the batch back.
// It does nothing if the batch still uses regions.
func (s *stream) holdBatch() {
	t := &s.tx
	if t.b == nil {
		return
	}
	if t.held = t.b.Hold(); t.held != nil {
		s.dropBatch()
	}
}

// restoreBatch undoes holdBatch.
func (s *stream) restoreBatch() {
	t := &s.tx
	if t.held == nil {
		return
	}
	t.b = s.dev.prog.batches.Get()
	t.b.Restore(t.held, &t.format)
	t.held = nil
}
