package scenarios

import (
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rdmac are about peers of the RDMA Consortium's version: MPA revision 0, DDP and
// RDMAP version 0 (RFC 5044 appendix C).
func rdmac() []*conformance.Scenario {
	permitted := []string{"rdmac=permitted"}
	out := []*conformance.Scenario{
		{
			Slug: "rdmac/request-refused", Level: conformance.Should,
			Title:        "a Request of revision 0 is answered by a Reply of revision 1 that rejects, and a FIN",
			Requirements: []string{"RDMAC-C.2.1-01", "RDMAC-C.2-02"},
			RawRole:      conformance.RoleInitiator, Raw: rdmacRequestRefused, Needs: conformance.NeedsListener,
		},
		{
			Slug: "rdmac/reply-refused", Level: conformance.Should,
			Title:        "a Reply of revision 0 fails the connect, and the connection is closed with a FIN",
			Requirements: []string{"RDMAC-C.2.2-01", "RDMAC-C.2-03"},
			RawRole:      conformance.RoleResponder, Raw: rdmacReplyRefused, Needs: conformance.NeedsConnect,
		},
		{
			Slug: "rdmac/both", Level: conformance.Should, Options: []string{"rdmac=only"},
			Title:        "two peers of the RDMA Consortium's version move data in version 0, with Markers",
			Requirements: []string{"RDMAC-C.1-01", "RDMAC-C.2.3-03", "RDMAC-DDP1.0-6.1-01"},
			Verbs:        rdmacBoth, Wire: versionZero,
		},
		{
			Slug: "rdmac/permitted", Level: conformance.Should, Options: permitted, ResponderOptions: []string{"rdmac=only"},
			Title:        "an engine that permits version 0 speaks it with a peer that has no other",
			Requirements: []string{"RDMAC-C.2.3-03", "RDMAC-C.2.5-01", "RDMAC-C.2-01"},
			Verbs:        rdmacBoth, Wire: versionZero,
		},
		{
			Slug: "rdmac/not-needed", Level: conformance.Should, Options: permitted,
			Title:        "two that permit version 0 speak version 1",
			Requirements: []string{"RDMAC-C.3-01"},
			Verbs:        rdmacNotNeeded, Wire: legal,
		},
	}
	for _, role := range []conformance.Role{conformance.RoleInitiator, conformance.RoleResponder} {
		name, needs := "request", conformance.NeedsProgram
		if role == conformance.RoleResponder {
			name, needs = "reply", conformance.NeedsConnect
		}
		out = append(out, &conformance.Scenario{
			Slug: "rdmac/" + name + "-permitted", Level: conformance.Should, Options: permitted,
			Title:        "a " + name + " of revision 0 makes a connection of version 0, where that is permitted",
			Requirements: []string{"RDMAC-C.2.3-01", "RDMAC-C.2.3-02", "RDMAC-C.2.5-01", "RDMAC-C.1-04", "RDMAC-DDP1.0-6.2-01", "RDMAC-DDP1.0-7.2-01", "RDMAC-RDMAP-00-01"},
			RawRole:      role, Raw: rdmacWorks, Needs: needs,
		})
	}
	for _, f := range rdmacFaults() {
		s := f.scenario()
		s.Raw = f.playRDMAC
		out = append(out, s)
	}
	first := badRequest{
		slug: "rdmac/no-start-up", title: "an FPDU of version 0 as the first octets of a connection is no Request",
		requirements: []string{"RDMAC-C.2-04"},
		octets: func() []byte {
			f := zeroVersion(rawpeer.SendMessage(1, []byte("immediately")))
			return f.Octets(true)
		},
	}
	return append(out, first.scenario())
}

// zeroVersion makes an FPDU one of version 0.
func zeroVersion(f rawpeer.FPDU) rawpeer.FPDU {
	rdmap.SetRDMAC(&f.Header)
	return f
}

const rdmacOption = "version 0 of the RDMA Consortium"

func rdmacRequestRefused(r *conformance.RawRun) {
	r.Dial()
	r.Start(conformance.RDMACFrame(mpa.KindRequest, nil))
	f := r.WantReject("the Reply rejects")
	r.Check(f.Revision == 1, "it has the revision that would have been understood", "revision %d", f.Revision)
	how := r.WantEnd("the connection is closed")
	r.Check(how == endingFIN, "with a FIN, so that the Reply arrives", "with %s", how)
	r.WantNoRequest("the program does not hear of it")
	nextIsServed(r)
}

// endingFIN is what WantEnd returns for a FIN.
const endingFIN = "FIN"

func rdmacReplyRefused(r *conformance.RawRun) {
	r.WantDial("the provider connects", nil)
	r.Start(conformance.RDMACFrame(mpa.KindReply, nil))
	_ = r.WantConnectError("the program's connect fails")
	how := r.WantEnd("the connection is closed")
	r.Check(how == endingFIN, "with a FIN", "with %s", how)
}

// rdmacWorks moves a message of each kind over a connection of version 0.
func rdmacWorks(r *conformance.RawRun) {
	r.NeedsOptions(rdmacOption)
	st := stage(r, &conformance.RawConnect{RDMAC: true})
	if r.Role == conformance.RoleResponder { // it may not send first
		st.say(1)
	}
	r.SendFPDU(zeroVersion(st.write(st.window, 8, rawPart)), zeroVersion(rawpeer.SendMessage(1, nil)))
	st.wrote, st.sent = true, true
	st.side.WantWC(st.side.RecvWCs(1), 0, 1, ibverbs.WCSuccess, "a Send of nothing is a message in version 0, too")
	st.window.HoldsAt(8, st.payload(rawPart), "the Write is placed")
	if r.Role == conformance.RoleInitiator {
		st.say(1)
	}
	r.SendFPDU(zeroVersion(st.read(1, st.source, 4, rawPart)))
	resp := r.WantFPDU("the Read is answered", rdmap.OpReadResponse)
	r.Check(resp.Header.STag == rawSinkSTag && resp.Header.TO == rawSinkTO && string(resp.Payload) == string(st.source.Data[4:4+rawPart]),
		"with the sink's STag and TO and the source's octets", "%+v, % x", resp.Header, resp.Payload)
	r.WantClose()
}

// say makes the program send a message, and receives it.
func (st *rawStage) say(msn uint32) {
	st.side.PostSend(send(9, st.source))
	seg := st.r.WantFPDU("a Send of the provider comes", rdmap.OpSend)
	st.r.Check(seg.Header.MSN == msn && string(seg.Payload) == string(st.source.Data), "it is the message", "MSN %d, %d octets", seg.Header.MSN, len(seg.Payload))
}

// rdmacFaults are wrong on a connection of version 0.
func rdmacFaults() []rawFault {
	options := []string{"rdmac=permitted"}
	mixed := []string{"RDMAC-C.1-02", "RDMAC-C.1-03", "RDMAC-DDP1.0-6.1-02"}
	return []rawFault{
		{
			slug: "rdmac/send-version-1", title: "a Send of version 1 on a connection of version 0 is refused",
			requirements: mixed, level: conformance.Must, options: options, want: []string{"1/2/0x06"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU { return st.send(1, rawPart) }),
		},
		{
			slug: "rdmac/write-version-1", title: "a Write of version 1 on a connection of version 0 is refused",
			requirements: mixed, level: conformance.Must, options: options, want: []string{"1/1/0x04"}, hello: true,
			fpdus: one(func(st *rawStage) rawpeer.FPDU { return st.write(st.window, 0, rawPart) }),
		},
		{
			slug: "rdmac/rdmap-version-1", title: "RDMAP version 1 in a segment of DDP version 0 is refused",
			requirements: mixed, level: conformance.Must, options: options, want: []string{"0/2/0x05"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU {
				return control(zeroVersion(st.send(1, rawPart)), func(c *rdmap.Control) { c.Version = rdmap.Version })
			}),
		},
		{
			slug: "rdmac/send-msn-ahead", title: "what is wrong in version 0 has the error numbers of version 1",
			requirements: []string{"RDMAC-DDP1.0-9.2-01", "RDMAC-RDMAP-00-02"}, level: conformance.Must, options: options, want: []string{"1/2/0x03"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU { return zeroVersion(st.send(2, rawPart)) }),
		},
		{
			slug:         "rdmac/write-out-of-bounds",
			title:        "a Write of version 0 beyond the end of its region is refused",
			requirements: []string{"RDMAC-DDP1.0-9.2-01", "RDMAC-RDMAP-00-02"}, level: conformance.Must, options: options, want: []string{"1/1/0x01"},
			fpdus: one(func(st *rawStage) rawpeer.FPDU { return zeroVersion(st.write(st.window, rawSize, rawPart)) }),
		},
	}
}

// playRDMAC plays a fault on a connection of version 0.
func (f rawFault) playRDMAC(r *conformance.RawRun) {
	r.NeedsOptions(rdmacOption)
	st := stage(r, &conformance.RawConnect{RDMAC: true})
	if f.hello {
		r.SendFPDU(zeroVersion(st.write(st.window, 0, 0)))
	}
	r.SendFPDU(f.fpdus(st)...)
	r.WantRefused("the Terminate names the fault", f.want...)
	st.flushed(len(st.recv))
	st.untouched()
}

// rdmacBoth moves data both ways over a connection of version 0.
func rdmacBoth(r *conformance.VerbsRun) {
	r.NeedsOptions(rdmacOption)
	i, p := bothWays(r)
	r.Check(i.Conn.RDMAC() && p.Conn.RDMAC(), "both programs learn which version it is",
		"initiator %v, responder %v", i.Conn.RDMAC(), p.Conn.RDMAC())
	end(i, p)
}

func rdmacNotNeeded(r *conformance.VerbsRun) {
	r.NeedsOptions(rdmacOption)
	i, p := bothWays(r)
	r.Check(!i.Conn.RDMAC() && !p.Conn.RDMAC(), "neither program learns of version 0",
		"initiator %v, responder %v", i.Conn.RDMAC(), p.Conn.RDMAC())
	end(i, p)
}

// bothWays connects, makes the initiator write, read and send, and makes the responder
// answer.
func bothWays(r *conformance.VerbsRun) (i, p *conformance.Side) {
	const size = 5000 // a few segments
	var in, back *conformance.Buffer
	i, p = r.Connect(
		&conformance.SideConfig{Before: func(s *conformance.Side) {
			back = s.Buffer("the initiator's receive buffer", size, local)
			s.PostRecv(recv(1, back))
		}},
		&conformance.SideConfig{Before: func(s *conformance.Side) {
			in = s.Buffer("the responder's receive buffer", size, local)
			s.PostRecv(recv(2, in))
		}})
	src, sink := i.Buffer("the source", size, local).Fill(r.Seed), i.Buffer("the sink", size, local)
	window := p.Buffer("the window", size, remoteWrite|ibverbs.AccessRemoteRead)
	i.PostSend(write(3, src, window), read(4, sink, window), send(5, src))
	wcs := i.SendWCs(3)
	for k, wrid := range []uint64{3, 4, 5} {
		i.WantWC(wcs, k, wrid, ibverbs.WCSuccess, "Write, Read and Send complete in order")
	}
	p.WantWC(p.RecvWCs(1), 0, 2, ibverbs.WCSuccess, "the Send arrives")
	in.Holds(src.Data, "with all its octets")
	window.Holds(src.Data, "the Write is placed")
	sink.Holds(src.Data, "the Read brings it back")
	p.PostSend(send(6, in))
	i.WantWC(i.RecvWCs(1), 0, 1, ibverbs.WCSuccess, "the answer arrives")
	back.Holds(src.Data, "with all its octets")
	p.WantWC(p.SendWCs(1), 0, 6, ibverbs.WCSuccess, "the answer completes")
	return i, p
}

// versionZero checks that a connection was one of version 0 from beginning to end.
func versionZero(w *conformance.WireRun) {
	legal(w)
	var last *wire.Conn
	for _, c := range w.Trace.Conns {
		if c.Reply != nil && !c.Reply.Reject {
			last = c
		}
	}
	if !w.Check(last != nil && last.RDMAC(), "the start-up agrees on version 0", "%v", w.Trace.Ladder()) {
		return
	}
	for k := range last.Frames {
		if f := &last.Frames[k]; f.Kind == wire.KindFPDU {
			v := rdmap.ParseControl(f.Header.ULPCtl).Version
			w.Check(f.Header.Version == 0 && v == 0, "every segment has DV and RV 0", "DV %d, RV %d", f.Header.Version, v)
		}
	}
}
