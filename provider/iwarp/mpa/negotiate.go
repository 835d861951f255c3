package mpa

import (
	"errors"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/provider/iwarp"
)

// SIWMaxPrivateData is the largest PD_Length, enhanced connection data included, that Linux siw
// accepts; above it siw closes the connection without a Reply. Use it as Config.MaxPrivateData
// toward such peers.
const SIWMaxPrivateData = 256

// StartupTimeout is a reasonable limit for the whole start-up exchange, for Config.Deadline. RFC
// 5044 section 7.1.2 rule 10 requires a limit without giving a value; siw waits 10 s for a Reply
// and 5 s for a Request.
const StartupTimeout = 10 * time.Second

// CRCPolicy is what an endpoint declares in the C bit, and what it accepts. CRCs
// are on when either side declares them (RFC 5044 section 7.1.1).
type CRCPolicy uint8

const (
	// CRCPreferred declares C=1, which is enough to turn CRCs on in both directions. It is the
	// default, as RFC 5044 section 4.4 demands.
	CRCPreferred CRCPolicy = iota

	// CRCRequired also declares C=1. An initiator also refuses a Reply with C=0. RFC 5044 allows
	// that, although it does not show whether the peer checks CRCs. For a responder it is the same
	// as CRCPreferred, because its own C=1 comes last.
	CRCRequired

	// CRCOff declares C=0. Only an administrator may ask for it (RFC 5044
	// section 4.4). CRCs are still on when the peer declares C=1.
	CRCOff
)

// String returns the policy's name in lower case.
func (p CRCPolicy) String() string {
	switch p {
	case CRCPreferred:
		return "preferred"
	case CRCRequired:
		return "required"
	case CRCOff:
		return "off"
	}
	return fmt.Sprintf("CRC policy %d", uint8(p))
}

// Config configures both roles. The zero value of each field is its documented default.
type Config struct {
	// Revision is the highest MPA revision to use: 1 (RFC 5044) or 2 (RFC 6581).
	// Default 2. A responder of revision 2 also serves initiators of revision 1.
	Revision uint8

	// RDMAC selects whether to speak the RDMA Consortium's protocols, revision 0. By default they
	// are refused.
	RDMAC RDMACPolicy

	CRC CRCPolicy

	// Markers asks the peer to put Markers into what it sends. The peer decides about Markers in
	// the other direction, and they are always granted.
	Markers bool

	// RTR is the set of RTR indications that this endpoint can send (initiator) or accept
	// (responder) in peer-to-peer mode. Default RTRAll.
	RTR RTR

	// MaxIRD is the highest IRD, 0 to 0x3ffe, to which the negotiation may raise the IRD of Offer
	// or Answer to serve the peer's ORD. By default it is not raised.
	MaxIRD int

	// MaxPrivateData limits PD_Length of the frames sent, in octets, enhanced connection data
	// included. Default MaxPrivateData. Received frames may always have MaxPrivateData.
	MaxPrivateData int

	// Deadline is the time by which the peer's whole start-up frame must have arrived, however
	// slowly its octets come. Zero means no limit.
	Deadline time.Time
}

// Errors for callers of the negotiation: nothing was sent, and the peer is not at fault.
var (
	ErrPrivateDataTooLong = errors.New("mpa: private data is longer than a start-up frame can carry")
	ErrConfig             = errors.New("mpa: invalid start-up configuration")
)

func (c Config) normalize() (Config, error) {
	if c.Revision == 0 || c.RDMAC == RDMACOnly {
		c.Revision = 2
	}
	if c.RTR == 0 {
		c.RTR = RTRAll
	}
	if c.MaxPrivateData == 0 {
		c.MaxPrivateData = MaxPrivateData
	}
	switch {
	case c.Revision > 2:
		return c, fmt.Errorf("%w: MPA revision %d", ErrConfig, c.Revision)
	case c.RDMAC > RDMACOnly:
		return c, fmt.Errorf("%w: RDMAC policy %d", ErrConfig, c.RDMAC)
	case c.CRC > CRCOff:
		return c, fmt.Errorf("%w: %v", ErrConfig, c.CRC)
	case c.RTR&^RTRAll != 0:
		return c, fmt.Errorf("%w: RTR %v", ErrConfig, c.RTR)
	case c.MaxPrivateData < EnhancedLen || c.MaxPrivateData > MaxPrivateData:
		return c, fmt.Errorf("%w: limit of %d octets for private data, must be %d to %d", ErrConfig, c.MaxPrivateData, EnhancedLen, MaxPrivateData)
	}
	return c, checkDepth("MaxIRD", c.MaxIRD)
}

func (c Config) expired(now time.Time) bool {
	return !c.Deadline.IsZero() && !now.Before(c.Deadline)
}

func checkDepth(name string, depth int) error {
	if depth < 0 || depth >= NotNegotiated {
		return fmt.Errorf("%w: %s %d, must be 0 to %d", ErrConfig, name, depth, NotNegotiated-1)
	}
	return nil
}

