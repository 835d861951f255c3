package mpa_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// rnic is one of the three types of RFC 5044 appendix C.1, with its choice of Markers.
type rnic struct {
	rdmac   mpa.RDMACPolicy
	markers bool
}

func (r rnic) config(revision uint8, crc mpa.CRCPolicy) mpa.Config {
	return mpa.Config{Revision: revision, RDMAC: r.rdmac, Markers: r.markers, CRC: crc}
}

func (r rnic) String() string {
	names := [...]string{"IETF non-permissive", "IETF permissive", "RDMAC"}
	return fmt.Sprintf("%s M=%d", names[r.rdmac], flag(r.markers))
}

func flag(b bool) int {
	if b {
		return 1
	}
	return 0
}

// The connections of figures 15, 16 and 17, and of an upgraded RDMAC RNIC, which always has M=1.
// Markers are those that initiator and responder receive. A cell that is missing here closes the
// connection.
var appendixC = map[[2]rnic]string{
	{rdmacRNIC, rdmacRNIC}: "V=0 M=1/1", // figures 15 and 16

	{nonPermissive0, nonPermissive0}: "V=1 M=0/0", // figure 15
	{nonPermissive0, nonPermissive1}: "V=1 M=0/1",
	{nonPermissive1, nonPermissive0}: "V=1 M=1/0",
	{nonPermissive1, nonPermissive1}: "V=1 M=1/1",

	{rdmacRNIC, permissive0}: "V=0 M=1/1", // figure 16: the Reply has M=1, whatever the preference
	{rdmacRNIC, permissive1}: "V=0 M=1/1",
	{permissive0, rdmacRNIC}: "V=0 M=1/1",
	{permissive1, rdmacRNIC}: "V=0 M=1/1",

	{nonPermissive0, permissive0}: "V=1 M=0/0", // figure 17
	{nonPermissive0, permissive1}: "V=1 M=0/1",
	{nonPermissive1, permissive0}: "V=1 M=1/0",
	{nonPermissive1, permissive1}: "V=1 M=1/1",
	{permissive0, nonPermissive0}: "V=1 M=0/0",
	{permissive0, nonPermissive1}: "V=1 M=0/1",
	{permissive1, nonPermissive0}: "V=1 M=1/0",
	{permissive1, nonPermissive1}: "V=1 M=1/1",
	{permissive0, permissive0}:    "V=1 M=0/0",
	{permissive0, permissive1}:    "V=1 M=0/1",
	{permissive1, permissive0}:    "V=1 M=1/0",
	{permissive1, permissive1}:    "V=1 M=1/1",
}

var (
	rdmacRNIC      = rnic{mpa.RDMACOnly, true}
	nonPermissive0 = rnic{mpa.RDMACRefused, false}
	nonPermissive1 = rnic{mpa.RDMACRefused, true}
	permissive0    = rnic{mpa.RDMACPermitted, false}
	permissive1    = rnic{mpa.RDMACPermitted, true}
)

// TestRDMACMatrix tests every cell of the figures, with each policy for CRCs at both ends. For
// version 0 the policies must have no influence.
//
//rfc:5044 RDMAC-C.1-03 Version identical in both directions
//rfc:5044 RDMAC-C.1-04 CRC forced on with an RDMAC peer
//rfc:5044 RDMAC-C.1-01 RDMAC peer: DDP/RDMAP 0, MPA rev 0, markers and CRC on
//rfc:5044 RDMAC-C.2-02 RDMAC initiator M=1 vs non-permissive any M: close
//rfc:5044 RDMAC-C.2-03 IETF non-permissive initiator vs RDMAC responder: close
//rfc:5044 RDMAC-C.2.3-03 RDMAC vs RDMAC-capable: V=0 M=1/1 in all cells of fig 16
//rfc:5044 RDMAC-C.3-01 IETF peers, permissive or not: V=1, markers as asked
func TestRDMACMatrix(t *testing.T) {
	types := []rnic{rdmacRNIC, nonPermissive0, nonPermissive1, permissive0, permissive1}
	for _, initiator := range types {
		for _, responder := range types {
			want, connects := appendixC[[2]rnic{initiator, responder}]
			if !connects {
				want = "close"
			}
			for _, crc := range []mpa.CRCPolicy{mpa.CRCPreferred, mpa.CRCOff} {
				name := fmt.Sprintf("%s to %s, CRC %s", initiator, responder, crc)
				i := newInitiator(t, initiator.config(1, crc), mpa.Offer{IRD: 3, ORD: 5})
				r := newResponder(t, responder.config(2, crc))
				if got := outcome(t, name, i, r); got != want {
					t.Errorf("%s: %s, want %s", name, got, want)
				}
			}
		}
	}
}

