package mpa_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

//rfc:5044 MPA-4.3-12 Receiver strips markers, length and CRC before DDP
//rfc:5044 MPA-4.4-10 CRC is CRC32c with iSCSI's conventions and octet order
func TestReceiverFigures(t *testing.T) {
	f := mpa.NewFramer(true, true)
	stream, err := f.AppendFPDU(nil, octets(482))
	if err != nil {
		t.Fatal(err)
	}
	stream = append(stream, testkit.Unhex(t, figure6)...)
	if all := ulpdus(t, stream, true, true); !bytes.Equal(all[1], figureULPDU(t, 2)) {
		t.Errorf("figure 6: ULPDU % x", all[1])
	}
	if all := ulpdus(t, testkit.Unhex(t, figure5), true, true); len(all) != 1 || !bytes.Equal(all[0], figureULPDU(t, 1)) {
		t.Errorf("figure 5: ULPDU % x", all)
	}
}

// siw's stream is cut where the DDP and RDMAP headers say that messages end. The lengths are
// rping's: Sends of 34, Read Requests of 46, Writes and Read Responses of 78 octets.
//
//rfc:5041 DDP-3-05 LLP provides segment length
func TestReceiverSIW(t *testing.T) {
	const send, read, data = 34, 46, 78
	round := func(lens ...int) (all []int) {
		for range 5 {
			all = append(all, lens...)
		}
		return all
	}
	for _, v := range []struct {
		file string
		want []int
	}{
		{"siw-rping-initiator.bin", round(send, data, send)},
		{"siw-rping-responder.bin", round(read, send, data, send)},
	} {
		stream := testdata(t, v.file)[24:]
		var lens []int
		for _, u := range ulpdus(t, stream, false, false) {
			lens = append(lens, len(u))
		}
		if diff := cmp.Diff(v.want, lens); diff != "" {
			t.Errorf("%s: ULPDU lengths (-want +got)\n%s", v.file, diff)
		}
	}
}

// With CRCs off the field may have any value, with CRCs on it may not.
//
//rfc:5044 MPA-4.1-07 CRC content not checked when CRC is off
//rfc:5044 MPA-4.4-08 Both C=0: stop checking at once
//rfc:5044 MPA-4.4-09 Both C=0: may still generate CRCs
//rfc:5044 MPA-7.1.1-08 C=0 on both: CRC not checked
//rfc:5044 MPA-7.1.1-10 With CRC off the CRC field counts as valid
func TestReceiverCRCOff(t *testing.T) {
	for _, markers := range []bool{false, true} {
		m := model{markers: markers, crc: true}
		m.add(octets(600))
		m.stream[len(m.stream)-1] ^= 0xff
		if all := ulpdus(t, m.stream, markers, false); !bytes.Equal(all[0], octets(600)) {
			t.Error("another ULPDU")
		}
		r := mpa.NewReceiver(markers, true)
		_, _, err := r.Next(m.stream, nil)
		wantError(t, err, mpa.ErrCRC)
	}
}

// Pad and reserved bits are ignored as long as the CRC covers them.
//
//rfc:5044 MPA-4.1-05 Pad content ignored on receive apart from CRC
//rfc:5044 MPA-4.2-03 Marker reserved ignored on receive (except CRC)
//rfc:5044 MPA-4.2-05 Low two FPDUPTR bits treated as zero on receive
func TestReceiverIgnores(t *testing.T) {
	m := model{markers: true, crc: true}
	m.add(octets(1001)) // pad of one octet, Markers at 0, 512
	padAt := len(m.stream) - 5
	for _, change := range []struct {
		name string
		at   int
		to   byte
	}{
		{"pad", padAt, 0xff},
		{"Reserved of the first Marker", 0, 0xff},
		{"Reserved of the second Marker", 513, 0xff},
		{"low bit of FPDUPTR 0", 3, 0x01},
		{"low bits of FPDUPTR 0", 3, 0x03},
		{"low bits of FPDUPTR 508", 515, 0xff},
	} {
		stream := bytes.Clone(m.stream)
		if stream[change.at] == change.to {
			t.Fatalf("%s: nothing to change", change.name)
		}
		stream[change.at] = change.to
		r := mpa.NewReceiver(true, true)
		_, _, err := r.Next(stream, nil)
		wantError(t, err, mpa.ErrCRC)
		mpa.SealFPDU(stream)
		if all := ulpdus(t, stream, true, true); len(all) != 1 || !bytes.Equal(all[0], octets(1001)) {
			t.Errorf("%s: another ULPDU", change.name)
		}
	}
}

