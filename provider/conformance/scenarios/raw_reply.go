package scenarios

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Two faults of siw by which a peer can crash the kernel that connects to it.
const (
	crashLongReply  = "siw's kernel stops with an Oops at a Reply with more private data than siw takes"
	crashShortReply = "siw reads connection data that an enhanced Reply does not have, which may stop its kernel"
)

// rawReplies are start-up frames to a provider that connects.
func rawReplies() []*conformance.Scenario {
	var out []*conformance.Scenario
	for _, b := range badReplies() {
		out = append(out, b.scenario())
	}
	for _, n := range []int{0, 1, 251, 252, 253, 508} {
		s := responderStory(fmt.Sprintf("mpa/reply-private-data-%d", n),
			fmt.Sprintf("a Reply with %s of private data reaches the program as it was sent", octets(n)),
			[]string{"MPA-7.1.1-18", "MPA-7.1.1-20"}, func(r *conformance.RawRun) { replyPrivate(r, n) })
		if n+mpa.EnhancedLen > mpa.SIWMaxPrivateData {
			s.OnlyByName = crashLongReply
		}
		out = append(out, s)
	}
	for _, n := range []int{0, 9} {
		out = append(out, responderStory(fmt.Sprintf("mpa/reply-rejects-%d", n),
			fmt.Sprintf("a program learns that it was rejected, with %s of private data", octets(n)),
			[]string{"MPA-7.1.1-11", "MPA-7.1.2-3-03"}, func(r *conformance.RawRun) { replyRejects(r, n) }))
	}
	pieces := responderStory("mpa/reply-one-octet-at-a-time", "a Reply that comes one octet at a time is taken", []string{"MPA-7.1.2-3-01"}, replyPieces)
	pieces.Unwitnessed = unwitnessedPieces
	early := responderStory("mpa/reply-data-after",
		"an FPDU in one segment with the Reply, before the initiator's first, is taken, or fails the connect",
		[]string{"MPA-7.1.2-3-04"}, replyData)
	early.Unwitnessed = "tshark does not look beyond a start-up frame in the same packet"
	return append(out, pieces, early,
		responderStory("mpa/request-form", "the Request that a provider sends is one of revision 2 with its depths, and asks for CRCs",
			[]string{"MPA-7.1.1-01", "MPA2-6-01", "MPA2-6-02", "MPA-4.4-02", "MPA-7.1.1-12", "MPA2-9.2-12"}, requestForm),
		responderStory("mpa/reply-reserved-bits", "reserved bits of a Reply are not looked at", []string{"MPA-7.1.1-13"}, replyReserved),
		responderStory("mpa/reply-markers", "an initiator whose responder asks for Markers sends them", []string{"MPA-4.3-01", "MPA-7.1.1-06", "MPA-7.1.2-7-01"}, replyMarkers),
		responderStory("mpa/reply-ird-0", "a responder that grants no Reads gets none", []string{"MPA2-9.1-07", "RDMAP-6.1-04"}, replyNoReads),
		responderStory("mpa/reply-ord-above-ird",
			"a responder that wants more Reads than the initiator offered is served, or learns "+
				"that it can't be",
			[]string{"MPA2-9.1-06", "MPA2-9.1-08"}, replyDeep),
	)
}

// A badReply is what a peer sends instead of a good Reply. The program's connect has to
// fail, and the connection has to end.
type badReply struct {
	slug, title  string
	requirements []string
	level        conformance.Level
	octets       func() []byte
	then         func(*rawpeer.Peer) error
	patience     bool   // the provider ends it by itself, but not at once
	unwitnessed  string // as in Scenario
	onlyByName   string // as in Scenario

	// terminates are the Terminates that the provider may send before it closes. RFC 5044
	// defines code 4, but not when a provider has to send it: closing at once is legal, too.
	terminates []string
}

// replyFrame returns a good Reply after change has changed it.
func replyFrame(change func(*mpa.Frame)) func() []byte {
	return func() []byte {
		f := rawpeer.Reply(true, 4, 4, nil)
		change(&f)
		return f.AppendTo(nil)
	}
}

// replyOctets returns a good Reply after change has changed its octets.
func replyOctets(change func([]byte) []byte) func() []byte {
	return func() []byte { return change(rawpeer.Reply(true, 4, 4, []byte("private")).AppendTo(nil)) }
}

