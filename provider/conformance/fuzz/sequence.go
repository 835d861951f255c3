package fuzz

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A Region names memory of the target's program.
type Region uint8

// The regions. A sequence that names Gift gets a new one, because the peer may invalidate it.
const (
	Receive Region = iota // where receives go; the peer has no right to it
	Window                // the peer may write to it
	Source                // the peer may read it
	Sink                  // of the program's own Reads
	Foreign               // of another PD, whose peer has all rights
	Gift                  // the peer may write to it and invalidate it
	regions
)

var regionNames = [regions]string{"receive", "window", "source", "sink", "foreign", "gift"}

// String returns the name that scenario files have.
func (r Region) String() string { return regionNames[r] }

// RegionSize is the length of each region, two pages.
const RegionSize = 8192

// In a Sequence, regions have made-up STags and offsets. A target replaces them by its own.
func (r Region) stag() uint32 { return (uint32(r) + 1) << 20 }
func (r Region) to() uint64   { return (uint64(r) + 1) << 40 }

// regionOf returns the region that a made-up STag names.
func regionOf(stag uint32) (Region, bool) {
	r := Region(stag>>20) - 1
	return r, r < regions && stag == r.stag()
}

// A Ref is a place in a frame with the STag (4 bytes) or the offset (8 bytes) of a region. A target
// adds the difference between its own value and the made-up one, so that a value that is wrong by 1
// stays wrong by 1.
type Ref struct {
	At, Width int
	Region    Region
}

// A Frame is one FPDU.
type Frame struct {
	Bytes []byte // from the ULPDU's length to the pad
	Refs  []Ref
	CRC   uint32 // the CRC field is the right CRC XOR this
}

// A Sequence is what the peer sends on one connection.
type Sequence struct {
	Request []byte // the MPA Request
	Reads   int    // RDMA Reads that the program has posted, which the frames answer
	Frames  []Frame
	Cuts    []int // where the stream of the frames is divided into writes
	Barrier bool  // the last frame is the Read Request whose response says that all was taken

	About string // seed, index and what was changed; not compared
}

// Values that stand for the peer's own memory in its Read Requests.
const (
	peerSTag    = 0x00c0ffee
	barrierSTag = 0x0ba221e2
	readSize    = 64 // of each of the program's Reads
	receiveSize = 512
	receives    = 4 // as many are posted
	maxReads    = 2
	barrierLen  = 8
)

// clone returns a copy that shares nothing with s.
func (s *Sequence) clone() *Sequence {
	c := *s
	c.Request, c.Cuts, c.Frames = slices.Clone(s.Request), slices.Clone(s.Cuts), slices.Clone(s.Frames)
	for i := range c.Frames {
		f := &c.Frames[i]
		f.Bytes, f.Refs = slices.Clone(f.Bytes), slices.Clone(f.Refs)
	}
	return &c
}

// names reports whether a frame has the STag of a region.
func (s *Sequence) names(r Region) bool {
	for _, f := range s.Frames {
		if slices.ContainsFunc(f.Refs, func(ref Ref) bool { return ref.Region == r }) {
			return true
		}
	}
	return false
}

// A Place is where a target has a region.
type Place struct {
	STag uint32
	TO   uint64
}

// canonical are the made-up places.
func canonical() (p [regions]Place) {
	for r := range regions {
		p[r] = Place{r.stag(), r.to()}
	}
	return p
}

// stream returns the bytes of the frames for a target.
func (s *Sequence) stream(at [regions]Place) []byte {
	var out []byte
	for i := range s.Frames {
		f := &s.Frames[i]
		begin := len(out)
		out = append(out, f.Bytes...)
		for _, ref := range f.Refs {
			if b := out[begin+ref.At:]; ref.Width == 4 {
				v := binary.BigEndian.Uint32(b) + at[ref.Region].STag - ref.Region.stag()
				binary.BigEndian.PutUint32(b, v)
			} else {
				v := binary.BigEndian.Uint64(b) + at[ref.Region].TO - ref.Region.to()
				binary.BigEndian.PutUint64(b, v)
			}
		}
		out = binary.LittleEndian.AppendUint32(out, mpa.CRC(0, out[begin:])^f.CRC)
	}
	return out
}

// writes divides a stream at the cuts.
func (s *Sequence) writes(stream []byte) [][]byte {
	var out [][]byte
	at := 0
	for _, cut := range s.Cuts {
		if cut > at && cut < len(stream) {
			out = append(out, stream[at:cut])
			at = cut
		}
	}
	return append(out, stream[at:])
}

// Whole returns s without cuts: the stream goes out in one write.
func (s *Sequence) Whole() *Sequence {
	c := *s
	c.Cuts = nil
	return &c
}