// The CRC covers each bit of an FPDU. A larger length is different, because the receiver then first
// waits for octets that do not arrive.
//
//rfc:5044 MPA-3-06 ULPDU handed up only after validation, with its length
//rfc:5044 MPA-4.4-13 CRC verified before anything in the FPDU is acted on
//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
//rfc:5044 MPA-6-01 FPDU verified (start located, CRC ok) before passing up
//rfc:5044 MPA-8-2-01 Detect CRC mismatch (code 2)
func TestReceiverBitFlips(t *testing.T) {
	for _, markers := range []bool{false, true} {
		m := model{markers: markers, crc: true}
		m.add(octets(41))
		header := 0
		if markers {
			header = mpa.MarkerLen
		}
		for i := range len(m.stream) * 8 {
			stream := bytes.Clone(m.stream)
			stream[i/8] ^= 0x80 >> (i % 8)
			r := mpa.NewReceiver(markers, true)
			s, need, err := r.Next(stream, nil)
			if need > 0 && i/8 >= header && i/8 < header+mpa.HeaderLen {
				if s.ULPDU != nil || err != nil || need <= len(stream) {
					t.Errorf("bit %d of the length: need %d, error %v", i, need, err)
				}
				continue
			}
			if s.ULPDU != nil || need != 0 {
				t.Errorf("bit %d: need %d, ULPDU of %d octets", i, need, len(s.ULPDU))
			}
			wantError(t, err, mpa.ErrCRC)
		}
	}
}

// FPDUPTR is verified in every Marker after the CRC.
//
//rfc:5044 MPA-8-3-01 Detect marker/length disagreement (code 3)
func TestReceiverWrongMarker(t *testing.T) {
	for _, withCRC := range []bool{true, false} {
		m := model{markers: true, crc: true}
		m.add(octets(2000))
		for _, at := range []int{0, 512, 1024, 1536} {
			for _, delta := range []uint16{4, 8, 0x100, 0x8000, 0xfffc} {
				stream := bytes.Clone(m.stream)
				ptr := uint16(stream[at+2])<<8 | uint16(stream[at+3])
				mpa.Marker{FPDUPTR: ptr + delta}.AppendTo(stream[:at])
				mpa.SealFPDU(stream)
				r := mpa.NewReceiver(true, withCRC)
				s, _, err := r.Next(stream, nil)
				if s.ULPDU != nil {
					t.Errorf("Marker at %d off by %d: ULPDU lent out", at, int16(delta))
				}
				wantError(t, err, mpa.ErrMarker)
			}
		}
	}
	if !errors.Is(mpa.ErrMarker, &iwarp.Error{Layer: 2, EType: 0, Code: 3}) { //nolint:staticcheck // the sentinel is what is looked into
		t.Errorf("%v is not 2/0/0x03", mpa.ErrMarker)
	}
	// If both are wrong, the error is the CRC's: code 3 requires a valid CRC.
	m := model{markers: true, crc: true}
	m.add(octets(10))
	m.stream[2] ^= 0x80
	r := mpa.NewReceiver(true, true)
	_, _, err := r.Next(m.stream, nil)
	wantError(t, err, mpa.ErrCRC)
}

// After an error nothing more is delivered, even if it is good.
//
//rfc:5044 MPA-6-03 Boundary known only from a valid FPDU's length or a marker
//rfc:5044 MPA-8-02 After an MPA error no further FPDU of that half is passed up
func TestReceiverStopsAfterError(t *testing.T) {
	for _, markers := range []bool{false, true} {
		m := model{markers: markers, crc: true}
		m.add(octets(20))
		m.add(octets(21))
		bad := bytes.Clone(m.stream)
		bad[mpa.MarkerLen+5] ^= 1
		r, d := mpa.NewReceiver(markers, true), mpa.NewDeframer(markers, true)
		_, _, err := r.Next(bad, nil)
		wantError(t, err, mpa.ErrCRC)
		s, need, err := r.Next(m.fpdu(1), nil)
		wantError(t, err, mpa.ErrCRC)
		if s.ULPDU != nil || need != 0 {
			t.Error("Receiver delivered after an error")
		}
		_, n, done, err := d.Feed(nil, bad)
		wantError(t, err, mpa.ErrCRC)
		if n != len(m.fpdu(0)) || done {
			t.Errorf("Deframer consumed %d octets, done %v", n, done)
		}
		out, n, done, err := d.Feed(nil, bad[n:])
		wantError(t, err, mpa.ErrCRC)
		if n != 0 || done || len(out) != 0 {
			t.Error("Deframer delivered after an error")
		}
	}
}

