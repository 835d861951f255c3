package scenarios

import (
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// quick makes the engine end the connection of a silent peer after a second. siw has the
// time limits that it was built with.
var quick = []string{"startup=1s"}

const unwitnessedPieces = "tshark does not put start-up frames together that come in pieces"

// rawRequests are start-up frames to a provider that listens.
func rawRequests() []*conformance.Scenario {
	accepted := func(slug, title string, requirements []string,
		play func(*conformance.RawRun)) *conformance.Scenario {
		return needing(conformance.NeedsAccept, rawStory(slug, title, requirements, play))
	}
	var out []*conformance.Scenario
	for _, b := range badRequests() {
		out = append(out, b.scenario())
	}
	for _, n := range []int{0, 1, 252, 253, 508} {
		out = append(out, accepted(fmt.Sprintf("mpa/request-private-data-%d", n),
			fmt.Sprintf("a Request with %s of private data reaches the program as it was sent", octets(n)),
			[]string{"MPA-7.1.1-18", "MPA-7.1.1-20", "MPA2-6-06"},
			func(r *conformance.RawRun) { requestPrivate(r, n) }))
	}
	for _, depth := range []uint16{0, 1, 128, 129, mpa.NotNegotiated} {
		out = append(out, accepted(fmt.Sprintf("mpa/request-depth-%d", depth),
			fmt.Sprintf("a Request with IRD and ORD %d is answered with an ORD within that IRD", depth),
			[]string{"MPA2-9.1-02", "MPA2-9-01"}, func(r *conformance.RawRun) { requestDepth(r, depth) }))
	}
	pieces := rawStory("mpa/request-one-octet-at-a-time", "a Request that comes one octet at a time is accepted", []string{"MPA-7.1.2-2-01", "MPA-5.1-03"}, requestPieces)
	pieces.Unwitnessed, pieces.Needs = unwitnessedPieces, conformance.NeedsAccept
	markers := rawStory("mpa/request-markers", "a peer that asks for Markers gets them", []string{"MPA-4.3-01", "MPA-7.1.1-06", "MPA-4.3-08"}, requestMarkers)
	markers.Unwitnessed = "tshark looks for Markers in both directions when one side asks for them"
	return append(out, pieces, markers,
		accepted("mpa/request-revision-1",
			"a Request of revision 1 is answered in revision 1, without enhanced connection data",
			[]string{"MPA2-6-04", "MPA2-6-05", "MPA2-10-02"}, requestRevision1),
		accepted("mpa/request-revision-1-s",
			"in a Request of revision 1 the bit of S means nothing: all of its private data is the program's",
			[]string{"MPA2-6-09"}, requestRevision1S),
		accepted("mpa/request-unenhanced",
			"a Request of revision 2 without S is answered without enhanced connection data",
			[]string{"MPA2-6-10", "MPA2-10-02"}, requestUnenhanced),
		accepted("mpa/request-reserved-bits",
			"reserved bits of a Request are not looked at, and are zero in the Reply",
			[]string{"MPA-7.1.1-13", "MPA-7.1.1-12"}, requestReserved),
		accepted("mpa/request-reject-bit",
			"the R bit of a Request is not looked at, and not set in the Reply",
			[]string{"MPA-7.1.1-11"}, requestRejectBit),
		accepted("mpa/request-no-crc",
			"a Request that asks for no CRCs leaves it to the Reply",
			[]string{"MPA-4.4-02", "MPA-4.4-04", "MPA-7.1.1-09"}, requestNoCRC),
		dataBeforeReply(),
		rawStory("mpa/reject", "a program that rejects makes the Reply one with R, its private data, and enhanced connection data like the Request",
			[]string{"MPA-7.1.2-6-01", "MPA-7.1.2-2-03", "MPA2-10-01"}, rejectForm),
	)
}

// A badRequest is what a peer sends instead of a good Request. The provider has to close
// the connection without an answer, its program gets no event, and the next peer is
// served.
type badRequest struct {
	slug, title  string
	requirements []string
	level        conformance.Level
	octets       func() []byte

	// then is what the peer does after it has sent them: nothing, FIN, or RST.
	then func(*rawpeer.Peer) error

	// patience: the provider ends it by itself, but not at once.
	patience bool

	// mayReply: it may reject before it closes, in the revision that it supports.
	mayReply bool
}

// requestFrame returns a good Request after change has changed it.
func requestFrame(change func(*mpa.Frame)) func() []byte {
	return func() []byte {
		f := rawpeer.Request(true, 4, 4, nil)
		change(&f)
		return f.AppendTo(nil)
	}
}

// requestOctets returns a good Request after change has changed its octets.
func requestOctets(change func([]byte) []byte) func() []byte {
	return func() []byte { return change(rawpeer.Request(true, 4, 4, []byte("private")).AppendTo(nil)) }
}

func first(n int) func([]byte) []byte { return func(b []byte) []byte { return b[:n] } }

func badRequests() []badRequest {
	malformed := []string{"MPA-7.1.2-2-02", "MPA-8-4-01"}
	revision := []string{"MPA-7.1.1-15", "MPA-7.1.1-16"}
	list := []badRequest{
		{
			slug: "mpa/request-key-first", title: "a Request whose key is wrong in its first octet is refused",
			requirements: []string{"MPA-7.1.1-03", "MPA-7.1.2-5-01"},
			octets:       requestOctets(func(b []byte) []byte { b[0] ^= 0x20; return b }),
		},
		{
			slug: "mpa/request-key-last", title: "a Request whose key is wrong in its last octet is refused",
			requirements: []string{"MPA-7.1.1-03", "MPA-7.1.2-5-01"},
			octets:       requestOctets(func(b []byte) []byte { b[mpa.KeyLen-1] ^= 0x20; return b }),
		},
		{
			slug: "mpa/request-is-reply", title: "a Reply where a Request belongs is refused",
			requirements: []string{"MPA-7.1.1-03"},
			octets:       requestFrame(func(f *mpa.Frame) { f.Kind = mpa.KindReply }),
		},
		{
			slug: "mpa/request-private-data-513", title: "a Request whose PD_Length is 513 is refused",
			requirements: []string{"MPA-7.1.1-18", "MPA-7.1.2-9-01"},
			octets:       requestFrame(func(f *mpa.Frame) { f.PrivateData = append(f.PrivateData, pattern(509, 1)...) }),
		},
		{
			slug: "mpa/request-pd-length-65535", title: "a Request that announces 65535 octets of private data is refused before they come",
			requirements: []string{"MPA-7.1.1-19", "MPA-7.1.2-9-01"},
			octets:       requestFrame(func(f *mpa.Frame) { n := uint16(0xffff); f.PDLength = &n }),
		},
		{
			slug: "mpa/request-enhanced-too-short", title: "a Request with S and two octets of private data is refused",
			requirements: []string{"MPA2-6-08"},
			octets:       requestFrame(func(f *mpa.Frame) { f.PrivateData = f.PrivateData[:2] }),
		},
		{
			slug: "mpa/request-data-after",
			title: "an FPDU immediately after the Request, before the Reply, is refused " +
				"with it",
			requirements: []string{"MPA-7.1.1-19"},
			octets: requestOctets(func(b []byte) []byte {
				f := rawpeer.SendMessage(1, []byte("too early"))
				return append(b, f.Octets(true)...)
			}),
		},
		{
			slug: "mpa/request-http", title: "a client of another protocol is refused",
			requirements: malformed,
			octets:       func() []byte { return []byte("GET / HTTP/1.1\r\nHost: example.net\r\n\r\n") },
		},
		{
			slug: "mpa/request-cut-fin", title: "a Request that a FIN cuts short never reaches the program",
			requirements: malformed, octets: requestOctets(first(mpa.FrameHeaderLen + 3)), then: (*rawpeer.Peer).CloseWrite,
		},
		{
			slug: "mpa/request-cut-silence", title: "a peer that falls silent in the midst of its Request is given up",
			requirements: []string{"MPA-7.1.2-10-01", "MPA-7.1.2-8-02"}, level: conformance.Should,
			octets: requestOctets(first(mpa.FrameHeaderLen + 3)), patience: true,
		},
		{
			slug: "mpa/request-silence", title: "a peer that connects and says nothing is given up",
			requirements: []string{"MPA-7.1.2-10-01", "MPA-7.1.2-8-02"}, level: conformance.Should,
			octets: func() []byte { return nil }, patience: true,
		},
		{
			slug: "mpa/request-fin", title: "a peer that connects and closes never reaches the program",
			requirements: malformed, octets: func() []byte { return nil }, then: (*rawpeer.Peer).CloseWrite,
		},
		{
			slug: "mpa/request-reset", title: "a peer that connects and resets never reaches the program",
			requirements: malformed, octets: func() []byte { return nil }, then: (*rawpeer.Peer).Reset,
		},
	}
	for _, rev := range []uint8{0, 3, 255} {
		list = append(list, badRequest{
			slug:         fmt.Sprintf("mpa/request-revision-%d", rev),
			title:        fmt.Sprintf("a Request of revision %d is refused", rev),
			requirements: revision, octets: requestFrame(func(f *mpa.Frame) { f.Revision = rev }), mayReply: rev == 0,
		})
	}
	return list
}

func (b badRequest) scenario() *conformance.Scenario {
	s := needing(conformance.NeedsListener, rawStory(b.slug, b.title, b.requirements, b.play))
	if b.level != "" {
		s.Level = b.level
	}
	if b.patience {
		s.Options, s.Timeout = quick, 2*conformance.GivesUp
	}
	return s
}

func (b badRequest) play(r *conformance.RawRun) {
	r.Dial()
	if octets := b.octets(); len(octets) > 0 {
		r.Send(octets)
	}
	if b.then != nil {
		// siw loses its listener when a connection ends that it has not accepted yet
		// (kernel-notes/siw-listener-lost.md).
		if err := r.Peer.WaitAccepted(r.Scaled(conformance.Answers)); err != nil {
			r.Log("the provider has not accepted the connection: %v", err)
		}
		pause := 5 * time.Millisecond // so that the provider sees the octets first
		if !r.HasProgram() {
			pause = 50 * time.Millisecond // no way to see what another host has accepted
		}
		time.Sleep(r.Scaled(pause))
		r.NoError(b.then(r.Peer), "the peer can end the connection")
	}
	wait := conformance.Answers
	if b.patience {
		wait = conformance.GivesUp
	}
	if b.mayReply {
		mayRefuse(r, wait)
	}
	r.WantEnd("the provider closes the connection", wait)
	r.WantNoRequest("the program does not hear of it")
	nextIsServed(r)
}

// mayRefuse takes a Reply that names the revision that the provider understands, if one
// comes: RFC 5044 section 7.1.1 asks for the close only, and appendix C for both.
//
//rfc:5044 RDMAC-C.2.1-01 Non-permissive responder to Rev0: Reply Rev 1, then close
func mayRefuse(r *conformance.RawRun, wait time.Duration) {
	f, err := r.Peer.ReadFrame(mpa.KindReply, r.Scaled(wait))
	if err != nil {
		r.Observe("refusal", "none")
		return
	}
	r.Observe("refusal", "revision %d, R %v", f.Revision, f.Reject)
	if !f.Reject && !r.HasProgram() {
		return // the connection does not end, so the target's program has accepted
	}
	r.Check(f.Reject && f.Revision == 1, "a Reply to revision 0 rejects, in revision 1", "revision %d, R %v", f.Revision, f.Reject)
}

// nextIsServed checks that the listener still works, and that the program gets the next peer's
// request first. A request that should not have reached it may be late on a loaded machine.
//
// What the program of a target says to the next peer is its own affair, as long as it says
// something.
func nextIsServed(r *conformance.RawRun) {
	private := []byte("the next peer")
	r.Dial()
	r.Start(rawpeer.Request(true, 4, 4, private))
	if !r.HasProgram() {
		_, err := r.Peer.ReadFrame(mpa.KindReply, r.Scaled(2*time.Second))
		r.Check(err == nil, "the next peer gets a Reply", "%v", err)
		return
	}
	req := r.WantRequest("the request reaches the program")
	r.Check(startsWith(req.PrivateData(), private), "it is the request of the next peer",
		"private data %q", req.PrivateData())
	r.AcceptRequest(req, nil)
	r.WantReply("the next peer is served")
}

// greet connects with a Request of the script's, and returns the Reply. If private data is given,
// it checks that the program gets it.
func greet(r *conformance.RawRun, f mpa.Frame, private []byte) mpa.Frame {
	r.Dial()
	r.Start(f)
	if r.HasProgram() {
		req := r.WantRequest("the request reaches the program")
		if private != nil {
			r.Check(startsWith(req.PrivateData(), private), "with its private data", "%d octets: % x",
				len(req.PrivateData()), req.PrivateData())
		}
		r.AcceptRequest(req, nil)
		return r.WantReply("it is accepted")
	}
	return r.WantReply("the request reaches the program") // the Reply shows that the program accepts
}

// works shows that a connection works, with a Write that has no octets and the provider's
// Send after it. A target sends nothing by itself, so it only has to take the Write and
// close as if there were nothing wrong.
func works(r *conformance.RawRun, reply mpa.Frame) {
	r.Peer.CRC = r.Peer.CRC || reply.CRC
	r.SendFPDU(rawpeer.WriteMessage(0, 0, nil))
	if !r.HasProgram() {
		finish(r)
		return
	}
	b := r.Side.Buffer("the source", rawPart, local)
	r.Side.PostSend(send(9, b))
	r.WantFPDU("the connection works: a Send of the provider comes", rdmap.OpSend)
	finish(r)
}

func requestPrivate(r *conformance.RawRun, n int) {
	want := pattern(n, 5)
	reply := greet(r, rawpeer.Request(true, 4, 4, want), want)
	r.Peer.CRC = true
	works(r, reply)
}

func requestPieces(r *conformance.RawRun) {
	r.Dial()
	octets := rawpeer.Request(true, 4, 4, []byte("private")).AppendTo(nil)
	r.NoError(r.Peer.SendPieces(octets, 1, time.Millisecond), "the peer can send octet by octet")
	r.Accept(nil)
	r.Peer.CRC = true
	works(r, r.WantReply("it is accepted"))
}

func requestDepth(r *conformance.RawRun, depth uint16) {
	// The program asks for no more Reads than the device can do, and serves as many
	// as it is asked for.
	const wanted, most = 16, 128
	r.Dial()
	r.Start(rawpeer.Request(true, depth, depth, nil))
	r.Accept(&conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{InitiatorDepth: wanted}})
	reply := r.WantReply("it is accepted")
	e, _, err := reply.SplitPrivateData()
	r.NoError(err, "the Reply has enhanced connection data")
	r.Observe("reply.depth", "IRD %d, ORD %d", e.IRD, e.ORD)
	r.Check(e.ORD <= depth, "its ORD is not above the Request's IRD", "%d", e.ORD)
	if !r.HasProgram() { // how many it wants and serves is for the program to say
		r.Peer.CRC = true
		works(r, reply)
		return
	}
	if depth == mpa.NotNegotiated {
		//rfc:6581 MPA2-9.1-10 Initiator ORD 0x3FFF: responder keeps and answers its IRD
		//rfc:6581 MPA2-9.1-11 Initiator IRD 0x3FFF: responder keeps and answers its ORD
		r.Check(e.IRD == depth && e.ORD == depth, "16383 means that the programs see to the depths, and is answered with the same", "IRD %d, ORD %d", e.IRD, e.ORD)
	} else {
		//rfc:6581 MPA2-9.1-03 Responder IRD at least initiator ORD or reject/limit
		conformance.Equal(r.T, e.ORD, min(depth, wanted), "it is what the program wants, as far as the Request allows")
		r.Check(e.IRD >= min(depth, most), "its IRD serves the Request's ORD, as far as the device can", "%d", e.IRD)
	}
	r.Peer.CRC = true
	works(r, reply)
}

