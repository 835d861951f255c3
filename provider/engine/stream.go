package engine

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// stream is a QP's connection in MPA's Full Operation Phase: an RDMAP stream over a TCP stream. It
// is the Handler of its Conn.
//
// It has three parts, each with a lock: the receiver, the sender, and the closer, which watches
// over the stream's end and works after the QP has detached. The receiver and the sender are state
// machines that run on any goroutine that has a reason to run them: one that posts, polls, or
// serves the device's progress. A turn only tries the lock. A goroutine that does not get tx.mu
// sets tx.work and leaves the work to the holder; one that does not get rx.mu leaves the reading to
// the holder. Code that needs a part's state waits for the lock: begin, finish, tx.withError, and
// the code after a call of an object's method. Either side records a fault with fail. After the
// side's lock is released, settle takes the QP to ERR.
type stream struct {
	q      *qp
	dev    *device
	conn   transport.Conn
	loop   *eventLoop // as long as it has a socket
	params streamParams
	onDown func(error)

	inbound     rdmap.InboundReads     // rx pushes, tx pops
	outstanding rdmap.OutstandingReads // tx pushes, rx pops

	phase sched.Uint32 // how far the end is: see type phase, at and enter

	// maySend is false for a responder until the first FPDU has come.
	//
	//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
	maySend sched.Bool

	ending sched.Pointer[ending] // why the stream ends, nil while it goes on; the first reason stays

	rx     receiver
	tx     sender
	closer closer

	watchMu   sched.Mutex[locks.Watch]
	unwatched unwatched // why the poller does not watch the stream for arrivals
	admitted  bool      // package cm counts it

	watched sched.Bool // it is among the device's stalls; reset with both locks held
}

// link sets what the parts of s know of it.
func (s *stream) link() *stream {
	s.rx.s, s.rx.q = s, s.q
	s.tx.s, s.tx.q = s, s.q
	s.closer.s = s
	return s
}

// streamParams are the fields of mpa.Params that a stream needs all its life.
type streamParams struct {
	Enhanced, CRC, MarkersTx, MarkersRx bool
	RDMAC                               bool // DDP and RDMAP have version 0
	PeerToPeer, WaitFirstFPDU           bool
	RTR                                 mpa.RTR
}

// The verbs use only part of RFC 7306's Immediate Data. The message has eight bytes, and libibverbs
// has four: they are the first four, in network order, as with cxgb4. The others are zero.
const immShift = 32

// rtrCookie marks a Read that no WQE waits for.
const rtrCookie = 1 << 63

// sendsRTR reports whether this end begins with an RTR indication.
func sendsRTR(peerToPeer, waitFirstFPDU bool) bool { return peerToPeer && !waitFirstFPDU }

// Ready implements transport.Handler.
func (s *stream) Ready(readable, writable bool) { s.ReadyTurn(readable, writable, policy.BudgetMost) }

// ReadyTurn implements transport.Sharer.
func (s *stream) ReadyTurn(readable, writable bool, budget int) (used int, more bool) {
	if s.hasFinished() {
		return s.closer.lingerOn(budget)
	}
	if readable {
		receive := budget
		if writable {
			receive /= 2 // what the receive side does not use is for sending
		}
		used, more = s.rx.poll(receive)
	}
	if writable {
		s.tx.room.Store(true)
		sent, sendMore := s.tx.run(max(budget-used, budget/2))
		s.settle()
		used, more = used+sent, more || sendMore
	}
	if s.hasFinished() {
		used += policy.EndCost
	}
	return used, more
}

// resume transmits what there is to transmit, or leaves that to the goroutine that holds tx.mu. It
// returns how much of a budget it used.
func (s *stream) resume() (used int) {
	used, _ = s.tx.run(policy.BudgetMost)
	s.settle()
	return used
}

// fail records why the stream ends. Only the first reason counts. Both sides stop as soon as they
// see it.
//
//rfc:5040 RDMAP-7.1-4-01 First error wins
func (s *stream) fail(e *ending) { s.ending.CompareAndSwap(nil, e) }

// over reports whether the stream is to end.
func (s *stream) over() bool { return s.ending.Load() != nil }

// settle ends the stream if there is a reason to. When it returns, this call or another has moved
// the QP to ERR and flushed it. The caller must hold no lock.
func (s *stream) settle() {
	e := s.ending.Load()
	if e == nil || s.hasFinished() {
		return
	}
	s.rx.mu.Lock()
	s.tx.mu.Lock()
	first := !s.hasFinished()
	var from phase
	if first {
		from = s.finish(e)
	}
	s.tx.unlock()
	s.rx.mu.Unlock()
	if !first {
		return
	}
	s.loop.unassign()
	s.closer.startLinger(e, from)
	s.down(e)
}