// outcome runs a start-up and returns the result in the form of the figures.
func outcome(t *testing.T, name string, i mpa.Initiator, r mpa.Responder) string {
	t.Helper()
	q, _, err := r.Receive(i.AppendRequest(nil))
	if err != nil {
		refusal := r.AppendRefusal(nil, err)
		if refusal == nil {
			return "close"
		}
		if p, _, err := i.Receive(refusal); err == nil {
			t.Errorf("%s: the refusal is taken for %+v", name, p)
		}
		return "close"
	}
	wire, theirs := accept(t, q, mpa.Answer{IRD: 5, ORD: 3})
	ours, _, err := i.Receive(wire)
	if err != nil {
		return "close"
	}
	if ours.RDMAC != theirs.RDMAC || ours.RDMAC != q.RDMAC || ours.CRC != theirs.CRC {
		t.Errorf("%s: the ends have %+v and %+v", name, ours, theirs)
	}
	if ours.MarkersRx != theirs.MarkersTx || ours.MarkersTx != theirs.MarkersRx {
		t.Errorf("%s: Markers %+v and %+v", name, ours, theirs)
	}
	if ours.RDMAC && (!ours.CRC || ours.IRD != 3 || ours.ORD != 5 || theirs.IRD != 5 || theirs.ORD != 3) {
		t.Errorf("%s: %+v and %+v, want CRCs and the depths that each end gave", name, ours, theirs)
	}
	return fmt.Sprintf("V=%d M=%d/%d", 1-flag(ours.RDMAC), flag(ours.MarkersRx), flag(theirs.MarkersRx))
}

// The octets of start-up frames of revision 0, and of the refusals: figure 13 of RFC
// 5044 with the bits of appendix C.
//
//rfc:5044 RDMAC-C.2.1-01 Non-permissive responder to Rev0: Reply Rev 1, then close
//rfc:5044 RDMAC-C.2.3-01 Permissive responder to Rev0: Reply Rev0, M=1, C=1, V=0
//rfc:5044 RDMAC-C.2.3-02 Permissive responder never sends M=0 to an RDMAC initiator
func TestRDMACFrames(t *testing.T) {
	rdmac := newInitiator(t, mpa.Config{RDMAC: mpa.RDMACOnly, CRC: mpa.CRCOff}, mpa.Offer{PrivateData: []byte("hi")})
	request := rdmac.AppendRequest(nil)
	wantOctets(t, "Request", request, "4d504120494420526571204672616d65 c0 00 0002 6869")

	permissive := newResponder(t, mpa.Config{RDMAC: mpa.RDMACPermitted, CRC: mpa.CRCOff})
	q, _, err := permissive.Receive(request)
	if err != nil || !q.RDMAC || q.Revision != 0 || string(q.PrivateData) != "hi" {
		t.Fatalf("a permissive responder sees %+v, %v", q, err)
	}
	wire, _ := accept(t, q, mpa.Answer{PrivateData: []byte("yo")})
	wantOctets(t, "accepting Reply", wire, "4d504120494420526570204672616d65 c0 00 0002 796f")
	wire, err = q.AppendReject(nil, mpa.Answer{PrivateData: []byte("no")})
	if err != nil {
		t.Fatal(err)
	}
	wantOctets(t, "rejecting Reply", wire, "4d504120494420526570204672616d65 e0 00 0002 6e6f")

	_, _, err = newResponder(t, mpa.Config{}).Receive(request)
	wantError(t, err, mpa.ErrRDMACRefused)
	wantOctets(t, "refusal of revision 0", newResponder(t, mpa.Config{}).AppendRefusal(nil, err), "4d504120494420526570204672616d65 60 01 0000")

	upgraded := newResponder(t, mpa.Config{RDMAC: mpa.RDMACOnly, Revision: 1})
	_, _, err = upgraded.Receive(newInitiator(t, mpa.Config{}, mpa.Offer{}).AppendRequest(nil))
	wantError(t, err, mpa.ErrNotRDMAC)
	wantOctets(t, "refusal of revision 2", upgraded.AppendRefusal(nil, err), "4d504120494420526570204672616d65 e0 00 0000")

	if b := upgraded.AppendRefusal([]byte("as it was"), mpa.ErrKey); string(b) != "as it was" {
		t.Errorf("what is no start-up frame is answered with % x", b)
	}
}

func wantOctets(t *testing.T, what string, got []byte, want string) {
	t.Helper()
	if !bytes.Equal(got, testkit.Unhex(t, want)) {
		t.Errorf("%s: % x, want %s", what, got, want)
	}
}

