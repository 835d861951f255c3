package scenarios

import (
	"cmp"
	"slices"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// raw are the scenarios in which a scripted peer is connected to one provider. Their
// groups are the layers of the protocol.
func raw() []*conformance.Scenario {
	return slices.Concat(
		rawRequests(), rawReplies(), rawInitiates(), rawFraming(),
		rawUntagged(), rawTagged(), rawLater(),
		rawMessages(), rawReads(), rawResponses(), rawTerminates(), rawInvalidates(),
		rawQuestions(),
	)
}

// rawSize is the length of what stage registers and posts, and rawPart is the length
// of the messages that are played against it.
const (
	rawRecvSize = 64
	rawSize     = 256
	rawPart     = 16
)

// rawStage is a provider with memory of every kind and two receives, opposite the raw
// peer. With a target it has only the connection: its buffers are nil, messages to them
// have an STag that names nothing there, and its memory and completions are not checked.
type rawStage struct {
	r    *conformance.RawRun
	side *conformance.Side

	recv    [2]*conformance.Buffer // posted as WR 1 and 2
	window  *conformance.Buffer    // the peer may write to it
	source  *conformance.Buffer    // the peer may read it; its octets differ
	private *conformance.Buffer    // the peer has no right to it
	foreign *conformance.Buffer    // of another PD, whose peer has all rights

	wrote bool // the script has written to the window
	sent  bool // the script has sent to the receives
}

// stage connects, after it has registered memory and posted receives.
func stage(r *conformance.RawRun, c *conformance.RawConnect) *rawStage {
	if c == nil {
		c = &conformance.RawConnect{}
	}
	st := &rawStage{r: r}
	before := c.Before
	c.Before = func(s *conformance.Side) {
		st.set(s)
		if before != nil {
			before(s)
		}
	}
	r.Connect(c)
	return st
}

func (st *rawStage) set(s *conformance.Side) {
	st.side = s
	for k := range st.recv {
		st.recv[k] = s.Buffer("the receive buffer", rawRecvSize, local)
		s.PostRecv(recv(uint64(k+1), st.recv[k]))
	}
	st.window = s.Buffer("the window", rawSize, remoteWrite)
	st.source = s.Buffer("the source", rawSize, remoteRead).Fill(st.r.Seed)
	st.private = s.Buffer("the private region", rawSize, local)
	pd, err := s.EP.Context.AllocPD()
	s.NoError(err, "another PD can be made")
	s.Cleanup(func() { s.Check(pd.Close() == nil, "the other PD can be closed") })
	st.foreign = s.BufferIn(pd, "the other PD's region", rawSize, remoteWrite|ibverbs.AccessRemoteRead|ibverbs.AccessRemoteInvalidate)
}

// payload is n octets that the seed decides.
func (st *rawStage) payload(n int) []byte { return pattern(n, byte(st.r.Seed)|1) }

// unknown is an STag that names nothing, whatever its key octet.
func (st *rawStage) unknown() uint32 {
	if st.side == nil {
		return 0x5a5a5a00 // what the target has registered is not known
	}
	stag := st.window.MR.RKey() ^ 0x5a5a5a00
	for st.names(stag) {
		stag += 0x100
	}
	return stag
}

func (st *rawStage) names(stag uint32) bool {
	for _, b := range []*conformance.Buffer{st.recv[0], st.recv[1], st.window, st.source, st.private, st.foreign} {
		if b.MR.RKey()>>8 == stag>>8 {
			return true
		}
	}
	return stag>>8 == 0
}

// send is a Send of the seed's payload.
func (st *rawStage) send(msn uint32, n int) rawpeer.FPDU {
	return rawpeer.SendMessage(msn, st.payload(n))
}

// write is a Write of the seed's payload to an offset of a buffer.
func (st *rawStage) write(b *conformance.Buffer, off, n int) rawpeer.FPDU {
	stag, to := st.at(b, off)
	return rawpeer.WriteMessage(stag, to, st.payload(n))
}

// at returns the STag and the tagged offset by which the peer names an offset of a buffer.
func (st *rawStage) at(b *conformance.Buffer, off int) (stag uint32, to uint64) {
	if st.side == nil {
		return st.unknown(), uint64(off)
	}
	return b.MR.RKey(), b.MR.Addr() + uint64(off)
}

// The sink that Reads of the peer name. It is the peer's own, and means nothing
// to the provider.
const (
	rawSinkSTag = 0x00c0ffee
	rawSinkTO   = 0x1122334455667788
)

// read is a Read Request for n octets from an offset of a buffer.
func (st *rawStage) read(msn uint32, b *conformance.Buffer, off, n int) rawpeer.FPDU {
	stag, to := st.at(b, off)
	return rawpeer.ReadRequest(msn, rdmap.ReadRequest{
		SinkSTag: rawSinkSTag, SinkTO: rawSinkTO, Size: uint32(n), SourceSTag: stag, SourceTO: to,
	})
}

// untouched checks all memory that the script had no right to write to, or has not
// written to.
func (st *rawStage) untouched() {
	if st.side == nil {
		return
	}
	if !st.sent {
		st.recv[0].Untouched("nothing is placed in the receive buffer")
		st.recv[1].Untouched("nothing is placed in the second receive buffer")
	}
	if !st.wrote {
		st.window.Untouched("nothing is placed in the window")
	}
	st.private.Untouched("nothing is placed in the private region")
	st.foreign.Untouched("nothing is placed in the other PD's region")
}

// flushed checks that the receives that are posted, the last n, complete without
// success. It observes how the first completes.
func (st *rawStage) flushed(n int) {
	if st.side == nil {
		return
	}
	for _, wc := range st.side.RecvWCs(n) {
		st.r.Check(wc.Status != ibverbs.WCSuccess, "no receive completes with success", "WR %d did", wc.WRID)
	}
}

// alive checks that the connection works, with a Send of the given MSN that the
// receive wrid takes.
func (st *rawStage) alive(what string, msn uint32, wrid uint64) {
	st.r.SendFPDU(st.send(msn, rawPart))
	st.side.WantWC(st.side.RecvWCs(1), 0, wrid, ibverbs.WCSuccess, what)
	st.sent = true
}

// leave ends a connection without errors.
func (st *rawStage) leave() {
	st.r.WantSilence("nothing else is sent", 2*time.Millisecond)
	st.r.WantClose()
}

// A rawFault is one FPDU or a few with one thing wrong in them, and what has to come back.
type rawFault struct {
	slug, title  string
	requirements []string
	level        conformance.Level // Must if empty
	options      []string
	needs        conformance.Needs // NeedsProgram if empty

	fpdus func(*rawStage) []rawpeer.FPDU
	want  []string // Terminates that the RFCs allow, layer/type/code

	// hello sends a zero-length Write first, so that the fault is not in the first FPDU.
	hello bool
	sent  bool // what goes before the fault is placed in the receive buffer, lawfully
	wrote bool // the same, in the window
}

// one makes the frames of a fault that is a single FPDU.
func one(f func(*rawStage) rawpeer.FPDU) func(*rawStage) []rawpeer.FPDU {
	return func(st *rawStage) []rawpeer.FPDU { return []rawpeer.FPDU{f(st)} }
}

func (f rawFault) scenario() *conformance.Scenario {
	level := f.level
	if level == "" {
		level = conformance.Must
	}
	return &conformance.Scenario{
		Slug: f.slug, Title: f.title, Requirements: f.requirements, Level: level, Options: f.options,
		RawRole: conformance.RoleInitiator, Raw: f.play, Needs: cmp.Or(f.needs, conformance.NeedsProgram),
	}
}

func (f rawFault) play(r *conformance.RawRun) {
	st := stage(r, nil)
	st.sent, st.wrote = f.sent, f.wrote
	if f.hello {
		r.SendFPDU(st.write(st.window, 0, 0))
	}
	r.SendFPDU(f.fpdus(st)...)
	r.WantRefused("the Terminate names the fault", f.want...)
	st.flushed(len(st.recv))
	st.untouched()
}

// faults makes the scenarios of a table of faults.
func faults(table []rawFault) []*conformance.Scenario {
	var out []*conformance.Scenario
	for _, f := range table {
		out = append(out, f.scenario())
	}
	return out
}

// rawStory makes a scenario that a function plays, with the raw peer as initiator. It needs a
// program that does what the function says, unless needing says otherwise.
func rawStory(slug, title string, requirements []string, play func(*conformance.RawRun)) *conformance.Scenario {
	return &conformance.Scenario{
		Slug: slug, Title: title, Requirements: requirements, Level: conformance.Must,
		RawRole: conformance.RoleInitiator, Raw: play, Needs: conformance.NeedsProgram,
	}
}

// needing makes s a scenario that needs no more of the other side than needs.
func needing(needs conformance.Needs, s *conformance.Scenario) *conformance.Scenario {
	s.Needs = needs
	return s
}

// control changes the RDMAP control field of an FPDU.
func control(f rawpeer.FPDU, change func(*rdmap.Control)) rawpeer.FPDU {
	c := rdmap.ParseControl(f.Header.ULPCtl)
	change(&c)
	f.Header.ULPCtl = c.Octet()
	return f
}

// cut splits an FPDU into two segments, the first with n octets of payload.
func cut(f rawpeer.FPDU, n int) []rawpeer.FPDU {
	first, second := f, f
	first.Header.Last = false
	first.Payload, second.Payload = f.Payload[:n], f.Payload[n:]
	if f.Header.Tagged {
		second.Header.TO += uint64(n)
	} else {
		second.Header.MO += uint32(n)
	}
	return []rawpeer.FPDU{first, second}
}
