package conformance

import (
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

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
			r.Check(again.Revision == 1 && !again.Enhanced, "with a Request of revision 1", "revision %d, S %v", again.Revision, again.Enhanced)
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
	r.Check(dv == want && rv == want, "what comes has the versions of the connection", "DV %d, RV %d, want %d", dv, rv, want)
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
