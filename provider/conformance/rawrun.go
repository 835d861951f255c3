package conformance

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// RawRun is one run of a raw scenario: a script of what the peer sends, what it has to
// receive, and what the provider under test reports to its program.
//
// The first argument of each Want method says in English what is expected; it is the
// check's text in the report, and its name in profiles. A Want method that takes a wait
// scales it.
type RawRun struct {
	*T
	Seed uint64
	Role Role           // the raw peer's
	DUT  *Endpoint      // the provider under test; nil for a Target
	Addr netip.AddrPort // where the responder listens
	Tap  transport.Tap  // for the raw peer; may be nil

	Peer *rawpeer.Peer // the raw peer's end, once there is a TCP connection
	Side *Side         // the provider's end, once its program has answered or dialled; nil for a Target

	listener  *rdmacm.Listener
	accepting *rawpeer.Listener // where the provider connects to
	dialling  chan dialled      // the program's call of Dial or Accept
	spoke     bool              // the peer has sent an FPDU
	opening   bool              // the provider begins with a message that opens a peer-to-peer connection
	opensWith mpa.RTR           // which, as the peer's Reply said
	rdmac     bool              // the connection is one of the RDMA Consortium's version
	late      bool              // something that had to come did not: later waits are short
}

// RawConnect says how Connect makes a connection. Nil and zero values mean
// defaults.
type RawConnect struct {
	SideConfig

	// NoCRC leaves C out of the peer's start-up frame: the provider then decides whether
	// there are CRCs.
	NoCRC bool

	// IRD and ORD are the peer's. 0 means 4, and a negative value 0.
	IRD, ORD int

	// RDMAC makes the peer speak the RDMA Consortium's version, which the provider
	// has to be opened for (NeedsOptions).
	RDMAC bool
}

// HasProgram reports whether the script says what the provider's program does. The program of a
// [Target] does what it was written for, and shows only what comes over the network. With a target,
// the methods that make the program accept do nothing, and leave out their checks of it. The other
// methods for programs are not for scenarios that run against targets.
func (r *RawRun) HasProgram() bool { return r.DUT != nil }

func (c *RawConnect) depths() (ird, ord uint16) {
	value := func(n int) uint16 {
		if n == 0 {
			return 4
		}
		return uint16(max(n, 0))
	}
	return value(c.IRD), value(c.ORD)
}

// Connect makes a connection with valid start-up frames. CRCs are on afterwards, unless
// neither side asked for them.
func (r *RawRun) Connect(c *RawConnect) {
	if c == nil {
		c = &RawConnect{}
	}
	if c.RDMAC {
		r.connectRDMAC(&c.SideConfig)
		return
	}
	ird, ord := c.depths()
	var theirs mpa.Frame
	if r.Role == RoleInitiator {
		r.Dial()
		r.Start(rawpeer.Request(!c.NoCRC, ird, ord, nil))
		r.Accept(&c.SideConfig)
		theirs = r.WantReply("the request is accepted")
	} else {
		theirs = r.WantDial("the provider connects", &c.SideConfig)
		r.Answer(theirs, rawpeer.Reply(!c.NoCRC, ird, ord, nil))
		r.WantConnected("the provider takes the reply")
	}
	r.Peer.CRC = !c.NoCRC || theirs.CRC
}

// Dial makes the provider listen on the run's address, unless it does already. Then
// the peer makes a TCP connection to it.
func (r *RawRun) Dial() {
	if r.listener == nil && r.HasProgram() {
		r.Listen(r.Addr)
	}
	p, err := rawpeer.Dial(r.Context(), r.Addr, r.Tap)
	if err != nil && !r.HasProgram() {
		r.Setup("%v", (&Target{Addr: r.Addr}).unreachable(err))
	}
	r.NoError(err, "the peer can make a TCP connection")
	r.adoptPeer(p)
}

func (r *RawRun) adoptPeer(p *rawpeer.Peer) {
	r.Peer, r.spoke = p, false
	p.Over = r.Context().Done() // an interrupted run does not wait for siw's time limits, of 10 s
	r.Cleanup(func() { _ = p.Close() })
}