// Every prefix of an FPDU requests more octets, but never more than there will be.
//
//rfc:5044 MPA-5.2-01 Boundaries found from ULPDU_Length on a stream
//rfc:5044 MPA-6-02 Whole FPDU present before forwarding
func TestReceiverPrefixes(t *testing.T) {
	for _, markers := range []bool{false, true} {
		for _, n := range []int{0, 1, 42, 506, 1442} {
			m := model{markers: markers, crc: true}
			m.add(octets(n))
			m.add(octets(3))
			fpdu := m.fpdu(0)
			r := mpa.NewReceiver(markers, true)
			for cut := range fpdu {
				s, need, err := r.Next(m.stream[:cut:cut], nil)
				if err != nil || s.ULPDU != nil || need <= cut || need > len(fpdu) || r.Pos() != 0 {
					t.Fatalf("%d of %d octets: need %d, Pos %d, error %v", cut, len(fpdu), need, r.Pos(), err)
				}
			}
			s, need, err := r.Next(m.stream, nil)
			if err != nil || need != 0 || s.Len != len(fpdu) || !bytes.Equal(s.ULPDU, octets(n)) || r.Pos() != uint64(len(fpdu)) {
				t.Fatalf("whole FPDU: need %d, Len %d of %d, error %v", need, s.Len, len(fpdu), err)
			}
		}
	}
}

// Without Markers the ULPDU is a part of the caller's buffer; with Markers it is in the scratch
// buffer and the input is unchanged.
func TestReceiverOwnership(t *testing.T) {
	plain := model{crc: true}
	plain.add(octets(9))
	r := mpa.NewReceiver(false, true)
	s, _, err := r.Next(plain.stream, nil)
	if err != nil || &s.ULPDU[0] != &plain.stream[2] {
		t.Errorf("ULPDU was copied, error %v", err)
	}

	marked := model{markers: true, crc: true}
	marked.add(octets(700))
	before := bytes.Clone(marked.stream)
	scratch := bytes.Repeat([]byte{fill}, 800)
	r = mpa.NewReceiver(true, true)
	s, _, err = r.Next(marked.stream, scratch)
	if err != nil || &s.ULPDU[0] != &scratch[2] {
		t.Errorf("ULPDU is not in the scratch buffer, error %v", err)
	}
	if !bytes.Equal(marked.stream, before) {
		t.Error("input was changed")
	}
	for i, b := range scratch[mpa.FPDULen(700):] {
		if b != fill {
			t.Fatalf("octet %d after the FPDU was written in the scratch buffer", i)
		}
	}
}

// Lengths above what a sender may use: siw's over a loopback of 65536 octets, and the
// largest that the field can carry.
//
//rfc:5044 MPA-4.1-08 Any ULPDU_Length from the minimum header up is accepted
func TestReceiverLargest(t *testing.T) {
	for _, markers := range []bool{false, true} {
		for _, n := range []int{mpa.MaxULPDU, 65474, 65535} {
			m := model{markers: markers, crc: true}
			m.add(octets(n))
			m.add(octets(1))
			if all := ulpdus(t, m.stream, markers, true); len(all) != 2 || !bytes.Equal(all[0], octets(n)) {
				t.Errorf("ULPDU of %d octets, Markers %v: %d ULPDUs", n, markers, len(all))
			}
		}
	}
}

