package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// What follows is the start-up as the program of the provider under test sees
// it, opposite the raw peer.

// Listen makes the provider listen on addr. Dial does so for the run's address; Listen is
// for other addresses.
func (r *RawRun) Listen(addr netip.AddrPort) {
	l, err := rdmacm.Listen(r.Context(), r.DUT.Context, addr, nil)
	r.NoError(err, "the provider can listen")
	r.listener = l
	r.Cleanup(func() {
		err := l.Close()
		r.Check(err == nil, "the listener can be closed", "%v", err)
	})
}

// WantRequest waits for the connection request to reach the program, which
// answers it in its own time.
func (r *RawRun) WantRequest(what string) *rdmacm.Request {
	type heard struct {
		req *rdmacm.Request
		err error
	}
	ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(waitLimit))
	defer cancel()
	result := make(chan heard, 1)
	go func() {
		req, err := r.listener.Accept(ctx)
		result <- heard{req, err}
	}()
	var h heard
	for waiting := true; waiting; {
		select {
		case h = <-result:
			waiting = false
		case <-time.After(r.Scaled(50 * time.Millisecond)):
			if err := r.Peer.Poll(); err != nil { // the connection has ended
				r.Log("while the request is waited for: %s", ending(err))
				cancel()
			}
		}
	}
	r.NoError(h.err, what)
	r.Cleanup(func() { _ = h.req.Close() })
	r.Observe("request", "IRD %d, ORD %d", h.req.ResponderResources(), h.req.InitiatorDepth())
	return h.req
}

// WantNoRequest checks that no connection request has reached the program, after the
// provider has ended the connection: the peer has sent no valid one.
//
//rfc:5044 MPA-7.1.2-2-01 Responder waits for a validated Request
func (r *RawRun) WantNoRequest(what string) {
	if !r.HasProgram() {
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(2*time.Millisecond))
	defer cancel()
	req, err := r.listener.Accept(ctx)
	if err == nil {
		_ = req.Close()
		r.Check(false, what, "the program got one")
		return
	}
	r.Check(errors.Is(err, context.DeadlineExceeded), what, "waiting for one: %v", err)
}

// Accept makes the program accept the request.
func (r *RawRun) Accept(cfg *SideConfig) {
	if !r.HasProgram() {
		return
	}
	r.AcceptRequest(r.WantRequest("the request reaches the program"), cfg)
}

// AcceptRequest makes the program accept a request that it has got already.
func (r *RawRun) AcceptRequest(req *rdmacm.Request, cfg *SideConfig) {
	s := &Side{T: r.T, Role: RoleResponder, EP: r.DUT}
	conn, err := req.Accept(r.Context(), s.config(cfg))
	r.NoError(err, "the program can accept it")
	s.Conn = conn
	s.adopt()
	r.Side = s
}

// dialled is the result of the program's call of Dial or Accept.
type dialled struct {
	side *Side
	err  error
}

// WantDial makes the peer listen and the program connect to it, and waits for the
// provider's Request. WantConnected or WantConnectError then wait for the result of the
// call.
//
//rfc:5044 MPA-7.1.1-01 Req key is the 16 octets 'MPA ID Req Frame'
//rfc:5044 MPA-7.1.2-1-01 Initiator sends a valid Request first
func (r *RawRun) WantDial(what string, cfg *SideConfig) mpa.Frame {
	r.DialPeer(cfg)
	f, err := r.Peer.ReadFrame(mpa.KindRequest, r.Scaled(waitLimit))
	r.NoError(err, what)
	return f
}

// DialPeer makes the peer listen and the program connect to it. It does not read the Request.
func (r *RawRun) DialPeer(cfg *SideConfig) {
	l, err := rawpeer.Listen(r.Addr, r.Tap)
	r.NoError(err, "the peer can listen")
	r.Cleanup(func() { _ = l.Close() })
	r.accepting = l

	s := &Side{T: r.T, Role: RoleInitiator, EP: r.DUT}
	side := s.config(cfg)
	r.begin(s, func(ctx context.Context) (err error) {
		s.Conn, err = rdmacm.Dial(ctx, r.DUT.Context, r.Addr, side)
		return err
	})
	ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(waitLimit))
	defer cancel()
	p, err := l.Accept(ctx)
	r.NoError(err, "the provider makes a TCP connection")
	r.adoptPeer(p)
}