// checkPrivateData checks that the ULP's private data fits into the rest of the frame.
//
//rfc:5044 MPA-7.1.1-18 Private data at most 512 octets
//rfc:6581 MPA2-6-07 ULP private data limited to 508 when enhanced
func (c Config) checkPrivateData(ulp []byte, enhanced bool) error {
	limit := c.MaxPrivateData
	if enhanced {
		limit -= EnhancedLen
	}
	if len(ulp) > limit {
		return fmt.Errorf("%w: %d octets, limit %d", ErrPrivateDataTooLong, len(ulp), limit)
	}
	return nil
}

// Errors of the negotiation. Those of code 4 close the TCP connection at once. Those of codes 5, 6
// and 7 are sent to the peer in a Terminate message first (RFC 6581 sections 9.1 to 9.3). To
// distinguish errors with the same code, compare pointers.
var (
	ErrRevision        = invalidFrame("MPA revision is not supported")
	ErrUnenhancedReply = invalidFrame("unenhanced MPA Reply Frame to an enhanced MPA Request Frame")
	ErrEnhancedReply   = invalidFrame("enhanced MPA Reply Frame to an unenhanced MPA Request Frame")
	ErrTrailing        = invalidFrame("octets after the MPA Request Frame, before the MPA Reply Frame")

	ErrCRCRefused      = mpaError(iwarp.MPALocalCatastrophic, "CRCs are required here and the MPA Reply Frame declares none")
	ErrInsufficientIRD = mpaError(iwarp.MPAInsufficientIRD, "ORD of the responder exceeds the IRD that this end can provide")
	ErrNoRTR           = mpaError(iwarp.MPANoMatchingRTR, "no RTR indication in common")
	ErrConnectionModel = mpaError(iwarp.MPANoMatchingRTR, "responder answered with the other connection model (control flag A)")

	// ErrLocal is for callers that fail during an enhanced start-up for local reasons, such as a
	// lack of memory (RFC 6581 section 9.3).
	//
	//rfc:6581 MPA2-9.3-01 Other local enhanced-setup error: TERM 2/0/5 before reset
	ErrLocal = mpaError(iwarp.MPALocalCatastrophic, "local failure during start-up")

	// ErrClosed is for callers that saw the TCP connection end during start-up
	// (RFC 5044 section 8, code 1); see Initiator.Fallback.
	ErrClosed = mpaError(iwarp.MPAClosed, "TCP connection ended during start-up")
)

// RejectedError is a well-formed Reply with the R bit: the responder's ULP rejected the connection.
// MPA has ended, and the TCP connection may be used for other things (RFC 5044 section 7.1.2 rule
// 3).
type RejectedError struct {
	Revision    uint8
	Enhanced    bool   // the Reply carries IRD and ORD
	IRD, ORD    int    // what the responder would have needed; NotNegotiated if unknown
	RTR         RTR    // what the responder supports, if it said so
	PrivateData []byte // the responder's ULP's; a copy that the error owns
}

// Error implements error.
func (e *RejectedError) Error() string {
	return fmt.Sprintf("mpa: connection rejected by the responder (MPA revision %d, %d octets of private data)", e.Revision, len(e.PrivateData))
}

// Params is the result of a start-up.
type Params struct {
	Revision  uint8 // of the peer's frame
	RDMAC     bool  // DDP and RDMAP have version 0, the RDMA Consortium's; inform the ULP
	Enhanced  bool  // IRD, ORD and RTR were negotiated (RFC 6581)
	CRC       bool  // generate and check CRCs in both directions
	MarkersTx bool  // put Markers into what this end sends
	MarkersRx bool  // expect Markers in what this end receives

	// IRD and ORD are this end's values after negotiation. Without negotiation they are the values
	// of Offer or Answer.
	IRD, ORD int

	// PeerIRD and PeerORD are the values in the peer's frame, for the ULP: NotNegotiated if they
	// are 0x3fff or missing.
	PeerIRD, PeerORD int

	// PeerToPeer means that the initiator begins with an RTR indication. For the initiator, RTR is
	// the one to send, before any other FPDU. For the responder, it is the set that its Reply
	// declared. RTRRead may be chosen with an ORD of 0: that one Read Request is allowed, and
	// counts against the responder's IRD until it is answered.
	PeerToPeer bool
	RTR        RTR

	// WaitFirstFPDU is true for the responder: it must not send an FPDU or a Marker before it has
	// received and validated one FPDU (RFC 5044 section 7.1.2 rule 4). An invalid one does not
	// count.
	WaitFirstFPDU bool

	// PeerPrivateData is the private data of the peer's ULP, without the enhanced connection data.
	// It is a part of the received octets.
	PeerPrivateData []byte
}

// depth returns the field for a value, or NotNegotiated if the ULPs agree on it.
func depth(value int, manual bool) uint16 {
	if manual {
		return NotNegotiated
	}
	return uint16(value)
}

// flags sets the control flags of the connection model. Without peerToPeer all
// are clear.
//
//rfc:6581 MPA2-9.2-01 A=1 for peer-to-peer
//rfc:6581 MPA2-9.2-10 A=0 for client-server
//rfc:6581 MPA2-9.2-12 A=0 forces B=C=D=0 on send
func (e Enhanced) flags(peerToPeer bool, rtr RTR) Enhanced {
	e.A = peerToPeer
	e.B = peerToPeer && rtr&RTRSend != 0
	e.C = peerToPeer && rtr&RTRWrite != 0
	e.D = peerToPeer && rtr&RTRRead != 0
	return e
}
