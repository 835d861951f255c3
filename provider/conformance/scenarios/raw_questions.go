package scenarios

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rawQuestions answer questions that siw's source leaves open. So do rdmap/read-no-right,
// rdmap/local-fault and rdmap/invalidate-unknown.
func rawQuestions() []*conformance.Scenario {
	var out []*conformance.Scenario
	// Above 251 octets siw may get PD_Length wrong, because it adds in one octet.
	for _, n := range []int{251, 252, 255} {
		out = append(out,
			responderStory(fmt.Sprintf("mpa/private-data-sent-%d", n),
				fmt.Sprintf("a Request with %d octets of the program's private data says how many they are", n),
				[]string{"MPA-7.1.1-17", "MPA2-6-06"}, func(r *conformance.RawRun) { privateSent(r, n) }),
			rawStory(fmt.Sprintf("mpa/private-data-rejecting-%d", n),
				fmt.Sprintf("a rejecting Reply with %d octets of the program's private data says how many they are", n),
				[]string{"MPA-7.1.1-17", "MPA2-6-06"}, func(r *conformance.RawRun) { privateRejecting(r, n) }))
	}
	for _, n := range []int{251, 252} {
		out = append(out, rawStory(fmt.Sprintf("mpa/private-data-accepting-%d", n),
			fmt.Sprintf("an accepting Reply with %d octets of the program's private data says how many they are", n),
			[]string{"MPA-7.1.1-17", "MPA2-6-06"}, func(r *conformance.RawRun) { privateAccepting(r, n) }))
	}
	crash := rawStory("mpa/peer-to-peer-closed-early", "a peer-to-peer connection that its initiator closes before the first FPDU ends, and nothing else does",
		[]string{"MPA-8-1-01"}, peerToPeerClosed)
	crash.OnlyByName = "it stops the kernel's iWARP connection manager with a BUG; the guest is unusable afterwards"
	return append(out, crash,
		peerToPeerStory("write", mpa.Enhanced{C: true, D: true}, func() rawpeer.FPDU { return rawpeer.WriteMessage(0, 0, nil) }),
		peerToPeerStory("read", mpa.Enhanced{D: true}, func() rawpeer.FPDU {
			return rawpeer.ReadRequest(1, rdmap.ReadRequest{SinkSTag: rawSinkSTag, SinkTO: rawSinkTO})
		}),
		peerToPeerStory("send", mpa.Enhanced{B: true}, func() rawpeer.FPDU { return rawpeer.SendMessage(1, nil) }),
		responderStory("rdmap/reads-outstanding", "of more Reads than the responder takes at a time no more are sent, and the others follow as responses come",
			[]string{"RDMAP-6.1-04", "MPA2-9.1-07"}, readsOutstanding),
		rawStory("rdmap/read-zero-length-busy",
			"a Read Request for nothing is answered with nothing, also after a response that is "+
				"under way",
			[]string{"RDMAP-5.2.1-10"}, readZeroLengthBusy),
		rawStory("rdmap/post-after-terminate", "work that is posted after a Terminate was sent is flushed, or refused", []string{"RDMAP-6.2.1-02"}, postAfterTerminate),
		rawStory("rdmap/post-after-fin", "work that is posted after the peer closed is flushed, or refused", []string{"DDP-6.2.2-02"}, postAfterFIN),
		concurrent(rawStory("rdmap/sends-before-end",
			"Sends that came before the peer closed are delivered, though work that was posted after it "+
				"can't be sent",
			[]string{"DDP-5.4-02", "DDP-6.2.2-02"}, sendsBeforeEnd)),
		rawStory("rdmap/solicited-event", "a CQ armed for solicited completions gives an event for a Send with Solicited Event, and none for a plain one",
			[]string{"RDMAP-5.3-05"}, solicitedEvent),
		rawStory("mpa/terminate-with-data-pending", "a Terminate arrives though much that the peer has sent is unread", []string{"RDMAP-6.2.1-03"}, dataPending),
		rawStory("rdmap/invalidate-refused-then-send",
			"after a Send with Invalidate that is refused nothing is delivered",
			[]string{"DDP-7.1-03", "RDMAP-7.2-05"}, sendBehindInvalidate),
		rawStory("mpa/wildcard-listen", "a provider that listens on all addresses serves a peer that connects to one of them", []string{"MPA-7.1-02"}, wildcardListen),
	)
}