func requestRevision1(r *conformance.RawRun) {
	want := []byte("private")
	reply := greet(r, mpa.Frame{Kind: mpa.KindRequest, CRC: true, Revision: 1, PrivateData: want}, want)
	r.Check(reply.Revision == 1 && !reply.Enhanced, "the Reply is of revision 1, without S", "revision %d, S %v", reply.Revision, reply.Enhanced)
	if r.HasProgram() {
		r.Check(len(reply.PrivateData) == 0, "it has no private data, since the program gave none", "% x", reply.PrivateData)
	}
	r.Peer.CRC = true
	works(r, reply)
}

func requestRevision1S(r *conformance.RawRun) {
	want := []byte("no depths in here")
	reply := greet(r, mpa.Frame{Kind: mpa.KindRequest, CRC: true, Revision: 1, Enhanced: true, PrivateData: want}, want)
	r.Check(reply.Revision == 1 && (len(reply.PrivateData) == 0 || !r.HasProgram()), "the Reply is of revision 1, without private data", "revision %d, % x", reply.Revision, reply.PrivateData)
	r.Peer.CRC = true
	works(r, reply)
}

func requestUnenhanced(r *conformance.RawRun) {
	want := []byte("private")
	reply := greet(r, mpa.Frame{Kind: mpa.KindRequest, CRC: true, Revision: 2, PrivateData: want}, want)
	r.Check(!reply.Enhanced && (len(reply.PrivateData) == 0 || !r.HasProgram()), "the Reply has no S and no private data", "S %v, % x", reply.Enhanced, reply.PrivateData)
	r.Peer.CRC = true
	works(r, reply)
}

