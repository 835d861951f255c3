package fuzz

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Generate returns the sequence number index of a seed. The same numbers always give the same
// sequence, so a run can be resumed at any index.
func Generate(seed uint64, index int) *Sequence {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, uint64(index)))}
	s := g.valid()
	change := g.mutate(s)
	g.cut(s)
	s.About = fmt.Sprintf("seed %d, index %d: %s", seed, index, change)
	return s
}

type generator struct{ *rand.Rand }

// one returns true once in n times.
func (g *generator) one(n int) bool { return g.IntN(n) == 0 }

// bytes returns n random bytes.
func (g *generator) bytes(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.Uint32())
	}
	return b
}

// size returns a length up to most: often 0 or short, because the edges are there.
func (g *generator) size(most int) int {
	switch g.IntN(6) {
	case 0:
		return 0
	case 1:
		return 1 + g.IntN(8)
	case 2:
		return most
	}
	return g.IntN(most + 1)
}

// depth is the IRD and ORD of the peer's Request: more than a sequence needs.
const depth = 16

// valid returns a sequence without a fault.
func (g *generator) valid() *Sequence {
	request := rawpeer.Request(!g.one(16), depth, depth, g.bytes(g.size(32)))
	s := &Sequence{Request: request.AppendTo(nil)}
	if g.one(4) {
		s.Reads = 1 + g.IntN(maxReads)
	}
	// The messages of each queue stay in order, and so do all untagged and all tagged segments,
	// because segments of two messages may not be mixed. Untagged and tagged ones may be.
	var tagged, untagged [][]Frame
	for r := range s.Reads {
		tagged = append(tagged, g.response(r))
	}
	for range g.IntN(4) {
		tagged = append(tagged, g.write())
	}
	g.Shuffle(len(tagged)-s.Reads, func(i, j int) { // Writes only: responses answer in order
		tagged[s.Reads+i], tagged[s.Reads+j] = tagged[s.Reads+j], tagged[s.Reads+i]
	})
	tagged = g.merge(tagged[:s.Reads], tagged[s.Reads:])
	var sends, reads [][]Frame
	count := g.IntN(receives + 1)
	gift := g.IntN(2 * receives) // it can be invalidated once
	for k := range count {
		sends = append(sends, g.send(uint32(k+1), k == gift))
	}
	n := g.IntN(4)
	for k := range n {
		reads = append(reads, g.read(uint32(k+1)))
	}
	untagged = g.merge(sends, reads)
	for _, f := range g.merge(single(tagged), single(untagged)) {
		s.Frames = append(s.Frames, f...)
	}
	if g.one(16) {
		t := rdmap.Terminate{
			Layer: iwarp.Layer(g.IntN(3)), EType: iwarp.EType(g.IntN(3)), Code: iwarp.Code(g.IntN(10)),
		}
		s.Frames = append(s.Frames, frame(rawpeer.TerminateMessage(t)))
		return s
	}
	s.Barrier = true
	s.Frames = append(s.Frames, readRequest(uint32(n+1), rdmap.ReadRequest{
		SinkSTag: barrierSTag, Size: barrierLen, SourceSTag: Source.stag(), SourceTO: Source.to(),
	}, Source))
	return s
}

// single makes each frame a list of its own, so that merge mixes segments.
func single(messages [][]Frame) (out [][]Frame) {
	for _, f := range slices.Concat(messages...) {
		out = append(out, []Frame{f})
	}
	return out
}

// merge mixes two lists and keeps the order of each.
func (g *generator) merge(a, b [][]Frame) (out [][]Frame) {
	for len(a)+len(b) > 0 {
		if g.IntN(len(a)+len(b)) < len(a) {
			out, a = append(out, a[0]), a[1:]
		} else {
			out, b = append(out, b[0]), b[1:]
		}
	}
	return out
}

// frame returns an FPDU of the raw peer.
func frame(f rawpeer.FPDU, refs ...Ref) Frame {
	b := f.Octets(true)
	return Frame{Bytes: b[:len(b)-mpa.CRCLen], Refs: refs}
}

