package main

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// firstPort is the responder's port in the connection of the first vector. The next has the next.
const firstPort = 20001

// record returns a capture with a connection for each vector, in which the vector is the last frame
// of its direction.
func record(all []*vector) *wiretest.Capture {
	c := &wiretest.Capture{}
	for i, v := range all {
		conn := c.Open(wiretest.Client, netip.AddrPortFrom(wiretest.Server.Addr(), uint16(firstPort+i)))
		switch v.Kind {
		case "request":
			conn.Send(wire.ToResponder, v.Octets)
		case "reply":
			conn.Send(wire.ToResponder, v.Request)
			conn.Send(wire.ToInitiator, v.Octets)
		case "fpdu":
			f := mpa.Frame{Markers: v.Stream.Markers, CRC: v.Stream.CRC, Revision: v.Stream.Version}
			reply := f
			reply.Kind = mpa.KindReply
			s := conn.Start(f, reply)
			if v.Stream.Position > 0 {
				s.ULPDU(wire.ToResponder, before(v.Stream.Position))
			}
			conn.Send(wire.ToResponder, v.Octets)
			if v.Refuse != nil && !v.Stream.Markers {
				s.FPDU(wire.ToInitiator, rdmap.TerminateHeader(), v.Refuse.Terminate)
			}
		}
		conn.FIN(wire.ToResponder)
		conn.FIN(wire.ToInitiator)
	}
	return c
}

// decode sets the fields of all vectors.
func decode(all []*vector) {
	t := must(record(all).Trace(0))
	for i, v := range all {
		for _, f := range t.Conns[i].Frames {
			decoded := f.Kind == wire.KindStartup || f.Kind == wire.KindFPDU
			if decoded && (f.Dir == wire.ToInitiator) == (v.Kind == "reply") && bytes.Equal(f.Octets, v.Octets) {
				v.frame = &f
				v.Fields = []byte(v.fields())
			}
		}
	}
}

// fields returns the fields as JSON, in the order of the wire.
func (v *vector) fields() string {
	f := v.frame
	if s := f.Startup; s != nil {
		e, ulp, err := s.SplitPrivateData()
		enhanced := ""
		if err == nil && s.UsesEnhanced() {
			enhanced = fmt.Sprintf(`"Enhanced":{"A":%t,"B":%t,"IRD":%d,"C":%t,"D":%t,"ORD":%d},`,
				e.A, e.B, e.IRD, e.C, e.D, e.ORD)
		}
		return fmt.Sprintf(`{"M":%t,"C":%t,"R":%t,"S":%t,"Res":%d,"Rev":%d,"PD_Length":%d,%s"PrivateData":"%x"}`,
			s.Markers, s.CRC, s.Reject, s.Enhanced, s.Reserved, s.Revision, len(s.PrivateData), enhanced, ulp)
	}
	plain, at := v.unmarked()
	markers := make([]string, len(at))
	for i, k := range at {
		m, _ := mpa.ParseMarker(v.Octets[k:])
		markers[i] = fmt.Sprintf(`{"at":%d,"Reserved":%d,"FPDUPTR":%d}`, k, m.Reserved, m.FPDUPTR)
	}
	n, _, _ := mpa.ParseHeader(plain)
	body := fmt.Sprintf(`"Payload":"%x"`, f.Payload)
	switch {
	case f.Read != nil:
		body = readRequest(f.Read)
	case f.Terminate != nil:
		body = terminate(f.Terminate)
	case f.Immediate != nil:
		body = fmt.Sprintf(`"ImmediateData":"0x%016x"`, *f.Immediate)
	case f.Atomic != nil:
		a := f.Atomic
		body = fmt.Sprintf(`"AtomicRequest":{"Reserved":%d,"AOpCode":%d,"RequestID":"0x%08x","STag":"0x%08x",`+
			`"TO":"0x%016x","Data":"0x%016x","Mask":"0x%016x","CompareData":"0x%016x","CompareMask":"0x%016x"}`,
			a.Reserved, uint8(a.Op), a.ID, a.STag, a.TO, a.Data, a.Mask, a.Compare, a.CompareMask)
	case f.Original != nil:
		body = fmt.Sprintf(`"AtomicResponse":{"RequestID":"0x%08x","Original":"0x%016x"}`,
			f.Original.ID, f.Original.Original)
	}
	h := ""
	if !f.HeaderCut {
		h = header(&f.Header) + ","
	}
	return fmt.Sprintf(`{"Markers":[%s],"ULPDU_Length":%d,%s%s,"Pad":"%x","CRC":"%x"}`,
		strings.Join(markers, ","), n, h, body,
		plain[mpa.HeaderLen+n:len(plain)-mpa.CRCLen], plain[len(plain)-mpa.CRCLen:])
}

