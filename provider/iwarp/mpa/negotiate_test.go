package mpa_test

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

const notNegotiated = mpa.NotNegotiated

func newInitiator(t testing.TB, cfg mpa.Config, offer mpa.Offer) mpa.Initiator {
	t.Helper()
	i, err := mpa.NewInitiator(cfg, offer)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

func newResponder(t testing.TB, cfg mpa.Config) mpa.Responder {
	t.Helper()
	r, err := mpa.NewResponder(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// frame parses what one side appended, which must be exactly one frame.
func frame(t testing.TB, wire []byte) mpa.Frame {
	t.Helper()
	f, n, err := mpa.ParseFrame(wire, mpa.KindAny)
	if err != nil || n != len(wire) {
		t.Fatalf("% x: frame of %d octets, error %v", wire, n, err)
	}
	return f
}

func enhanced(t testing.TB, wire []byte) mpa.Enhanced {
	t.Helper()
	f := frame(t, wire)
	e, _, err := f.SplitPrivateData()
	if err != nil || !f.UsesEnhanced() {
		t.Fatalf("% x: not enhanced, error %v", wire, err)
	}
	return e
}

// judgeRequest makes a Responder judge a raw Request.
func judgeRequest(t testing.TB, r mpa.Responder, f mpa.Frame) mpa.Request {
	t.Helper()
	wire := f.AppendTo(nil)
	q, n, err := r.Receive(wire)
	if err != nil || n != len(wire) {
		t.Fatalf("Request %+v: n %d, error %v", f, n, err)
	}
	return q
}

func accept(t testing.TB, q mpa.Request, a mpa.Answer) ([]byte, mpa.Params) {
	t.Helper()
	wire, p, err := q.AppendAccept(nil, a)
	if err != nil {
		t.Fatal(err)
	}
	return wire, p
}

func request(e mpa.Enhanced) mpa.Frame {
	return mpa.Frame{Kind: mpa.KindRequest, CRC: true, Enhanced: true, Revision: 2, PrivateData: e.AppendTo(nil)}
}

func reply(e mpa.Enhanced) mpa.Frame {
	return mpa.Frame{Kind: mpa.KindReply, CRC: true, Enhanced: true, Revision: 2, PrivateData: e.AppendTo(nil)}
}

// The octets of the Requests, from the figures of the RFCs.
//
//rfc:5044 MPA-1.2-02 CRC stays on unless the path is known to be as strong
//rfc:5044 MPA-4.4-02 Default connection config uses CRC
//rfc:5044 MPA-4.4-03 CRC suppression only on explicit administrator request
//rfc:5044 MPA-7.1.1-12 Res bits zero on send
//rfc:5044 MPA-7.1.1-14 Rev=1 for this spec
//rfc:5044 MPA-7.1.2-1-01 Initiator sends a valid Request first
//rfc:6581 MPA2-6-01 S=1 iff private data starts with the enhanced block
//rfc:6581 MPA2-5-02 ULP can request explicit RTR per connection
//rfc:6581 MPA2-6-02 Rev>=2 when any enhanced feature is used
//rfc:6581 MPA2-6-03 Rev=1 allowed if no enhanced feature wanted
//rfc:6581 MPA2-6-06 PD_Length includes the 4-octet block
//rfc:6581 MPA2-9.2-01 A=1 for peer-to-peer
//rfc:6581 MPA2-9.2-02 Initiator sets B/C/D for every RTR it supports when A=1
//rfc:6581 MPA2-9.2-10 A=0 for client-server
//rfc:6581 MPA2-9.2-12 A=0 forces B=C=D=0 on send
//rfc:6581 MPA2-10-03 Enhanced format not used when no feature is wanted
func TestInitiatorRequest(t *testing.T) {
	pd := []byte("abc")
	for _, v := range []struct {
		name  string
		cfg   mpa.Config
		offer mpa.Offer
		hex   string
	}{
		{"defaults", mpa.Config{}, mpa.Offer{}, "50 02 0004 0000 0000"},
		{"IRD, ORD and private data", mpa.Config{}, mpa.Offer{IRD: 16, ORD: 32, PrivateData: pd}, "50 02 0007 0010 0020 616263"},
		{"CRCs suppressed", mpa.Config{CRC: mpa.CRCOff}, mpa.Offer{IRD: 1, ORD: 1}, "10 02 0004 0001 0001"},
		{"CRCs required", mpa.Config{CRC: mpa.CRCRequired}, mpa.Offer{IRD: 1, ORD: 1}, "50 02 0004 0001 0001"},
		{"Markers", mpa.Config{Markers: true}, mpa.Offer{}, "d0 02 0004 0000 0000"},
		{"peer-to-peer", mpa.Config{}, mpa.Offer{IRD: 1, ORD: 2, PeerToPeer: true}, "50 02 0004 c001 c002"},
		{"peer-to-peer with Write only", mpa.Config{RTR: mpa.RTRWrite}, mpa.Offer{PeerToPeer: true}, "50 02 0004 8000 8000"},
		{"RTR kinds without peer-to-peer", mpa.Config{RTR: mpa.RTRWrite}, mpa.Offer{}, "50 02 0004 0000 0000"},
		{"ORD left to the ULP", mpa.Config{}, mpa.Offer{IRD: 5, ORD: 7, ManualORD: true}, "50 02 0004 0005 3fff"},
		{"IRD left to the ULP", mpa.Config{}, mpa.Offer{IRD: 5, ORD: 7, ManualIRD: true}, "50 02 0004 3fff 0007"},
		{"nothing enhanced wanted", mpa.Config{}, mpa.Offer{IRD: 5, ORD: 7, ManualIRD: true, ManualORD: true, PrivateData: pd}, "40 01 0003 616263"},
		{"peer-to-peer, IRD and ORD left to the ULP", mpa.Config{RTR: mpa.RTRRead}, mpa.Offer{ManualIRD: true, ManualORD: true, PeerToPeer: true}, "50 02 0004 bfff 7fff"},
		{"revision 1", mpa.Config{Revision: 1}, mpa.Offer{IRD: 5, ORD: 7, PrivateData: pd}, "40 01 0003 616263"},
	} {
		want := testkit.Unhex(t, requestKey+v.hex)
		i := newInitiator(t, v.cfg, v.offer)
		if got := guarded(t, len(want), i.AppendRequest); !bytes.Equal(got, want) {
			t.Errorf("%s: Request % x, want % x", v.name, got[16:], want[16:])
		}
	}
}

// The octets of the Replies to certain Requests.
//
//rfc:5044 MPA-7.1.2-2-03 Unacceptable private data: Reply with R=1
//rfc:6581 MPA2-6-05 Reply to a Rev1 request is unenhanced
//rfc:6581 MPA2-6-10 Rev 2 with S=0 is treated as unenhanced
//rfc:6581 MPA2-10-01 Enhanced responder answers enhanced to enhanced
//rfc:6581 MPA2-10-02 Any responder answers unenhanced to unenhanced
func TestResponderReply(t *testing.T) {
	pd := []byte("abc")
	answer := mpa.Answer{IRD: 4, ORD: 6, PrivateData: pd}
	for _, v := range []struct {
		name           string
		cfg            mpa.Config
		request        string
		accept, reject string
	}{
		{"revision 1", mpa.Config{}, "40 01 0000", "40 01 0003 616263", "60 01 0003 616263"},
		{"revision 1 with S, which is reserved there", mpa.Config{}, "50 01 0000", "40 01 0003 616263", "60 01 0003 616263"},
		{"revision 2 without S", mpa.Config{}, "40 02 0000", "40 02 0003 616263", "60 02 0003 616263"},
		{"enhanced", mpa.Config{}, "50 02 0004 0010 0003", "50 02 0007 0004 0006 616263", "70 02 0007 0004 0006 616263"},
		{"CRC off at both ends", mpa.Config{CRC: mpa.CRCOff}, "10 02 0004 0010 0003", "10 02 0007 0004 0006 616263", "30 02 0007 0004 0006 616263"},
		{"CRC off at the initiator", mpa.Config{}, "10 02 0004 0010 0003", "50 02 0007 0004 0006 616263", "70 02 0007 0004 0006 616263"},
		{"Markers wanted here", mpa.Config{Markers: true}, "40 01 0000", "c0 01 0003 616263", "60 01 0003 616263"},
		{"Markers wanted there", mpa.Config{}, "c0 01 0000", "40 01 0003 616263", "60 01 0003 616263"},
		{"R and all reserved bits of the Request, which nobody looks at", mpa.Config{}, "6f 02 0000", "40 02 0003 616263", "60 02 0003 616263"},
	} {
		q, _, err := newResponder(t, v.cfg).Receive(testkit.Unhex(t, requestKey+v.request))
		if err != nil {
			t.Errorf("%s: %v", v.name, err)
			continue
		}
		want := testkit.Unhex(t, replyKey+v.accept)
		got := guarded(t, len(want), func(b []byte) []byte {
			b, _, err = q.AppendAccept(b, answer)
			return b
		})
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: accept % x, want % x, error %v", v.name, got[16:], want[16:], err)
		}
		want = testkit.Unhex(t, replyKey+v.reject)
		got = guarded(t, len(want), func(b []byte) []byte {
			b, err = q.AppendReject(b, answer)
			return b
		})
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s: reject % x, want % x, error %v", v.name, got[16:], want[16:], err)
		}
	}
}

// The exchange between two siws, with each side replaced in turn.
func TestNegotiateSIW(t *testing.T) {
	siwRequest, siwReply := testdata(t, "siw-rping-initiator.bin")[:24], testdata(t, "siw-rping-responder.bin")[:24]

	i := newInitiator(t, mpa.Config{CRC: mpa.CRCOff}, mpa.Offer{IRD: 1, ORD: 1})
	if got := i.AppendRequest(nil); !bytes.Equal(got, siwRequest) {
		t.Errorf("Request % x, siw's % x", got, siwRequest)
	}
	p, n, err := i.Receive(siwReply)
	want := mpa.Params{Revision: 2, Enhanced: true, IRD: 1, ORD: 1, PeerIRD: 1, PeerORD: 1, PeerPrivateData: []byte{}}
	if diff := cmp.Diff(want, p); err != nil || n != 24 || diff != "" {
		t.Errorf("siw's Reply: n %d, error %v (-want +got)\n%s", n, err, diff)
	}

	q, _, err := newResponder(t, mpa.Config{CRC: mpa.CRCOff}).Receive(siwRequest)
	if err != nil || q.IRD != 1 || q.ORD != 1 || !q.Enhanced || q.CRC || q.Markers || q.PeerToPeer {
		t.Errorf("siw's Request: %+v, error %v", q, err)
	}
	if got, _ := accept(t, q, mpa.Answer{IRD: 1, ORD: 1}); !bytes.Equal(got, siwReply) {
		t.Errorf("Reply % x, siw's % x", got, siwReply)
	}

	// siw returns the bits of a Request, C and the reserved ones included.
	echoed := reply(mpa.Enhanced{IRD: 128, ORD: 1})
	echoed.Reserved = 0x8
	i = newInitiator(t, mpa.Config{}, mpa.Offer{IRD: 1, ORD: 1})
	if p, err := i.Judge(echoed); err != nil || !p.CRC || p.ORD != 1 || p.PeerIRD != 128 {
		t.Errorf("echoed bits: %+v, error %v", p, err)
	}
	// siw answers a Request with M with a reject that has no user data and zeros.
	refused := reply(mpa.Enhanced{})
	refused.Reject = true
	i = newInitiator(t, mpa.Config{Markers: true}, mpa.Offer{})
	var rejected *mpa.RejectedError
	if _, err := i.Judge(refused); !errors.As(err, &rejected) || !rejected.Enhanced || len(rejected.PrivateData) != 0 {
		t.Errorf("reject of Markers: %v", err)
	}
}

// CRCs are off only if both sides say so.
//
//rfc:5044 MPA-4.4-04 CRC disabled only if both sides declare C=0
//rfc:5044 MPA-7.1.1-08 C=0 on both: CRC not checked
//rfc:5044 MPA-7.1.1-09 C=1 on either: both generate and check
func TestNegotiateCRC(t *testing.T) {
	for _, v := range []struct {
		initiator, responder mpa.CRCPolicy
		want                 bool
	}{
		{mpa.CRCPreferred, mpa.CRCPreferred, true},
		{mpa.CRCPreferred, mpa.CRCOff, true},
		{mpa.CRCOff, mpa.CRCPreferred, true},
		{mpa.CRCOff, mpa.CRCRequired, true},
		{mpa.CRCOff, mpa.CRCOff, false},
	} {
		pi, pr := exchange(t, mpa.Config{CRC: v.initiator}, mpa.Config{CRC: v.responder}, mpa.Offer{}, mpa.Answer{})
		if pi.CRC != v.want || pr.CRC != v.want {
			t.Errorf("initiator %v, responder %v: %v and %v, want %v", v.initiator, v.responder, pi.CRC, pr.CRC, v.want)
		}
	}
	refused := reply(mpa.Enhanced{})
	refused.CRC = false
	_, err := newInitiator(t, mpa.Config{CRC: mpa.CRCRequired}, mpa.Offer{}).Judge(refused)
	wantError(t, err, mpa.ErrCRCRefused)
}

// Each side decides on the Markers that it receives.
//
//rfc:5044 MPA-4.3-01 Every sender can generate markers when the receiver asks
//rfc:5044 MPA-7.1.1-05 M=0 received: no markers added
//rfc:5044 MPA-7.1.1-06 M=1 received: markers added
//rfc:5044 MPA-7.1.1-07 M is per direction (asymmetric allowed)
func TestNegotiateMarkers(t *testing.T) {
	for _, atInitiator := range []bool{false, true} {
		for _, atResponder := range []bool{false, true} {
			pi, pr := exchange(t, mpa.Config{Markers: atInitiator}, mpa.Config{Markers: atResponder}, mpa.Offer{}, mpa.Answer{})
			if pi.MarkersRx != atInitiator || pr.MarkersTx != atInitiator || pr.MarkersRx != atResponder || pi.MarkersTx != atResponder {
				t.Errorf("wanted by the initiator %v, by the responder %v: %+v and %+v", atInitiator, atResponder, pi, pr)
			}
		}
	}
}

// exchange runs a whole start-up that must succeed.
func exchange(t testing.TB, ci, cr mpa.Config, offer mpa.Offer, answer mpa.Answer) (atInitiator, atResponder mpa.Params) {
	t.Helper()
	i, r := newInitiator(t, ci, offer), newResponder(t, cr)
	q, _, err := r.Receive(i.AppendRequest(nil))
	if err != nil {
		t.Fatalf("Request: %v", err)
	}
	wire, atResponder := accept(t, q, answer)
	atInitiator, n, err := i.Receive(wire)
	if err != nil || n != len(wire) {
		t.Fatalf("Reply: n %d, error %v", n, err)
	}
	return atInitiator, atResponder
}

//rfc:5044 MPA-3-07 Negotiated protocol version is reported to DDP
//rfc:5044 MPA-7.1.1-20 Private data handed to the ULP unchanged
//rfc:5044 MPA-7.1.1-21 Received Rev reported to ULP
//rfc:5044 MPA-7.1.2-2-05 Private data accepted: Reply R=0, then ready for FPDUs
//rfc:5044 MPA-7.1.2-3-04 Good Reply: enter Full Operation
//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
//rfc:6581 MPA2-9.1-01 Peer IRD/ORD passed to the ULP
func TestNegotiateParams(t *testing.T) {
	for _, revision := range []uint8{1, 2} {
		offer := mpa.Offer{IRD: 8, ORD: 16, PrivateData: []byte("from the initiator")}
		answer := mpa.Answer{IRD: 20, ORD: 5, PrivateData: []byte("from the responder")}
		pi, pr := exchange(t, mpa.Config{Revision: revision}, mpa.Config{}, offer, answer)
		want := mpa.Params{Revision: revision, CRC: true, IRD: 8, ORD: 16, PeerIRD: notNegotiated, PeerORD: notNegotiated, PeerPrivateData: answer.PrivateData}
		if revision == 2 {
			want.Enhanced, want.PeerIRD, want.PeerORD = true, 20, 5
		}
		if diff := cmp.Diff(want, pi); diff != "" {
			t.Errorf("initiator of revision %d (-want +got)\n%s", revision, diff)
		}
		want.IRD, want.ORD, want.WaitFirstFPDU, want.PeerPrivateData = 20, 5, true, offer.PrivateData
		if revision == 2 {
			want.PeerIRD, want.PeerORD = 8, 16
		}
		if diff := cmp.Diff(want, pr); diff != "" {
			t.Errorf("responder to revision %d (-want +got)\n%s", revision, diff)
		}
	}
}

// RFC 6581 section 9.1 at the responder.
//
//rfc:6581 MPA2-9.1-02 Responder ORD not above initiator IRD
//rfc:6581 MPA2-9.1-03 Responder IRD at least initiator ORD or reject/limit
//rfc:6581 MPA2-9.1-10 Initiator ORD 0x3FFF: responder keeps and answers its IRD
//rfc:6581 MPA2-9.1-11 Initiator IRD 0x3FFF: responder keeps and answers its ORD
func TestResponderDepths(t *testing.T) {
	for _, v := range []struct {
		name             string
		maxIRD           int
		peerIRD, peerORD uint16
		answer           mpa.Answer
		ird, ord         int    // of Params
		wireIRD, wireORD uint16 // of the Reply
	}{
		{"values that fit", 128, 16, 16, mpa.Answer{IRD: 16, ORD: 16}, 16, 16, 16, 16},
		{"ORD above the initiator's IRD is lowered", 128, 1, 0, mpa.Answer{IRD: 0, ORD: 16}, 0, 1, 0, 1},
		{"ORD for an initiator without IRD", 128, 0, 0, mpa.Answer{IRD: 4, ORD: 16}, 4, 0, 4, 0},
		{"IRD is raised to the initiator's ORD", 128, 0, 32, mpa.Answer{IRD: 4}, 32, 0, 32, 0},
		{"IRD is raised as far as it goes", 64, 0, 128, mpa.Answer{IRD: 4}, 64, 0, 64, 0},
		{"IRD is not raised unless configured", 0, 0, 128, mpa.Answer{IRD: 4}, 4, 0, 4, 0},
		{"IRD above the initiator's ORD is kept", 64, 0, 2, mpa.Answer{IRD: 70}, 70, 0, 70, 0},
		{"ORD 0x3fff leaves IRD alone", 128, 16, 0x3fff, mpa.Answer{IRD: 4, ORD: 5}, 4, 5, 0x3fff, 5},
		{"IRD 0x3fff leaves ORD alone", 128, 0x3fff, 16, mpa.Answer{IRD: 20, ORD: 50}, 20, 50, 20, 0x3fff},
		{"both 0x3fff", 128, 0x3fff, 0x3fff, mpa.Answer{IRD: 20, ORD: 50}, 20, 50, 0x3fff, 0x3fff},
	} {
		q := judgeRequest(t, newResponder(t, mpa.Config{MaxIRD: v.maxIRD}), request(mpa.Enhanced{IRD: v.peerIRD, ORD: v.peerORD}))
		if q.IRD != int(v.peerIRD) || q.ORD != int(v.peerORD) {
			t.Errorf("%s: the ULP sees IRD %d, ORD %d", v.name, q.IRD, q.ORD)
		}
		wire, p := accept(t, q, v.answer)
		if p.IRD != v.ird || p.ORD != v.ord {
			t.Errorf("%s: IRD %d, ORD %d, want %d, %d", v.name, p.IRD, p.ORD, v.ird, v.ord)
		}
		if e := enhanced(t, wire); e != (mpa.Enhanced{IRD: v.wireIRD, ORD: v.wireORD}) {
			t.Errorf("%s: Reply %+v, want IRD %d, ORD %d", v.name, e, v.wireIRD, v.wireORD)
		}
	}
}

// RFC 6581 section 9.1 at the initiator.
//
//rfc:6581 MPA2-9.1-06 Initiator raises IRD to at least responder ORD
//rfc:6581 MPA2-9.1-07 Initiator lowers ORD to at most responder IRD
//rfc:6581 MPA2-9.1-08 Insufficient IRD: TERM 2/0/6 then terminate
//rfc:6581 MPA2-9.1-12 Responder IRD 0x3FFF: initiator ORD unchanged
//rfc:6581 MPA2-9.1-13 Responder ORD 0x3FFF: initiator IRD unchanged
func TestInitiatorDepths(t *testing.T) {
	offer := mpa.Offer{IRD: 8, ORD: 16}
	for _, v := range []struct {
		name     string
		maxIRD   int
		reply    mpa.Enhanced
		ird, ord int
		err      *iwarp.Error
	}{
		{"as offered", 0, mpa.Enhanced{IRD: 16, ORD: 8}, 8, 16, nil},
		{"ORD is lowered to the responder's IRD", 0, mpa.Enhanced{IRD: 1, ORD: 8}, 8, 1, nil},
		{"a responder without IRD", 0, mpa.Enhanced{IRD: 0, ORD: 0}, 8, 0, nil},
		{"a responder with more IRD", 0, mpa.Enhanced{IRD: 128, ORD: 0}, 8, 16, nil},
		{"IRD is raised to the responder's ORD", 128, mpa.Enhanced{IRD: 16, ORD: 128}, 128, 16, nil},
		{"IRD can't be raised so far", 127, mpa.Enhanced{IRD: 16, ORD: 128}, 0, 0, mpa.ErrInsufficientIRD},
		{"IRD can't be raised at all", 0, mpa.Enhanced{IRD: 16, ORD: 9}, 0, 0, mpa.ErrInsufficientIRD},
		{"the largest ORD there is", 128, mpa.Enhanced{IRD: 16, ORD: 0x3ffe}, 0, 0, mpa.ErrInsufficientIRD},
		{"IRD 0x3fff leaves ORD alone", 0, mpa.Enhanced{IRD: 0x3fff, ORD: 8}, 8, 16, nil},
		{"ORD 0x3fff leaves IRD alone", 0, mpa.Enhanced{IRD: 16, ORD: 0x3fff}, 8, 16, nil},
	} {
		p, err := newInitiator(t, mpa.Config{MaxIRD: v.maxIRD}, offer).Judge(reply(v.reply))
		if v.err != nil {
			wantError(t, err, v.err)
			continue
		}
		if err != nil || p.IRD != v.ird || p.ORD != v.ord || p.PeerIRD != int(v.reply.IRD) || p.PeerORD != int(v.reply.ORD) {
			t.Errorf("%s: %+v, error %v, want IRD %d, ORD %d", v.name, p, err, v.ird, v.ord)
		}
	}
	if mpa.ErrInsufficientIRD.Code != iwarp.MPAInsufficientIRD {
		t.Error("ErrInsufficientIRD is not 2/0/0x06")
	}
}

// RFC 6581 section 9.2 at the responder.
//
//rfc:6581 MPA2-9.1-04 Responder may raise IRD to serve a Read RTR when ORD is 0
//rfc:6581 MPA2-9.2-03 Responder supports at least one RTR option
//rfc:6581 MPA2-9.2-04 Responder echoes A=1
//rfc:6581 MPA2-9.2-05 Responder sets flag for each common option
//rfc:6581 MPA2-9.2-06 Responder sets at least one RTR flag even when none match
//rfc:6581 MPA2-9.2-11 Responder answers A=0 to A=0
//rfc:6581 MPA2-9.2-13 A=0: B,C,D ignored on receive
func TestResponderRTR(t *testing.T) {
	for _, v := range []struct {
		name    string
		cfg     mpa.Config
		request mpa.Enhanced
		answer  mpa.Answer
		want    mpa.Enhanced
	}{
		{"client-server", mpa.Config{}, mpa.Enhanced{}, mpa.Answer{}, mpa.Enhanced{}},
		{"B, C and D without A are ignored", mpa.Config{}, mpa.Enhanced{B: true, C: true, D: true}, mpa.Answer{}, mpa.Enhanced{}},
		{"every kind in common is declared", mpa.Config{}, mpa.Enhanced{A: true, B: true, C: true, D: true}, mpa.Answer{IRD: 1}, mpa.Enhanced{IRD: 1, A: true, B: true, C: true, D: true}},
		{"Send alone", mpa.Config{}, mpa.Enhanced{A: true, B: true}, mpa.Answer{}, mpa.Enhanced{A: true, B: true}},
		{"Write alone", mpa.Config{}, mpa.Enhanced{A: true, C: true}, mpa.Answer{}, mpa.Enhanced{A: true, C: true}},
		{"Read alone raises IRD from 0 to 1", mpa.Config{MaxIRD: 8}, mpa.Enhanced{A: true, D: true}, mpa.Answer{}, mpa.Enhanced{IRD: 1, A: true, D: true}},
		{"Read that can't be served is not declared", mpa.Config{}, mpa.Enhanced{A: true, C: true, D: true}, mpa.Answer{}, mpa.Enhanced{A: true, C: true}},
		{"Read that can't be served alone: others are proposed", mpa.Config{}, mpa.Enhanced{A: true, D: true}, mpa.Answer{}, mpa.Enhanced{A: true, B: true, C: true}},
		{"IRD that is the ULP's is not raised for a Read", mpa.Config{MaxIRD: 8}, mpa.Enhanced{ORD: 0x3fff, A: true, C: true, D: true}, mpa.Answer{}, mpa.Enhanced{IRD: 0x3fff, A: true, C: true}},
		{"only Read here", mpa.Config{RTR: mpa.RTRRead}, mpa.Enhanced{A: true, D: true}, mpa.Answer{}, mpa.Enhanced{IRD: 1, A: true, D: true}},
		{"none in common: own kinds are proposed", mpa.Config{RTR: mpa.RTRWrite}, mpa.Enhanced{A: true, B: true}, mpa.Answer{}, mpa.Enhanced{A: true, C: true}},
		{"peer-to-peer without any kind", mpa.Config{RTR: mpa.RTRWrite | mpa.RTRSend}, mpa.Enhanced{A: true}, mpa.Answer{}, mpa.Enhanced{A: true, B: true, C: true}},
	} {
		q := judgeRequest(t, newResponder(t, v.cfg), request(v.request))
		wire, p := accept(t, q, v.answer)
		if got := enhanced(t, wire); got != v.want {
			t.Errorf("%s: Reply %+v, want %+v", v.name, got, v.want)
		}
		if p.PeerToPeer != v.want.A || p.RTR != v.want.RTR() || !p.WaitFirstFPDU {
			t.Errorf("%s: Params %+v", v.name, p)
		}
	}
}

// RFC 6581 section 9.2 at the initiator.
//
//rfc:6581 MPA2-9.2-07 Responder may add unrequested options
//rfc:6581 MPA2-9.2-08 Initiator emits one negotiated RTR after an accept with A=1
//rfc:6581 MPA2-9.2-09 No common RTR: TERM 2/0/7 and terminate
func TestInitiatorRTR(t *testing.T) {
	for _, v := range []struct {
		name  string
		rtr   mpa.RTR
		reply mpa.Enhanced
		want  mpa.RTR
		err   *iwarp.Error
	}{
		{"Write is preferred", 0, mpa.Enhanced{IRD: 1, A: true, B: true, C: true, D: true}, mpa.RTRWrite, nil},
		{"then Read", 0, mpa.Enhanced{IRD: 1, A: true, B: true, D: true}, mpa.RTRRead, nil},
		{"Read with an unknown IRD", 0, mpa.Enhanced{IRD: 0x3fff, A: true, D: true}, mpa.RTRRead, nil},
		{"not Read without IRD", 0, mpa.Enhanced{A: true, B: true, D: true}, mpa.RTRSend, nil},
		{"then Send", 0, mpa.Enhanced{IRD: 1, A: true, B: true}, mpa.RTRSend, nil},
		{"kinds that were not asked for are ignored", mpa.RTRRead, mpa.Enhanced{IRD: 1, A: true, B: true, C: true, D: true}, mpa.RTRRead, nil},
		{"none in common", mpa.RTRWrite | mpa.RTRRead, mpa.Enhanced{IRD: 1, A: true, B: true}, 0, mpa.ErrNoRTR},
		{"none at all", 0, mpa.Enhanced{IRD: 1, A: true}, 0, mpa.ErrNoRTR},
		{"Read alone without IRD", 0, mpa.Enhanced{A: true, D: true}, 0, mpa.ErrNoRTR},
		{"client-server", 0, mpa.Enhanced{IRD: 1, B: true, C: true, D: true}, 0, mpa.ErrConnectionModel},
	} {
		i := newInitiator(t, mpa.Config{RTR: v.rtr}, mpa.Offer{PeerToPeer: true})
		p, err := i.Judge(reply(v.reply))
		if v.err != nil {
			wantError(t, err, v.err)
		} else if err != nil || !p.PeerToPeer || p.RTR != v.want || p.WaitFirstFPDU {
			t.Errorf("%s: %+v, error %v", v.name, p, err)
		}
	}
	_, err := newInitiator(t, mpa.Config{}, mpa.Offer{}).Judge(reply(mpa.Enhanced{A: true, C: true}))
	wantError(t, err, mpa.ErrConnectionModel)
	p, err := newInitiator(t, mpa.Config{}, mpa.Offer{}).Judge(reply(mpa.Enhanced{B: true, C: true, D: true}))
	if err != nil || p.PeerToPeer || p.RTR != 0 {
		t.Errorf("B, C and D without A: %+v, %v", p, err)
	}
	if mpa.ErrNoRTR.Code != iwarp.MPANoMatchingRTR || mpa.ErrConnectionModel.Code != iwarp.MPANoMatchingRTR {
		t.Error("ErrNoRTR and ErrConnectionModel are not 2/0/0x07")
	}
}

// Whatever both sides want, they agree after an accepted start-up.
func TestNegotiateAgrees(t *testing.T) {
	config := func(rt *rapid.T, side string) mpa.Config {
		return mpa.Config{
			CRC:     rapid.SampledFrom([]mpa.CRCPolicy{mpa.CRCPreferred, mpa.CRCOff}).Draw(rt, side+" CRC"),
			Markers: rapid.Bool().Draw(rt, side+" Markers"),
			RTR:     mpa.RTR(rapid.Uint8Range(0, 7).Draw(rt, side+" RTR")),
			MaxIRD:  rapid.SampledFrom([]int{0, 1, 128, 0x3ffe}).Draw(rt, side+" MaxIRD"),
		}
	}
	depth := rapid.SampledFrom([]int{0, 1, 2, 16, 128, 0x3ffe})
	rapid.Check(t, func(rt *rapid.T) {
		ci, cr := config(rt, "initiator"), config(rt, "responder")
		ci.Revision = rapid.Uint8Range(1, 2).Draw(rt, "revision")
		offer := mpa.Offer{
			IRD: depth.Draw(rt, "offered IRD"), ORD: depth.Draw(rt, "offered ORD"),
			ManualIRD: rapid.Bool().Draw(rt, "manual IRD"), ManualORD: rapid.Bool().Draw(rt, "manual ORD"),
			PeerToPeer:  ci.Revision == 2 && rapid.Bool().Draw(rt, "peer-to-peer"),
			PrivateData: rapid.SliceOfN(rapid.Byte(), 0, 508).Draw(rt, "Request's private data"),
		}
		answer := mpa.Answer{
			IRD: depth.Draw(rt, "answered IRD"), ORD: depth.Draw(rt, "answered ORD"),
			PrivateData: rapid.SliceOfN(rapid.Byte(), 0, 508).Draw(rt, "Reply's private data"),
		}
		i, r := newInitiator(t, ci, offer), newResponder(t, cr)
		q, _, err := r.Receive(i.AppendRequest(nil))
		if err != nil || !bytes.Equal(q.PrivateData, offer.PrivateData) {
			rt.Fatalf("Request: %+v, %v", q, err)
		}
		wire, pr := accept(t, q, answer)
		pi, _, err := i.Receive(wire)
		if offer.PeerToPeer && errors.Is(err, mpa.ErrNoRTR) {
			return // nothing in common, or the responder has no IRD for a Read
		}
		if err != nil {
			rt.Fatalf("Reply: %v", err)
		}
		if pi.CRC != pr.CRC || pi.MarkersTx != pr.MarkersRx || pi.MarkersRx != pr.MarkersTx || pi.Enhanced != pr.Enhanced || pi.PeerToPeer != pr.PeerToPeer {
			rt.Fatalf("initiator %+v\nresponder %+v", pi, pr)
		}
		if pi.RTR&^pr.RTR != 0 || pi.PeerToPeer != (pi.RTR != 0) || pi.RTR&(pi.RTR-1) != 0 {
			rt.Fatalf("RTR %v of %v", pi.RTR, pr.RTR)
		}
		if pi.Enhanced && !offer.ManualORD && pi.ORD > pr.IRD || pi.Enhanced && !offer.ManualIRD && pr.ORD > pi.IRD {
			rt.Fatalf("more Reads than the other side takes:\ninitiator %+v\nresponder %+v", pi, pr)
		}
		if !bytes.Equal(pi.PeerPrivateData, answer.PrivateData) {
			rt.Fatal("Reply's private data differs")
		}
	})
}

func TestCRCPolicyString(t *testing.T) {
	for p, want := range map[mpa.CRCPolicy]string{
		mpa.CRCPreferred: "preferred", mpa.CRCRequired: "required", mpa.CRCOff: "off", 9: "CRC policy 9",
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

//rfc:5044 MPA-7.1.2-8-02 Responder times out waiting for Request
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func TestNegotiateDeadline(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	cfg := mpa.Config{Deadline: now.Add(mpa.StartupTimeout)}
	i, r := newInitiator(t, cfg, mpa.Offer{}), newResponder(t, cfg)
	for _, v := range []struct {
		after time.Duration
		want  bool
	}{{-time.Hour, false}, {0, false}, {mpa.StartupTimeout - 1, false}, {mpa.StartupTimeout, true}, {time.Hour, true}} {
		if at := now.Add(v.after); i.Expired(at) != v.want || r.Expired(at) != v.want {
			t.Errorf("after %v: initiator %v, responder %v, want %v", v.after, i.Expired(at), r.Expired(at), v.want)
		}
	}
	i, r = newInitiator(t, mpa.Config{}, mpa.Offer{}), newResponder(t, mpa.Config{})
	if i.Expired(now) || r.Expired(now) {
		t.Error("expired without a deadline")
	}
}