// down calls onDown. Close of the device waits until down returns, so down also reports its return
// if onDown panics.
func (s *stream) down(e *ending) {
	defer s.dev.streams.Done()
	s.onDown(e.cause)
}

// peer implements closingConn.
func (s *stream) peer() netip.Addr { return cm.PeerOf(s.conn) }

// finish makes both sides give back what they hold, and detaches the stream from its QP. It returns
// the phase before. rx.mu and tx.mu are held.
func (s *stream) finish(e *ending) (from phase) {
	s.endObjects()
	s.rx.stop()
	s.closer.out = s.tx.stop(e)
	s.dev.countEnd(s, e, len(s.closer.out) > 0)
	s.tx.undoMemory()
	s.q.enterError(s, e)
	if e.raise {
		s.dev.raise(provider.AsyncEvent{Type: e.event, QP: s.q})
	}
	return s.enter(phaseFinished) // last: who reads the phase relies on the QP being in ERR
}

func (s *stream) raiseDrained() {
	s.dev.raise(provider.AsyncEvent{Type: provider.EventSQDrained, QP: s.q})
}

// unwatched is the set of reasons why a stream is not watched for arrivals. An empty set means that
// it is watched.
type unwatched uint8

const (
	readStoring unwatched = 1 << iota // an object has not stored yet what came before
	readEnded                         // the peer's FIN has come: the socket stays readable forever
)

// unwatch adds the reason why, or removes it if on is false. All reasons together determine what
// the poller watches for. Only this function asks the poller, so the end of one reason does not
// undo another. After an error the stream may be unwatched.
func (s *stream) unwatch(why unwatched, on bool) error {
	s.watchMu.Lock()
	defer s.watchMu.Unlock()
	was := s.unwatched
	if s.unwatched &^= why; on {
		s.unwatched |= why
	}
	if (was == 0) == (s.unwatched == 0) {
		return nil
	}
	return s.loop.poller.WantRead(s.conn, s.unwatched == 0)
}

// cannotWatch ends the stream because no goroutine would see what arrives. It does nothing if the
// stream has ended already: the socket is closed, or is closed when the linger expires.
func (s *stream) cannotWatch(err error) {
	s.fail(&ending{cause: fmt.Errorf("watching the connection for arrivals: %w", err), reset: true})
}

// watch adds the stream to the device's stalls until neither side waits for the peer. rx.mu or
// tx.mu is held.
func (s *stream) watch() {
	if !s.watched.Load() && !s.watched.Swap(true) {
		s.dev.stalls.join(s)
	}
}

// phase is how far the end of a stream is. It only advances, and only enter changes it.
//
// Two facts are not phases, because each may become true in several of them: stream.ending, that
// there is a reason to end now, and closer.eof, that the peer's FIN has come. What finish sends for
// stream.ending depends on the phase. Only fail and peerClosed set these two, and nothing resets
// them.
type phase uint32

const (
	phaseOpen          phase = iota // everything may be posted, sent and received
	phaseClosing                    // a graceful end: the send queue is sent, then FIN
	phaseClosingNotify              // the same, and EventSQDrained is raised with the FIN
	phaseFINSent                    // our FIN is out, and the peer's is awaited
	phaseFinished                   // the QP has detached: the linger does the rest
	phaseLinger                     // the rest is being sent, and our FIN after it
	phaseLingerFINSent              // our FIN is out, and the peer's is awaited
	phaseClosed                     // the socket is closed
)

func (p phase) String() string {
	return [...]string{"open", "closing", "closing with notification", "FIN sent", "finished",
		"linger", "linger with FIN sent", "closed"}[p]
}

// phaseSet is a set of phases.
type phaseSet uint32

func phases(all ...phase) (s phaseSet) {
	for _, p := range all {
		s |= 1 << p
	}
	return s
}

func (s phaseSet) has(p phase) bool { return s>>p&1 != 0 }

// enteredFrom has, for each phase, those from which it may be entered.
var enteredFrom = [...]phaseSet{
	phaseClosing:       phases(phaseOpen),
	phaseClosingNotify: phases(phaseOpen, phaseClosing),
	phaseFINSent:       phases(phaseClosing, phaseClosingNotify),
	phaseFinished:      phases(phaseOpen, phaseClosing, phaseClosingNotify, phaseFINSent),
	phaseLinger:        phases(phaseFinished),
	phaseLingerFINSent: phases(phaseFinished, phaseLinger),
	phaseClosed:        phases(phaseLinger, phaseLingerFINSent),
}

// at returns the phase. It stays if the caller holds the lock with which the next phase is entered
// (see enter).
func (s *stream) at() phase { return phase(s.phase.Load()) }

