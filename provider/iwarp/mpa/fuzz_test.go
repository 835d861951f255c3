package mpa_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// FuzzParseFrame checks that a parsed frame is written back octet for octet, that its prefixes are
// short, and that both roles handle any input.
func FuzzParseFrame(f *testing.F) {
	for _, v := range startupVectors {
		f.Add(testkit.Unhex(f, v.hex))
	}
	for _, name := range []string{"siw-rping-initiator.bin", "siw-rping-responder.bin"} {
		f.Add(testdata(f, name)[:24])
	}
	f.Add(testkit.Unhex(f, sendBWRequest))
	f.Add(request(mpa.Enhanced{IRD: 0x3fff, ORD: 0x3fff, A: true, B: true, C: true, D: true}).AppendTo(nil))
	f.Add(testkit.Unhex(f, requestKey+"40 01 0201"))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		frame, n, err := mpa.ParseFrame(b, mpa.KindAny)
		switch {
		case err == nil:
			if got := frame.AppendTo(nil); !bytes.Equal(got, b[:n]) {
				t.Fatalf("written again % x, was % x", got, b[:n])
			}
			if _, need, err := mpa.ParseFrame(b[:n-1], frame.Kind); err != mpa.ErrShort || need != n && n > mpa.FrameHeaderLen {
				t.Fatalf("without its last octet: need %d, error %v", need, err)
			}
		case err == mpa.ErrShort:
			if n <= len(b) || n > mpa.MaxFrameLen {
				t.Fatalf("%d octets are short, %d needed", len(b), n)
			}
		case n != 0:
			t.Fatalf("n %d with %v", n, err)
		}
		fuzzInitiators(t, b)
		fuzzResponder(t, b)
		if !bytes.Equal(b, before) {
			t.Fatal("input was changed")
		}
	})
}

func fuzzInitiators(t *testing.T, b []byte) {
	for _, offer := range []mpa.Offer{{}, {IRD: 5, ORD: 6, PeerToPeer: true}, {ManualIRD: true, ManualORD: true}} {
		i := newInitiator(t, mpa.Config{MaxIRD: 16}, offer)
		p, n, err := i.Receive(b)
		if err == nil && (n != len(b) || p.IRD > 16 || p.ORD > 6 || p.PeerToPeer != offer.PeerToPeer) {
			t.Fatalf("accepted with %+v", p)
		}
	}
}

func fuzzResponder(t *testing.T, b []byte) {
	q, n, err := newResponder(t, mpa.Config{MaxIRD: 16}).Receive(b)
	if err != nil {
		return
	}
	wire, p := accept(t, q, mpa.Answer{IRD: 4, ORD: 8})
	if n != len(b) || p.IRD > 16 || p.ORD > 8 || !p.WaitFirstFPDU || !p.CRC {
		t.Fatalf("accepted with %+v", p)
	}
	if f := frame(t, wire); f.Revision != q.Revision || f.Enhanced != q.Enhanced || f.Reject {
		t.Fatalf("Reply %+v to %+v", f, q)
	}
	wire, err = q.AppendReject(nil, mpa.Answer{})
	if err != nil || !frame(t, wire).Reject {
		t.Fatalf("reject % x, error %v", wire, err)
	}
}

// FuzzReceiver compares a Receiver on the whole stream, a Receiver on a buffer that
// grows by one octet, and a Deframer fed octet by octet.
func FuzzReceiver(f *testing.F) {
	for _, markers := range []bool{false, true} {
		for _, crc := range []bool{false, true} {
			m := model{markers: markers, crc: crc}
			for _, n := range []int{0, 1, 42, 504, 700} {
				m.add(octets(n))
			}
			f.Add(m.stream, markers, crc)
			broken := bytes.Clone(m.stream)
			broken[m.starts[3]+9] ^= 4
			f.Add(broken, markers, crc)
		}
	}
	run := model{crc: true}
	for range 20 {
		run.add(octets(17))
	}
	f.Add(run.stream, false, true)
	broken := bytes.Clone(run.stream)
	broken[run.starts[6]+9] ^= 4
	f.Add(broken, false, true)
	f.Add(testkit.Unhex(f, figure5), true, true)
	f.Add(testdata(f, "siw-rping-initiator.bin")[24:], false, false)
	f.Fuzz(func(t *testing.T, stream []byte, markers, crc bool) {
		if len(stream) > 1<<14 {
			return // instrumented, a MiB octet by octet takes longer than the fuzzer waits at its end
		}
		before := bytes.Clone(stream)
		whole, errWhole := receiveWhole(t, stream, markers, crc)
		grown, errGrown := receiveGrowing(t, stream, markers, crc)
		single, _, errSingle := deframe(stream, markers, crc, func() int { return 1 })
		if errWhole != errGrown || errWhole != errSingle {
			t.Fatalf("whole %v, growing %v, octet by octet %v", errWhole, errGrown, errSingle)
		}
		if !slices.EqualFunc(whole, grown, bytes.Equal) {
			t.Fatalf("growing buffer: % x, whole % x", grown, whole)
		}
		runs, errRuns := receiveRuns(t, stream, markers, crc)
		if errWhole != errRuns || !slices.EqualFunc(whole, runs, bytes.Equal) {
			t.Fatalf("in runs: % x, %v, whole % x, %v", runs, errRuns, whole, errWhole)
		}
		if !slices.EqualFunc(whole, single, bytes.Equal) {
			t.Fatalf("octet by octet: % x, whole % x", single, whole)
		}
		if !bytes.Equal(before, stream) {
			t.Fatal("input was changed")
		}
	})
}

