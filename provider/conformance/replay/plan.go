package replay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// plan is what has to happen, in the capture's order.
type plan struct {
	conn  *wire.Conn
	peers wire.Direction // what the scripted peer sends goes this way

	events   []event
	regions  []*region // of the provider's program, in the order of first use
	receives []receive
	payload  int  // octets of the program's Sends and Writes
	posts    int  // work requests of the program
	refused  bool // the provider sent a Terminate
	objected bool // the peer did
}

// event is one step. Exactly one of its fields is set.
type event struct {
	play *wire.Frame // the peer sends this FPDU, or ends its direction
	set  *change     // the program changes its memory
	want *message    // the provider sends this
	end  bool        // the provider ends its direction
}

// change is what the program writes into its own memory.
type change struct {
	region *region
	at     int
	octets []byte
}

// message is a message of the provider.
type message struct {
	first  *wire.Frame // its first segment
	octets []byte      // payload of all segments
}

func (m *message) opcode() rdmap.Opcode { return m.first.Opcode() }

// receive is a receive that the program posts, and the message that it takes.
type receive struct {
	octets []byte
	frames int // segments
}

// region is memory of the provider's program. It is registered at the address that it had in the
// capture, so tagged offsets stay as they are.
type region struct {
	stag   uint32 // in the capture
	from   uint64 // tagged offset of its first octet
	to     uint64 // of the octet after its last
	access ibverbs.Access
	other  bool // it is in another PD than the connection

	first []byte // what it holds before the connection
	last  []byte // and after it
	known []bool // octets whose first value is decided
}

// maxRegion bounds a region: a capture that needs more makes no sense.
const maxRegion = 256 << 20

var errMarkers = errors.New("markers in one direction only are not replayed")

// newPlan plans the replay of a connection.
func newPlan(c *wire.Conn, play conformance.Role) (*plan, error) {
	p := &plan{conn: c, peers: wire.ToResponder}
	if play == conformance.RoleResponder {
		p.peers = wire.ToInitiator
	}
	if err := p.possible(); err != nil {
		return nil, err
	}
	refused := p.refusedFrames()
	if err := p.findRegions(refused); err != nil {
		return nil, err
	}
	return p, p.steps(refused)
}

// possible says what can't be replayed.
func (p *plan) possible() error {
	c := p.conn
	switch {
	case c.Request == nil || c.Reply == nil:
		return errors.New("the capture lacks the MPA Request or Reply, which say how FPDUs are " +
			"framed")
	case c.Reply.Reject:
		return errors.New("the connection was rejected: there are no FPDUs to replay")
	case c.RDMAC():
		return errors.New("connections of the RDMA Consortium's version are not replayed")
	case c.Request.Markers != c.Reply.Markers:
		return errMarkers
	}
	for i := range c.Frames {
		f := &c.Frames[i]
		switch {
		case f.Kind == wire.KindUndecoded:
			return fmt.Errorf("frame %d can't be decoded: %w", i+1, f.Err)
		case f.Kind == wire.KindFPDU && (f.Immediate != nil || f.Atomic != nil ||
			f.Original != nil):
			return fmt.Errorf("frame %d is a %v: messages of RFC 7306 are not replayed", i+1,
				f.Opcode())
		case f.Kind == wire.KindFPDU && f.Dir != p.peers && f.Err != nil:
			return fmt.Errorf("frame %d is nothing that a provider can be made to send: %w", i+1,
				f.Err)
		}
	}
	return nil
}

// refusedFrames returns the peer's FPDUs that the provider did not take: the FPDU that its
// Terminate is about, and all after it.
func (p *plan) refusedFrames() map[*wire.Frame]rdmap.Terminate {
	sent := p.conn.FPDUs(p.peers)
	p.objected = slices.ContainsFunc(sent, func(f *wire.Frame) bool { return f.Terminate != nil })
	for _, f := range p.conn.FPDUs(1 - p.peers) {
		if f.Terminate == nil {
			continue
		}
		p.refused = true
		out := make(map[*wire.Frame]rdmap.Terminate)
		for _, fault := range sent[min(p.fault(sent, f), len(sent)):] {
			out[fault] = f.Terminate.Terminate
		}
		return out
	}
	return nil
}

// fault finds the FPDU that a Terminate is about: the first whose header it returns, or else the
// last before it. It passes over what the peer sent to an STag before the peer invalidated it.
func (p *plan) fault(sent []*wire.Frame, terminate *wire.Frame) int {
	t := terminate.Terminate
	match, last := -1, 0
	for i, f := range sent {
		if f.Time.After(terminate.Time) {
			break
		}
		last = i
		switch {
		case t.HaveDDP && t.DDP.Tagged && f.Opcode().Invalidates() && f.Header.ULP32 == t.DDP.STag:
			match = -1
		case match < 0 && isFault(f, t):
			match = i
		}
	}
	if match < 0 {
		return last
	}
	return match
}

