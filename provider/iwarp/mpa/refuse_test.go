package mpa_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Requests with exactly one fault, or one peculiarity that is tolerated (no error).
//
//rfc:5044 MPA-7.1.1-11 R=0 in a Request, not checked; R=1 in a Reply rejects
//rfc:5044 MPA-7.1.1-13 Res bits not checked on receive
//rfc:5044 MPA-7.1.1-15 Receiver checks Rev
//rfc:5044 MPA-7.1.1-16 Unsupported Rev: close and report locally
//rfc:5044 MPA-8-4-01 Detect invalid Req/Rep (code 4), close immediately
//rfc:6581 MPA2-6-04 Responder keeps accepting Rev 1 requests
//rfc:6581 MPA2-6-08 S=1 with PD_Length <4 is malformed
//rfc:6581 MPA2-6-09 S=1 with Rev 1: S is a reserved bit and not checked
//rfc:6581 MPA2-10-04 Unenhanced responder closes on an enhanced request
func TestResponderJudges(t *testing.T) {
	for _, v := range []struct {
		name   string
		cfg    mpa.Config
		change func(*mpa.Frame)
		want   *iwarp.Error
	}{
		{"nothing wrong", mpa.Config{}, func(f *mpa.Frame) {}, nil},
		{"a Reply", mpa.Config{}, func(f *mpa.Frame) { f.Kind = mpa.KindReply }, mpa.ErrTwoResponder},
		{"revision 0", mpa.Config{}, func(f *mpa.Frame) { f.Revision = 0 }, mpa.ErrRDMACRefused},
		{"revision 1", mpa.Config{}, func(f *mpa.Frame) { f.Revision = 1 }, nil},
		{"revision 3", mpa.Config{}, func(f *mpa.Frame) { f.Revision = 3 }, mpa.ErrRevision},
		{"revision 255", mpa.Config{}, func(f *mpa.Frame) { f.Revision = 255 }, mpa.ErrRevision},
		{"revision 2 for a responder of revision 1", mpa.Config{Revision: 1}, func(f *mpa.Frame) {}, mpa.ErrRevision},
		{"revision 1 for a responder of revision 1", mpa.Config{Revision: 1}, func(f *mpa.Frame) { f.Revision = 1 }, nil},
		{"S with three octets", mpa.Config{}, func(f *mpa.Frame) { f.PrivateData = f.PrivateData[:3] }, mpa.ErrEnhanced},
		{"S with none", mpa.Config{}, func(f *mpa.Frame) { f.PrivateData = nil }, mpa.ErrEnhanced},
		{"S with three octets in revision 1", mpa.Config{}, func(f *mpa.Frame) { f.Revision, f.PrivateData = 1, f.PrivateData[:3] }, nil},
		{"no S", mpa.Config{}, func(f *mpa.Frame) { f.Enhanced = false }, nil},
		{"R", mpa.Config{}, func(f *mpa.Frame) { f.Reject = true }, nil},
		{"reserved bit 1", mpa.Config{}, func(f *mpa.Frame) { f.Reserved = 1 }, nil},
		{"reserved bit 2", mpa.Config{}, func(f *mpa.Frame) { f.Reserved = 2 }, nil},
		{"reserved bit 4", mpa.Config{}, func(f *mpa.Frame) { f.Reserved = 4 }, nil},
		{"reserved bit 8, siw's GSO experiment", mpa.Config{}, func(f *mpa.Frame) { f.Reserved = 8 }, nil},
		{"M", mpa.Config{}, func(f *mpa.Frame) { f.Markers = true }, nil},
		{"no C", mpa.Config{}, func(f *mpa.Frame) { f.CRC = false }, nil},
	} {
		t.Run(v.name, func(t *testing.T) {
			f := request(mpa.Enhanced{IRD: 1, ORD: 1})
			v.change(&f)
			q, err := newResponder(t, v.cfg).Judge(f)
			if v.want != nil {
				wantError(t, err, v.want)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if q.Revision != f.Revision || q.Enhanced != (f.Enhanced && f.Revision == 2) || q.Markers != f.Markers || q.CRC != f.CRC {
				t.Errorf("the ULP sees %+v", q)
			}
		})
	}
}

// Replies with exactly one fault or peculiarity.
//
//rfc:5044 MPA-7.1.1-13 Res bits not checked on receive
//rfc:5044 MPA-7.1.1-15 Receiver checks Rev
//rfc:5044 MPA-7.1.1-16 Unsupported Rev: close and report locally
//rfc:5044 MPA-7.1.2-3-01 Initiator validates the Reply
//rfc:5044 MPA-8-4-01 Detect invalid Req/Rep (code 4), close immediately
//rfc:6581 MPA2-10-06 Reply lacking S/Rev2 to enhanced request is a failure
func TestInitiatorJudges(t *testing.T) {
	for _, v := range []struct {
		name     string
		revision uint8 // of the initiator
		change   func(*mpa.Frame)
		want     *iwarp.Error
	}{
		{"nothing wrong", 2, func(f *mpa.Frame) {}, nil},
		{"a Request", 2, func(f *mpa.Frame) { f.Kind = mpa.KindRequest }, mpa.ErrTwoInitiator},
		{"revision 0", 2, func(f *mpa.Frame) { f.Revision = 0 }, mpa.ErrRDMACRefused},
		{"revision 3", 2, func(f *mpa.Frame) { f.Revision = 3 }, mpa.ErrRevision},
		{"revision 3 with R", 2, func(f *mpa.Frame) { f.Revision, f.Reject = 3, true }, mpa.ErrRevision},
		{"revision 1 to an enhanced Request", 2, func(f *mpa.Frame) { f.Revision = 1 }, mpa.ErrUnenhancedReply},
		{"no S to an enhanced Request", 2, func(f *mpa.Frame) { f.Enhanced = false }, mpa.ErrUnenhancedReply},
		{"S with three octets", 2, func(f *mpa.Frame) { f.PrivateData = f.PrivateData[:3] }, mpa.ErrEnhanced},
		{"reserved bits", 2, func(f *mpa.Frame) { f.Reserved = 15 }, nil},
		{"enhanced to an unenhanced Request", 1, func(f *mpa.Frame) {}, mpa.ErrEnhancedReply},
		{"revision 1 with S to revision 1", 1, func(f *mpa.Frame) { f.Revision = 1 }, nil},
		{"revision 2 without S to revision 1", 1, func(f *mpa.Frame) { f.Enhanced = false }, nil},
	} {
		t.Run(v.name, func(t *testing.T) {
			f := reply(mpa.Enhanced{IRD: 1, ORD: 1})
			v.change(&f)
			p, err := newInitiator(t, mpa.Config{Revision: v.revision}, mpa.Offer{IRD: 1, ORD: 1}).Judge(f)
			if v.want != nil {
				wantError(t, err, v.want)
				if diff := cmp.Diff(mpa.Params{}, p); diff != "" {
					t.Errorf("Params beside an error: %s", diff)
				}
			} else if err != nil || p.Revision != f.Revision {
				t.Errorf("%+v, %v", p, err)
			}
		})
	}
}

// The error of a reject contains the private data of the responder's ULP.
//
//rfc:5044 MPA-7.1.1-11 R=0 in a Request, not checked; R=1 in a Reply rejects
//rfc:5044 MPA-7.1.2-2-03 Unacceptable private data: Reply with R=1
//rfc:5044 MPA-7.1.2-3-03 R=1: exit MPA, TCP left open
//rfc:5044 MPA-7.1.2-6-01 Responder answers R=1 when ULP refuses private data
//rfc:6581 MPA2-9.1-05 Responder may reject with the ORD it needs, code 2/0/6
//rfc:6581 MPA2-9.1-09 Initiator passes responder IRD/ORD to ULP, also on reject
func TestReject(t *testing.T) {
	pd := []byte("not today")
	for _, v := range []struct {
		name     string
		revision uint8
		offer    mpa.Offer
		rtr      mpa.RTR
		want     mpa.RejectedError
	}{
		{"revision 1", 1, mpa.Offer{}, 0, mpa.RejectedError{Revision: 1, IRD: notNegotiated, ORD: notNegotiated, PrivateData: pd}},
		{"enhanced", 2, mpa.Offer{}, 0, mpa.RejectedError{Revision: 2, Enhanced: true, IRD: 3, ORD: 16, PrivateData: pd}},
		{"peer-to-peer", 2, mpa.Offer{PeerToPeer: true}, mpa.RTRSend, mpa.RejectedError{Revision: 2, Enhanced: true, IRD: 3, ORD: 16, RTR: mpa.RTRSend, PrivateData: pd}},
	} {
		i := newInitiator(t, mpa.Config{Revision: v.revision}, v.offer)
		q, _, err := newResponder(t, mpa.Config{RTR: v.rtr}).Receive(i.AppendRequest(nil))
		if err != nil {
			t.Fatal(err)
		}
		wire, err := q.AppendReject(nil, mpa.Answer{IRD: 3, ORD: 16, PrivateData: pd})
		if err != nil {
			t.Fatal(err)
		}
		whole := len(wire)
		wire = append(wire, "the ULP's own talk"...)
		_, n, err := i.Receive(wire)
		var got *mpa.RejectedError
		if !errors.As(err, &got) || n != whole {
			t.Errorf("%s: n %d of %d, error %v", v.name, n, whole, err)
			continue
		}
		clear(wire) // the error outlives the buffer
		if diff := cmp.Diff(&v.want, got); diff != "" {
			t.Errorf("%s (-want +got)\n%s", v.name, diff)
		}
		if want := fmt.Sprintf("revision %d, %d octets", v.revision, len(pd)); !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q does not say %q", v.name, err, want)
		}
		if errors.Is(err, mpa.ErrKey) {
			t.Errorf("%s: a reject counts as a protocol error", v.name)
		}
	}
}