// Frames of revision 0 with one peculiarity each.
//
//rfc:5044 RDMAC-C.2.2-01 Non-permissive initiator closes gracefully on a Rev0 Reply
//rfc:5044 RDMAC-C.2.5-01 Permissive initiator on Rev0 Reply: V=0, markers, CRC
func TestRDMACJudges(t *testing.T) {
	zero := func(kind mpa.Kind, change func(*mpa.Frame)) mpa.Frame {
		f := mpa.Frame{Kind: kind, Markers: true, CRC: true}
		if change != nil {
			change(&f)
		}
		return f
	}
	noMarkers := func(f *mpa.Frame) { f.Markers = false }
	for _, v := range []struct {
		name   string
		rdmac  mpa.RDMACPolicy
		change func(*mpa.Frame)
		want   *iwarp.Error
	}{
		{"as it should be", mpa.RDMACPermitted, nil, nil},
		{"as it should be", mpa.RDMACOnly, nil, nil},
		{"as it should be", mpa.RDMACRefused, nil, mpa.ErrRDMACRefused},
		{"no M", mpa.RDMACPermitted, noMarkers, mpa.ErrRDMACFrame},
		{"no M", mpa.RDMACOnly, noMarkers, mpa.ErrRDMACFrame},
		{"no C", mpa.RDMACPermitted, func(f *mpa.Frame) { f.CRC = false }, nil},
		{"S, which revision 0 does not have", mpa.RDMACPermitted, func(f *mpa.Frame) { f.Enhanced = true }, nil},
	} {
		q, err := newResponder(t, mpa.Config{RDMAC: v.rdmac}).Judge(zero(mpa.KindRequest, v.change))
		if v.want != nil {
			wantError(t, err, v.want)
		} else if _, p := accept(t, q, mpa.Answer{}); err != nil || !p.RDMAC || !p.CRC || !p.MarkersTx || !p.MarkersRx || p.Enhanced {
			t.Errorf("Request, %s, RDMAC %s: %+v, %v", v.name, v.rdmac, p, err)
		}
		p, err := newInitiator(t, mpa.Config{RDMAC: v.rdmac, Revision: 1}, mpa.Offer{}).Judge(zero(mpa.KindReply, v.change))
		if v.want != nil {
			wantError(t, err, v.want)
		} else if err != nil || !p.RDMAC || !p.CRC || !p.MarkersTx || !p.MarkersRx || p.Enhanced {
			t.Errorf("Reply, %s, RDMAC %s: %+v, %v", v.name, v.rdmac, p, err)
		}
	}
	_, err := newInitiator(t, mpa.Config{RDMAC: mpa.RDMACPermitted, CRC: mpa.CRCRequired, Revision: 1}, mpa.Offer{}).
		Judge(zero(mpa.KindReply, func(f *mpa.Frame) { f.CRC = false }))
	wantError(t, err, mpa.ErrCRCRefused)
	_, err = newInitiator(t, mpa.Config{RDMAC: mpa.RDMACOnly}, mpa.Offer{}).Judge(mpa.Frame{Kind: mpa.KindReply, Revision: 1, Markers: true, CRC: true})
	wantError(t, err, mpa.ErrNotRDMAC)
}

// If an enhanced Request is answered in revision 0, the peer did not understand it. The attempt is
// repeated in revision 1, unless the connection has to be peer-to-peer.
//
//rfc:5044 RDMAC-C.2.5-01 Permissive initiator on Rev0 Reply: V=0, markers, CRC
func TestRDMACFallback(t *testing.T) {
	accepts := mpa.Frame{Kind: mpa.KindReply, Markers: true, CRC: true}
	rejects := accepts
	rejects.Reject = true
	for _, f := range []mpa.Frame{accepts, rejects} {
		i := newInitiator(t, mpa.Config{RDMAC: mpa.RDMACPermitted}, mpa.Offer{IRD: 1, ORD: 1})
		_, err := i.Judge(f)
		if f.Reject {
			var r *mpa.RejectedError
			if !errors.As(err, &r) || r.Revision != 0 || r.Enhanced {
				t.Errorf("rejected in revision 0: %v", err)
			}
		} else {
			wantError(t, err, mpa.ErrRDMACReply)
		}
		second, again := i.Fallback(err, time.Time{})
		if !again || frame(t, second.AppendRequest(nil)).Revision != 1 {
			t.Errorf("%+v: no second attempt with revision 1", f)
		}
		p, err := second.Judge(accepts)
		if err != nil || !p.RDMAC {
			t.Errorf("the second attempt: %+v, %v", p, err)
		}
		both := newInitiator(t, mpa.Config{RDMAC: mpa.RDMACPermitted}, mpa.Offer{PeerToPeer: true})
		if _, err = both.Judge(f); err == nil {
			t.Error("a peer-to-peer connection of revision 0")
		}
		if _, again := both.Fallback(err, time.Time{}); again {
			t.Error("revision 1 has no peer-to-peer mode")
		}
	}
}

func TestRDMACConfig(t *testing.T) {
	if _, err := mpa.NewInitiator(mpa.Config{RDMAC: mpa.RDMACOnly}, mpa.Offer{PeerToPeer: true}); !errors.Is(err, mpa.ErrConfig) {
		t.Errorf("peer-to-peer in revision 0: %v", err)
	}
	if _, err := mpa.NewResponder(mpa.Config{RDMAC: mpa.RDMACOnly + 1}); !errors.Is(err, mpa.ErrConfig) {
		t.Errorf("a policy that there is not: %v", err)
	}
	for p, want := range map[mpa.RDMACPolicy]string{mpa.RDMACRefused: "refused", mpa.RDMACPermitted: "permitted", mpa.RDMACOnly: "only", 9: "unknown RDMAC policy"} {
		if p.String() != want {
			t.Errorf("policy %d is %q", p, p)
		}
	}
}
