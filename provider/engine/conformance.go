package engine

import (
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Conformance is the part of [Options] with which the conformance suite makes the engine do all
// that RFC 5044 and RFC 6581 permit in the MPA start-up. Every zero value is the default.
//
// Programs leave it zero. Only a program whose peers know nothing newer than MPA revision 1 may
// need it: Fallback or Revision for peers of revision 1, RDMAC for peers of revision 0.
type Conformance struct {
	// Revision is the MPA revision to connect with: 2 (RFC 6581, the default) or 1 (RFC 5044). A
	// listener answers in the revision of the Request. PeerToPeer needs revision 2.
	Revision int

	// Fallback is for peers that know only revision 1. It excludes PeerToPeer, which revision 1
	// doesn't have.
	Fallback FallbackPolicy

	// RTR is the set of RTR indications, as package provider/iwarp/mpa defines them, that this end
	// can send when it connects with PeerToPeer, and take when it listens. 0 means all. If both
	// ends have none in common, the connection fails (CONNECT_ERROR).
	RTR mpa.RTR

	// ManualIRD and ManualORD leave a read depth out of the negotiation (RFC 6581 section 9.1):
	// Connect sends 0x3fff instead, and each side has the depth that its program gives. With both,
	// and without PeerToPeer, Connect sends a Request of revision 1. siw does not know the special
	// meaning of 0x3fff and takes it for a depth.
	ManualIRD, ManualORD bool

	// Markers asks peers to put MPA markers into the FPDUs that they send. Our own FPDUs have
	// markers if and only if the peer asked (RFC 5044 section 4.3).
	Markers bool

	// RDMAC says whether the engine accepts peers with the RDMA Consortium's protocols: MPA
	// revision 0, DDP and RDMAP version 0 (RFC 5044 appendix C). Package provider/iwarp/mpa defines
	// the policies. By default such peers are refused: a rejecting Reply of revision 1 answers
	// their Request, and their Reply is a CONNECT_ERROR. With mpa.RDMACPermitted the engine speaks
	// each peer's version. With mpa.RDMACOnly the engine itself speaks only the Consortium's
	// protocols, which have neither PeerToPeer nor Extensions.
	//
	// CMEvent.RDMAC reports such a connection to the program. It has Markers and CRCs in both
	// directions, the read depths that both programs give, no peer-to-peer mode and no messages of
	// RFC 7306. Connect begins with Revision, and retries with revision 1 when the answer to
	// revision 2 is of revision 0. For peers that hang up instead, set Revision to 1 or Fallback to
	// FallbackClosed.
	RDMAC mpa.RDMACPolicy
}

// FallbackPolicy says when Connect, after a Request of revision 2, tries once more with MPA
// revision 1 on a new TCP connection. RFC 6581 section 10 permits it. Read depths are not
// negotiated then: each side uses the depths that its program gave.
type FallbackPolicy int

const (
	// FallbackNever makes no second attempt. A peer that knows only revision 1 then looks like a
	// peer that hung up (REJECTED, -ECONNRESET).
	FallbackNever FallbackPolicy = iota
	// FallbackUnenhanced retries after a Reply, accepting or rejecting, that is not enhanced: no
	// peer of revision 2 sends one.
	FallbackUnenhanced
	// FallbackClosed also retries after the peer hung up without a Reply, as RFC 6581 section 10
	// requires of peers that don't know revision 2. Other peers also hang up if their program does,
	// so such a peer may see one Connect as two.
	FallbackClosed
)

// checkConformance returns EINVAL for impossible values of Conformance, and for those that exclude
// other options.
func (o *Options) checkConformance() error {
	c := &o.Conformance
	switch {
	case c.Revision != 1 && c.Revision != 2:
		return badOption("Conformance.Revision", c.Revision, "1, 2, or 0 for the default")
	case c.Fallback < FallbackNever || c.Fallback > FallbackClosed:
		return badOption("Conformance.Fallback", int(c.Fallback), "one of FallbackNever to FallbackClosed")
	case c.RTR&^mpa.RTRAll != 0:
		return badOption("Conformance.RTR", c.RTR, "a set of the bits of mpa.RTRAll")
	case c.RDMAC > mpa.RDMACOnly:
		return badOption("Conformance.RDMAC", int(c.RDMAC), "one of the policies of package mpa")
	case c.RDMAC == mpa.RDMACOnly && (o.PeerToPeer || o.Extensions):
		return excludes("Conformance.RDMAC", "PeerToPeer and Extensions",
			"the RDMA Consortium's protocols have neither")
	case o.PeerToPeer && c.Revision < 2:
		return excludes("PeerToPeer", "Conformance.Revision 1", "revision 1 has no peer-to-peer mode")
	case o.PeerToPeer && c.Fallback != FallbackNever:
		return excludes("PeerToPeer", "Conformance.Fallback", "revision 1 has no peer-to-peer mode")
	}
	return nil
}

// excludes returns EINVAL for two fields of Options that can't both be set.
func excludes(name, other, why string) error {
	return fmt.Errorf("engine.Options.%s excludes %s, because %s; set only one of them: %w",
		name, other, why, syscall.EINVAL)
}
