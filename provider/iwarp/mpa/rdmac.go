package mpa

import "errors"

// RDMACPolicy selects the protocols that an endpoint speaks: the IETF's (MPA revisions 1 and 2, DDP
// and RDMAP version 1), or the older ones of the RDMA Consortium (revision 0 and version 0). RFC
// 5044 appendix C describes how endpoints find out which of them the peer speaks. Versions are
// never mixed, and both directions use the same.
//
//rfc:5044 RDMAC-C.1-01 RDMAC peer: DDP/RDMAP 0, MPA rev 0, markers and CRC on
type RDMACPolicy uint8

const (
	// RDMACRefused is the appendix's non-permissive IETF RNIC: the IETF's protocols
	// only.
	RDMACRefused RDMACPolicy = iota

	// RDMACPermitted is its permissive IETF RNIC: the IETF's protocols, and the RDMA Consortium's
	// for a peer of revision 0.
	RDMACPermitted

	// RDMACOnly is its upgraded RDMAC RNIC: only the RDMA Consortium's protocols. Config.Revision
	// is ignored, and there is no peer-to-peer mode.
	RDMACOnly
)

// String returns "refused", "permitted" or "only".
func (p RDMACPolicy) String() string {
	switch p {
	case RDMACRefused:
		return "refused"
	case RDMACPermitted:
		return "permitted"
	case RDMACOnly:
		return "only"
	}
	return "unknown RDMAC policy"
}

// Errors of start-up frames of revision 0, and of other revisions if only revision 0 is spoken. All
// are 2/0/0x04: the connection is closed.
var (
	ErrRDMACRefused = invalidFrame("the peer speaks the RDMA Consortium's protocols (MPA revision 0), which are not permitted here")
	ErrRDMACFrame   = invalidFrame("a start-up frame of MPA revision 0 that does not ask for Markers: RDMA Consortium peers can't do without")
	ErrRDMACReply   = invalidFrame("MPA Reply Frame of revision 0 to an enhanced MPA Request Frame")
	ErrNotRDMAC     = invalidFrame("the peer speaks the IETF's protocols only, and this end the RDMA Consortium's (MPA revision 0)")
)

// judgeRDMAC decides on the revision of a Request, and reports whether the connection will use
// revision 0.
//
//rfc:5044 RDMAC-C.2.1-01 Non-permissive responder to Rev0: Reply Rev 1, then close
//rfc:5044 RDMAC-C.2.3-01 Permissive responder to Rev0: Reply Rev0, M=1, C=1, V=0
func (c Config) judgeRDMAC(request Frame) (rdmac bool, err error) {
	switch {
	case request.Revision > 0:
		if c.RDMAC == RDMACOnly && request.UsesEnhanced() {
			return false, ErrNotRDMAC
		}
		return c.RDMAC == RDMACOnly, nil
	case c.RDMAC == RDMACRefused:
		return false, ErrRDMACRefused
	case !request.Markers:
		return false, ErrRDMACFrame
	}
	return true, nil
}

// AppendRefusal appends to b a Reply with the revision that this end would have understood, if
// Receive or Judge failed with err only because of the revision. Send it, and close the connection
// gracefully. Otherwise AppendRefusal returns b unchanged: close the connection without a Reply.
//
// The Reply has R set. RFC 5044 appendix C.2.1 does not say so, but otherwise an initiator that
// reads R before Rev, or ignores Rev, could take itself for connected.
//
//rfc:5044 RDMAC-C.2.1-01 Non-permissive responder to Rev0: Reply Rev 1, then close
//rfc:5044 RDMAC-C.2-02 RDMAC initiator M=1 vs non-permissive any M: close
func (r Responder) AppendRefusal(b []byte, err error) []byte {
	f := Frame{Kind: KindReply, CRC: r.cfg.CRC != CRCOff, Reject: true}
	switch err {
	case error(ErrRDMACRefused):
		f.Revision = 1
	case error(ErrNotRDMAC):
		f.Markers, f.CRC = true, true
	default:
		return b
	}
	return f.AppendTo(b)
}

// judgeRDMAC decides on the revision of a Reply, and reports whether the connection uses revision
// 0.
//
//rfc:5044 RDMAC-C.2.2-01 Non-permissive initiator closes gracefully on a Rev0 Reply
//rfc:5044 RDMAC-C.2-03 IETF non-permissive initiator vs RDMAC responder: close
//rfc:5044 RDMAC-C.2.5-01 Permissive initiator on Rev0 Reply: V=0, markers, CRC
func (i Initiator) judgeRDMAC(reply Frame) (rdmac bool, err error) {
	switch {
	case reply.Revision > 0 && i.cfg.RDMAC == RDMACOnly:
		return false, ErrNotRDMAC
	case reply.Revision > 0:
		return false, nil
	case i.cfg.RDMAC == RDMACRefused:
		return false, ErrRDMACRefused
	case reply.Reject:
		return true, nil
	case i.enhanced:
		return false, ErrRDMACReply
	case !reply.Markers:
		return false, ErrRDMACFrame
	}
	return true, nil
}

// IsRDMACReply reports whether err, of Judge or Receive, is about a Reply of revision 0 to an
// enhanced Request. Only an initiator that permits revision 0 has such an error. The peer can serve
// a second attempt ([Initiator.Fallback]).
//
//rfc:5044 RDMAC-C.2.5-01 Permissive initiator on Rev0 Reply: V=0, markers, CRC
func IsRDMACReply(err error) bool {
	var r *RejectedError
	return err == error(ErrRDMACReply) || errors.As(err, &r) && r.Revision == 0
}

// speakRDMAC sets what the RDMA Consortium's protocols always use.
//
//rfc:5044 RDMAC-C.1-04 CRC forced on with an RDMAC peer
//rfc:5044 RDMAC-C.2.3-03 RDMAC vs RDMAC-capable: V=0 M=1/1 in all cells of fig 16
//rfc:5044 RDMAC-C.2.5-01 Permissive initiator on Rev0 Reply: V=0, markers, CRC
func (p *Params) speakRDMAC() {
	p.RDMAC, p.CRC, p.MarkersTx, p.MarkersRx = true, true, true, true
}
