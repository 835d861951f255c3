package mpa

import (
	"bytes"
	"fmt"
	"time"
)

// Offer is what an initiator puts into its Request.
type Offer struct {
	// IRD and ORD are this end's values, 0 to 0x3ffe.
	IRD, ORD int

	// ManualIRD and ManualORD send 0x3fff instead of the value, because the ULPs agree on it
	// themselves. siw does not know the meaning of 0x3fff and takes it for a number.
	ManualIRD, ManualORD bool

	// PeerToPeer requests an RTR indication, after which the responder may send first. It needs
	// revision 2.
	//
	//rfc:6581 MPA2-5-02 ULP can request explicit RTR per connection
	PeerToPeer bool

	// PrivateData is the ULP's, at most 508 octets, or 512 unenhanced. The Initiator keeps the
	// slice until the last call of AppendRequest.
	PrivateData []byte
}

// Initiator is the side that sends the MPA Request Frame. It is an immutable value: call
// NewInitiator, AppendRequest, then Receive or Judge.
type Initiator struct {
	cfg      Config
	offer    Offer
	enhanced bool
}

// NewInitiator checks the configuration. The error is ErrConfig or
// ErrPrivateDataTooLong, wrapped.
//
// When neither IRD nor ORD is to be negotiated and the connection is not
// peer-to-peer, the Request is unenhanced and of revision 1, whatever
// Config.Revision says: RFC 6581 section 10 forbids the enhanced format then.
//
//rfc:6581 MPA2-6-01 S=1 iff private data starts with the enhanced block
//rfc:6581 MPA2-6-02 Rev>=2 when any enhanced feature is used
//rfc:6581 MPA2-6-03 Rev=1 allowed if no enhanced feature wanted
//rfc:6581 MPA2-10-03 Enhanced format not used when no feature is wanted
func NewInitiator(cfg Config, offer Offer) (Initiator, error) {
	cfg, err := cfg.normalize()
	if err != nil {
		return Initiator{}, err
	}
	i := Initiator{cfg: cfg, offer: offer}
	i.enhanced = cfg.Enhances(offer)
	if offer.PeerToPeer && !i.enhanced {
		return Initiator{}, fmt.Errorf("%w: peer-to-peer needs MPA revision 2", ErrConfig)
	}
	if err := checkDepth("IRD", offer.IRD); err != nil {
		return Initiator{}, err
	}
	if err := checkDepth("ORD", offer.ORD); err != nil {
		return Initiator{}, err
	}
	if err := cfg.checkPrivateData(offer.PrivateData, i.enhanced); err != nil {
		return Initiator{}, err
	}
	return i, nil
}

// Enhances reports whether the Request of an initiator with this configuration is enhanced, which
// leaves 4 octets fewer for private data.
func (c Config) Enhances(o Offer) bool {
	return c.Revision != 1 && c.RDMAC != RDMACOnly && (!o.ManualIRD || !o.ManualORD || o.PeerToPeer)
}

// AppendRequest appends the octets of the MPA Request Frame to b.
//
//rfc:5044 MPA-7.1.1-12 Res bits zero on send
//rfc:5044 MPA-7.1.1-14 Rev=1 for this spec
//rfc:5044 MPA-7.1.2-1-01 Initiator sends a valid Request first
func (i Initiator) AppendRequest(b []byte) []byte {
	f := Frame{
		Kind:        KindRequest,
		Markers:     i.cfg.Markers,
		CRC:         i.cfg.CRC != CRCOff,
		Revision:    1,
		PrivateData: i.offer.PrivateData,
	}
	if i.cfg.RDMAC == RDMACOnly {
		f.Revision, f.Markers, f.CRC = 0, true, true
	}
	if i.enhanced {
		f.Revision, f.Enhanced = 2, true
		e := Enhanced{IRD: depth(i.offer.IRD, i.offer.ManualIRD), ORD: depth(i.offer.ORD, i.offer.ManualORD)}
		//rfc:6581 MPA2-9.2-02 Initiator sets B/C/D for every RTR it supports when A=1
		e = e.flags(i.offer.PeerToPeer, i.cfg.RTR)
		//rfc:6581 MPA2-6-06 PD_Length includes the 4-octet block
		f.PrivateData = append(e.AppendTo(make([]byte, 0, MaxPrivateData)), i.offer.PrivateData...)
	}
	return f.AppendTo(b)
}