// privateSent reads the Request as octets: PD_Length may be wrong.
func privateSent(r *conformance.RawRun, n int) {
	want := pattern(n, 5)
	r.DialPeer(&conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{PrivateData: want}})
	private(r, "the Request", mpa.KindRequest, want)
	_ = r.Peer.Close()
	r.WantConnectError("the program's connect fails when the peer closes", conformance.GivesUp)
}

func privateAccepting(r *conformance.RawRun, n int) {
	want := pattern(n, 5)
	r.Dial()
	r.Start(rawpeer.Request(true, 4, 4, nil))
	r.Accept(&conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{PrivateData: want}})
	private(r, "the Reply", mpa.KindReply, want)
	finish(r)
}

func privateRejecting(r *conformance.RawRun, n int) {
	want := pattern(n, 5)
	r.Dial()
	r.Start(rawpeer.Request(true, 4, 4, nil))
	r.NoError(r.WantRequest("the request reaches the program").Reject(want), "the program can reject it")
	private(r, "the Reply", mpa.KindReply, want)
}

// private checks that the one start-up frame that comes has the right PD_Length and the
// program's private data.
func private(r *conformance.RawRun, name string, kind mpa.Kind, want []byte) {
	octets, _ := r.Peer.Drain(r.Scaled(conformance.Soon))
	f, n, err := mpa.ParseFrame(octets, kind)
	if err != nil {
		r.Require(false, name+" can be read", "%v: %d octets: % x", err, len(octets), octets[:min(len(octets), mpa.FrameHeaderLen)])
	}
	r.Check(n == len(octets), name+" is as long as its PD_Length says", "it is %d octets long, and %d came", n, len(octets))
	_, got, err := f.SplitPrivateData()
	r.Check(err == nil && string(got) == string(want), name+" has the program's private data", "%d octets, %v", len(got), err)
}

// peerToPeerStory opens a peer-to-peer connection that offers some ready-to-receive
// messages, and sends one.
func peerToPeerStory(name string, offer mpa.Enhanced, message func() rawpeer.FPDU) *conformance.Scenario {
	return rawStory("mpa/peer-to-peer-"+name,
		"a peer-to-peer connection opened with a zero-length "+name+" works, and the responder may send from then on",
		[]string{"MPA2-9.2-03", "MPA2-9.2-04", "MPA2-9.2-06", "MPA2-9.2-15"},
		func(r *conformance.RawRun) { peerToPeer(r, offer, message()) })
}

func peerToPeer(r *conformance.RawRun, offer mpa.Enhanced, message rawpeer.FPDU) {
	offer.A, offer.IRD, offer.ORD = true, 4, 4
	f := rawpeer.Request(true, 4, 4, nil)
	f.PrivateData = offer.AppendTo(nil)
	r.Dial()
	r.Start(f)
	var source, note *conformance.Buffer
	r.AcceptLater(&conformance.SideConfig{Before: func(s *conformance.Side) {
		source, note = s.Buffer("the source", rawPart, local), s.Buffer("the receive buffer", rawPart, local)
		s.PostRecv(recv(1, note), recv(2, note))
	}})
	reply := r.WantReply("the request is accepted")
	// The message goes out before anything is checked, because a run that ended here
	// would be mpa/peer-to-peer-closed-early. It does not go out at once, because siw
	// loses an FPDU that comes right after its reply, and waits for another.
	r.Peer.CRC = true
	time.Sleep(r.Scaled(10 * time.Millisecond))
	r.SendFPDU(message)
	if !r.Settled(conformance.Answers) {
		r.SendFPDU(rawpeer.WriteMessage(0, 0, nil))
		r.Check(false, "the peer's first message is enough", "it took a second")
	}
	r.WantAccepted("the program's accept succeeds with the peer's first message")
	e, _, err := reply.SplitPrivateData()
	r.Check(err == nil && e.A, "the Reply is peer-to-peer too", "%+v, %v", e, err)
	r.Check(e.B || e.C || e.D, "it names a message that opens the connection", "%+v", e)
	r.Observe("reply.rtr", "B %v, C %v, D %v", e.B, e.C, e.D)
	if rdmap.ParseControl(message.Header.ULPCtl).Opcode == rdmap.OpReadRequest {
		r.Check(len(response(r, "the Read is answered")) == 0, "with nothing")
	}
	r.Side.PostSend(send(9, source))
	r.WantFPDU("a Send of the provider comes", rdmap.OpSend)
	finish(r)
	source.Untouched("nothing is placed")
}