func badReplies() []badReply {
	invalid := []string{"2/0/0x04"}
	malformed := []string{"MPA-7.1.2-3-02", "MPA-8-4-01"}
	list := []badReply{
		{
			slug: "mpa/reply-key-first", title: "a Reply whose key is wrong in its first octet fails the connect",
			requirements: []string{"MPA-7.1.1-04", "MPA-7.1.2-5-01"}, terminates: invalid,
			octets: replyOctets(func(b []byte) []byte { b[0] ^= 0x20; return b }),
		},
		{
			slug: "mpa/reply-key-last", title: "a Reply whose key is wrong in its last octet fails the connect",
			requirements: []string{"MPA-7.1.1-04", "MPA-7.1.2-5-01"}, terminates: invalid,
			octets: replyOctets(func(b []byte) []byte { b[mpa.KeyLen-1] ^= 0x20; return b }),
		},
		{
			slug: "mpa/reply-is-request", title: "a Request where a Reply belongs fails the connect: both sides are initiators",
			requirements: []string{"MPA-7.1.2-8-01"}, terminates: invalid,
			octets: replyFrame(func(f *mpa.Frame) { f.Kind = mpa.KindRequest }),
		},
		{
			slug: "mpa/reply-private-data-513", title: "a Reply whose PD_Length is 513 fails the connect",
			requirements: []string{"MPA-7.1.1-18", "MPA-7.1.2-9-01"}, terminates: invalid, onlyByName: crashLongReply,
			octets: replyFrame(func(f *mpa.Frame) { f.PrivateData = append(f.PrivateData, pattern(509, 1)...) }),
		},
		{
			slug: "mpa/reply-pd-length-65535", title: "a Reply that announces 65535 octets of private data fails the connect before they come",
			requirements: []string{"MPA-7.1.1-19", "MPA-7.1.2-9-01"}, terminates: invalid, onlyByName: crashLongReply,
			octets: replyFrame(func(f *mpa.Frame) { n := uint16(0xffff); f.PDLength = &n }),
		},
		{
			slug: "mpa/reply-enhanced-empty", title: "a Reply with S and no private data fails the connect",
			requirements: []string{"MPA2-6-08"}, terminates: invalid, onlyByName: crashShortReply,
			octets: replyFrame(func(f *mpa.Frame) { f.PrivateData = nil }),
		},
		{
			slug: "mpa/reply-enhanced-too-short", title: "a Reply with S and two octets of private data fails the connect",
			requirements: []string{"MPA2-6-08"}, terminates: invalid, onlyByName: crashShortReply,
			octets: replyFrame(func(f *mpa.Frame) { f.PrivateData = f.PrivateData[:2] }),
		},
		{
			slug: "mpa/reply-revision-3", title: "a Reply of revision 3 fails the connect",
			requirements: []string{"MPA-7.1.1-15", "MPA-7.1.1-16"}, terminates: invalid,
			octets: replyFrame(func(f *mpa.Frame) { f.Revision = 3 }),
		},
		{
			slug: "mpa/reply-revision-0", title: "a Reply of revision 0 fails the connect",
			requirements: []string{"MPA-7.1.1-15", "MPA-7.1.1-16"}, terminates: invalid,
			octets: replyFrame(func(f *mpa.Frame) { f.Revision, f.Enhanced = 0, false }),
		},
		{
			slug: "mpa/reply-http", title: "a server of another protocol fails the connect",
			requirements: malformed, terminates: invalid, onlyByName: crashLongReply,
			octets: func() []byte { return []byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n") },
		},
		{
			slug: "mpa/reply-cut-fin", title: "a Reply that a FIN cuts short fails the connect",
			requirements: malformed, octets: replyOctets(first(mpa.FrameHeaderLen + 3)), then: (*rawpeer.Peer).CloseWrite,
		},
		{
			slug: "mpa/reply-cut-silence", title: "a peer that falls silent in the midst of its Reply is given up",
			requirements: []string{"MPA-7.1.2-10-01"}, level: conformance.Should,
			octets: replyOctets(first(mpa.FrameHeaderLen + 3)), patience: true,
		},
		{
			slug: "mpa/reply-silence", title: "a peer that does not answer is given up",
			requirements: []string{"MPA-7.1.2-10-01"}, level: conformance.Should,
			octets: func() []byte { return nil }, patience: true,
		},
		{
			slug: "mpa/reply-reset", title: "a peer that resets instead of answering fails the connect",
			requirements: []string{"MPA-8-1-01"}, octets: func() []byte { return nil }, then: (*rawpeer.Peer).Reset,
		},
	}
	// An initiator may try once more without enhanced data (RFC 6581 section 10), on a
	// new connection, which the script does not serve.
	for _, unenhanced := range []badReply{
		{
			slug: "mpa/reply-revision-1", title: "a Reply of revision 1 to an enhanced Request fails the connect, or has it tried again without",
			octets: replyFrame(func(f *mpa.Frame) { f.Revision, f.Enhanced, f.PrivateData = 1, false, nil }),
		},
		{
			slug: "mpa/reply-unenhanced", title: "a Reply without S to an enhanced Request fails the connect, or has it tried again without",
			octets: replyFrame(func(f *mpa.Frame) { f.Enhanced, f.PrivateData = false, nil }),
		},
		{
			slug: "mpa/reply-fin", title: "a peer that closes instead of answering fails the connect, or has it tried again without enhanced data",
			octets: func() []byte { return nil }, then: (*rawpeer.Peer).CloseWrite,
		},
	} {
		unenhanced.requirements, unenhanced.terminates, unenhanced.patience = []string{"MPA2-10-06"}, invalid, true
		list = append(list, unenhanced)
	}
	return list
}

func (b badReply) scenario() *conformance.Scenario {
	s := responderStory(b.slug, b.title, b.requirements, b.play)
	if b.level != "" {
		s.Level = b.level
	}
	s.Unwitnessed, s.OnlyByName = b.unwitnessed, b.onlyByName
	if b.patience {
		s.Options, s.Timeout = quick, 3*conformance.GivesUp
	}
	return s
}

func (b badReply) play(r *conformance.RawRun) {
	r.WantDial("the provider connects", nil)
	if octets := b.octets(); len(octets) > 0 {
		r.Send(octets)
	}
	if b.then != nil {
		time.Sleep(r.Scaled(5 * time.Millisecond)) // so that the provider sees the octets first
		r.NoError(b.then(r.Peer), "the peer can end the connection")
	}
	wait := conformance.Answers
	if b.patience {
		wait = conformance.GivesUp
	}
	r.WantTerminateOrEnd("what comes before the end is at most a Terminate about the Reply", wait, b.terminates...)
	r.WantConnectError("the program's connect fails", wait)
}

func requestForm(r *conformance.RawRun) {
	private := []byte("hello")
	f := r.WantDial("the provider connects", &conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{
		PrivateData: private, ResponderResources: 5, InitiatorDepth: 7,
	}})
	r.Check(f.Revision == 2 && f.Enhanced, "the Request is of revision 2 with S", "revision %d, S %v", f.Revision, f.Enhanced)
	r.Check(!f.Markers && !f.Reject && f.Reserved == 0, "M, R and the reserved bits are not set", "M %v, R %v, reserved %#x", f.Markers, f.Reject, f.Reserved)
	r.Check(f.CRC, "it asks for CRCs, as is the default")
	e, rest, err := f.SplitPrivateData()
	r.NoError(err, "it has enhanced connection data")
	// A provider may serve more Reads than its program asks for, but not ask for more.
	r.Check(e.IRD >= 5 && e.ORD == 7, "the depths are the program's, or its IRD is more", "IRD %d, ORD %d", e.IRD, e.ORD)
	r.Check(e.A || !e.B && !e.C && !e.D, "without A none of B, C and D is set", "%+v", e)
	r.Check(string(rest) == string(private), "the private data is the program's", "% x", rest)
	r.Answer(f, rawpeer.Reply(true, 4, 4, nil))
	r.WantConnected("the provider takes the reply")
	finish(r)
}