// Start sends a start-up frame.
func (r *RawRun) Start(f mpa.Frame) { r.Send(f.AppendTo(nil)) }

// Send sends octets as they are, in one write. If it can't, because the provider has
// reset the connection, it only logs the error: the provider's answer says more.
func (r *RawRun) Send(octets []byte) {
	if err := r.Peer.Send(octets); err != nil {
		r.Log("the peer could not send %d octets: %v", len(octets), err)
	}
}

// SendFPDU sends FPDUs in one write.
func (r *RawRun) SendFPDU(fpdus ...rawpeer.FPDU) {
	var octets []byte
	for i := range fpdus {
		fpdu, err := r.Peer.Frame(fpdus[i])
		r.NoError(err, "the script's FPDU can be framed")
		octets = append(octets, fpdu...)
	}
	r.spoke = true
	r.Send(octets)
}

// SendMany sends FPDUs some dozens to a write, because dissectors limit how many
// they find in one packet.
func (r *RawRun) SendMany(fpdus []rawpeer.FPDU) {
	for chunk := range slices.Chunk(fpdus, 64) {
		r.SendFPDU(chunk...)
	}
}

// Waits of the Want methods, before scaling.
const (
	// Soon is how long something that must not happen is watched for.
	Soon = 150 * time.Millisecond

	// Answers is how long the provider may take to answer what has arrived. It is
	// short, because some answers are known not to come.
	Answers = 300 * time.Millisecond

	// GivesUp is how long a provider may take to give up on a silent peer. siw's
	// limits are 5 s and 10 s, which can't be changed and are not scaled.
	GivesUp = 15 * time.Second
)

// patience returns how long to wait for something that must happen within d. Once
// something did not happen in time, waits are short.
func (r *RawRun) patience(d time.Duration) time.Duration {
	if r.late {
		d = min(d, Soon)
	}
	return r.Scaled(d)
}

// WantReply waits for a Reply that accepts, and checks its form.
//
//rfc:5044 MPA-7.1.1-02 Rep key is the 16 octets 'MPA ID Rep Frame'
func (r *RawRun) WantReply(what string) mpa.Frame {
	f, err := r.readReply()
	if err != nil {
		r.Require(false, what, "instead of a reply: %v", err)
	}
	r.Require(!f.Reject, what, "it was rejected")
	if !r.HasProgram() {
		time.Sleep(r.Scaled(acceptTime))
	}
	return f
}

// acceptTime is how long the program of a target may need from its Reply until its call of accept
// returns, before scaling. If an FPDU comes before that, siw does not look at it until another one
// comes (kernel-notes/siw-first-fpdu.md). With other providers the script waits for the return.
const acceptTime = 20 * time.Millisecond

// WantReject waits for a Reply that rejects.
//
//rfc:5044 MPA-7.1.1-11 R=0 in a Request, not checked; R=1 in a Reply rejects
func (r *RawRun) WantReject(what string) mpa.Frame {
	f, err := r.readReply()
	switch {
	case err != nil:
		r.Check(false, what, "instead of a reply: %v", err)
	default:
		r.Check(f.Reject, what, "it was accepted")
	}
	return f
}

func (r *RawRun) readReply() (mpa.Frame, error) {
	f, err := r.Peer.ReadFrame(mpa.KindReply, r.patience(waitLimit))
	switch {
	case err != nil:
		r.Observe("reply", "%s", ending(err))
	case f.Reject:
		r.Observe("reply", "reject")
	default:
		r.Observe("reply", "accept")
	}
	return f, err
}

// WantFPDU waits for an FPDU of an opcode and checks that its CRC is right.
func (r *RawRun) WantFPDU(what string, op rdmap.Opcode) *rawpeer.Segment {
	seg, err := r.Peer.ReadFPDU(r.patience(waitLimit))
	if err != nil {
		r.Require(false, what, "instead of an FPDU: %v", err)
	}
	got := rdmap.ParseControl(seg.Header.ULPCtl).Opcode
	if got == rdmap.OpTerminate && op != got {
		t, _ := rdmap.ParseTerminate(seg.Payload, r.phase())
		r.Require(false, what, "a Terminate came: %s", t.String())
	}
	r.Require(got == op, what, "a %s came", got)
	r.sameVersion(&seg.Header)
	if r.Peer.CRC {
		r.Check(seg.CRCRight(), "the CRC of what comes is right", "it is %#08x", seg.CRC)
	}
	return seg
}

