package mpa

import "time"

// Responder is the side that waits for the MPA Request Frame. It is an immutable value: call
// NewResponder, Receive or Judge, and then AppendAccept or AppendReject of the Request.
type Responder struct {
	cfg Config
}

// NewResponder checks the configuration. The error is ErrConfig, wrapped.
func NewResponder(cfg Config) (Responder, error) {
	cfg, err := cfg.normalize()
	return Responder{cfg: cfg}, err
}

// Expired reports whether the deadline for the whole Request has passed. How long the ULP takes to
// answer is not limited here.
//
//rfc:5044 MPA-7.1.2-8-02 Responder times out waiting for Request
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func (r Responder) Expired(now time.Time) bool { return r.cfg.expired(now) }

// Receive parses and judges the Request in b. n and ErrShort are as for ParseFrame, other errors as
// for Judge. Octets after the Request are ErrTrailing, because the initiator has to wait for the
// Reply.
//
//rfc:5044 MPA-7.1.2-2-01 Responder waits for a validated Request
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

// Judge decides whether the Request can be passed to the ULP. The error is a *iwarp.Error
// 2/0/0x04: close the TCP connection without a Reply.
//
//rfc:5044 MPA-7.1.1-11 R=0 in a Request, not checked; R=1 in a Reply rejects
//rfc:5044 MPA-7.1.1-13 Res bits not checked on receive
//rfc:5044 MPA-7.1.2-2-02 Malformed Request: close TCP, leave MPA
func (r Responder) Judge(request Frame) (Request, error) {
	switch {
	case request.Kind != KindRequest:
		return Request{}, ErrTwoResponder
	//rfc:5044 MPA-7.1.1-15 Receiver checks Rev
	//rfc:5044 MPA-7.1.1-16 Unsupported Rev: close and report locally
	//rfc:6581 MPA2-6-04 Responder keeps accepting Rev 1 requests
	//rfc:6581 MPA2-10-04 Unenhanced responder closes on an enhanced request
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
	//rfc:6581 MPA2-6-10 Rev 2 with S=0 is treated as unenhanced
	if q.Enhanced {
		q.IRD, q.ORD = int(e.IRD), int(e.ORD)
		q.PeerToPeer, q.RTR = e.A, e.RTR()
	}
	return q, nil
}

// Request is an acceptable MPA Request Frame, for the ULP's decision. Only Responder makes one.
type Request struct {
	Revision uint8
	RDMAC    bool // the connection will use version 0, the RDMA Consortium's
	Enhanced bool // the initiator speaks RFC 6581
	Markers  bool // the initiator requires Markers
	CRC      bool // the initiator declares CRCs

	// IRD and ORD are the initiator's: NotNegotiated if they are 0x3fff or missing.
	IRD, ORD int

	PeerToPeer bool // the initiator will begin with an RTR indication
	RTR        RTR  // of these kinds

	// PrivateData is the private data of the initiator's ULP, without the enhanced connection data.
	// It is a part of the received octets.
	PrivateData []byte

	cfg Config
}

// Answer is the responder's ULP's answer to a Request.
type Answer struct {
	// IRD and ORD are the values wanted for this end, 0 to 0x3ffe. In a reject they are the values
	// that this end would have needed.
	IRD, ORD int

	// PrivateData is the ULP's, at most 508 octets if the Request was enhanced,
	// else 512. It is not retained.
	PrivateData []byte
}

// AppendAccept appends the octets of an accepting MPA Reply Frame to b and returns the result of
// the negotiation. If the Request was enhanced, ORD is lowered to the initiator's IRD, and IRD is
// raised toward the initiator's ORD as far as Config.MaxIRD allows. The error wraps ErrConfig or
// ErrPrivateDataTooLong; b is then returned unchanged.
//
//rfc:5044 MPA-7.1.2-2-05 Private data accepted: Reply R=0, then ready for FPDUs
func (q Request) AppendAccept(b []byte, a Answer) ([]byte, Params, error) {
	p := Params{
		Revision:   q.Revision,
		Enhanced:   q.Enhanced,
		CRC:        q.CRC || q.cfg.CRC != CRCOff,
		MarkersTx:  q.Markers,
		MarkersRx:  q.cfg.Markers,
		IRD:        a.IRD,
		ORD:        a.ORD,
		PeerIRD:    q.IRD,
		PeerORD:    q.ORD,
		PeerToPeer: q.PeerToPeer,
		//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
		WaitFirstFPDU:   true,
		PeerPrivateData: q.PrivateData,
	}
	var e Enhanced
	//rfc:6581 MPA2-6-05 Reply to a Rev1 request is unenhanced
	//rfc:6581 MPA2-10-01 Enhanced responder answers enhanced to enhanced
	//rfc:6581 MPA2-10-02 Any responder answers unenhanced to unenhanced
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

// AppendReject appends the octets of a rejecting MPA Reply Frame to b. If the Request was enhanced,
// so is the Reply, because initiators expect the four octets of enhanced connection data in a
// reject too; siw misreads a reject without them. The errors are those of AppendAccept.
//
//rfc:5044 MPA-7.1.2-2-03 Unacceptable private data: Reply with R=1
//rfc:5044 MPA-7.1.2-6-01 Responder answers R=1 when ULP refuses private data
//rfc:6581 MPA2-9.1-05 Responder may reject with the ORD it needs, code 2/0/6
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
		//rfc:5044 RDMAC-C.2.3-01 Permissive responder to Rev0: Reply Rev0, M=1, C=1, V=0
		//rfc:5044 RDMAC-C.2.3-02 Permissive responder never sends M=0 to an RDMAC initiator
		f.Revision, f.Markers, f.CRC = 0, true, true
	}
	if q.Enhanced {
		f.Enhanced = true
		f.PrivateData = append(e.AppendTo(make([]byte, 0, MaxPrivateData)), a.PrivateData...)
	}
	return f.AppendTo(b), nil
}

