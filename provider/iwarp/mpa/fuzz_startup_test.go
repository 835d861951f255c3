package mpa_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// fuzzedConfig derives from a number a configuration, and what an initiator offers or a responder
// answers with it.
func fuzzedConfig(n uint64) (c mpa.Config, offer mpa.Offer) {
	next := func(values uint64) int {
		v := n % values
		n /= values
		return int(v)
	}
	c = mpa.Config{
		Revision: uint8(1 + next(2)), RDMAC: mpa.RDMACPolicy(next(3)), CRC: mpa.CRCPolicy(next(3)), Markers: next(2) == 1,
		RTR: mpa.RTR(next(8)), MaxIRD: next(20),
	}
	offer = mpa.Offer{
		IRD: next(20), ORD: next(20), ManualIRD: next(3) == 0, ManualORD: next(3) == 0,
		PeerToPeer: next(2) == 1,
	}
	offer.PrivateData = octets(next(9))
	return c, offer
}

// FuzzStartup gives both roles, in every configuration, arbitrary octets in pieces. Their results
// must not depend on the pieces. They must accept only what the RFCs permit, and a peer must
// interpret their answers as they do.
func FuzzStartup(f *testing.F) {
	for _, v := range startupVectors {
		f.Add(testkit.Unhex(f, v.hex), uint64(1), uint64(0))
	}
	for i, name := range []string{"siw-rping-initiator.bin", "siw-rping-responder.bin"} {
		f.Add(testdata(f, name)[:24], uint64(i), uint64(3*i))
	}
	f.Add(testkit.Unhex(f, sendBWRequest), uint64(2), uint64(6))
	for n := range uint64(40) {
		f.Add([]byte(nil), n*0x9e3779b97f4a7c15, n*0xc2b2ae3d27d4eb4f)
	}
	f.Fuzz(func(t *testing.T, b []byte, here, there uint64) {
		before := bytes.Clone(b)
		cfg, offer := fuzzedConfig(here)
		if r, err := mpa.NewResponder(cfg); err == nil {
			fuzzResponderOf(t, r, cfg, offer, b)
		} else if !errors.Is(err, mpa.ErrConfig) {
			t.Fatal(err)
		}
		if i, err := mpa.NewInitiator(cfg, offer); err == nil {
			fuzzInitiatorOf(t, i, cfg, offer, b)
			fuzzExchange(t, i, cfg, offer, there, b)
		} else if !errors.Is(err, mpa.ErrConfig) {
			t.Fatal(err)
		}
		if !bytes.Equal(b, before) {
			t.Fatal("input was changed")
		}
	})
}

// startupFrame is a start-up frame (RFC 5044 figure 12), parsed by takeFrame instead of package
// mpa.
type startupFrame struct {
	known, whole bool // the key is right; the frame is complete
	n            int
	m, c, r, s   bool
	rev          byte
	private      []byte
	ird, ord     int // of enhanced data, -1 if there is none
	a, b, cc, d  bool
}

func takeFrame(b []byte, key string) (f startupFrame) {
	if len(b) < 20 || string(b[:16]) != key || binary.BigEndian.Uint16(b[18:]) > 512 {
		return f
	}
	f.known, f.n = true, 20+int(binary.BigEndian.Uint16(b[18:]))
	if len(b) < f.n {
		return f
	}
	f.whole = true
	f.m, f.c, f.r, f.s, f.rev = b[16]&0x80 != 0, b[16]&0x40 != 0, b[16]&0x20 != 0, b[16]&0x10 != 0, b[17]
	f.private, f.ird, f.ord = b[20:f.n], -1, -1
	if f.s && f.rev >= 2 && len(f.private) >= 4 {
		ird, ord := binary.BigEndian.Uint16(f.private), binary.BigEndian.Uint16(f.private[2:])
		f.ird, f.ord = int(ird&0x3fff), int(ord&0x3fff)
		f.a, f.b, f.cc, f.d = ird>>15 == 1, ird>>14&1 == 1, ord>>15 == 1, ord>>14&1 == 1
		f.private = f.private[4:]
	}
	return f
}