// A reject without the enhanced connection data, or of a responder of revision 1, is
// still a reject.
func TestRejectUnenhanced(t *testing.T) {
	for _, f := range []mpa.Frame{
		{Kind: mpa.KindReply, Reject: true, Revision: 1, PrivateData: []byte("no")},
		{Kind: mpa.KindReply, Reject: true, Revision: 2, PrivateData: []byte("no")},
		{Kind: mpa.KindReply, Reject: true, Revision: 1, Enhanced: true, PrivateData: []byte("no")},
	} {
		_, err := newInitiator(t, mpa.Config{}, mpa.Offer{}).Judge(f)
		var got *mpa.RejectedError
		if !errors.As(err, &got) || got.Enhanced || string(got.PrivateData) != "no" || got.ORD != notNegotiated {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// The initiator may not continue before the responder has answered. Octets after a Reply are not
// part of it: they are FPDUs after a good Reply, and the ULP's octets after a rejecting one.
//
//rfc:5044 MPA-7.1.1-19 PD_Length mismatch or >512: close and report
//rfc:5044 MPA-7.1.2-3-04 Good Reply: enter Full Operation
//rfc:5044 MPA-7.1.5-01 Enable MPA only when no streaming data is expected
func TestTrailingOctets(t *testing.T) {
	r := newResponder(t, mpa.Config{})
	_, _, err := r.Receive(append(request(mpa.Enhanced{}).AppendTo(nil), 0))
	wantError(t, err, mpa.ErrTrailing)
	i := newInitiator(t, mpa.Config{}, mpa.Offer{})
	good := reply(mpa.Enhanced{IRD: 1})
	good.PrivateData = append(good.PrivateData, "private"...)
	refusing := good
	refusing.Reject = true
	for _, f := range []mpa.Frame{good, refusing} {
		wire := f.AppendTo(nil)
		alone, n, errAlone := i.Receive(wire)
		if n != len(wire) || (errAlone != nil) != f.Reject {
			t.Fatalf("%+v: %d of %d octets, %v", f, n, len(wire), errAlone)
		}
		for _, after := range []string{"\x00", "\x00\x02", string(wire), strings.Repeat("x", 2000)} {
			p, n, err := i.Receive(append(wire[:len(wire):len(wire)], after...))
			if diff := cmp.Diff([]any{alone, errAlone}, []any{p, err}); n != len(wire) || diff != "" {
				t.Errorf("with %d octets after it the Reply ends at %d of %d: %s", len(after), n, len(wire), diff)
			}
		}
	}
}

// Every prefix of an exchange requests more octets at both ends; no prefix is accepted.
//
//rfc:5044 MPA-7.1.2-2-01 Responder waits for a validated Request
//rfc:5044 MPA-7.1.2-2-02 Malformed Request: close TCP, leave MPA
func TestNegotiatePrefixes(t *testing.T) {
	i, r := newInitiator(t, mpa.Config{}, mpa.Offer{PrivateData: []byte("abc")}), newResponder(t, mpa.Config{})
	wire := i.AppendRequest(nil)
	for cut := range wire {
		if _, need, err := r.Receive(wire[:cut]); err != mpa.ErrShort || need <= cut || need > len(wire) {
			t.Errorf("%d of %d octets of the Request: need %d, error %v", cut, len(wire), need, err)
		}
	}
	q, _, err := r.Receive(wire)
	if err != nil {
		t.Fatal(err)
	}
	wire, _ = accept(t, q, mpa.Answer{PrivateData: []byte("defgh")})
	for cut := range wire {
		if _, need, err := i.Receive(wire[:cut]); err != mpa.ErrShort || need <= cut || need > len(wire) {
			t.Errorf("%d of %d octets of the Reply: need %d, error %v", cut, len(wire), need, err)
		}
	}
	_, _, err = r.Receive(wire)
	wantError(t, err, mpa.ErrTwoResponder)
	_, _, err = i.Receive(i.AppendRequest(nil))
	wantError(t, err, mpa.ErrTwoInitiator)
}

// The room in a frame depends on the enhanced connection data and on the limit that was configured
// for peers with a smaller one.
//
//rfc:5044 MPA-7.1.1-18 Private data at most 512 octets
//rfc:6581 MPA2-6-07 ULP private data limited to 508 when enhanced
func TestPrivateDataLimits(t *testing.T) {
	for _, v := range []struct {
		revision uint8
		limit    int // Config.MaxPrivateData
		most     int
	}{{1, 0, 512}, {2, 0, 508}, {1, 512, 512}, {1, mpa.SIWMaxPrivateData, 256}, {2, mpa.SIWMaxPrivateData, 252}, {2, mpa.EnhancedLen, 0}} {
		cfg := mpa.Config{Revision: v.revision, MaxPrivateData: v.limit}
		i, err := mpa.NewInitiator(cfg, mpa.Offer{PrivateData: octets(v.most)})
		if err != nil {
			t.Errorf("revision %d, limit %d: Request with %d octets: %v", v.revision, v.limit, v.most, err)
		}
		if _, err := mpa.NewInitiator(cfg, mpa.Offer{PrivateData: octets(v.most + 1)}); !errors.Is(err, mpa.ErrPrivateDataTooLong) {
			t.Errorf("revision %d, limit %d: Request with %d octets: %v", v.revision, v.limit, v.most+1, err)
		}
		q, _, err := newResponder(t, cfg).Receive(i.AppendRequest(nil))
		if err != nil || !bytes.Equal(q.PrivateData, octets(v.most)) {
			t.Fatalf("revision %d, limit %d: Request: %v", v.revision, v.limit, err)
		}
		front := []byte{fill}
		for _, over := range []int{0, 1} {
			a := mpa.Answer{PrivateData: octets(v.most + over)}
			accepted, _, errA := q.AppendAccept(front, a)
			rejected, errR := q.AppendReject(front, a)
			if over == 0 {
				if errA != nil || errR != nil {
					t.Errorf("revision %d, limit %d: Reply with %d octets: %v, %v", v.revision, v.limit, v.most, errA, errR)
				}
				continue
			}
			if !errors.Is(errA, mpa.ErrPrivateDataTooLong) || !errors.Is(errR, mpa.ErrPrivateDataTooLong) {
				t.Errorf("revision %d, limit %d: Reply with %d octets: %v, %v", v.revision, v.limit, v.most+1, errA, errR)
			}
			if !bytes.Equal(accepted, front) || !bytes.Equal(rejected, front) {
				t.Error("something was appended beside an error")
			}
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for _, cfg := range []mpa.Config{
		{Revision: 3}, {CRC: 3}, {RTR: 8}, {MaxIRD: -1}, {MaxIRD: 0x3fff}, {MaxPrivateData: -1}, {MaxPrivateData: 3}, {MaxPrivateData: 513},
	} {
		if _, err := mpa.NewInitiator(cfg, mpa.Offer{}); !errors.Is(err, mpa.ErrConfig) {
			t.Errorf("NewInitiator of %+v: %v", cfg, err)
		}
		if _, err := mpa.NewResponder(cfg); !errors.Is(err, mpa.ErrConfig) {
			t.Errorf("NewResponder of %+v: %v", cfg, err)
		}
	}
	for _, offer := range []mpa.Offer{{IRD: -1}, {IRD: 0x3fff}, {ORD: -1}, {ORD: 0x3fff}} {
		if _, err := mpa.NewInitiator(mpa.Config{}, offer); !errors.Is(err, mpa.ErrConfig) {
			t.Errorf("NewInitiator with %+v: %v", offer, err)
		}
	}
	if _, err := mpa.NewInitiator(mpa.Config{Revision: 1}, mpa.Offer{PeerToPeer: true}); !errors.Is(err, mpa.ErrConfig) {
		t.Errorf("peer-to-peer in revision 1: %v", err)
	}
	q := judgeRequest(t, newResponder(t, mpa.Config{}), request(mpa.Enhanced{}))
	for _, a := range []mpa.Answer{{IRD: -1}, {IRD: 0x3fff}, {ORD: -1}, {ORD: 0x3fff}} {
		if _, _, err := q.AppendAccept(nil, a); !errors.Is(err, mpa.ErrConfig) {
			t.Errorf("AppendAccept of %+v: %v", a, err)
		}
		if _, err := q.AppendReject(nil, a); !errors.Is(err, mpa.ErrConfig) {
			t.Errorf("AppendReject of %+v: %v", a, err)
		}
	}
}

// A second attempt in revision 1, where RFC 6581 section 10 allows one.
//
//rfc:6581 MPA2-10-05 Initiator may retry unenhanced after close
func TestFallback(t *testing.T) {
	deadline := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	offer := mpa.Offer{IRD: 3, ORD: 4, PrivateData: []byte("abc")}
	first := newInitiator(t, mpa.Config{}, offer)
	for _, cause := range []error{mpa.ErrClosed, mpa.ErrUnenhancedReply, &mpa.RejectedError{Revision: 1}} {
		second, ok := first.Fallback(cause, deadline)
		if !ok {
			t.Fatalf("%v: no second attempt", cause)
		}
		if got, want := second.AppendRequest(nil), testkit.Unhex(t, requestKey+"40 01 0003 616263"); !bytes.Equal(got, want) {
			t.Errorf("second Request % x", got)
		}
		if second.Expired(deadline.Add(-1)) || !second.Expired(deadline) {
			t.Error("second attempt has another deadline")
		}
		p, err := second.Judge(mpa.Frame{Kind: mpa.KindReply, Revision: 1})
		if err != nil || p.Enhanced || p.IRD != 3 || p.ORD != 4 || p.Revision != 1 {
			t.Errorf("second attempt: %+v, %v", p, err)
		}
		if _, ok := second.Fallback(cause, deadline); ok {
			t.Error("a third attempt")
		}
	}
	for _, cause := range []error{nil, mpa.ErrKey, mpa.ErrPDLength, mpa.ErrNoRTR, &mpa.RejectedError{Enhanced: true}} {
		if _, ok := first.Fallback(cause, deadline); ok {
			t.Errorf("a second attempt after %v", cause)
		}
	}
	peer := newInitiator(t, mpa.Config{}, mpa.Offer{PeerToPeer: true})
	if _, ok := peer.Fallback(mpa.ErrClosed, deadline); ok {
		t.Error("a second attempt without the RTR indication that the ULP asked for")
	}
}

// The codes that RFC 5044 section 8 and RFC 6581 section 8 give these errors.
//
//rfc:5044 MPA-8-01 Codes reported to DDP/consumer
//rfc:6581 MPA2-8-01 Enhanced errors reported as Layer 2 / Type 0
//rfc:6581 MPA2-9.3-01 Other local enhanced-setup error: TERM 2/0/5 before reset
//rfc:6580 IANA-3.3-01 MPA error registry 2/0/1..4 plus 6581 5..7
func TestErrorCodes(t *testing.T) {
	for code, errs := range map[iwarp.Code][]*iwarp.Error{
		1: {mpa.ErrClosed},
		2: {mpa.ErrCRC},
		3: {mpa.ErrMarker, mpa.ErrULPDULength},
		4: {mpa.ErrKey, mpa.ErrTwoInitiator, mpa.ErrTwoResponder, mpa.ErrPDLength, mpa.ErrEnhanced, mpa.ErrRevision, mpa.ErrUnenhancedReply, mpa.ErrEnhancedReply, mpa.ErrTrailing,
			mpa.ErrRDMACRefused, mpa.ErrRDMACFrame, mpa.ErrRDMACReply, mpa.ErrNotRDMAC},
		5: {mpa.ErrLocal, mpa.ErrCRCRefused},
		6: {mpa.ErrInsufficientIRD},
		7: {mpa.ErrNoRTR, mpa.ErrConnectionModel},
	} {
		for _, e := range errs {
			if e.Layer != iwarp.LayerLLP || e.EType != iwarp.MPAErrors || e.Code != code || e.Reason == "" {
				t.Errorf("%v, want 2/0/0x%02x with a reason", e, code)
			}
		}
	}
}