func peerToPeerClosed(r *conformance.RawRun) {
	f := rawpeer.Request(true, 4, 4, nil)
	f.PrivateData = mpa.Enhanced{A: true, C: true, D: true, IRD: 4, ORD: 4}.AppendTo(nil)
	r.Dial()
	r.Start(f)
	r.AcceptLater(nil)
	r.WantReply("the request is accepted")
	_ = r.Peer.CloseWrite()
	r.WantEnd("the provider closes its side when the peer has")
	if r.Connected() { // the wire does not show when an accept succeeds
		r.Side.WaitEnd()
	}
	nextIsServed(r)
}

// readsOutstanding grants three Reads. siw rounds its depth to a power of two.
func readsOutstanding(r *conformance.RawRun) {
	const granted, posted = 3, 7
	request := r.WantDial("the provider connects", &conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{InitiatorDepth: granted}})
	r.Answer(request, rawpeer.Reply(true, granted, 4, nil))
	r.WantConnected("the provider takes the reply")
	r.Peer.CRC = true
	sink := r.Side.Buffer("the sink", posted*rawPart, remoteWrite)
	for k := range posted {
		r.Side.PostSend(ibverbs.SendWR{
			WRID: uint64(k + 1), Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sink.SGE(k*rawPart, rawPart)},
			RemoteAddr: rawSinkTO, RKey: rawSinkSTag,
		})
	}
	var waiting []rdmap.ReadRequest
	for seg, err := r.Peer.ReadFPDU(r.Scaled(conformance.Soon)); err == nil; seg, err = r.Peer.ReadFPDU(r.Scaled(conformance.Soon)) {
		req, err := rdmap.ParseReadRequest(seg.Payload)
		r.NoError(err, "what comes are Read Requests")
		waiting = append(waiting, req)
	}
	r.Observe("reads.outstanding", "%d", len(waiting))
	r.Check(len(waiting) <= granted, "no more than three are outstanding", "%d are", len(waiting))
	for answered := 0; answered < posted; answered++ {
		if len(waiting) == 0 {
			waiting = append(waiting, wantRead(r, uint32(answered+1)))
		}
		r.SendFPDU(rawpeer.ReadResponse(waiting[0].SinkSTag, waiting[0].SinkTO, pattern(rawPart, byte(answered))))
		waiting = waiting[1:]
	}
	for k, wc := range r.Side.SendWCs(posted) {
		r.Check(wc.Status == ibverbs.WCSuccess && wc.WRID == uint64(k+1), "all Reads complete, in order", "WR %d with %s", wc.WRID, wc.Status)
	}
	for k := range posted {
		sink.HoldsAt(k*rawPart, pattern(rawPart, byte(k)), "each has its own octets")
	}
	finish(r)
}

func readZeroLengthBusy(r *conformance.RawRun) {
	const size = 1 << 20
	st := stage(r, nil)
	large := st.side.Buffer("the large source", size, remoteRead).Fill(r.Seed)
	r.SendFPDU(st.read(1, large, 0, size), st.read(2, large, 0, 0), st.read(3, large, 0, rawPart))
	got := response(r, "the large Read is answered")
	r.Check(string(got) == string(large.Data), "with its octets", "%d octets", len(got))
	got = response(r, "the Read for nothing is answered")
	r.Check(len(got) == 0, "with nothing", "%d octets", len(got))
	got = response(r, "the Read after it is answered")
	r.Check(string(got) == string(large.Data[:rawPart]), "with its own octets", "%d octets", len(got))
	st.leave()
	st.untouched()
}

func postAfterTerminate(r *conformance.RawRun) {
	st := stage(r, nil)
	f := st.write(st.window, 0, rawPart)
	f.Header.STag = st.unknown()
	r.SendFPDU(f)
	r.WantRefused("the Terminate names the fault", "1/1/0x00")
	st.flushed(len(st.recv))
	workAfterEnd(st)
}

func postAfterFIN(r *conformance.RawRun) {
	st := stage(r, nil)
	r.WantClose()
	st.flushed(len(st.recv))
	workAfterEnd(st)
}

// concurrent marks a scenario whose frames depend on timing.
func concurrent(s *conformance.Scenario) *conformance.Scenario {
	s.Concurrent = true
	return s
}