// phase returns the phase in which a Terminate that comes now was sent.
func (r *RawRun) phase() rdmap.Phase {
	if r.spoke {
		return rdmap.PhaseAfterFirstFPDU
	}
	return rdmap.PhaseBeforeFirstFPDU
}

// WantTerminate waits for a Terminate and checks that it reports one of the
// given errors, each "layer/type/code" as in "1/2/0x03". It is nil if something
// else came.
//
//rfc:5040 RDMAP-5.4-01 Terminate untagged on QN 2
//rfc:5040 RDMAP-5.4-02 Terminate MSN 1, MO 0, L=1
func (r *RawRun) WantTerminate(what string, codes ...string) *rdmap.ReceivedTerminate {
	seg, err := r.Peer.ReadFPDU(r.patience(Answers))
	return r.terminate(seg, err, what, codes)
}

// WantTerminateAmid waits for a Terminate, as WantTerminate does, after any number of
// FPDUs of an opcode, which the provider had begun to send.
func (r *RawRun) WantTerminateAmid(what string, op rdmap.Opcode, codes ...string) *rdmap.ReceivedTerminate {
	for {
		seg, err := r.Peer.ReadFPDU(r.patience(Answers))
		if err == nil && rdmap.ParseControl(seg.Header.ULPCtl).Opcode == op &&
			r.Context().Err() == nil {
			continue
		}
		return r.terminate(seg, err, what, codes)
	}
}

func (r *RawRun) terminate(seg *rawpeer.Segment, err error, what string, codes []string) *rdmap.ReceivedTerminate {
	if err != nil {
		r.late = true
		r.Observe("terminate", "none: %s", ending(err))
		r.Check(false, what, "instead of a Terminate: %v", err)
		return nil
	}
	h := &seg.Header
	if op := rdmap.ParseControl(h.ULPCtl).Opcode; op != rdmap.OpTerminate {
		r.late = true
		r.Observe("terminate", "none: %s", op)
		r.Check(false, what, "instead of a Terminate a %s came", op)
		return nil
	}
	t, err := rdmap.ParseTerminate(seg.Payload, r.phase())
	if err != nil {
		r.Check(false, what, "the Terminate can't be read: %v", err)
		return nil
	}
	code := fmt.Sprintf("%d/%d/0x%02x", t.Layer, t.EType, uint8(t.Code))
	r.Observe("terminate", "%s", code)
	r.Log("the Terminate says % x in %s layout: %s", t.Raw, t.Layout, t.String())
	r.Check(slices.Contains(codes, code), what, "the Terminate says %s (% x), not %s", code, t.Raw, strings.Join(codes, " or "))
	r.Check(!h.Tagged && h.Last && h.QN == rdmap.QNTerminate && h.MSN == 1 && h.MO == 0,
		"the Terminate is one segment, MSN 1, of queue 2", "it has T %v, L %v, QN %d, MSN %d, MO %d", h.Tagged, h.Last, h.QN, h.MSN, h.MO)
	r.sameVersion(h)
	if r.Peer.CRC && r.spoke {
		r.Check(seg.CRCRight(), "the CRC of the Terminate is right", "it is %#08x", seg.CRC)
	}
	return &t
}

// WantEnd waits for the end of what the provider sends, within the limit for
// things that must happen or the given one, and checks that nothing came before
// it. It returns how the direction ended, as it is observed.
func (r *RawRun) WantEnd(what string, wait ...time.Duration) string {
	limit := waitLimit
	if len(wait) > 0 {
		limit = wait[0]
	}
	rest, err := r.Peer.Drain(r.patience(Soon))
	if errors.Is(err, rawpeer.ErrSilence) && limit > Soon {
		r.late = r.late || len(rest) > 0 // it says more instead of ending
		var more []byte
		more, err = r.Peer.Drain(r.patience(limit - Soon))
		rest = append(rest, more...)
	}
	r.Observe("end", "%s", ending(err))
	over := !errors.Is(err, rawpeer.ErrSilence) && !errors.Is(err, rawpeer.ErrTooMuch)
	if r.Check(over, what, "the connection is still there: %v", err) {
		r.Check(len(rest) == 0, "nothing is sent before the end", "%d octets: % x", len(rest), rest[:min(len(rest), 64)])
	} else {
		r.late = true
	}
	return ending(err)
}