// enter enters a phase, and returns the one before. The caller holds
//
//   - qp.mu, of a QP that has this stream, for phaseClosing and phaseClosingNotify,
//   - tx.mu for phaseFINSent,
//   - rx.mu and tx.mu for phaseFinished,
//   - closer.mu for the phases after that.
//
// A graceful end may have begun before: then phaseClosing or phaseClosingNotify is not entered,
// and the phase that is returned is the present one. All other phases are entered in any case.
func (s *stream) enter(to phase) (from phase) {
	switch {
	case to > phaseFinished:
		sched.AssertHeld[locks.Linger](&s.closer.mu)
	case to == phaseFinished:
		sched.AssertHeld[locks.RX](&s.rx.mu)
		sched.AssertHeld[locks.TX](&s.tx.mu)
	case to == phaseFINSent:
		sched.AssertHeld[locks.TX](&s.tx.mu)
	default:
		sched.AssertHeld[locks.QP](&s.q.mu)
	}
	for {
		from = s.at()
		switch {
		case enteredFrom[to].has(from):
			if s.phase.CompareAndSwap(uint32(from), uint32(to)) {
				return from
			}
		case to <= phaseClosingNotify && from <= phaseFINSent:
			return from
		default:
			panic(fmt.Sprintf("engine: a stream goes from phase %q to %q", from, to))
		}
	}
}

// closing reports whether a graceful end has begun, for a caller who knows that the stream has
// not finished.
func (s *stream) closing() bool { return s.at() >= phaseClosing }

// hasFinished reports whether the QP has let go of the stream.
func (s *stream) hasFinished() bool { return s.at() >= phaseFinished }

// peerClosed notes that nothing more comes from the peer. The caller holds rx.mu, or closer.mu if
// the stream has finished.
func (s *stream) peerClosed() {
	if s.hasFinished() {
		sched.AssertHeld[locks.Linger](&s.closer.mu)
	} else {
		sched.AssertHeld[locks.RX](&s.rx.mu)
	}
	s.closer.eof = true
}

// ending is why and how a stream ends.
type ending struct {
	cause error // for QP.Cause

	terminate []byte // payload of the Terminate to send, nil for none
	reset     bool   // RST instead of FIN
	lost      bool   // the connection is lost

	event      provider.AsyncEventType // to raise, if raise
	raise      bool
	recvStatus provider.WCStatus // status of the receive in progress, WCSuccess for a flush
}

// Faults of this side, about which the peer is sent a Terminate.
var (
	errLocalWork        = rdmap.LocalCatastrophe("a work request names memory that it may not use")
	errLocalCatastrophe = rdmap.LocalCatastrophe("the application ended the stream")
)

// ownEnd is the cause of an end that this side has made. It is os.ErrClosed for errors.Is, but has
// a text of its own, because the text of os.ErrClosed is about files.
type ownEnd string

func (e ownEnd) Error() string { return string(e) }

// Is implements the protocol of errors.Is.
func (e ownEnd) Is(target error) bool { return target == os.ErrClosed }

// Ends that this side made.
const (
	errModified     ownEnd = "this side moved the queue pair to IBV_QPS_ERR"
	errDisconnected ownEnd = "this side disconnected"
	errDestroyed    ownEnd = "this side closed the queue pair"
	errIDDestroyed  ownEnd = "this side closed the CM id of the connection"
)

// Other ends without a Terminate.
var (
	errPeerClosed   = fmt.Errorf("the peer closed the connection: %w", io.EOF)
	errPeerCut      = fmt.Errorf("the peer closed the connection inside an FPDU: %w", io.ErrUnexpectedEOF)
	errCloseTimeout = fmt.Errorf("the peer did not close its side in time, and the connection was "+
		"reset: %w", os.ErrDeadlineExceeded)
)

// The causes of streams that were stalled for too long.
var (
	errFPDUTimeout = fmt.Errorf("the peer did not finish an FPDU within FPDUTimeout: %w",
		os.ErrDeadlineExceeded)
	errSendTimeout = fmt.Errorf("the peer did not take what it was sent within SendTimeout: %w",
		os.ErrDeadlineExceeded)

	errFPDUMemory = fmt.Errorf("the peer did not finish an FPDU, and unfinished ones take more than %d MiB: %w",
		policy.PartsMost>>20, os.ErrDeadlineExceeded)

	errHalfFPDU = &iwarp.Error{
		Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPLocalCatastrophic, Code: iwarp.RDMAPUnspecified,
		Reason: "an FPDU took too long to arrive",
	}
)

// errRecvSGE is DDP's local catastrophic error for a receive whose SGEs name memory that may not be
// written. errSinkSGE is the same error for the sink of a Read.
var (
	errRecvSGE = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "a receive names memory that may not be written"}
	errSinkSGE = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
		Reason: "the sink of a Read may not be written any more"}
)