// Write writes s as a scenario file.
func (s *Sequence) Write(w io.Writer) error {
	var b strings.Builder
	for line := range strings.Lines(s.About) {
		fmt.Fprintf(&b, "# %s\n", strings.TrimSpace(line))
	}
	fmt.Fprintf(&b, "request %x\nreads %d\n", s.Request, s.Reads)
	if s.Barrier {
		b.WriteString("barrier\n")
	}
	if len(s.Cuts) > 0 {
		fmt.Fprintf(&b, "cuts %s\n", strings.Trim(fmt.Sprint(s.Cuts), "[]"))
	}
	for i := range s.Frames {
		f := &s.Frames[i]
		fmt.Fprintf(&b, "fpdu %x", f.Bytes)
		for _, ref := range f.Refs {
			fmt.Fprintf(&b, " %d:%d=%s", ref.At, ref.Width, ref.Region)
		}
		if f.CRC != 0 {
			fmt.Fprintf(&b, " crc^%08x", f.CRC)
		}
		fmt.Fprintf(&b, " # %s\n", f.describe())
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// describe says in words what a frame is.
func (f *Frame) describe() string {
	ulpdu := f.Bytes[min(mpa.HeaderLen, len(f.Bytes)):]
	w := wire.Frame{Kind: wire.KindFPDU, CRCWrong: f.CRC != 0}
	h, payload, err := ddp.Parse(ulpdu)
	if err != nil {
		w.HeaderCut, w.Payload = true, ulpdu
		return w.String()
	}
	if n := int(binary.BigEndian.Uint16(f.Bytes)); n <= len(ulpdu) && n >= h.Len() {
		payload = ulpdu[h.Len():n] // without the pad
	}
	w.Header, w.Payload = h, payload
	if w.Opcode() == rdmap.OpReadRequest && !h.Tagged {
		if r, err := rdmap.ParseReadRequest(payload); err == nil {
			w.Read = &r
		}
	}
	return w.String()
}

// Read reads a scenario file.
func Read(r io.Reader) (*Sequence, error) {
	s := &Sequence{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		line, comment, _ := strings.Cut(lines.Text(), "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			s.About += strings.TrimSpace(comment) + "\n"
			continue
		}
		if err := s.line(words); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	if s.Request == nil {
		return nil, errors.New("there is no line request, with the bytes of the MPA Request in hex")
	}
	if s.Barrier && len(s.Frames) == 0 {
		return nil, errors.New("the line barrier is about the last frame, and there is none")
	}
	return s, nil
}

func (s *Sequence) line(words []string) (err error) {
	values := words[1:]
	if len(values) == 0 && words[0] != "barrier" {
		return fmt.Errorf("%s has no value", words[0])
	}
	switch words[0] {
	case "request":
		s.Request, err = hex.DecodeString(values[0])
	case "reads":
		s.Reads, err = strconv.Atoi(values[0])
		if err == nil && (s.Reads < 0 || s.Reads > maxReads) {
			err = fmt.Errorf("reads %d: from 0 to %d are possible", s.Reads, maxReads)
		}
	case "barrier":
		s.Barrier = true
	case "cuts":
		for _, v := range values {
			cut, bad := strconv.Atoi(v)
			err = errors.Join(err, bad)
			s.Cuts = append(s.Cuts, cut)
		}
	case "fpdu":
		var f Frame
		f, err = readFrame(values)
		s.Frames = append(s.Frames, f)
	default:
		err = fmt.Errorf("no line begins with %q: request, reads, barrier, cuts and fpdu do", words[0])
	}
	return err
}

func readFrame(words []string) (f Frame, err error) {
	if f.Bytes, err = hex.DecodeString(words[0]); err != nil {
		return f, err
	}
	for _, word := range words[1:] {
		if mask, ok := strings.CutPrefix(word, "crc^"); ok {
			v, err := strconv.ParseUint(mask, 16, 32)
			if err != nil {
				return f, err
			}
			f.CRC = uint32(v)
			continue
		}
		place, name, _ := strings.Cut(word, "=")
		var ref Ref
		n, _ := fmt.Sscanf(place, "%d:%d", &ref.At, &ref.Width)
		region := slices.Index(regionNames[:], name)
		if n != 2 || region < 0 || ref.Width != 4 && ref.Width != 8 || ref.At < 0 ||
			ref.At+ref.Width > len(f.Bytes) {
			return f, fmt.Errorf("%q is no place of the frame with a region, such as 4:4=window", word)
		}
		ref.Region = Region(region)
		f.Refs = append(f.Refs, ref)
	}
	return f, nil
}