// WantClose makes the peer close its direction of a connection without errors, and checks
// that the provider closes its own with a FIN, and that the program gets the event.
//
//rfc:5044 MPA-7.2-02 FIN indication up to DDP
func (r *RawRun) WantClose() {
	_ = r.Peer.CloseWrite()
	const what = "the provider closes its side when the peer has"
	if how := r.WantEnd(what); how != ending(rawpeer.ErrSilence) {
		r.Check(how == ending(io.EOF), "it closes with a FIN", "with %s", how)
	}
	r.WantOver()
}

// WantRefused checks what has to follow an FPDU that is wrong: a Terminate with one of
// the errors, nothing after it, the end of the connection, and an event for the program.
//
//rfc:5040 RDMAP-5.4-05 Nothing sent after Terminate
//rfc:5040 RDMAP-6.2.1-01 Terminate used on RDMAP or LLP error
//rfc:5041 DDP-7.1-03 Segments after an error dropped silently
func (r *RawRun) WantRefused(what string, codes ...string) *rdmap.ReceivedTerminate {
	t := r.WantTerminate(what, codes...)
	r.WantEnd("the connection ends after the Terminate")
	r.WantOver()
	return t
}

// WantTerminateOrEnd is for errors that a provider may, but need not, report before it
// ends the connection. It observes whether a Terminate comes.
func (r *RawRun) WantTerminateOrEnd(what string, wait time.Duration, codes ...string) {
	seg, err := r.Peer.ReadFPDU(r.patience(wait))
	if err == nil || errors.Is(err, rawpeer.ErrSilence) {
		r.terminate(seg, err, what, codes)
	} else {
		r.Observe("terminate", "none: %s", ending(err))
	}
	r.WantEnd("the connection ends", wait)
}

// WantOver makes the peer close its direction, too, and checks that the program gets the
// event of the end. It observes which asynchronous events came.
//
//rfc:5040 RDMAP-7.1-01 Local ULP informed of error
func (r *RawRun) WantOver() {
	_ = r.Peer.CloseWrite()
	if !r.HasProgram() {
		return
	}
	r.Side.WaitEnd()
	r.ObserveEvents()
}

// ObserveEvents observes the asynchronous events that have come. Each run has devices of
// its own, so all events are about this run.
func (r *RawRun) ObserveEvents() {
	var names []string
	for misses := 0; misses < 2; { // one alone may have passed while this program did not run
		ctx, cancel := context.WithTimeout(r.Context(), 5*time.Millisecond)
		ev, err := r.DUT.Context.AsyncEvent(ctx)
		cancel()
		if err != nil {
			misses++
			continue
		}
		misses = 0
		names = append(names, ev.Type.String())
	}
	if len(names) == 0 {
		names = append(names, "none")
	}
	slices.Sort(names)
	r.Observe("events", "%s", strings.Join(names, " "))
}

// WantSilence checks that nothing comes for a while, and that the connection is
// still there at its end.
func (r *RawRun) WantSilence(what string, d time.Duration) {
	rest, err := r.Peer.Drain(r.Scaled(d))
	r.Check(len(rest) == 0 && errors.Is(err, rawpeer.ErrSilence), what, "%d octets (% x), then %s", len(rest), rest[:min(len(rest), 64)], ending(err))
}

// ending names how a direction ended.
func ending(err error) string {
	switch {
	case errors.Is(err, rawpeer.ErrSilence):
		return "silence"
	case errors.Is(err, io.EOF):
		return "FIN"
	case errors.Is(err, syscall.ECONNRESET):
		return "RST"
	case errors.Is(err, rawpeer.ErrTooMuch):
		return "more than is read"
	}
	return "undecodable"
}