// endTerminate makes the ending of a stream with a Terminate to the peer about err, which is an
// *iwarp.Error. The arguments are those of rdmap.NewTerminate. It runs once per stream and
// allocates.
func endTerminate(err error, seg *ddp.Header, segmentLen int, read *rdmap.ReadRequest) *ending {
	var e *iwarp.Error
	if !errors.As(err, &e) {
		panic("engine: a protocol error without a code: " + err.Error())
	}
	t := rdmap.NewTerminate(e, seg, segmentLen, read)
	about := aboutHeaders(&t, t.D, t.R)
	if about == aboutNoReceive {
		about += "; post more receives, or post them earlier"
	}
	return &ending{
		cause: &provider.TerminateError{
			Layer: uint8(e.Layer), EType: uint8(e.EType), ECode: uint8(e.Code),
			Text: iwarp.CodeName(e.Layer, e.EType, e.Code) + ": " + e.Reason + about,
		},
		terminate: t.AppendTo(nil),
	}
}

// Two answers of aboutHeaders.
const (
	aboutNoReceive = ", about a Send for which there was no receive"
	aboutTooLong   = ", about a Send that is longer than the receive for it"
)

// aboutHeaders says what the headers in a Terminate show of the message that it is about, in the
// same words at both ends.
func aboutHeaders(t *rdmap.Terminate, haveDDP, haveRead bool) string {
	h := &t.DDP
	op := rdmap.ParseControl(h.ULPCtl).Opcode
	switch untagged := t.Layer == iwarp.LayerDDP && t.EType == iwarp.DDPUntaggedBuffer; {
	case haveRead:
		return fmt.Sprintf(", about a Read of %d bytes from rkey %#x, address %#x",
			t.Read.Size, t.Read.SourceSTag, t.Read.SourceTO)
	case !haveDDP:
		return ""
	case h.Tagged && op == rdmap.OpReadResponse:
		return fmt.Sprintf(", about a Read Response to STag %#x, address %#x", h.STag, h.TO)
	case h.Tagged:
		return fmt.Sprintf(", about a Write to rkey %#x, address %#x", h.STag, h.TO)
	case h.QN == rdmap.QNReadRequest && op == rdmap.OpReadRequest:
		return ", about a Read"
	case h.QN == rdmap.QNReadRequest && op == rdmap.OpAtomicRequest:
		return ", about an atomic operation"
	case h.QN == rdmap.QNReadRequest:
		return ", about a Read or an atomic operation"
	case h.QN != rdmap.QNSend:
		return ""
	case untagged && t.Code == iwarp.DDPUntaggedNoBuffer:
		return aboutNoReceive
	case untagged && t.Code == iwarp.DDPUntaggedMessageTooLong:
		return aboutTooLong
	case t.Code == iwarp.RDMAPCannotInvalidate && op.Invalidates():
		return fmt.Sprintf(", about a Send that invalidates rkey %#x", h.ULP32)
	}
	return ""
}

// explain replaces the text of a Terminate that we send by why, unless that is empty.
func (e *ending) explain(why string) {
	var t *provider.TerminateError
	if why != "" && errors.As(e.cause, &t) {
		t.Text = iwarp.CodeName(iwarp.Layer(t.Layer), iwarp.EType(t.EType), iwarp.Code(t.ECode)) + ": " + why
	}
}

// because records which error of ours caused an ending by Terminate.
func (e *ending) because(err error) *ending {
	t, is := e.cause.(*provider.TerminateError)
	if !is {
		return e
	}
	if w, is := t.Err.(*provider.WorkError); is {
		w.Err = err
	} else {
		t.Err = err
	}
	return e
}

// blame records the work request at fault as the reason of a Terminate that we send, unless it is
// nil.
func (e *ending) blame(w *provider.WorkError) {
	var t *provider.TerminateError
	if w != nil && errors.As(e.cause, &t) {
		t.Text = iwarp.CodeName(iwarp.Layer(t.Layer), iwarp.EType(t.EType), iwarp.Code(t.ECode))
		t.Err = w
	}
}

// countEnd counts why a stream has ended. sent says that there was something to send at the end.
// rx.mu and tx.mu are held.
func (d *device) countEnd(s *stream, e *ending, sent bool) {
	var t *provider.TerminateError
	if errors.As(e.cause, &t) && (t.Remote || sent && e.terminate != nil) {
		d.tally.terminate(t)
		d.log.terminate(s.q.qpn, s.conn.RemoteAddr(), t)
	}
	for _, limit := range endLimits {
		if errors.Is(e.cause, limit.err) {
			d.tally.refuse(limit.name)
			d.log.limit(limit.name, s.conn.RemoteAddr())
			break
		}
	}
}

// endLimits are the limits that end connections.
var endLimits = []struct {
	err  error
	name string
}{
	{errFPDUMemory, "FPDUMemory"},
	{errFPDUTimeout, "FPDUTimeout"},
	{errSendTimeout, "SendTimeout"},
	{errCloseTimeout, "CloseTimeout"},
}