// Redial waits a little for the provider to connect once more by itself, after the
// peer has ended the connection of WantDial, and returns the second Request. It
// reports false if none comes.
func (r *RawRun) Redial() (mpa.Frame, bool) {
	ctx, cancel := context.WithTimeout(r.Context(), r.Scaled(Answers))
	defer cancel()
	p, err := r.accepting.Accept(ctx)
	if err != nil {
		r.Observe("redial", "no")
		return mpa.Frame{}, false
	}
	r.Observe("redial", "yes")
	r.adoptPeer(p)
	f, err := p.ReadFrame(mpa.KindRequest, r.Scaled(waitLimit))
	r.NoError(err, "the second Request arrives")
	return f, true
}

// Answer sends the Reply that GoodReply makes of reply for a Request of WantDial.
func (r *RawRun) Answer(request, reply mpa.Frame) { r.Start(r.GoodReply(request, reply)) }

// GoodReply makes a Reply fit a Request. If the Request asks for a peer-to-peer
// connection, so does the Reply, and chooses the first of the offered messages to
// open it.
func (r *RawRun) GoodReply(request, reply mpa.Frame) mpa.Frame {
	asked, _, err := request.SplitPrivateData()
	r.opening = err == nil && asked.A
	if !r.opening {
		return reply
	}
	own, private, err := reply.SplitPrivateData()
	r.NoError(err, "the script's Reply has connection data")
	own.A, own.C, own.D, own.B = true, asked.C, !asked.C && asked.D, !asked.C && !asked.D
	r.opensWith = own.RTR()
	reply.PrivateData = append(own.AppendTo(nil), private...)
	return reply
}

// begin makes the program connect or accept in the background; dialResult waits for the result. If
// the run ends first, begin ends the call, and closes a connection that nobody has taken.
func (r *RawRun) begin(s *Side, call func(context.Context) error) {
	ctx, cancel := context.WithCancel(r.Context())
	result, over := make(chan dialled, 1), make(chan struct{})
	r.dialling = result
	r.Cleanup(func() {
		cancel()
		<-over
		if s.Conn != nil {
			_ = s.Conn.Close() // it may be closed already
		}
	})
	go func() {
		defer close(over)
		d := dialled{side: s, err: errors.New("the program did not get as far as connecting")}
		defer func() { result <- d }() // even if Before ends the run
		d.err = call(ctx)
	}()
}

// WantConnected checks that the program's connect succeeds, and takes the message
// that opens the connection if there has to be one.
func (r *RawRun) WantConnected(what string) {
	d := r.dialResult(waitLimit)
	r.NoError(d.err, what)
	r.connected(d.side)
}

func (r *RawRun) connected(s *Side) {
	s.adopt()
	r.Side = s
	if r.opening {
		seg, err := r.Peer.ReadFPDU(r.patience(waitLimit))
		r.NoError(err, "a message opens the connection")
		r.opened(seg)
	}
}

// opened checks the message that opens a peer-to-peer connection, and answers it if
// it is a Read.
func (r *RawRun) opened(seg *rawpeer.Segment) {
	op := rdmap.ParseControl(seg.Header.ULPCtl).Opcode
	switch r.opensWith {
	case mpa.RTRSend:
		r.Check(len(seg.Payload) == 0 && op == rdmap.OpSend, "it is a Send without payload", "%+v", seg.Header)
	case mpa.RTRRead:
		read, err := rdmap.ParseReadRequest(seg.Payload)
		r.Require(err == nil && op == rdmap.OpReadRequest && read.Size == 0, "it is a Read of nothing", "%+v, %+v, %v", seg.Header, read, err)
		r.SendFPDU(rawpeer.ReadResponse(read.SinkSTag, read.SinkTO, nil))
	default:
		r.Check(len(seg.Payload) == 0 && seg.Header.Tagged, "it is a Write without payload", "%+v", seg.Header)
	}
}

// Connected waits until the program's connect or accept returns, and reports whether it
// succeeded.
func (r *RawRun) Connected() bool {
	d := r.dialResult(waitLimit)
	if d.err == nil {
		r.connected(d.side)
		return true
	}
	r.dialling <- d // for WantConnectError
	return false
}

// Settled waits until the program's connect or accept returns, but no longer than d, and
// reports whether it has. WantConnected and the like then check how.
func (r *RawRun) Settled(d time.Duration) bool {
	select {
	case x := <-r.dialling:
		r.dialling <- x
		return true
	case <-time.After(r.Scaled(d)):
		return false
	}
}

// WantConnectError checks that the program's connect fails, and returns the
// error. How it fails is observed.
func (r *RawRun) WantConnectError(what string, wait ...time.Duration) error {
	limit := waitLimit
	if len(wait) > 0 {
		limit = wait[0]
	}
	d := r.dialResult(limit)
	r.Observe("connect", "%s", connectResult(d.err))
	if d.err == nil {
		r.Log("the program was given %d octets of private data", len(d.side.Conn.PrivateData()))
		_ = d.side.Conn.Close()
	}
	r.Check(d.err != nil, what, "it succeeded")
	r.Log("connect: %v", d.err)
	return d.err
}

