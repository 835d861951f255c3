package mpa

import "time"

// Responder is the side that waits for the MPA Request Frame. It is a value
// without state that changes: NewResponder, Receive or Judge, and then AppendAccept
// or AppendReject of the Request.
type Responder struct {
	cfg Config
}

// NewResponder checks the configuration. The error is ErrConfig, wrapped.
func NewResponder(cfg Config) (Responder, error) {
	cfg, err := cfg.normalize()
	return Responder{cfg: cfg}, err
}

// Expired reports whether the Request, if it has not arrived in full by now, is
// too late. How long the ULP takes to answer is not limited here.
//
//rfc:5044 MPA-7.1.2-8-02
//rfc:5044 MPA-7.1.2-10-01
func (r Responder) Expired(now time.Time) bool { return r.cfg.expired(now) }

// Receive parses and judges the Request that b holds. n and ErrShort are as for
// ParseFrame, other errors as for Judge. Octets behind the Request are
// ErrTrailing: the initiator has to wait for the Reply.
//
//rfc:5044 MPA-7.1.2-2-01
func (r Responder) Receive(b []byte) (q Request, n int, err error) {
	f, n, err := ParseFrame(b, KindRequest)
	if err != nil {
		return Request{}, n, err
	}
	if len(b) > n {
		return Request{}, n, ErrTrailing
	}
	q, err = r.Judge(f)
	return q, n, err
}

// Judge decides whether the Request can be put before the ULP. The error is a
// *iwarp.Error 2/0/0x04: close the TCP connection without a Reply.
//
//rfc:5044 MPA-7.1.1-11
//rfc:5044 MPA-7.1.1-13
//rfc:5044 MPA-7.1.1-15
//rfc:5044 MPA-7.1.1-16
//rfc:5044 MPA-7.1.2-2-02
//rfc:6581 MPA2-6-04
//rfc:6581 MPA2-6-10
//rfc:6581 MPA2-10-04
func (r Responder) Judge(request Frame) (Request, error) {
	switch {
	case request.Kind != KindRequest:
		return Request{}, ErrTwoResponder
	case request.Revision > r.cfg.Revision:
		return Request{}, ErrRevision
	}
	rdmac, err := r.cfg.judgeRDMAC(request)
	if err != nil {
		return Request{}, err
	}
	e, ulp, err := request.SplitPrivateData()
	if err != nil {
		return Request{}, err
	}
	q := Request{
		Revision:    request.Revision,
		RDMAC:       rdmac,
		Enhanced:    request.UsesEnhanced(),
		Markers:     request.Markers,
		CRC:         request.CRC,
		IRD:         NotNegotiated,
		ORD:         NotNegotiated,
		PrivateData: ulp,
		cfg:         r.cfg,
	}
	if q.Enhanced {
		q.IRD, q.ORD = int(e.IRD), int(e.ORD)
		q.PeerToPeer, q.RTR = e.A, e.RTR()
	}
	return q, nil
}

// Request is an acceptable MPA Request Frame, as the ULP must see it before it
// decides. Only Responder makes one.
type Request struct {
	Revision uint8
	RDMAC    bool // the connection will be one of version 0, the RDMA Consortium's
	Enhanced bool // the initiator speaks RFC 6581
	Markers  bool // the initiator requires Markers
	CRC      bool // the initiator declares CRCs

	// IRD and ORD are the initiator's. NotNegotiated when it said 0x3fff, or
	// nothing.
	IRD, ORD int

	PeerToPeer bool // the initiator will begin with an RTR indication
	RTR        RTR  // of these kinds

	// PrivateData is that of the initiator's ULP, without the enhanced connection
	// data. It borrows from the octets that were received.
	PrivateData []byte

	cfg Config
}

// Answer is what the responder's ULP says to a Request.
type Answer struct {
	// IRD and ORD are the values wanted for this end, 0 to 0x3ffe. In a reject they
	// tell the initiator what would have been needed.
	IRD, ORD int

	// PrivateData is the ULP's, at most 508 octets if the Request was enhanced,
	// else 512. It is not retained.
	PrivateData []byte
}