// inPieces calls receive with growing prefixes of b, and returns the number of octets after which
// it decided.
func inPieces(t *testing.T, b []byte, receive func([]byte) (int, error)) int {
	t.Helper()
	need := 1
	for have := 0; ; have++ {
		n, err := receive(b[:have:have])
		if !errors.Is(err, mpa.ErrShort) {
			if have < need && err == nil {
				t.Fatalf("%d octets were enough, but Receive had asked for %d", have, need)
			}
			return have
		}
		if n <= have || n > mpa.MaxFrameLen {
			t.Fatalf("given %d octets, Receive asks for %d", have, n)
		}
		need = n
		if have == len(b) {
			return have
		}
	}
}

// startupError checks that err is a permitted end of a start-up.
func startupError(t *testing.T, err error) {
	t.Helper()
	var e *iwarp.Error
	if errors.Is(err, mpa.ErrShort) {
		return
	}
	if !errors.As(err, &e) || e.Layer != iwarp.LayerLLP || e.EType != iwarp.MPAErrors || e.Code < 4 {
		t.Fatalf("start-up ends with %v", err)
	}
}

func fuzzResponderOf(t *testing.T, r mpa.Responder, cfg mpa.Config, want mpa.Offer, b []byte) {
	at := inPieces(t, b, func(b []byte) (int, error) { _, n, err := r.Receive(b); return n, err })
	q, n, err := r.Receive(b)
	got, _, errPieces := r.Receive(b[:at])
	f := takeFrame(b, "MPA ID Req Frame")
	if err != nil {
		trailing := err == error(mpa.ErrTrailing)
		if !trailing && errPieces != err || trailing && (!f.whole || len(b) <= f.n) {
			t.Fatalf("whole %v, in pieces %v", err, errPieces)
		}
		startupError(t, err)
		refusal := r.AppendRefusal(nil, err)
		if a := takeFrame(refusal, "MPA ID Rep Frame"); len(refusal) > 0 && (!a.whole || !a.r) {
			t.Fatalf("the refusal % x does not refuse", refusal)
		}
		return
	}
	if diff := cmp.Diff(q.PrivateData, got.PrivateData); errPieces != nil || diff != "" {
		t.Fatalf("in pieces: %v, %s", errPieces, diff)
	}
	revision := cfg.Revision
	if cfg.RDMAC == mpa.RDMACOnly {
		revision = 2
	}
	if !f.whole || n != f.n || n != len(b) || f.rev > revision || f.s && f.rev >= 2 && f.ird < 0 ||
		f.rev == 0 && (cfg.RDMAC == mpa.RDMACRefused || !f.m) {
		t.Fatalf("a Request was accepted that must be refused: %+v", f)
	}
	ird, ord := f.ird, f.ord
	if ird < 0 {
		ird, ord = mpa.NotNegotiated, mpa.NotNegotiated
	}
	if q.Revision != f.rev || q.Markers != f.m || q.CRC != f.c || q.Enhanced != (f.ird >= 0) ||
		q.IRD != ird || q.ORD != ord || q.PeerToPeer != f.a ||
		!bytes.Equal(q.PrivateData, f.private) ||
		(q.RTR != 0) != (f.a && (f.b || f.cc || f.d)) {
		t.Fatalf("%+v of % x", q, b)
	}
	answer := mpa.Answer{IRD: want.IRD, ORD: want.ORD, PrivateData: want.PrivateData}
	wire, p, err := q.AppendAccept([]byte("before"), answer)
	if err != nil {
		t.Fatal(err)
	}
	a := takeFrame(bytes.TrimPrefix(wire, []byte("before")), "MPA ID Rep Frame")
	checkReply(t, a, f, p, answer)
	if wire, err = q.AppendReject(nil, answer); err != nil {
		t.Fatal(err)
	}
	x := takeFrame(wire, "MPA ID Rep Frame")
	if !x.whole || !x.r || x.n != len(wire) || (x.ird >= 0) != (f.ird >= 0) ||
		!bytes.Equal(x.private, want.PrivateData) {
		t.Fatalf("a reject % x", wire)
	}
}