// dialResult waits until the program's connect returns.
func (r *RawRun) dialResult(limit time.Duration) dialled {
	select {
	case d := <-r.dialling:
		return d
	case <-time.After(r.patience(limit)):
	case <-r.Context().Done():
	}
	r.Require(false, "the program's call comes back", "it did not in %v", r.Scaled(limit))
	panic("not reached")
}

func connectResult(err error) string {
	var rejected *rdmacm.RejectedError
	switch {
	case err == nil:
		return "established"
	case errors.As(err, &rejected):
		return "rejected"
	case ibverbs.Errno(err) != 0:
		return fmt.Sprint(ibverbs.Errno(err))
	}
	return "another error"
}

// AcceptLater makes the program accept the request, and does not wait until that has
// succeeded, because a peer-to-peer connection is accepted only with the peer's first
// FPDU. WantAccepted or Connected then wait for the result.
func (r *RawRun) AcceptLater(cfg *SideConfig) {
	r.AnswerLater(r.WantRequest("the request reaches the program"), cfg)
}

// AnswerLater begins to accept a request that the program has got already. WantAccepted
// or Connected then wait for the result.
func (r *RawRun) AnswerLater(req *rdmacm.Request, cfg *SideConfig) {
	s := &Side{T: r.T, Role: RoleResponder, EP: r.DUT}
	side := s.config(cfg)
	r.begin(s, func(ctx context.Context) (err error) {
		s.Conn, err = req.Accept(ctx, side)
		return err
	})
}

// WantAccepted checks that the accept begun by AcceptLater succeeds.
func (r *RawRun) WantAccepted(what string) { r.WantConnected(what) }

// RDMACFrame is a start-up frame of the RDMA Consortium's version (RFC 5044 appendix
// C.2.4 and C.2.5): revision 0, and Markers and CRCs asked for.
func RDMACFrame(kind mpa.Kind, private []byte) mpa.Frame {
	return mpa.Frame{Kind: kind, Markers: true, CRC: true, PrivateData: private}
}

// connectRDMAC connects in revision 0. A provider that begins with an enhanced Request
// gets an answer that makes it try revision 1.
func (r *RawRun) connectRDMAC(cfg *SideConfig) {
	if r.Role == RoleInitiator {
		r.Dial()
		r.Start(RDMACFrame(mpa.KindRequest, nil))
		r.Accept(cfg)
		f := r.WantReply("the request is accepted")
		r.Check(f.Revision == 0 && f.Markers && f.CRC, "the Reply is of revision 0, and asks for Markers and CRCs",
			"revision %d, M %v, C %v", f.Revision, f.Markers, f.CRC)
	} else {
		f := r.WantDial("the provider connects", cfg)
		r.Start(RDMACFrame(mpa.KindReply, nil))
		if f.UsesEnhanced() {
			again, redialled := r.Redial()
			r.Require(redialled, "it connects again, as an enhanced Request can't be answered in revision 0")
			r.Check(again.Revision == 1 && !again.Enhanced, "with a Request of revision 1",
				"revision %d, S %v", again.Revision, again.Enhanced)
			r.Start(RDMACFrame(mpa.KindReply, nil))
		}
		r.WantConnected("the provider takes the reply")
	}
	r.Check(r.Side.Conn.RDMAC(), "the program learns which version the connection has")
	r.rdmac, r.Peer.CRC = true, true
	r.Peer.Mark()
}

// sameVersion checks that a segment of the provider has the version that was agreed on.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
//rfc:5044 RDMAC-C.1-03 Version identical in both directions
func (r *RawRun) sameVersion(h *ddp.Header) {
	want := uint8(ddp.Version)
	if r.rdmac {
		want = ddp.RDMACVersion
	}
	dv, rv := h.Version, rdmap.ParseControl(h.ULPCtl).Version
	r.Check(dv == want && rv == want, "what comes has the versions of the connection",
		"DV %d, RV %d, want %d", dv, rv, want)
}

// NeedsOptions ends the run, as one that is not supported, if the provider is not
// opened as the scenario's options say.
func (r *RawRun) NeedsOptions(what string) { r.needsOptions(what, r.DUT) }

// NeedsOptions ends the run, as one that is not supported, if either side is not
// opened as the scenario's options say.
func (r *VerbsRun) NeedsOptions(what string) { r.needsOptions(what, r.Initiator, r.Responder) }

func (t *T) needsOptions(what string, sides ...*Endpoint) {
	for _, ep := range sides {
		if ep.Fixed {
			t.Unsupported("%s has no %s", ep.Name, what)
		}
	}
}