// Where the fields of an FPDU are.
const (
	atControl  = mpa.HeaderLen // T, L, DV
	atULPCtl   = atControl + 1
	atSTag     = atULPCtl + 1 // also the STag to invalidate
	atTO       = atSTag + 4   // tagged
	atQN       = atSTag + 4   // untagged
	atMSN      = atQN + 4
	atMO       = atMSN + 4
	atPayload  = atMO + 4 // of an untagged segment
	atReadSize = atPayload + 12
	atReadSTag = atReadSize + 4
	atReadTO   = atReadSTag + 4
)

func tagRefs(r Region) []Ref { return []Ref{{atSTag, 4, r}, {atTO, 8, r}} }

// segments divides a message into up to three segments.
func (g *generator) segments(f rawpeer.FPDU, refs []Ref) (out []Frame) {
	for k := g.IntN(3); k > 0 && len(f.Payload) > 1; k-- {
		n := 1 + g.IntN(len(f.Payload)-1)
		first := f
		first.Header.Last, first.Payload = false, f.Payload[:n]
		out = append(out, frame(first, slices.Clone(refs)...))
		f.Payload = f.Payload[n:]
		if f.Header.Tagged {
			f.Header.TO += uint64(n)
		} else {
			f.Header.MO += uint32(n)
		}
	}
	return append(out, frame(f, refs...))
}

func (g *generator) send(msn uint32, invalidate bool) []Frame {
	op, inv := rdmap.OpSend, uint32(0)
	var refs []Ref
	if g.one(4) {
		op = rdmap.OpSendSE
	}
	if invalidate {
		op, inv = op+1, Gift.stag()
		refs = []Ref{{atSTag, 4, Gift}}
	}
	return g.segments(rawpeer.FPDU{
		Header: rdmap.SendHeader(op, inv, msn, 0, true), Payload: g.bytes(g.size(receiveSize)),
	}, refs)
}

// span returns an offset and a length inside of a region.
func (g *generator) span(most int) (off, n int) {
	n = g.size(most)
	return g.IntN(RegionSize - n + 1), n
}

func (g *generator) write() []Frame {
	off, n := g.span(2048)
	to := Window.to() + uint64(off)
	return g.segments(rawpeer.WriteMessage(Window.stag(), to, g.bytes(n)), tagRefs(Window))
}

// response answers the program's Read number r.
func (g *generator) response(r int) []Frame {
	to := Sink.to() + uint64(r*readSize)
	return g.segments(rawpeer.ReadResponse(Sink.stag(), to, g.bytes(readSize)), tagRefs(Sink))
}

func (g *generator) read(msn uint32) []Frame {
	off, n := g.span(2048)
	return []Frame{readRequest(msn, rdmap.ReadRequest{
		SinkSTag: peerSTag, SinkTO: uint64(msn) << 32, Size: uint32(n),
		SourceSTag: Source.stag(), SourceTO: Source.to() + uint64(off),
	}, Source)}
}

func readRequest(msn uint32, r rdmap.ReadRequest, region Region) Frame {
	return frame(rawpeer.ReadRequest(msn, r), Ref{atReadSTag, 4, region}, Ref{atReadTO, 8, region})
}

// cut divides the stream of one sequence in three: at a few places, or after each few bytes.
func (g *generator) cut(s *Sequence) {
	length := 0
	for _, f := range s.Frames {
		length += len(f.Bytes) + mpa.CRCLen
	}
	switch {
	case length < 2 || !g.one(3):
	case g.one(8):
		step := 1 + g.IntN(64)
		for at := step; at < length && len(s.Cuts) < 200; at += step {
			s.Cuts = append(s.Cuts, at)
		}
	default:
		for range 1 + g.IntN(4) {
			s.Cuts = append(s.Cuts, 1+g.IntN(length-1))
		}
		slices.Sort(s.Cuts)
		s.Cuts = slices.Compact(s.Cuts)
	}
}

// length returns the ULPDU's length field.
func (f *Frame) length() int { return int(binary.BigEndian.Uint16(f.Bytes)) }