// checkReply compares an accepting Reply with the Request and with the parameters that its
// sender derives from both (RFC 5044 section 7.1.2, RFC 6581 sections 9.1 and 9.2).
func checkReply(t *testing.T, a, q startupFrame, p mpa.Params, answer mpa.Answer) {
	t.Helper()
	rev := q.rev
	if p.RDMAC {
		rev = 0
	}
	if !a.whole || a.r || a.rev != rev || a.s != (q.ird >= 0) || (a.ird >= 0) != (q.ird >= 0) ||
		!bytes.Equal(a.private, answer.PrivateData) {
		t.Fatalf("Reply %+v to %+v", a, q)
	}
	if p.CRC != (a.c || q.c || p.RDMAC) || p.MarkersTx != (q.m || p.RDMAC) ||
		p.MarkersRx != (a.m || p.RDMAC) ||
		!p.WaitFirstFPDU || p.PeerToPeer != q.a {
		t.Fatalf("Reply %+v to %+v is taken for %+v", a, q, p)
	}
	if q.ird < 0 {
		if p.IRD != answer.IRD || p.ORD != answer.ORD {
			t.Fatalf("nothing is negotiated, but %+v", p)
		}
		return
	}
	if q.ird != mpa.NotNegotiated && (a.ord > q.ird || p.ORD > q.ird) || p.IRD < answer.IRD || p.ORD > answer.ORD {
		t.Fatalf("Reply %+v to %+v with %+v: %+v", a, q, answer, p)
	}
	if q.ord == mpa.NotNegotiated && a.ird != mpa.NotNegotiated ||
		q.ird == mpa.NotNegotiated && a.ord != mpa.NotNegotiated {
		t.Fatalf("Reply %+v to %+v, which leaves a depth out", a, q)
	}
	if a.a != q.a || a.a && !(a.b || a.cc || a.d) {
		t.Fatalf("Reply %+v to %+v: the models differ, or no RTR indication is possible", a, q)
	}
}

func fuzzInitiatorOf(t *testing.T, i mpa.Initiator, cfg mpa.Config, offer mpa.Offer, b []byte) {
	at := inPieces(t, b, func(b []byte) (int, error) { _, n, err := i.Receive(b); return n, err })
	p, n, err := i.Receive(b)
	inPart, _, errPieces := i.Receive(b[:at])
	f := takeFrame(b, "MPA ID Rep Frame")
	var rejected *mpa.RejectedError
	switch {
	case errors.As(err, &rejected):
		if !f.whole || !f.r || n != f.n || !bytes.Equal(rejected.PrivateData, f.private) ||
			rejected.Enhanced != (f.ird >= 0) {
			t.Fatalf("%+v of %+v", rejected, f)
		}
		if !errors.As(errPieces, new(*mpa.RejectedError)) {
			t.Fatalf("whole %v, in pieces %v", err, errPieces)
		}
	case err != nil:
		if errPieces != err || err == error(mpa.ErrTrailing) {
			t.Fatalf("whole %v, in pieces %v", err, errPieces)
		}
		startupError(t, err)
	default:
		if diff := cmp.Diff(p, inPart); errPieces != nil || n != at || diff != "" {
			t.Fatalf("in pieces: %d octets, not %d, %v, %s", at, n, errPieces, diff)
		}
		if !f.whole || f.r || n != f.n || f.rev > 2 ||
			p.CRC != (f.c || cfg.CRC != mpa.CRCOff || p.RDMAC) ||
			cfg.CRC == mpa.CRCRequired && !f.c && !p.RDMAC ||
			p.MarkersTx != (f.m || p.RDMAC) || p.MarkersRx != (cfg.Markers || p.RDMAC) ||
			p.WaitFirstFPDU || p.PeerToPeer != offer.PeerToPeer || p.Enhanced != (f.ird >= 0) ||
			p.ORD > offer.ORD || p.IRD < offer.IRD || p.IRD > max(offer.IRD, cfg.MaxIRD) {
			t.Fatalf("%+v of %+v", p, f)
		}
		if p.Enhanced && (f.ird != mpa.NotNegotiated && p.ORD > f.ird || f.ord != mpa.NotNegotiated && p.IRD < f.ord) {
			t.Fatalf("%+v of %+v", p, f)
		}
	}
	fuzzFallback(t, i, offer, err)
}

