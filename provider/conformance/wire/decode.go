package wire

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Errors that frames carry besides those of the layers.
var (
	errNotStartup = errors.New("not an MPA start-up frame: the connection is not iWARP, or its start is not in the capture")
	errCut        = errors.New("cut short: the stream ends inside the frame")
	errNoRequest  = errors.New("octets without an MPA Request to say how they are framed")
	errNoReply    = errors.New("octets without an MPA Reply to say how they are framed")
	errRejected   = errors.New("octets although the MPA Reply rejects the connection")
)

// decoder decodes one direction of a connection.
type decoder struct {
	conn   *Conn
	half   *half
	dir    Direction
	pos    int // octets decoded
	frames []Frame
}

// decode turns the two streams of a connection into frames.
func (s *stream) decode() *Conn {
	c := &Conn{Initiator: s.client, Responder: s.server, Start: s.start}
	out, in := &decoder{conn: c, half: &s.halves[0]}, &decoder{conn: c, half: &s.halves[1]}
	for _, d := range []*decoder{out, in} {
		d.half.assemble()
	}
	if !s.known && (startsWith(out.half.octets, mpa.KindReply) || startsWith(in.half.octets, mpa.KindRequest)) {
		c.Initiator, c.Responder = s.server, s.client
		out, in = in, out
	}
	out.dir, in.dir = ToResponder, ToInitiator
	c.Request = out.startup(mpa.KindRequest)
	c.Reply = in.startup(mpa.KindReply)
	switch {
	case c.Request != nil && c.Reply != nil && c.Reply.Reject:
		out.rest(errRejected)
		in.rest(errRejected)
	case c.Request != nil && c.Reply != nil:
		// M in a frame asks for Markers in what its sender receives.
		out.fpdus(c.Reply.Markers)
		in.fpdus(c.Request.Markers || c.RDMAC())
	default:
		out.rest(errNoReply)
		in.rest(errNoRequest)
	}
	out.finish()
	in.finish()
	c.Frames = merge(out.frames, in.frames)
	c.terminates()
	return c
}

// startsWith finds the initiator in a capture that lacks the TCP handshake.
func startsWith(octets []byte, kind mpa.Kind) bool {
	_, _, err := mpa.ParseFrame(octets, kind)
	return err == nil
}

// add appends a frame of the next n octets.
func (d *decoder) add(n int, f Frame) {
	f.Packet = d.half.packet(uint64(d.pos), n)
	f.Dir, f.Offset, f.Octets = d.dir, uint64(d.pos), d.half.octets[d.pos:d.pos+n:d.pos+n]
	d.pos += n
	f.Time = d.half.at(uint64(d.pos))
	d.frames = append(d.frames, f)
}

// rest adds the octets that are left, if any, as one frame that is not decoded.
func (d *decoder) rest(err error) {
	if n := len(d.half.octets) - d.pos; n > 0 {
		d.add(n, Frame{Kind: KindUndecoded, Err: err})
	}
}

// startup decodes the start-up frame of the direction, if there is one.
func (d *decoder) startup(kind mpa.Kind) *mpa.Frame {
	if len(d.half.octets) == 0 {
		return nil
	}
	f, n, err := mpa.ParseFrame(d.half.octets, kind)
	switch {
	case err == nil:
		d.add(n, Frame{Kind: KindStartup, Startup: &f})
		return &f
	case errors.Is(err, mpa.ErrShort):
		err = errCut
	case err == mpa.ErrKey:
		err = errNotStartup
	}
	d.rest(err)
	return nil
}

// fpdus decodes what follows the start-up frame.
func (d *decoder) fpdus(markers bool) {
	// Wrong CRCs are found in segment, so that decoding goes on after them.
	deframer := mpa.NewDeframer(markers, false)
	crc, version := d.conn.CRC(), d.conn.version()
	for d.pos < len(d.half.octets) {
		octets := d.half.octets[d.pos:]
		fpdu, n, done, err := deframer.Feed(nil, octets)
		if err == nil && !done {
			err = errCut
		}
		if err != nil {
			d.rest(err)
			return
		}
		f := Frame{Kind: KindFPDU}
		f.segment(fpdu, octets[:n], crc, version)
		d.add(n, f)
	}
}

// finish adds the end of the direction.
func (d *decoder) finish() {
	at := d.half.at(uint64(len(d.half.octets)))
	if at.IsZero() {
		at = d.conn.Start
	}
	if d.half.lack != "" {
		d.frames = append(d.frames, Frame{
			Kind: KindUndecoded, Dir: d.dir, Time: at, Offset: uint64(d.pos), Err: errors.New(d.half.lack),
		})
	}
	for _, f := range d.half.end {
		if at.After(f.Time) {
			f.Time = at // a FIN that overtook octets
		}
		f.Dir, f.Offset = d.dir, uint64(len(d.half.octets))
		d.frames = append(d.frames, f)
	}
	if d.half.note != "" {
		d.conn.Notes = append(d.conn.Notes, d.dir.String()+": "+d.half.note)
	}
}