func receiveWhole(t *testing.T, stream []byte, markers, crc bool) (all [][]byte, err error) {
	r := mpa.NewReceiver(markers, crc)
	for {
		s, need, err := r.Next(stream, nil)
		if err != nil {
			return all, err
		}
		if need > 0 {
			if need <= len(stream) {
				t.Fatalf("needs %d octets and has %d", need, len(stream))
			}
			return all, nil
		}
		all = append(all, bytes.Clone(s.ULPDU))
		stream = stream[s.Len:]
	}
}

// receiveRuns receives the whole stream, with Run where possible.
func receiveRuns(t *testing.T, stream []byte, markers, crc bool) (all [][]byte, err error) {
	r := mpa.NewReceiver(markers, crc)
	for {
		before := r.Pos()
		n, ulpdu := r.Run(stream)
		if r.Pos()-before != uint64(n*mpa.FPDULen(ulpdu)) {
			t.Fatalf("%d FPDUs with ULPDUs of %d octets, but %d octets of the stream", n, ulpdu, r.Pos()-before)
		}
		for range n {
			all = append(all, bytes.Clone(stream[mpa.HeaderLen:mpa.HeaderLen+ulpdu]))
			stream = stream[mpa.FPDULen(ulpdu):]
		}
		if n > 0 {
			continue
		}
		s, need, err := r.Next(stream, nil)
		if err != nil || need > 0 {
			return all, err
		}
		all = append(all, bytes.Clone(s.ULPDU))
		stream = stream[s.Len:]
	}
}

func receiveGrowing(t *testing.T, stream []byte, markers, crc bool) (all [][]byte, err error) {
	r := mpa.NewReceiver(markers, crc)
	begin, wait := 0, 0
	for end := range len(stream) + 1 {
		if end-begin < wait {
			continue
		}
		s, need, err := r.Next(stream[begin:end:end], nil)
		if err != nil {
			return all, err
		}
		wait = need
		if need == 0 {
			if s.Len != end-begin {
				t.Fatalf("FPDU of %d octets found when %d were there", s.Len, end-begin)
			}
			all = append(all, bytes.Clone(s.ULPDU))
			begin, wait = end, 1
		}
	}
	return all, nil
}

// FuzzMarkers cuts octets into ULPDUs, sends them through a Framer, and recovers them with a
// Deframer that is fed in pieces.
func FuzzMarkers(f *testing.F) {
	f.Add(octets(3000), []byte{0, 1, 42, 255}, []byte{1})
	f.Add(octets(600), []byte{126}, []byte{255, 1, 2, 3})
	f.Add([]byte{}, []byte{0}, []byte{4})
	f.Fuzz(func(t *testing.T, data, sizes, pieces []byte) {
		if len(data) > 1<<16 || len(sizes) == 0 || len(sizes) > 1000 || len(pieces) == 0 {
			return
		}
		framer := mpa.NewFramer(true, true)
		var stream []byte
		var want [][]byte
		for _, size := range sizes {
			ulpdu := data[:min(int(size)*4+int(size)%4, len(data))]
			data = data[len(ulpdu):]
			want = append(want, bytes.Clone(ulpdu))
			var err error
			if stream, err = framer.AppendFPDU(stream, ulpdu); err != nil {
				t.Fatal(err)
			}
		}
		next := 0
		got, mid, err := deframe(stream, true, true, func() int {
			next++
			return int(pieces[next%len(pieces)])
		})
		if err != nil || mid || len(got) != len(want) {
			t.Fatalf("%d of %d ULPDUs, MidFPDU %v, error %v", len(got), len(want), mid, err)
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Fatalf("ULPDU %d: % x, want % x", i, got[i], want[i])
			}
		}
	})
}