// acceptORD lowers the wanted ORD to the initiator's IRD.
//
//rfc:6581 MPA2-9.1-02 Responder ORD not above initiator IRD
//rfc:6581 MPA2-9.1-11 Initiator IRD 0x3FFF: responder keeps and answers its ORD
func (q Request) acceptORD(want int) int {
	if q.IRD == NotNegotiated {
		return want
	}
	return min(want, q.IRD)
}

// acceptIRD raises the wanted IRD toward the initiator's ORD.
//
//rfc:6581 MPA2-9.1-03 Responder IRD at least initiator ORD or reject/limit
//rfc:6581 MPA2-9.1-10 Initiator ORD 0x3FFF: responder keeps and answers its IRD
func (q Request) acceptIRD(want int) int {
	if q.ORD == NotNegotiated {
		return want
	}
	return max(want, min(q.ORD, q.cfg.MaxIRD))
}

// acceptRTR returns the RTR indications to declare and the IRD, which is raised to 1 if a Read
// among them needs it. It does not declare a Read that cannot be served, unless this end supports
// nothing else. If there is none in common, it declares all that this end supports, because one
// must be declared.
//
//rfc:6581 MPA2-9.2-03 Responder supports at least one RTR option
//rfc:6581 MPA2-9.2-04 Responder echoes A=1
//rfc:6581 MPA2-9.2-11 Responder answers A=0 to A=0
func (q Request) acceptRTR(ird int) (RTR, int) {
	can := q.cfg.RTR
	mayRaise := q.cfg.MaxIRD > 0 && q.ORD != NotNegotiated
	if ird == 0 && !mayRaise && can != RTRRead {
		can &^= RTRRead
	}
	//rfc:6581 MPA2-9.2-05 Responder sets flag for each common option
	rtr := q.RTR & can
	if rtr == 0 {
		//rfc:6581 MPA2-9.2-06 Responder sets at least one RTR flag even when none match
		rtr = can
	}
	//rfc:6581 MPA2-9.1-04 Responder may raise IRD to serve a Read RTR when ORD is 0
	if rtr&RTRRead != 0 {
		ird = max(ird, 1)
	}
	return rtr, ird
}