// Several short FPDUs of one length are received at a time, up to one that differs, is incomplete
// or is wrong. Next continues from there and finds the fault.
//
//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
//rfc:5044 MPA-8-02 After an MPA error no further FPDU of that half is passed up
func TestReceiverRuns(t *testing.T) {
	const size = 84 // of the FPDU of 78 octets
	long := model{crc: true}
	for range 40 {
		long.add(octets(78))
	}
	stream := long.stream
	r := mpa.NewReceiver(false, true)
	take := func(story string, buf []byte, want int) {
		t.Helper()
		if n, ulpdu := r.Run(buf); n != want || n > 0 && ulpdu != 78 {
			t.Fatalf("%s: %d FPDUs of %d octets, want %d", story, n, ulpdu, want)
		}
		stream = stream[want*size:]
	}
	take("not even a header", stream[:1], 0)
	take("too few to be worth it", stream[:3*size], 0)
	take("the last one is not complete", stream[:6*size-1], 5)
	take("all that are taken at a time", stream, 16)
	bent := bytes.Clone(stream)
	bent[6*size+40] ^= 1
	take("the seventh is broken", bent, 6)
	take("and is now the first", bent[6*size:], 0)
	if _, _, err := r.Next(bent[6*size:], nil); err != mpa.ErrCRC {
		t.Fatalf("Next: %v", err)
	}
	take("nothing after an error", stream, 0)

	r, stream = mpa.NewReceiver(false, false), bytes.Clone(long.stream)
	stream[40] ^= 1
	take("without CRC nothing is verified", stream[:8*size], 8)
	other := append(bytes.Clone(stream[:5*size]), stream[:5*size]...)
	other[5*size+1]++ // another ULPDU length with the same FPDU length
	take("up to another length", other, 5)
	r = mpa.NewReceiver(true, true)
	take("not with Markers", stream, 0)

	r = mpa.NewReceiver(false, true)
	stream = long.stream
	if n := testing.AllocsPerRun(1, func() { r.Run(stream) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// Sealing a run gives the same result as sealing its FPDUs one by one.
func TestSealFPDUs(t *testing.T) {
	for _, size := range []int{8, 84, 88, 1032} {
		for n := range 40 {
			got := octets(n * size)
			want := bytes.Clone(got)
			for i := range n {
				mpa.SealFPDU(want[i*size:][:size])
			}
			mpa.SealFPDUs(got, size)
			if !bytes.Equal(got, want) {
				t.Fatalf("%d FPDUs of %d octets", n, size)
			}
		}
	}
}

// deframe feeds a stream in pieces and returns the ULPDUs and how it ended.
func deframe(stream []byte, markers, crc bool, piece func() int) (all [][]byte, mid bool, err error) {
	d := mpa.NewDeframer(markers, crc)
	var out []byte
	for len(stream) > 0 {
		in := stream[:min(max(piece(), 1), len(stream))]
		for len(in) > 0 {
			var n int
			var done bool
			out, n, done, err = d.Feed(out, in)
			if err != nil {
				return all, false, err
			}
			in, stream = in[n:], stream[n:]
			if done {
				length, _, _ := mpa.ParseHeader(out)
				all = append(all, bytes.Clone(out[mpa.HeaderLen:mpa.HeaderLen+length]))
				out = out[:0]
			}
		}
	}
	return all, d.MidFPDU(), nil
}

// The result does not depend on how the stream is cut into pieces.
//
//rfc:5044 MPA-4.3-14 Markers may split at any 4-octet boundary
//rfc:5044 MPA-5.1-03 Receiver works when alignment is lost
//rfc:5044 MPA-A.4-01 Receiver does not depend on FPDU alignment
func TestDeframerPieces(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := model{markers: rapid.Bool().Draw(rt, "markers"), crc: rapid.Bool().Draw(rt, "CRC")}
		sizes := rapid.SliceOfN(rapid.IntRange(0, 1100), 1, 12).Draw(rt, "ULPDU lengths")
		for _, n := range sizes {
			m.add(octets(n))
		}
		largest := rapid.SampledFrom([]int{1, 2, 3, 5, 64, 600, 4000}).Draw(rt, "largest piece")
		all, mid, err := deframe(m.stream, m.markers, m.crc, func() int {
			return rapid.IntRange(1, largest).Draw(rt, "piece")
		})
		if err != nil || mid || len(all) != len(sizes) {
			rt.Fatalf("%d of %d ULPDUs, MidFPDU %v, error %v", len(all), len(sizes), mid, err)
		}
		for i, n := range sizes {
			if !bytes.Equal(all[i], octets(n)) {
				rt.Fatalf("ULPDU %d of %d octets differs", i, n)
			}
		}
	})
}

// The end of a stream is clean only between FPDUs; a Marker belongs to the following FPDU.
func TestDeframerMidFPDU(t *testing.T) {
	for _, markers := range []bool{false, true} {
		m := model{markers: markers, crc: true}
		for _, n := range []int{494, 1, 502, 502, 30, 1000} { // the third begins with a Marker
			m.add(octets(n))
		}
		boundary := map[int]bool{0: true, len(m.stream): true}
		for _, at := range m.starts {
			boundary[at] = true
		}
		for cut := range len(m.stream) + 1 {
			_, mid, err := deframe(m.stream[:cut], markers, true, func() int { return 97 })
			if err != nil || mid == boundary[cut] {
				t.Fatalf("Markers %v, cut at %d: MidFPDU %v, error %v", markers, cut, mid, err)
			}
		}
	}
}

func TestDeframerAllocs(t *testing.T) {
	m := model{markers: true, crc: true}
	for range 512 / 4 {
		m.add(octets(1442))
	}
	for _, piece := range []int{1, 100, 4096} {
		t.Run(fmt.Sprintf("%d octets at a time", piece), func(t *testing.T) {
			out := make([]byte, 0, 2048)
			var fail error
			allocs := testing.AllocsPerRun(3, func() {
				d := mpa.NewDeframer(true, true)
				for stream := m.stream; len(stream) > 0 && fail == nil; {
					n, done := 0, false
					out, n, done, fail = d.Feed(out, stream[:min(piece, len(stream))])
					stream = stream[n:]
					if done {
						out = out[:0]
					}
				}
			})
			if fail != nil {
				t.Fatal(fail)
			}
			if allocs != 0 {
				t.Errorf("%v allocations per stream of %d octets", allocs, len(m.stream))
			}
		})
	}
}