// finish ends a connection without errors.
func finish(r *conformance.RawRun) {
	r.WantClose()
}

func replyPrivate(r *conformance.RawRun, n int) {
	want := pattern(n, 5)
	request := r.WantDial("the provider connects", nil)
	r.Answer(request, rawpeer.Reply(true, 4, 4, want))
	r.WantConnected("the provider takes the reply")
	got := r.Side.Conn.PrivateData()
	r.Check(startsWith(got, want), "the program has its private data", "%d octets: % x", len(got), got)
	finish(r)
}

func replyRejects(r *conformance.RawRun, n int) {
	want := pattern(n, 5)
	r.WantDial("the provider connects", nil)
	f := rawpeer.Reply(true, 4, 4, want)
	f.Reject = true
	r.Start(f)
	err := r.WantConnectError("the program's connect fails")
	var rejected *rdmacm.RejectedError
	if r.Check(errors.As(err, &rejected), "it learns that it was rejected", "%v", err) {
		r.Check(startsWith(rejected.PrivateData, want), "with the private data", "% x", rejected.PrivateData)
		conformance.Equal(r.T, rejected.Status, peerRefused, "the status is that of a peer's program")
	}
}

func replyPieces(r *conformance.RawRun) {
	request := r.WantDial("the provider connects", nil)
	octets := r.GoodReply(request, rawpeer.Reply(true, 4, 4, []byte("private"))).AppendTo(nil)
	r.NoError(r.Peer.SendPieces(octets, 1, time.Millisecond), "the peer can send octet by octet")
	r.WantConnected("the provider takes the reply")
	finish(r)
}

