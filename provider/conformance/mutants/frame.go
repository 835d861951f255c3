package mutants

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// frame is one start-up frame or FPDU. A fault that changes start, header or payload
// sends rebuilt instead of octets.
type frame struct {
	octets []byte

	startup bool
	reply   bool      // a start-up frame in the place of a Reply
	good    bool      // start, or header, can be read
	start   mpa.Frame // of a start-up frame

	index   int  // how many FPDUs went before it in this direction
	crc     bool // CRCs are on
	header  ddp.Header
	control rdmap.Control // in header.ULPCtl
	payload []byte
}

// next returns the first whole frame of in, and its length. faultMu is held.
func (c *conn) next(h *half) (*frame, int) {
	if !h.started {
		if len(h.in) < mpa.FrameHeaderLen {
			return nil, 0
		}
		n := mpa.FrameHeaderLen + int(binary.BigEndian.Uint16(h.in[mpa.FrameHeaderLen-2:]))
		if n > mpa.MaxFrameLen {
			n = len(h.in) // no start-up frame: the engine gets all there is
		}
		if len(h.in) < n {
			return nil, 0
		}
		h.started = true
		f := &frame{octets: append([]byte(nil), h.in[:n]...), startup: true, reply: h.reply}
		f.start, f.good = parseStartup(f.octets, f.reply)
		if h == &c.tx && f.good {
			c.shared.rxMarked = f.start.Markers
			c.shared.txMarked = c.shared.txMarked || speaksRDMAC(f.start)
		}
		return f, n
	}
	ulpduLen, n, ok := mpa.ParseHeader(h.in)
	if !ok || len(h.in) < n {
		return nil, 0
	}
	f := &frame{octets: append([]byte(nil), h.in[:n]...), index: h.count, crc: c.shared.crc}
	h.count++
	var err error
	f.header, f.payload, err = ddp.Parse(f.octets[mpa.HeaderLen : mpa.HeaderLen+ulpduLen])
	f.good = err == nil
	f.control = rdmap.ParseControl(f.header.ULPCtl)
	return f, n
}

func parseStartup(octets []byte, reply bool) (mpa.Frame, bool) {
	kind := mpa.KindRequest
	if reply {
		kind = mpa.KindReply
	}
	f, _, err := mpa.ParseFrame(octets, kind)
	return f, err == nil
}

// rebuilt returns the frame that start, or header and payload, now describe, with the right CRC.
func (f *frame) rebuilt() [][]byte {
	if f.startup {
		return [][]byte{f.start.AppendTo(nil)}
	}
	return [][]byte{fpdu(f.header, f.payload, f.crc)}
}

// same returns the frame unchanged.
func (f *frame) same() [][]byte { return [][]byte{f.octets} }

// setControl changes the RDMAP control field.
func (f *frame) setControl(change func(*rdmap.Control)) {
	change(&f.control)
	f.header.ULPCtl = f.control.Octet()
}

// fpdu makes an FPDU.
func fpdu(h ddp.Header, payload []byte, crc bool) []byte {
	ulpdu := append(h.AppendTo(nil), payload...)
	b := append(mpa.AppendHeader(nil, uint16(len(ulpdu))), ulpdu...)
	return mpa.AppendTrailer(b, len(ulpdu), mpa.CRC(0, b), crc)
}

// pick chooses FPDUs.
type pick func(*frame) bool

// anyFPDU chooses every FPDU whose header can be read.
func anyFPDU(f *frame) bool { return !f.startup && f.good }

// op chooses FPDUs of the opcodes.
func op(ops ...rdmap.Opcode) pick {
	return func(f *frame) bool {
		if !anyFPDU(f) {
			return false
		}
		for _, o := range ops {
			if f.control.Opcode == o {
				return true
			}
		}
		return false
	}
}

// sends chooses Sends of all four kinds.
var sends = op(rdmap.OpSend, rdmap.OpSendSE, rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate)

// and chooses what both choose.
func (p pick) and(q pick) pick { return func(f *frame) bool { return p(f) && q(f) } }

// empty chooses FPDUs without payload.
func empty(f *frame) bool { return anyFPDU(f) && len(f.payload) == 0 }

// filled chooses FPDUs with payload.
func filled(f *frame) bool { return anyFPDU(f) && len(f.payload) > 0 }

// edit changes the chosen frames, and repairs their CRCs.
func edit(p pick, change func(*frame)) func(*frame) [][]byte {
	return func(f *frame) [][]byte {
		if !p(f) {
			return f.same()
		}
		change(f)
		return f.rebuilt()
	}
}

// drop drops the chosen frames.
func drop(p pick) func(*frame) [][]byte {
	return func(f *frame) [][]byte {
		if p(f) {
			return nil
		}
		return f.same()
	}
}

// editStart changes the start-up frames that can be read.
func editStart(change func(reply bool, f *mpa.Frame)) func(*frame) [][]byte {
	return func(f *frame) [][]byte {
		if !f.startup || !f.good {
			return f.same()
		}
		change(f.reply, &f.start)
		return f.rebuilt()
	}
}

// editRequest changes Requests, and editReply changes Replies.
func editRequest(change func(*mpa.Frame)) func(*frame) [][]byte {
	return editStart(func(reply bool, f *mpa.Frame) {
		if !reply {
			change(f)
		}
	})
}

func editReply(change func(*mpa.Frame)) func(*frame) [][]byte {
	return editStart(func(reply bool, f *mpa.Frame) {
		if reply {
			change(f)
		}
	})
}

// editDepths changes the enhanced connection data, if there is any.
func editDepths(f *mpa.Frame, change func(*mpa.Enhanced)) {
	e, private, err := f.SplitPrivateData()
	if err != nil || !f.UsesEnhanced() {
		return
	}
	change(&e)
	f.PrivateData = append(e.AppendTo(nil), private...)
}

// out and in make faults without state from a change.
func out(change func(*frame) [][]byte) func(*conn) wireFault {
	return func(*conn) wireFault { return wireFault{out: change} }
}

func in(change func(*frame) [][]byte) func(*conn) wireFault {
	return func(*conn) wireFault { return wireFault{in: change} }
}

// goodFrame is a start-up frame in which nothing is wrong.
func goodFrame(reply bool) mpa.Frame {
	f := mpa.Frame{Kind: mpa.KindRequest, CRC: true, Enhanced: true, Revision: 2, PrivateData: mpa.Enhanced{IRD: 4, ORD: 4}.AppendTo(nil)}
	if reply {
		f.Kind = mpa.KindReply
	}
	return f
}