// Expired reports whether the deadline for the whole Reply has passed.
//
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func (i Initiator) Expired(now time.Time) bool { return i.cfg.expired(now) }

// Receive parses and judges the Reply at the start of b. n and ErrShort are as for ParseFrame,
// other errors as for Judge.
//
// Receive ignores octets after the Reply; they begin at n. After a good Reply they are FPDUs. A
// responder has to wait for this end's first FPDU, but section 7.1.2 does not ask the initiator to
// check that; it treats everything after a good Reply as FPDUs. After a rejecting Reply the octets
// are the ULP's.
//
//rfc:5044 MPA-7.1.2-3-04 Good Reply: enter Full Operation
func (i Initiator) Receive(b []byte) (p Params, n int, err error) {
	f, n, err := ParseFrame(b, KindReply)
	if err != nil {
		return Params{}, n, err
	}
	p, err = i.Judge(f)
	return p, n, err
}

// Judge decides on a Reply. The error is a *RejectedError, or a *iwarp.Error. The latter has code 4
// (invalid Reply), 5 (CRCs refused), 6 (the responder's ORD exceeds the IRD that this end can
// provide) or 7 (no RTR indication in common).
//
//rfc:5044 MPA-7.1.1-13 Res bits not checked on receive
//rfc:5044 MPA-7.1.2-3-01 Initiator validates the Reply
//rfc:5044 MPA-7.1.2-3-04 Good Reply: enter Full Operation
func (i Initiator) Judge(reply Frame) (Params, error) {
	switch {
	case reply.Kind != KindReply:
		return Params{}, ErrTwoInitiator
	//rfc:5044 MPA-7.1.1-15 Receiver checks Rev
	//rfc:5044 MPA-7.1.1-16 Unsupported Rev: close and report locally
	case reply.Revision > 2:
		return Params{}, ErrRevision
	}
	rdmac, err := i.judgeRDMAC(reply)
	if err != nil {
		return Params{}, err
	}
	e, ulp, err := reply.SplitPrivateData()
	if err != nil {
		return Params{}, err
	}
	//rfc:5044 MPA-7.1.1-11 R=0 in a Request, not checked; R=1 in a Reply rejects
	if reply.Reject {
		return Params{}, rejected(reply, e, ulp)
	}
	p := Params{
		Revision:        reply.Revision,
		Enhanced:        reply.UsesEnhanced(),
		CRC:             reply.CRC || i.cfg.CRC != CRCOff,
		MarkersTx:       reply.Markers,
		MarkersRx:       i.cfg.Markers,
		IRD:             i.offer.IRD,
		ORD:             i.offer.ORD,
		PeerIRD:         NotNegotiated,
		PeerORD:         NotNegotiated,
		PeerPrivateData: ulp,
	}
	switch {
	//rfc:6581 MPA2-10-06 Reply lacking S/Rev2 to enhanced request is a failure
	case i.enhanced && !p.Enhanced:
		return Params{}, ErrUnenhancedReply
	case !i.enhanced && p.Enhanced:
		return Params{}, ErrEnhancedReply
	case i.cfg.CRC == CRCRequired && !reply.CRC:
		return Params{}, ErrCRCRefused
	}
	if rdmac {
		p.speakRDMAC()
	}
	if p.Enhanced {
		if err := i.judgeEnhanced(&p, e); err != nil {
			return Params{}, err
		}
	}
	return p, nil
}