// replyData plays a responder that, against rule 4 of RFC 5044 section 7.1.2, does not wait for the
// initiator's first FPDU. By rule 3 an initiator takes what follows a good Reply for FPDUs. Rule 4
// protects an initiator that can't do so yet: it may end the connection, but not go on without the
// message.
func replyData(r *conformance.RawRun) {
	var note *conformance.Buffer
	private := []byte("private")
	request := r.WantDial("the provider connects", &conformance.SideConfig{Before: func(s *conformance.Side) {
		note = s.Buffer("the receive buffer", rawPart, local)
		s.PostRecv(recv(1, note))
	}})
	r.Peer.CRC = true
	octets := r.GoodReply(request, rawpeer.Reply(true, 4, 4, private)).AppendTo(nil)
	f := rawpeer.SendMessage(1, pattern(rawPart, 3))
	r.Send(append(octets, f.Octets(true)...))
	if !r.Connected() {
		r.WantTerminateOrEnd("what comes before the end is at most a Terminate about the Reply",
			conformance.Answers, "2/0/0x04")
		r.WantConnectError("the program's connect fails")
		return
	}
	r.Observe("connect", "established")
	got := r.Side.Conn.PrivateData()
	r.Check(startsWith(got, private), "the program has the Reply's private data", "% x", got)
	r.Side.WantWC(r.Side.RecvWCs(1), 0, 1, 0, "the message that came with the Reply is delivered")
	note.Holds(pattern(rawPart, 3), "as it was sent")
	source := r.Side.Buffer("the source", rawPart, local)
	r.Side.PostSend(send(2, source))
	r.WantFPDU("a Send of the program is sent as ever", rdmap.OpSend)
	r.Side.SendWCs(1)
	finish(r)
}

func replyReserved(r *conformance.RawRun) {
	request := r.WantDial("the provider connects", nil)
	f := rawpeer.Reply(true, 4, 4, nil)
	f.Reserved = 0xf
	r.Answer(request, f)
	r.WantConnected("the provider takes the reply")
	finish(r)
}

func replyMarkers(r *conformance.RawRun) {
	request := r.WantDial("the provider connects", nil)
	f := rawpeer.Reply(true, 4, 4, nil)
	f.Markers = true
	r.Answer(request, f)
	r.WantConnected("the provider takes the reply")
	marked(r)
}

func replyNoReads(r *conformance.RawRun) {
	request := r.WantDial("the provider connects", nil)
	r.Answer(request, rawpeer.Reply(true, 0, 4, nil))
	r.WantConnected("the provider takes the reply")
	sink := r.Side.Buffer("the sink", rawSize, remoteWrite)
	err := r.Side.QP.PostSend(ibverbs.SendWR{
		WRID: 1, Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: sink.All(), RemoteAddr: rawSinkTO, RKey: rawSinkSTag,
	})
	r.Check(ibverbs.Errno(err) == syscall.EINVAL, "a Read is refused with EINVAL", "%v", err)
	rest, _ := r.Peer.Drain(r.Scaled(conformance.Soon))
	r.Check(len(rest) == 0, "no Read Request is sent", "% x", rest)
	sink.Untouched("nothing is placed")
}

func replyDeep(r *conformance.RawRun) {
	request := r.WantDial("the provider connects", &conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{ResponderResources: 2}})
	r.Answer(request, rawpeer.Reply(true, 4, 64, nil))
	if r.Connected() {
		r.Observe("connect", "established")
		finish(r)
		return
	}
	r.WantTerminateOrEnd("the peer learns that its ORD is too much", conformance.Answers, "2/0/0x06")
	r.WantConnectError("the program's connect fails")
}
