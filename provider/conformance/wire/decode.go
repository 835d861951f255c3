package wire

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Errors that frames carry besides those of the layers.
var (
	errNotStartup = errors.New("not an MPA start-up frame: the connection is not iWARP, or its start is not in the capture")
	errCut        = errors.New("cut short: the stream ends inside the frame")
	errNoReply    = errors.New("octets without an MPA Reply to say how they are framed")
)

// decode turns the two streams of a connection into frames.
func (s *stream) decode() *Conn {
	c := &Conn{Initiator: s.client, Responder: s.server, Start: s.start}
	in, out := &s.halves[1], &s.halves[0] // to the initiator, to the responder
	if s.synAck || startsWithReply(out.octets) {
		c.Initiator, c.Responder = s.server, s.client
		in, out = out, in
	}
	reqLen, ok := c.startup(out, ToResponder, mpa.KindRequest)
	repLen := 0
	if ok {
		repLen, ok = c.startup(in, ToInitiator, mpa.KindReply)
	}
	switch {
	case ok && c.Request != nil && c.Reply != nil:
		// M in a frame asks for Markers in what its sender receives.
		c.fpdus(out, ToResponder, reqLen, c.Reply.Markers)
		c.fpdus(in, ToInitiator, repLen, c.Request.Markers)
	case c.Request != nil && len(out.octets) > reqLen:
		c.undecoded(out, ToResponder, reqLen, errNoReply)
	}
	for dir, h := range []*half{out, in} {
		for _, f := range h.end {
			f.Dir, f.Offset = Direction(dir), uint64(len(h.octets))
			c.Frames = append(c.Frames, f)
		}
	}
	slices.SortStableFunc(c.Frames, func(x, y Frame) int {
		if d := cmp.Compare(x.Time.UnixNano(), y.Time.UnixNano()); d != 0 {
			return d
		}
		if x.Dir == y.Dir {
			return cmp.Compare(x.Offset, y.Offset)
		}
		return 0
	})
	return c
}

// startsWithReply tells a capture that lacks the TCP handshake apart.
func startsWithReply(octets []byte) bool {
	_, _, err := mpa.ParseFrame(octets, mpa.KindReply)
	return err == nil
}

// startup decodes the start-up frame of a direction and returns its length. ok
// is false if what is there is not one.
func (c *Conn) startup(h *half, dir Direction, kind mpa.Kind) (n int, ok bool) {
	if len(h.octets) == 0 {
		return 0, true
	}
	f, n, err := mpa.ParseFrame(h.octets, kind)
	if err != nil {
		switch {
		case errors.Is(err, mpa.ErrShort):
			err = errCut
		case err == mpa.ErrKey:
			err = errNotStartup
		}
		c.undecoded(h, dir, 0, err)
		return 0, false
	}
	if kind == mpa.KindRequest {
		c.Request = &f
	} else {
		c.Reply = &f
	}
	c.Frames = append(c.Frames, Frame{Kind: KindStartup, Dir: dir, Time: h.at(uint64(n)), Octets: h.octets[:n], Startup: &f})
	return n, true
}

// undecoded adds the rest of a direction as one frame.
func (c *Conn) undecoded(h *half, dir Direction, from int, err error) {
	c.Frames = append(c.Frames, Frame{
		Kind: KindUndecoded, Dir: dir, Time: h.at(uint64(len(h.octets))), Offset: uint64(from), Octets: h.octets[from:], Err: err,
	})
}

// fpdus decodes what follows the start-up frame in one direction.
func (c *Conn) fpdus(h *half, dir Direction, from int, markers bool) {
	d := mpa.NewDeframer(markers, false)
	crc := c.CRC()
	for at := from; at < len(h.octets); {
		fpdu, n, done, err := d.Feed(nil, h.octets[at:])
		octets := h.octets[at : at+n]
		f := Frame{Kind: KindFPDU, Dir: dir, Time: h.at(uint64(at + n)), Offset: uint64(at), Octets: octets}
		if err == nil && !done {
			cut := errCut
			if h.gap > 0 {
				cut = fmt.Errorf("%d octets are missing from the capture here", h.gap)
			}
			c.undecoded(h, dir, at, cut)
			return
		}
		if err != nil {
			c.undecoded(h, dir, at, err)
			return
		}
		f.segment(fpdu, octets, crc, c.phase(dir))
		c.Frames = append(c.Frames, f)
		at += n
	}
}

// phase says for a Terminate in direction dir whether its receiver had sent an
// FPDU. Directions are decoded one after the other, so it counts the frames that
// are there already; to the initiator all of the other direction's are.
func (c *Conn) phase(dir Direction) rdmap.Phase {
	if dir == ToResponder {
		return rdmap.PhaseUnknown
	}
	if len(c.FPDUs(ToResponder)) == 0 {
		return rdmap.PhaseBeforeFirstFPDU
	}
	return rdmap.PhaseAfterFirstFPDU
}

// segment decodes an FPDU from which the Markers were taken; octets is the same
// with them.
func (f *Frame) segment(fpdu, octets []byte, crc bool, phase rdmap.Phase) {
	ulpduLen, fpduLen, ok := mpa.ParseHeader(fpdu)
	if !ok || fpduLen != len(fpdu) {
		f.Kind, f.Err = KindUndecoded, errCut
		return
	}
	field := octets[len(octets)-mpa.CRCLen:]
	f.CRC = uint32(field[0]) | uint32(field[1])<<8 | uint32(field[2])<<16 | uint32(field[3])<<24
	if crc {
		if err := mpa.CheckCRC(mpa.CRC(0, octets[:len(octets)-mpa.CRCLen]), field); err != nil {
			f.CRCWrong, f.Err = true, err
		}
	}
	h, payload, err := ddp.Parse(fpdu[mpa.HeaderLen : mpa.HeaderLen+ulpduLen])
	if err != nil {
		f.note(err)
		f.Payload = fpdu[mpa.HeaderLen : mpa.HeaderLen+ulpduLen]
		return
	}
	f.Header, f.Payload = h, payload
	f.note(ddp.CheckVersion(&h))
	ctl := rdmap.ParseControl(h.ULPCtl)
	switch {
	case ctl.Version != rdmap.Version:
		f.note(rdmap.ErrVersion)
	case !ctl.Opcode.Defined():
		f.note(rdmap.ErrReservedOpcode)
	case ctl.Opcode.Tagged() != h.Tagged:
		f.note(rdmap.ErrBufferModel)
	}
	switch ctl.Opcode {
	case rdmap.OpReadRequest:
		if r, err := rdmap.ParseReadRequest(payload); err == nil {
			f.Read = &r
		} else {
			f.note(err)
		}
	case rdmap.OpTerminate:
		if t, err := rdmap.ParseTerminate(payload, phase); err == nil {
			f.Terminate = &t
		} else {
			f.note(err)
		}
	}
}

// note keeps the first error.
func (f *Frame) note(err error) {
	if f.Err == nil {
		f.Err = err
	}
}