// judgeEnhanced applies RFC 6581 sections 9.1 and 9.2 to the Reply's data.
//
//rfc:6581 MPA2-9.1-01 Peer IRD/ORD passed to the ULP
func (i Initiator) judgeEnhanced(p *Params, e Enhanced) error {
	p.PeerIRD, p.PeerORD = int(e.IRD), int(e.ORD)
	//rfc:6581 MPA2-9.1-07 Initiator lowers ORD to at most responder IRD
	//rfc:6581 MPA2-9.1-12 Responder IRD 0x3FFF: initiator ORD unchanged
	if e.IRD != NotNegotiated {
		p.ORD = min(p.ORD, p.PeerIRD)
	}
	//rfc:6581 MPA2-9.1-06 Initiator raises IRD to at least responder ORD
	//rfc:6581 MPA2-9.1-13 Responder ORD 0x3FFF: initiator IRD unchanged
	if e.ORD != NotNegotiated && p.PeerORD > p.IRD {
		if p.PeerORD > i.cfg.MaxIRD {
			//rfc:6581 MPA2-9.1-08 Insufficient IRD: TERM 2/0/6 then terminate
			return ErrInsufficientIRD
		}
		p.IRD = p.PeerORD
	}
	if e.A != i.offer.PeerToPeer {
		return ErrConnectionModel
	}
	if !e.A {
		return nil
	}
	p.PeerToPeer = true
	p.RTR = chooseRTR(i.cfg.RTR&e.RTR(), e.IRD > 0)
	if p.RTR == 0 {
		return ErrNoRTR
	}
	return nil
}

// chooseRTR picks the RTR indication to send. A Write comes first, because it needs nothing at the
// responder. A Read needs one entry of the responder's IRD. A Send comes last because some
// responders let it use up a posted receive.
//
//rfc:6581 MPA2-9.2-08 Initiator emits one negotiated RTR after an accept with A=1
//rfc:6581 MPA2-9.2-09 No common RTR: TERM 2/0/7 and terminate
func chooseRTR(common RTR, canRead bool) RTR {
	switch {
	case common&RTRWrite != 0:
		return RTRWrite
	case common&RTRRead != 0 && canRead:
		return RTRRead
	}
	return common & RTRSend
}

// rejected makes the error of a Reply with the R bit.
//
//rfc:5044 MPA-7.1.2-3-03 R=1: exit MPA, TCP left open
//rfc:6581 MPA2-9.1-09 Initiator passes responder IRD/ORD to ULP, also on reject
func rejected(reply Frame, e Enhanced, ulp []byte) *RejectedError {
	r := &RejectedError{
		Revision:    reply.Revision,
		Enhanced:    reply.UsesEnhanced(),
		IRD:         NotNegotiated,
		ORD:         NotNegotiated,
		PrivateData: bytes.Clone(ulp),
	}
	if r.Enhanced {
		r.IRD, r.ORD, r.RTR = int(e.IRD), int(e.ORD), e.RTR()
	}
	return r
}

// Fallback returns the Initiator for a second attempt, on a new TCP connection, with an unenhanced
// Request of revision 1, and whether there is one. cause is the error of the first attempt. A
// second attempt requires that the first was enhanced but not peer-to-peer, because revision 1 has
// no peer-to-peer mode. It also requires that the peer looks like one of revision 1 or 0. Such a
// peer closed the connection before any octet of a Reply arrived (ErrClosed), or answered
// unenhanced (ErrUnenhancedReply, ErrRDMACReply, or a *RejectedError that is not Enhanced).
//
// RFC 6581 section 10 permits this and leaves IRD and ORD to the ULPs: Params.IRD and Params.ORD
// will be the Offer's.
//
//rfc:6581 MPA2-10-05 Initiator may retry unenhanced after close
func (i Initiator) Fallback(cause error, deadline time.Time) (Initiator, bool) {
	if !i.enhanced || i.offer.PeerToPeer || !unenhanced(cause) {
		return Initiator{}, false
	}
	i.enhanced = false
	i.cfg.Deadline = deadline
	return i, true
}

// unenhanced reports whether cause is how an attempt fails with a peer that does not know enhanced
// frames.
func unenhanced(cause error) bool {
	if r, ok := cause.(*RejectedError); ok {
		return !r.Enhanced
	}
	return cause == error(ErrClosed) || cause == error(ErrUnenhancedReply) || cause == error(ErrRDMACReply)
}