// merge puts the frames of two directions, each in order, into order of time. At
// the same time the initiator's come first.
func merge(out, in []Frame) []Frame {
	all := make([]Frame, 0, len(out)+len(in))
	for len(out) > 0 && len(in) > 0 {
		if cmp.Compare(out[0].Time.UnixNano(), in[0].Time.UnixNano()) <= 0 {
			all, out = append(all, out[0]), out[1:]
		} else {
			all, in = append(all, in[0]), in[1:]
		}
	}
	return append(append(all, out...), in...)
}

// segment decodes an FPDU without Markers; octets is the same FPDU with them.
func (f *Frame) segment(fpdu, octets []byte, crc bool, version uint8) {
	field := octets[len(octets)-mpa.CRCLen:]
	f.CRC = binary.LittleEndian.Uint32(field)
	sum := mpa.CRC(0, octets[:len(octets)-mpa.CRCLen])
	if crc {
		if err := mpa.CheckCRC(sum, field); err != nil {
			f.CRCWrong, f.Err = true, err
		}
	}
	ulpduLen, _, _ := mpa.ParseHeader(fpdu)
	ulpdu := fpdu[mpa.HeaderLen : mpa.HeaderLen+ulpduLen]
	h, payload, err := ddp.Parse(ulpdu)
	if err != nil {
		f.note(err)
		f.HeaderCut = true
		f.Payload = ulpdu
		return
	}
	f.Header, f.Payload = h, payload
	again := fpdu[mpa.HeaderLen+ulpduLen-len(payload) : len(fpdu)-mpa.CRCLen] // payload and pad
	if f.CRCWrong && mpa.CheckCRC(mpa.CRC(sum, again), field) == nil {
		f.Err = fmt.Errorf("%w: it covers the payload twice, as that of siw of Linux 6.1 does when TCP's send "+
			"buffer fills up (kernel-notes/siw-two-senders.md has a remedy)", f.Err)
	}
	f.note(ddp.CheckVersion(&h, version))
	ctl := rdmap.ParseControl(h.ULPCtl)
	switch {
	case ctl.Version != version:
		f.note(rdmap.ErrVersion)
	case !ctl.Opcode.Defined() && !ctl.Opcode.Extension(): // the wire does not show whether both ends have RFC 7306
		f.note(rdmap.ErrReservedOpcode)
	case ctl.Opcode.Tagged() != h.Tagged:
		f.note(rdmap.ErrBufferModel)
	}
	if !h.Tagged {
		f.note(f.contents())
	}
}

// contents decodes the payload of untagged messages that is not the programs' own.
func (f *Frame) contents() error {
	switch f.Opcode() {
	case rdmap.OpReadRequest:
		return parsed(&f.Read, rdmap.ParseReadRequest, f.Payload)
	case rdmap.OpImmediate, rdmap.OpImmediateSE:
		return parsed(&f.Immediate, rdmap.ParseImmediate, f.Payload)
	case rdmap.OpAtomicRequest:
		return parsed(&f.Atomic, rdmap.ParseAtomicRequest, f.Payload)
	case rdmap.OpAtomicResponse:
		return parsed(&f.Original, rdmap.ParseAtomicResponse, f.Payload)
	}
	return nil
}

// parsed keeps the result of parse, if the payload is valid.
func parsed[V any](into **V, parse func([]byte) (V, error), payload []byte) error {
	v, err := parse(payload)
	if err == nil {
		*into = &v
	}
	return err
}

// terminates decodes the Terminates of a connection, which needs to know what was sent
// before them.
func (c *Conn) terminates() {
	var sent [2]bool // an FPDU in the direction
	for i := range c.Frames {
		f := &c.Frames[i]
		if f.Kind != KindFPDU {
			continue
		}
		if f.Opcode() == rdmap.OpTerminate && !f.Header.Tagged && !f.HeaderCut {
			phase := rdmap.PhaseBeforeFirstFPDU
			if sent[1-f.Dir] {
				phase = rdmap.PhaseAfterFirstFPDU
			}
			t, err := rdmap.ParseTerminate(f.Payload, phase)
			if err == nil {
				f.Terminate = &t
			}
			f.note(err)
		}
		sent[f.Dir] = true
	}
}

// note keeps the first error.
func (f *Frame) note(err error) {
	if f.Err == nil {
		f.Err = err
	}
}

// A Decoded is a message of a trace, with where it stands in the trace's Ladder.
type Decoded struct {
	Message
	Dir   Direction
	Lines []int // of the Ladder, counted from 0; nil for an "end" without FIN or RST
}

// Decode returns the messages of all connections in the order of the Ladder, as they are when
// they are compared: see Message. A message without lines comes last in its connection.
func (t *Trace) Decode() []Decoded {
	var out []Decoded
	for i, start := range t.ladderStarts() {
		begin := len(out)
		for _, dir := range []Direction{ToResponder, ToInitiator} {
			for _, m := range t.Conns[i].Messages(dir) {
				d := Decoded{Message: m, Dir: dir}
				for _, frame := range m.frames {
					d.Lines = append(d.Lines, start+frame)
				}
				out = append(out, d)
			}
		}
		slices.SortStableFunc(out[begin:], func(a, b Decoded) int {
			return cmp.Compare(a.firstLine(), b.firstLine())
		})
	}
	return out
}

func (d *Decoded) firstLine() int {
	if len(d.Lines) == 0 {
		return math.MaxInt
	}
	return d.Lines[0]
}