// fuzzFallback checks the second attempt that an error permits (RFC 6581 section 10): it is a plain
// Request of revision 1, and there is no third attempt.
func fuzzFallback(t *testing.T, i mpa.Initiator, offer mpa.Offer, cause error) {
	first := takeFrame(i.AppendRequest(nil), "MPA ID Req Frame")
	again, ok := i.Fallback(cause, time.Time{})
	if !ok {
		return
	}
	f := takeFrame(again.AppendRequest(nil), "MPA ID Req Frame")
	if first.ird < 0 || offer.PeerToPeer || cause == nil || !f.whole || f.rev != 1 || f.s ||
		!bytes.Equal(f.private, offer.PrivateData) {
		t.Fatalf("after %v and %+v: %+v", cause, first, f)
	}
	if _, ok := again.Fallback(cause, time.Time{}); ok {
		t.Fatalf("a third attempt after %v", cause)
	}
}

// fuzzExchange connects the initiator to a responder with another configuration, and changes octets
// of the Request and of the Reply according to the input.
func fuzzExchange(t *testing.T, i mpa.Initiator, cfg mpa.Config, offer mpa.Offer, there uint64, changes []byte) {
	otherCfg, want := fuzzedConfig(there)
	r, err := mpa.NewResponder(otherCfg)
	if err != nil {
		return
	}
	change := func(wire []byte) bool {
		if len(changes) < 2 || len(changes) > 6 {
			return false
		}
		wire[16+int(changes[0])%(len(wire)-16)] ^= changes[1]
		changes = changes[2:]
		return true
	}
	wire := i.AppendRequest(nil)
	changed := change(wire)
	q, _, err := r.Receive(wire)
	if err != nil {
		startupError(t, err)
		return
	}
	wire, atR, err := q.AppendAccept(nil, mpa.Answer{IRD: want.IRD, ORD: want.ORD, PrivateData: want.PrivateData})
	if err != nil {
		t.Fatal(err)
	}
	changed = change(wire) || changed
	atI, _, err := i.Receive(wire)
	if err != nil {
		if !errors.As(err, new(*mpa.RejectedError)) {
			startupError(t, err)
		}
		return
	}
	if changed {
		return // the two may disagree, but each result is permitted for its role
	}
	if atI.CRC != atR.CRC || atI.MarkersTx != atR.MarkersRx || atI.MarkersRx != atR.MarkersTx || atI.RDMAC != atR.RDMAC ||
		atI.Enhanced != atR.Enhanced || atI.PeerToPeer != atR.PeerToPeer || atI.PeerToPeer && atI.RTR&atR.RTR == 0 ||
		!bytes.Equal(atI.PeerPrivateData, want.PrivateData) || !bytes.Equal(atR.PeerPrivateData, offer.PrivateData) {
		t.Fatalf("the initiator has %+v, the responder %+v", atI, atR)
	}
	if atI.Enhanced && !offer.ManualIRD && !offer.ManualORD && (atI.ORD > atR.IRD || atR.ORD > atI.IRD) {
		t.Fatalf("more Reads than the other end serves: the initiator has %+v, the responder %+v", atI, atR)
	}
}
