package scenarios

import (
	"time"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// rawInitiates are about options of a provider that connects: it begins with a message
// that lets the responder send, or tries again with revision 1.
func rawInitiates() []*conformance.Scenario {
	var out []*conformance.Scenario
	for _, o := range []struct {
		name string
		rtr  mpa.RTR
		msn  uint32 // of the program's first Send
	}{{"send", mpa.RTRSend, 2}, {"write", mpa.RTRWrite, 1}, {"read", mpa.RTRRead, 1}} {
		s := responderStory("mpa/opens-with-"+o.name,
			"a provider that is to open connections with a "+o.name+" asks for that, sends it, and hears who accepted before its program says anything",
			[]string{"MPA2-5-02", "MPA2-9.2-01", "MPA2-9.2-08", "MPA2-9.2-15"}, func(r *conformance.RawRun) { opensWith(r, o.rtr, o.msn) })
		s.Options = []string{"rtr=" + o.name}
		out = append(out, s)
	}
	fallback := responderStory("mpa/fallback", "a provider that may do so tries once more, with revision 1, after a peer that hangs up on an enhanced Request",
		[]string{"MPA2-10-05"}, fallsBack)
	fallback.Options = []string{"fallback=closed"}
	return append(out, fallback)
}

// opensWith plays a responder that speaks first.
func opensWith(r *conformance.RawRun, rtr mpa.RTR, msn uint32) {
	var note, source *conformance.Buffer
	request := r.WantDial("the provider connects", &conformance.SideConfig{Before: func(s *conformance.Side) {
		note, source = s.Buffer("the receive buffer", rawPart, local), s.Buffer("the source", rawPart, local)
		s.PostRecv(recv(1, note))
	}})
	e, _, err := request.SplitPrivateData()
	asked := r.Check(err == nil && e.A, "it asks for a peer-to-peer connection", "%+v, %v", e, err)
	r.Check(e.RTR() == rtr, "it offers the message that it is to open connections with", "it offers %s", e.RTR())
	r.Peer.CRC = true
	r.Answer(request, rawpeer.Reply(true, 4, 4, nil))
	r.WantConnected("the provider takes the reply")
	if asked {
		r.SendFPDU(rawpeer.SendMessage(1, pattern(rawPart, 3)))
		r.Side.WantWC(r.Side.RecvWCs(1), 0, 1, 0, "a Send of the responder arrives before the program has posted anything")
		note.Holds(pattern(rawPart, 3), "as it was sent")
	}
	r.Side.PostSend(send(2, source))
	seg := r.WantFPDU("a Send of the program follows", rdmap.OpSend)
	if asked {
		r.Check(seg.Header.MSN == msn, "its MSN counts the message that opened the connection if that was a Send", "MSN %d", seg.Header.MSN)
	}
	r.Side.SendWCs(1)
	finish(r)
}

// fallsBack plays a responder that does not know revision 2.
func fallsBack(r *conformance.RawRun) {
	private := pattern(5, 9)
	cfg := &conformance.SideConfig{}
	cfg.PrivateData = private
	r.WantDial("the provider connects", cfg)
	_ = r.Peer.Close()
	f, again := r.Redial()
	if !r.Check(again, "a second connection comes", "none did in %v", r.Scaled(conformance.Answers)) {
		r.WantConnectError("the program's connect fails")
		return
	}
	r.Check(f.Revision == 1 && !f.Enhanced, "its Request is of revision 1, without connection data", "revision %d, S %v", f.Revision, f.Enhanced)
	r.Check(string(f.PrivateData) == string(private), "with the program's private data", "% x", f.PrivateData)
	r.Start(mpa.Frame{Kind: mpa.KindReply, CRC: true, Revision: 1})
	r.WantConnected("the provider takes the reply")
	r.Peer.CRC = true
	time.Sleep(r.Scaled(time.Millisecond))
	finish(r)
}