// sendsBeforeEnd makes the peer close both directions after two Sends, while the program does not
// look. TCP answers what the program posts by a reset, so that writing fails before the Sends are
// read. The provider knows early that the connection has ended, but must deliver the Sends.
func sendsBeforeEnd(r *conformance.RawRun) {
	st := stage(r, nil)
	st.sent = true
	long := st.side.Buffer("a long source", 1<<16, local).Fill(r.Seed)
	r.SendFPDU(st.send(1, rawPart), st.send(2, rawRecvSize))
	r.NoError(r.Peer.Close(), "the peer can close")
	for k := range uint64(3) {
		time.Sleep(r.Scaled(2 * time.Millisecond)) // so that TCP's reset has arrived
		if err := st.side.QP.PostSend(send(20+k, long)); err != nil {
			r.Log("posting: %v", err)
			break
		}
	}
	got := st.side.RecvWCs(2)
	st.side.WantWC(got, 0, 1, ibverbs.WCSuccess, "the first Send is delivered")
	st.side.WantWC(got, 1, 2, ibverbs.WCSuccess, "and so is the second")
	st.recv[0].HoldsAt(0, st.payload(rawPart), "the first is in its receive buffer")
	st.recv[1].Holds(st.payload(rawRecvSize), "and so is the second")
	st.side.WaitEnd()
}

// workAfterEnd posts a receive and a Send to a QP whose connection has ended.
func workAfterEnd(st *rawStage) {
	r := st.r
	if err := st.side.QP.PostRecv(recv(8, st.recv[0])); err != nil {
		r.Observe("post-receive", "%v", ibverbs.Errno(err))
	} else {
		st.side.WantWC(st.side.RecvWCs(1), 0, 8, ibverbs.WCWRFlushErr, "a receive that is posted now is flushed")
	}
	if err := st.side.QP.PostSend(send(9, st.private)); err != nil {
		r.Observe("post-send", "%v", ibverbs.Errno(err))
	} else {
		st.side.WantWC(st.side.SendWCs(1), 0, 9, ibverbs.WCWRFlushErr, "a Send that is posted now is flushed")
	}
	st.untouched()
}

func solicitedEvent(r *conformance.RawRun) {
	bell := newBell(r.T, r.DUT)
	st := stage(r, &conformance.RawConnect{SideConfig: conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{RecvCQ: bell.cq}}})

	bell.arm(r.T)
	st.sent = true
	r.SendFPDU(st.send(1, rawPart))
	st.side.WantWC(st.side.RecvWCsPolled(1), 0, 1, ibverbs.WCSuccess, "the plain Send is delivered")
	r.Check(!st.side.ChannelEvent(bell.ch, noEvent), "the plain Send gives no event")
	r.SendFPDU(control(st.send(2, rawPart), func(c *rdmap.Control) { c.Opcode = rdmap.OpSendSE }))
	st.side.WantWC(st.side.RecvWCsPolled(1), 0, 2, ibverbs.WCSuccess, "the solicited one is delivered")
	r.Check(st.side.ChannelEvent(bell.ch, anEvent), "the solicited one does")
	st.leave()
	st.untouched()
}

// dataPending makes the octets after the fault arrive before the provider closes. TCP
// answers a close with unread data by a reset, which may overtake the Terminate.
func dataPending(r *conformance.RawRun) {
	st := stage(r, nil)
	bad := st.write(st.window, 0, rawPart)
	bad.Header.STag = st.unknown()
	large := st.side.Buffer("the large window", 1<<15, remoteWrite)
	fpdus := []rawpeer.FPDU{bad}
	for range 16 {
		fpdus = append(fpdus, st.write(large, 0, 1<<15))
	}
	r.SendFPDU(fpdus...)
	r.WantRefused("the Terminate arrives", "1/1/0x00")
	large.Untouched("nothing after the fault is placed")
	st.untouched()
}

func sendBehindInvalidate(r *conformance.RawRun) {
	st := stage(r, nil)
	st.sent = true
	r.SendFPDU(invalidation(st, st.unknown()), st.send(2, rawPart))
	for k, wc := range st.side.RecvWCs(len(st.recv)) {
		r.Check(wc.Status != ibverbs.WCSuccess, "neither Send completes with success", "number %d did", k+1)
	}
	r.WantTerminateOrEnd("what comes before the end is at most a Terminate", conformance.Soon, "0/2/0x09", "0/1/0x09")
	st.recv[1].Untouched("nothing is placed in the second receive buffer")
}

func wildcardListen(r *conformance.RawRun) {
	any := netip.IPv4Unspecified()
	if r.Addr.Addr().Is6() {
		any = netip.IPv6Unspecified()
	}
	r.Listen(netip.AddrPortFrom(any, r.Addr.Port()))
	r.Connect(nil)
	finish(r)
}