// isFault reports whether an FPDU is what a Terminate describes.
func isFault(f *wire.Frame, t *rdmap.ReceivedTerminate) bool {
	h := &f.Header
	switch {
	case f.CRCWrong:
		return t.Layer == iwarp.LayerLLP
	case t.HaveRead:
		return f.Read != nil && f.Read.SourceSTag == t.Read.SourceSTag &&
			f.Read.SourceTO == t.Read.SourceTO
	case !t.HaveDDP || t.DDP.Tagged != h.Tagged:
		return false
	case h.Tagged:
		return h.STag == t.DDP.STag && h.TO == t.DDP.TO
	}
	return h.QN == t.DDP.QN && h.MSN == t.DDP.MSN && h.MO == t.DDP.MO
}

// access is a use of the provider's memory.
type access struct {
	stag   uint32
	from   uint64
	length int
	right  ibverbs.Access
}

// findRegions finds the memory that the capture shows. It uses refused accesses as well, and makes
// their regions so that they are refused again for the same reason.
func (p *plan) findRegions(refused map[*wire.Frame]rdmap.Terminate) error {
	for i := range p.conn.Frames {
		f := &p.conn.Frames[i]
		a, ok := p.accessOf(f)
		if !ok || a.length == 0 && p.find(a.stag) == nil && (a.stag == 0 || f.Dir == p.peers) {
			continue // nothing is accessed, so that the STag need not name anything
		}
		t, bad := refused[f]
		if !bad {
			if err := p.region(a.stag, a.from, a.length, a.right); err != nil {
				return err
			}
			continue
		}
		if err := p.refusing(a, t); err != nil {
			return err
		}
	}
	for _, r := range p.regions {
		if r.to == r.from {
			r.to++ // a region of no octets can't be registered
		}
		n := int(r.to - r.from)
		r.first, r.known = make([]byte, n), make([]bool, n)
	}
	return nil
}

// refusing makes room for an access that the provider refused.
func (p *plan) refusing(a access, t rdmap.Terminate) error {
	type code struct {
		layer iwarp.Layer
		etype iwarp.EType
		code  iwarp.Code
	}
	if p.find(a.stag) != nil {
		return nil
	}
	switch (code{t.Layer, t.EType, t.Code}) {
	case code{iwarp.LayerDDP, iwarp.DDPTaggedBuffer, iwarp.DDPTaggedBaseBounds},
		code{iwarp.LayerRDMAP, iwarp.RDMAPRemoteProtection, iwarp.RDMAPBaseBounds}:
		return p.region(a.stag, a.from, a.length-1, a.right)
	case code{iwarp.LayerRDMAP, iwarp.RDMAPRemoteProtection, iwarp.RDMAPAccessRights}:
		return p.region(a.stag, a.from, a.length, 0)
	case code{iwarp.LayerDDP, iwarp.DDPTaggedBuffer, iwarp.DDPTaggedSTagNotAssociated},
		code{iwarp.LayerRDMAP, iwarp.RDMAPRemoteProtection, iwarp.RDMAPSTagNotAssociated}:
		if err := p.region(a.stag, a.from, a.length, a.right); err != nil {
			return err
		}
		p.find(a.stag).other = true
	}
	return nil
}

// accessOf returns the use that a frame makes of the provider's memory.
func (p *plan) accessOf(f *wire.Frame) (access, bool) {
	switch {
	case f.Kind != wire.KindFPDU || f.HeaderCut:
	case f.Dir == p.peers && f.Read != nil:
		return access{f.Read.SourceSTag, f.Read.SourceTO, int(f.Read.Size),
			ibverbs.AccessRemoteRead}, true
	case f.Dir == p.peers && f.Header.Tagged && f.Opcode() == rdmap.OpWrite:
		return access{f.Header.STag, f.Header.TO, len(f.Payload), ibverbs.AccessRemoteWrite}, true
	case f.Dir != p.peers && f.Read != nil:
		// The response is placed there, for which iWARP needs the right of remote writing.
		return access{f.Read.SinkSTag, f.Read.SinkTO, int(f.Read.Size),
			ibverbs.AccessReadSink}, true
	case f.Dir == p.peers && f.Opcode().Invalidates():
		if r := p.find(f.Header.ULP32); r != nil {
			return access{r.stag, r.from, 0, ibverbs.AccessRemoteInvalidate}, true
		}
	}
	return access{}, false
}

func (p *plan) find(stag uint32) *region {
	i := slices.IndexFunc(p.regions, func(r *region) bool { return r.stag == stag })
	if i < 0 {
		return nil
	}
	return p.regions[i]
}

// region makes a region cover an access.
func (p *plan) region(stag uint32, from uint64, length int, right ibverbs.Access) error {
	r := p.find(stag)
	if r == nil {
		r = &region{stag: stag, from: from, to: from}
		p.regions = append(p.regions, r)
	}
	if right != 0 {
		r.access |= right | ibverbs.AccessLocalWrite
	}
	if from+uint64(length) < from {
		return fmt.Errorf("STag %#08x is used beyond the last tagged offset, from %#x over %d octets",
			stag, from, length)
	}
	if length > 0 {
		r.from, r.to = min(r.from, from), max(r.to, from+uint64(length))
	}
	if size := r.to - r.from; size > maxRegion {
		return fmt.Errorf("STag %#08x is used over %d octets: at most %d are replayed", stag, size,
			maxRegion)
	}
	return nil
}