// unmarked returns the octets without Markers, and where the Markers were.
func (v *vector) unmarked() (plain []byte, at []int) {
	for i := 0; i < len(v.Octets); i++ {
		if v.Stream.Markers && (v.Stream.Position+i)%mpa.MarkerInterval == 0 {
			at = append(at, i)
			i += mpa.MarkerLen
		}
		plain = append(plain, v.Octets[i])
	}
	return plain, at
}

func header(h *ddp.Header) string {
	c := rdmap.ParseControl(h.ULPCtl)
	s := fmt.Sprintf(`"T":%t,"L":%t,"Rsvd":%d,"DV":%d,"RV":%d,"Rsv":%d,"Opcode":%d,`,
		h.Tagged, h.Last, h.Reserved, h.Version, c.Version, c.Reserved, uint8(c.Opcode))
	if h.Tagged {
		return s + fmt.Sprintf(`"STag":"0x%08x","TO":"0x%016x"`, h.STag, h.TO)
	}
	return s + fmt.Sprintf(`"InvalidateSTag":"0x%08x","QN":%d,"MSN":%d,"MO":%d`, h.ULP32, h.QN, h.MSN, h.MO)
}

func readRequest(r *rdmap.ReadRequest) string {
	return fmt.Sprintf(`"ReadRequest":{"SinkSTag":"0x%08x","SinkTO":"0x%016x","Size":%d,"SourceSTag":"0x%08x",`+
		`"SourceTO":"0x%016x"}`, r.SinkSTag, r.SinkTO, r.Size, r.SourceSTag, r.SourceTO)
}

func terminate(t *rdmap.ReceivedTerminate) string {
	s := fmt.Sprintf(`"Terminate":{"layout":"%s","Layer":%d,"EType":%d,"Code":%d,"M":%t,"D":%t,"R":%t,"Reserved":%d`,
		t.Layout, uint8(t.Layer), t.EType, t.Code, t.M, t.D, t.R, t.Reserved)
	if t.HaveLength {
		s += fmt.Sprintf(`,"SegmentLength":%d`, t.SegmentLength)
	}
	if t.HaveDDP {
		s += `,"Segment":{` + header(&t.DDP) + "}"
	}
	if t.HaveRead {
		s += "," + readRequest(&t.Read)
	}
	return s + "}"
}

// encode returns the octets of the decoded fields.
func (v *vector) encode() []byte {
	f := v.frame
	if f.Startup != nil {
		return f.Startup.AppendTo(nil)
	}
	plain, at := v.unmarked()
	n, _, _ := mpa.ParseHeader(plain)
	b := mpa.AppendHeader(nil, uint16(n))
	if !f.HeaderCut {
		b = f.Header.AppendTo(b)
	}
	switch {
	case f.Read != nil:
		b = f.Read.AppendTo(b)
	case f.Terminate != nil && f.Terminate.Layout == rdmap.LayoutSIW:
		b = f.Terminate.AppendSIW(b)
	case f.Terminate != nil:
		b = f.Terminate.AppendTo(b)
	case f.Immediate != nil:
		b = rdmap.AppendImmediate(b, *f.Immediate)
	case f.Atomic != nil:
		b = f.Atomic.AppendTo(b)
	case f.Original != nil:
		b = f.Original.AppendTo(b)
	default:
		b = append(b, f.Payload...)
	}
	b = append(b, plain[mpa.HeaderLen+n:]...) // pad and CRC
	for _, k := range at {
		m, _ := mpa.ParseMarker(v.Octets[k:])
		b = slices.Insert(b, k, m.AppendTo(nil)...)
	}
	return b
}