// AppendAccept appends the octets of an accepting MPA Reply Frame to b and
// returns what was agreed. If the Request was enhanced, ORD is lowered to the
// initiator's IRD, and IRD raised toward the initiator's ORD as far as
// Config.MaxIRD allows. The error is ErrConfig or ErrPrivateDataTooLong, wrapped,
// and b comes back unchanged then.
//
//rfc:5044 MPA-7.1.2-2-05
//rfc:5044 MPA-7.1.2-4-01
//rfc:6581 MPA2-6-05
//rfc:6581 MPA2-10-01
//rfc:6581 MPA2-10-02
func (q Request) AppendAccept(b []byte, a Answer) ([]byte, Params, error) {
	p := Params{
		Revision:        q.Revision,
		Enhanced:        q.Enhanced,
		CRC:             q.CRC || q.cfg.CRC != CRCOff,
		MarkersTx:       q.Markers,
		MarkersRx:       q.cfg.Markers,
		IRD:             a.IRD,
		ORD:             a.ORD,
		PeerIRD:         q.IRD,
		PeerORD:         q.ORD,
		PeerToPeer:      q.PeerToPeer,
		WaitFirstFPDU:   true,
		PeerPrivateData: q.PrivateData,
	}
	var e Enhanced
	if q.Enhanced {
		p.ORD = q.acceptORD(a.ORD)
		p.IRD = q.acceptIRD(a.IRD)
		if p.PeerToPeer {
			p.RTR, p.IRD = q.acceptRTR(p.IRD)
		}
		e = Enhanced{
			IRD: depth(p.IRD, q.ORD == NotNegotiated),
			ORD: depth(p.ORD, q.IRD == NotNegotiated),
		}.flags(p.PeerToPeer, p.RTR)
	}
	if q.RDMAC {
		p.speakRDMAC()
	}
	f := Frame{Kind: KindReply, Markers: q.cfg.Markers, CRC: q.cfg.CRC != CRCOff, Revision: q.Revision}
	b, err := q.appendReply(b, f, e, a)
	if err != nil {
		return b, Params{}, err
	}
	return b, p, nil
}

// AppendReject appends the octets of a rejecting MPA Reply Frame to b. If the
// Request was enhanced, so is the Reply: initiators expect the four octets of
// enhanced connection data in a reject too, and siw misreads a reject without. The
// errors are those of AppendAccept.
//
//rfc:5044 MPA-7.1.2-2-03
//rfc:5044 MPA-7.1.2-6-01
//rfc:6581 MPA2-9.1-05
func (q Request) AppendReject(b []byte, a Answer) ([]byte, error) {
	f := Frame{Kind: KindReply, CRC: q.cfg.CRC != CRCOff, Reject: true, Revision: q.Revision}
	e := Enhanced{IRD: uint16(a.IRD), ORD: uint16(a.ORD)}.flags(q.PeerToPeer, q.cfg.RTR)
	return q.appendReply(b, f, e, a)
}

// appendReply appends f with the enhanced connection data and the ULP's private
// data.
func (q Request) appendReply(b []byte, f Frame, e Enhanced, a Answer) ([]byte, error) {
	if err := checkDepth("IRD", a.IRD); err != nil {
		return b, err
	}
	if err := checkDepth("ORD", a.ORD); err != nil {
		return b, err
	}
	if err := q.cfg.checkPrivateData(a.PrivateData, q.Enhanced); err != nil {
		return b, err
	}
	f.PrivateData = a.PrivateData
	if q.RDMAC {
		//rfc:5044 RDMAC-C.2.3-01
		//rfc:5044 RDMAC-C.2.3-02
		f.Revision, f.Markers, f.CRC = 0, true, true
	}
	if q.Enhanced {
		f.Enhanced = true
		f.PrivateData = append(e.AppendTo(make([]byte, 0, MaxPrivateData)), a.PrivateData...)
	}
	return f.AppendTo(b), nil
}

// acceptORD lowers the ORD wanted to the initiator's IRD.
//
//rfc:6581 MPA2-9.1-02
//rfc:6581 MPA2-9.1-11
func (q Request) acceptORD(want int) int {
	if q.IRD == NotNegotiated {
		return want
	}
	return min(want, q.IRD)
}

// acceptIRD raises the IRD wanted toward the initiator's ORD.
//
//rfc:6581 MPA2-9.1-03
//rfc:6581 MPA2-9.1-10
func (q Request) acceptIRD(want int) int {
	if q.ORD == NotNegotiated {
		return want
	}
	return max(want, min(q.ORD, q.cfg.MaxIRD))
}

// acceptRTR returns the RTR indications to declare and the IRD, raised to 1 where
// a Read among them needs it. A Read that can't be served is not declared, unless
// this end supports nothing else. With none in common all that this end supports
// are declared, because one must be.
//
//rfc:6581 MPA2-9.1-04
//rfc:6581 MPA2-9.2-03
//rfc:6581 MPA2-9.2-04
//rfc:6581 MPA2-9.2-05
//rfc:6581 MPA2-9.2-06
//rfc:6581 MPA2-9.2-11
func (q Request) acceptRTR(ird int) (RTR, int) {
	can := q.cfg.RTR
	mayRaise := q.cfg.MaxIRD > 0 && q.ORD != NotNegotiated
	if ird == 0 && !mayRaise && can != RTRRead {
		can &^= RTRRead
	}
	rtr := q.RTR & can
	if rtr == 0 {
		rtr = can
	}
	if rtr&RTRRead != 0 {
		ird = max(ird, 1)
	}
	return rtr, ird
}