func requestReserved(r *conformance.RawRun) {
	f := rawpeer.Request(true, 4, 4, nil)
	f.Reserved = 0xf
	reply := greet(r, f, nil)
	r.Check(reply.Reserved == 0, "the reserved bits of the Reply are zero", "%#x", reply.Reserved)
	r.Peer.CRC = true
	works(r, reply)
}

func requestRejectBit(r *conformance.RawRun) {
	f := rawpeer.Request(true, 4, 4, nil)
	f.Reject = true
	reply := greet(r, f, nil)
	r.Peer.CRC = true
	works(r, reply)
}

func requestNoCRC(r *conformance.RawRun) {
	reply := greet(r, rawpeer.Request(false, 4, 4, nil), nil)
	r.Check(reply.CRC, "it asks for CRCs, as is the default")
	works(r, reply)
}

func requestMarkers(r *conformance.RawRun) {
	f := rawpeer.Request(true, 4, 4, nil)
	f.Markers = true
	reply := greet(r, f, nil)
	r.Require(!reply.Markers, "the provider asks for no Markers itself")
	r.Peer.CRC = true
	r.SendFPDU(rawpeer.WriteMessage(0, 0, nil))
	marked(r)
}

// marked makes the program send, and checks that what comes has Markers. The raw peer
// does not decode them.
func marked(r *conformance.RawRun) {
	src := r.Side.Buffer("the source", 3000, local).Fill(r.Seed)
	r.Side.PostSend(send(9, src))
	got, _ := r.Peer.Drain(r.Scaled(conformance.Soon))
	framing := mpa.NewDeframer(true, true)
	var message []byte
	for len(got) > 0 {
		fpdu, n, done, err := framing.Feed(nil, got)
		r.NoError(err, "Markers and CRC are right")
		r.Require(done, "whole FPDUs come", "the last is cut short")
		got = got[n:]
		ulpdu, _, _ := mpa.ParseHeader(fpdu)
		header := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
		message = append(message, fpdu[mpa.HeaderLen+header.Len():mpa.HeaderLen+ulpdu]...)
	}
	r.Check(string(message) == string(src.Data), "the message arrives, once the Markers are taken out", "%d octets", len(message))
	finish(r)
}

