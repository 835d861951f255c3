package mpa_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

func testdata(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const fill = 0xa5

// guarded runs an append-style function on a buffer with content in front and excess capacity after
// it, all of it 0xa5. It checks that nothing else was written and returns what was appended. It
// repeats the run on a buffer with another filling to find octets that were left unwritten.
func guarded(t testing.TB, want int, appendTo func([]byte) []byte) []byte {
	t.Helper()
	const front, behind = 9, 80
	var first []byte
	for _, with := range []byte{fill, ^byte(fill)} {
		buf := bytes.Repeat([]byte{with}, front+want+behind)
		out := appendTo(buf[:front])
		if len(out) != front+want {
			t.Fatalf("appended %d octets, want %d", len(out)-front, want)
		}
		if &out[0] != &buf[0] {
			t.Fatal("reallocated although there was room")
		}
		for i := range buf {
			if (i < front || i >= front+want) && buf[i] != with {
				t.Fatalf("octet %d written, outside of the %d octets appended after %d", i, want, front)
			}
		}
		got := out[front:]
		if first == nil {
			first = got
		} else if !bytes.Equal(first, got) {
			t.Fatalf("octets depend on what was in the buffer:\n% x\n% x", first, got)
		}
	}
	return first
}

// wantError fails unless err is exactly the given preallocated error.
func wantError(t testing.TB, err error, want *iwarp.Error) {
	t.Helper()
	var got *iwarp.Error
	if !errors.As(err, &got) || got != want {
		t.Fatalf("error %v, want %v", err, want)
	}
}

// slowCRC computes CRC32c bit by bit, from the polynomial 0x1EDC6F41 and the conventions of RFC
// 3720 section 12.1, independently of the tested code.
func slowCRC(p []byte) uint32 {
	crc := ^uint32(0)
	for _, b := range p {
		for i := range 8 {
			in := uint32(b>>i) & 1
			out := crc & 1
			crc >>= 1
			if in^out == 1 {
				crc ^= 0x82f63b78
			}
		}
	}
	return ^crc
}

// octets returns n octets that differ from their neighbours and repeat only after 251 octets, so
// that tests notice a shifted copy.
func octets(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i%251 + 1)
	}
	return b
}

// model builds FPDUs octet by octet, following the words of RFC 5044 section 4.3. Tests compare the
// Framer and the receivers with it.
type model struct {
	markers, crc bool
	stream       []byte
	starts       []int // start of each FPDU in the stream, including a leading Marker
}

func (m *model) add(ulpdu []byte) {
	begin := len(m.stream)
	m.starts = append(m.starts, begin)
	plain := append([]byte{byte(len(ulpdu) >> 8), byte(len(ulpdu))}, ulpdu...)
	for len(plain)%4 != 0 {
		plain = append(plain, 0)
	}
	header := -1
	for i := range len(plain) + 1 {
		if m.markers && len(m.stream)%512 == 0 {
			ptr := 0
			if header >= 0 {
				ptr = len(m.stream) - header
			}
			m.stream = append(m.stream, 0, 0, byte(ptr>>8), byte(ptr))
		}
		if i == len(plain) {
			break // the CRC follows the pad and a Marker after the pad
		}
		if header < 0 {
			header = len(m.stream)
		}
		m.stream = append(m.stream, plain[i])
	}
	var crc uint32
	if m.crc {
		crc = slowCRC(m.stream[begin:])
	}
	m.stream = append(m.stream, byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24))
}

// fpdu returns the octets of FPDU i.
func (m *model) fpdu(i int) []byte {
	end := len(m.stream)
	if i+1 < len(m.starts) {
		end = m.starts[i+1]
	}
	return m.stream[m.starts[i]:end]
}

// ulpdus reads a whole stream with a Receiver.
func ulpdus(t testing.TB, stream []byte, markers, crc bool) [][]byte {
	t.Helper()
	r := mpa.NewReceiver(markers, crc)
	var all [][]byte
	for len(stream) > 0 {
		s, need, err := r.Next(stream, nil)
		if err != nil || need != 0 {
			t.Fatalf("at octet %d: need %d, error %v", r.Pos(), need, err)
		}
		all = append(all, bytes.Clone(s.ULPDU))
		stream = stream[s.Len:]
	}
	return all
}
