package engine

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// fuzzSTag and fuzzBase name the region that the peer may write, so that a fuzzer
// has a chance to find it.
const (
	fuzzSTag = 0x11223344
	fuzzBase = 0x1000
)

// fuzzCRC says by what cut is modulo 2 whether the stream has CRCs.
var fuzzCRC = []bool{false, true}

// FuzzPeer feeds a QP whatever a peer might send, with CRCs that are good where the
// lengths are, as no fuzzer finds one. It must not panic or hang, must
// write where the peer may write and nowhere else, must answer with whole FPDUs
// and at most one Terminate, and must complete everything once.
func FuzzPeer(f *testing.F) {
	framer := mpa.NewFramer(false, false)
	var talk []byte
	seed := func(h ddp.Header, payload []byte) {
		fpdu, err := framer.AppendFPDU(nil, h.AppendTo(nil), payload)
		if err != nil {
			f.Fatal(err)
		}
		for mode := range fuzzCRC {
			f.Add(fpdu, uint8(mode))
		}
		talk = append(talk, fpdu...)
	}
	read := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 30, SourceSTag: fuzzSTag, SourceTO: fuzzBase + 10}
	seed(rdmap.WriteHeader(fuzzSTag, fuzzBase+5, true), make([]byte, 20))
	seed(rdmap.WriteHeader(fuzzSTag, fuzzBase, false), nil)
	seed(rdmap.WriteHeader(fuzzSTag, fuzzBase+90, true), make([]byte, 10))
	seed(rdmap.SendHeader(rdmap.OpSendSE, 0, 1, 0, false), make([]byte, 30))
	seed(rdmap.SendHeader(rdmap.OpSendSE, 0, 1, 30, true), make([]byte, 30))
	seed(rdmap.ReadRequestHeader(1), read.AppendTo(nil))
	seed(rdmap.ReadResponseHeader(fuzzSTag+1, fuzzBase, true), make([]byte, 40))
	seed(rdmap.SendHeader(rdmap.OpSendInvalidate, fuzzSTag, 2, 0, true), nil)
	for mode := range fuzzCRC {
		f.Add(talk, uint8(2+mode))
	}
	term := rdmap.Terminate{Layer: 1, EType: 1, Code: 1, M: true, D: true, SegmentLength: 30, DDP: rdmap.WriteHeader(1, 2, true)}
	seed(rdmap.TerminateHeader(), term.AppendTo(nil))
	long, err := framer.AppendFPDU(nil, new(ddp.Header).AppendTo(nil), make([]byte, 20_000))
	if err != nil {
		f.Fatal(err)
	}
	for mode := range fuzzCRC {
		f.Add(long, uint8(4+mode))
	}

	f.Fuzz(func(t *testing.T, data []byte, cut uint8) {
		synctest.Test(t, func(t *testing.T) { fuzzPeer(t, data, int(cut)) })
	})
}

func fuzzPeer(t *testing.T, data []byte, cut int) {
	network := memnet.New(&memnet.Options{Seed: uint64(cut), Cut: cut%2 == 1})
	crc := fuzzCRC[cut/2%2]
	if crc {
		data = sealed(data)
	}
	s := newSide(t, Options{Network: network}, sideOptions{})
	open, recv, sink := fixedRegion(s, fuzzSTag, 100), s.reg(100, provider.AccessLocalWrite), fixedRegion(s, fuzzSTag+1, 40)
	s.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{recv.sge(20, 60)}}, provider.RecvWR{WRID: 2})
	r := newRaw(t, s.qp, network, memAddr, params(crc), s.ended)
	s.send(provider.SendWR{WRID: 3, Opcode: provider.WRRDMARead, SGList: []provider.SGE{sink.sge(0, 40)}},
		provider.SendWR{WRID: 4, Opcode: provider.WRSend, Flags: provider.SendFence})
	if split := cut * 3; split < len(data) {
		r.write(data[:split])
		time.Sleep(time.Millisecond)
		data = data[split:]
	}
	r.write(data)
	testkit.OK(t, r.c.CloseWrite())
	s.wantDown("the peer's FIN at the latest")
	testkit.OK(t, s.qp.Close())

	for r.read(time.Second) {
	}
	wantWholeFPDUs(t, r)
	open.untouched(0, 100)
	recv.untouched(20, 80)
	sink.untouched(0, 40)
	seen := make(map[uint64]int)
	var wc [16]provider.WC
	n := testkit.Must(s.cq.Poll(wc[:]))(t)
	for _, c := range wc[:n] {
		seen[c.WRID]++
		if c.Status == provider.WCSuccess && c.WRID >= 3 {
			t.Errorf("an unsignalled success was reported: %+v", c)
		}
	}
	for id, n := range seen {
		if n != 1 {
			t.Errorf("work request %d completed %d times", id, n)
		}
	}
	if seen[1] != 1 || seen[2] != 1 {
		t.Errorf("completions %v", seen)
	}
}

// sealed is a copy of a stream whose whole FPDUs have the CRC that they should.
func sealed(stream []byte) []byte {
	stream = bytes.Clone(stream)
	for rest := stream; ; {
		_, size, ok := mpa.ParseHeader(rest)
		if !ok || size > len(rest) {
			return stream
		}
		mpa.SealFPDU(rest[:size])
		rest = rest[size:]
	}
}

// fixedRegion is a region with an STag and base that are known beforehand.
func fixedRegion(s *side, stag uint32, n int) *region {
	s.t.Helper()
	s.dev.stags.random = func(b []byte) { b[0], b[1], b[2], b[3] = byte(stag), byte(stag>>8), byte(stag>>16), byte(stag>>24) }
	m := s.reg(n, everything|provider.AccessRemoteInvalidate)
	m.m.base = fuzzBase
	s.dev.stags.random = newSTagTable().random
	return m
}

// wantWholeFPDUs checks that r received FPDUs and nothing else, with nothing
// after a Terminate.
func wantWholeFPDUs(t *testing.T, r *raw) {
	t.Helper()
	over := false
	for len(r.in) > 0 {
		span, need, err := r.d.Next(r.in, nil)
		if err != nil || need > 0 {
			t.Fatalf("part of an FPDU: % x, error %v", r.in, err)
		}
		h, _, err := ddp.Parse(span.ULPDU)
		if err != nil || over {
			t.Fatalf("%v, %v, after a Terminate: %v", h, err, over)
		}
		over = rdmap.ParseControl(h.ULPCtl).Opcode == rdmap.OpTerminate
		r.in = r.in[span.Len:]
	}
}
