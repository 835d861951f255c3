package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// txTask is what the transmit side is in the middle of: a message, or work of the send queue that
// sends nothing.
type txTask uint8

const (
	taskNone           txTask = iota
	taskSendOrWrite           // a Send or Write of the send queue
	taskReadRequest           // a Read of the send queue
	taskReadResponse          // the response to the peer's oldest Read Request
	taskRTR                   // the RTR indication (RFC 6581 section 9.2)
	taskImmediate             // the Immediate Data of a WQE (RFC 7306 section 6)
	taskAtomicRequest         // an atomic operation of the send queue (section 5)
	taskAtomicResponse        // the response to one of the peer's
	taskMemory                // an operation of the send queue on our own memory: nothing is sent
)

// txState is the transmit side of a stream; txMu guards it.
type txState struct {
	crc, markers bool
	rdmac        bool // version 0; with markers
	task         txTask
	answered     bool       // the last message was a response: now it is the send queue's turn
	rtr          mpa.RTR    // RTR indication still to be sent
	mssAge       uint8      // batches filled since mulpdu was calculated
	framer       mpa.Framer // with markers
	emss         int32
	batch        policy.Batch // how many octets go out with one call
	mulpdu       int

	b    *txBatch   // nil while nothing is in flight
	held *heldBatch // instead, while the socket has been full for long

	turn int32 // what is left of the turn (see stream_turn.go)

	unsent policy.Unsent

	next uint32 // WQE that is sent next, or being sent
	seg  ddp.Segmenter
	resp rdmap.InboundRead // being answered

	sendMSN, readMSN, atomicMSN uint32 // next

	fetches *messageFetches // of the message being sent, nil if that comes from memory

	fault *ending // found while filling; it counts when what is before it is out
	err   error   // the socket can't be written any more
}

func (t *txState) init(s *stream) {
	t.crc, t.markers, t.rdmac = s.params.CRC, s.params.MarkersTx, s.params.RDMAC
	t.framer = mpa.NewFramer(t.markers, t.crc)
	t.batch = policy.NewBatch()
	t.sendMSN, t.readMSN, t.atomicMSN = ddp.FirstMSN, ddp.FirstMSN, ddp.FirstMSN
	if sendsRTR(s.params.PeerToPeer, s.params.WaitFirstFPDU) {
		t.rtr = s.params.RTR
	}
}

// stop ends the transmit side and returns what must still go out, as records: the
// rest of the FPDU that is partly sent, and after it the Terminate of e. rxMu and txMu
// are held.
//
//rfc:5040 RDMAP-5.4-05 Nothing sent after Terminate
//rfc:5040 RDMAP-7.1-02 Terminate at the earliest opportunity
func (t *txState) stop(s *stream, e *ending) [][]byte {
	var rest []byte
	t.endFetch(s)
	t.unhold(s.dev)
	dead := t.err != nil || e.lost || s.at() == phaseFINSent
	if t.b != nil {
		switch {
		case dead:
		case t.markers:
			// Where markers lie was settled when the FPDUs were laid out, so
			// none of them can be left out.
			for _, p := range t.b.pending() {
				rest = append(rest, p...)
			}
		default:
			rest = t.b.remainder()
		}
		t.b.reset()
		s.dev.prog.batches.Put(t.b)
		t.b = nil
	}
	if dead {
		return nil
	}
	var out [][]byte
	if len(rest) > 0 {
		out = append(out, rest)
	}
	if e.ulpdu != nil && s.maySend.Load() {
		fpdu, err := t.framer.AppendFPDU(nil, e.ulpdu)
		if err != nil {
			panic("engine: " + err.Error()) // a Terminate is short
		}
		out = append(out, fpdu)
	}
	return out
}

// undo removes from the batch those FPDUs of the message being sent of which the socket
// has taken nothing. It does nothing on streams with markers, whose positions are settled,
// and for messages from objects, which are not read twice. Nor does it after a fault, whose
// Terminate counts what was built as sent.
func (t *txState) undo() {
	b := t.b
	if t.fault != nil || t.markers || t.fetches != nil || t.task != taskSendOrWrite && t.task != taskReadResponse {
		return
	}
	first := b.fpdu0
	if b.written > b.startOf(first) {
		first++
	}
	first = max(first, b.message.fpdu)
	if first >= b.nfpdus {
		return
	}
	t.seg = b.message.seg
	for range first - b.message.fpdu {
		t.seg.Next(t.mulpdu)
	}
	b.truncate(first)
}

// heldBatch is what is left of a batch for a socket that has been full for long: the
// octets, and how they are divided. It is as large as they are.
type heldBatch struct {
	b       []byte
	records []int
	fpdus   []fpduEnd
	written uint64 // of the first FPDU
}

// hold keeps a copy of what is left of the batch until the socket has room, and gives the
// batch back. It does nothing if the batch still uses regions.
func (t *txState) hold(d *device) {
	b := t.b
	if b == nil || b.empty() || b.nuses > 0 {
		return
	}
	start := b.startOf(b.fpdu0)
	h := &heldBatch{b: make([]byte, 0, b.built-b.written), written: b.written - start}
	for _, p := range b.pending() {
		h.b = append(h.b, p...)
	}
	h.records = append(h.records, b.records()...)
	for _, f := range b.fpdus[b.fpdu0:b.nfpdus] {
		f.at -= start
		h.fpdus = append(h.fpdus, f)
	}
	t.held, t.b = h, nil
	b.reset()
	d.prog.batches.Put(b)
}

// unhold undoes hold.
func (t *txState) unhold(d *device) {
	h := t.held
	if h == nil {
		return
	}
	b := d.prog.batches.Get()
	b.iov[0], b.first, b.last = h.b, 0, 1
	b.written, b.built = h.written, h.written+uint64(len(h.b))
	b.nrecs = copy(b.recs[:], h.records)
	b.nfpdus = copy(b.fpdus[:], h.fpdus)
	b.begun(t) // b.message may be another stream's, and the FPDUs of h must not be undone
	t.held, t.b = nil, b
}