func rejectForm(r *conformance.RawRun) {
	why := []byte("not today")
	r.Dial()
	r.Start(rawpeer.Request(true, 4, 4, nil))
	req := r.WantRequest("the request reaches the program")
	r.NoError(req.Reject(why), "the program can reject it")
	reply := r.WantReject("the Reply rejects")
	r.Check(reply.Revision == 2 && reply.Enhanced, "it is enhanced like the Request", "revision %d, S %v", reply.Revision, reply.Enhanced)
	_, private, err := reply.SplitPrivateData()
	r.Check(err == nil && string(private) == string(why),
		"it has the program's private data after that", "% x, %v", reply.PrivateData, err)
	rest, _ := r.Peer.Drain(r.Scaled(conformance.Soon))
	r.Check(len(rest) == 0, "nothing is after the Reply", "% x", rest)
}

// dataBeforeReply sends an FPDU before the Reply, which no initiator may do, when the program has
// the Request. The provider is then in the same state as a responder that has sent its Reply and is
// still making the connection ready, when the initiator's first FPDU comes.
func dataBeforeReply() *conformance.Scenario {
	s := rawStory("mpa/request-data-before-reply", "an FPDU that comes before the Reply, when the program has the "+
		"Request, is taken, or ends the connection", []string{"MPA-7.1.2-2-05"}, func(r *conformance.RawRun) {
		r.Dial()
		r.Start(rawpeer.Request(true, 4, 4, nil))
		req := r.WantRequest("the request reaches the program")
		r.Peer.CRC = true
		r.SendFPDU(rawpeer.SendMessage(1, []byte("too early")))
		r.AnswerLater(req, &conformance.SideConfig{Before: func(s *conformance.Side) {
			s.PostRecv(recv(1, s.Buffer("the first receive buffer", rawPart, local)),
				recv(2, s.Buffer("the second receive buffer", rawPart, local)))
		}})
		if !r.Connected() {
			r.WantEnd("the connection ends")
			return
		}
		r.WantReply("it is accepted")
		wcs := r.Side.Quietly(r.Side.Conn.RecvCQ(), 1)
		r.Check(len(wcs) == 1, "the FPDU is not left unread", "the receive does not complete")
		r.SendFPDU(rawpeer.SendMessage(2, []byte("in time")))
		wcs = append(wcs, r.Side.Quietly(r.Side.Conn.RecvCQ(), 2-len(wcs))...)
		for k := range 2 {
			r.Side.WantWC(wcs, k, uint64(1+k), ibverbs.WCSuccess, "when another has come both are delivered")
		}
		finish(r)
	})
	s.Level = conformance.Should
	return s
}
