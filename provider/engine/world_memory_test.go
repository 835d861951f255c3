package engine

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// The memory of a process is one piece, in which regions lie between guards. The model knows its
// content, except in the spans that operations under way may change: there each byte is the old one
// or the operation's. When an operation has ended, or the right that it uses, the span is frozen:
// it must keep its present content.

const (
	memoryOctets = 160 << 10
	guardOctets  = 24
)

type procMemory struct {
	p     *proc
	b     []byte    // of the process
	want  []byte    // what it has to hold outside of open spans
	open  []*extent // spans that operations may change or read; they don't overlap
	areas []area
	next  int // free from here on

	objects sync.Mutex // for bytes that objects read and write
}

// area is memory that regions are made of, between guards.
type area struct{ lo, hi int }

// extent is what an operation of a peer or of our own may do to [lo, hi) of a memory.
type extent struct {
	m      *procMemory
	lo, hi int
	reads  bool // it is only read; others must not change it meanwhile

	op   *op      // whose payload may come here
	recv *receive // of which it is a part: the payload is that of a message
	off  int      // of lo in the payload

	via    *right      // through which it is reached
	conn   *connection // of a peer's operation; its end at side freezes the span
	side   int
	frozen bool
	late   [][]byte // what an object may still put here after the operation is over
}

func newMemory(p *proc) *procMemory {
	m := &procMemory{p: p, b: wordAligned(memoryOctets)}
	fillWith(m.b, uint64(p.no)+1000)
	m.want = bytes.Clone(m.b)
	m.next = guardOctets
	return m
}

// area makes a new area of n bytes, or reports false.
func (m *procMemory) area(n int) (area, bool) {
	lo := (m.next + 7) &^ 7
	if lo+n+guardOctets > len(m.b) {
		return area{}, false
	}
	m.next = lo + n + guardOctets
	a := area{lo, lo + n}
	m.areas = append(m.areas, a)
	return a, true
}

// free reports whether nothing is open in [lo, hi).
func (m *procMemory) free(lo, hi int) bool {
	for _, s := range m.open {
		if s.lo < hi && lo < s.hi {
			return false
		}
	}
	return true
}

// place finds up to n bytes of [lo, hi) in which nothing is open, aligned to a word if
// word is true.
func (m *procMemory) place(d *dice, lo, hi, n int, word bool) (at, size int, ok bool) {
	n = min(n, hi-lo)
	for range 6 {
		at := lo + d.upTo(hi-lo-n)
		if word {
			at = (at + 7) &^ 7
			if at+n > hi {
				return 0, 0, false
			}
		}
		if m.free(at, at+n) {
			return at, n, true
		}
		if !word {
			n = max(n/2, 1)
		}
	}
	return 0, 0, false
}

// span opens [lo, hi).
func (m *procMemory) span(s extent) *extent {
	if s.lo == s.hi {
		return nil
	}
	s.m = m
	m.open = append(m.open, &s)
	return &s
}

// drop closes s without a look.
func (s *extent) drop() {
	if s != nil {
		s.m.open = slices.DeleteFunc(s.m.open, func(o *extent) bool { return o == s })
	}
}

// fill makes the program write the payload to s, which is its source.
func (s *extent) fill() {
	s.m.objects.Lock()
	copy(s.m.b[s.lo:s.hi], s.op.payload[s.off:])
	s.m.objects.Unlock()
	copy(s.m.want[s.lo:s.hi], s.op.payload[s.off:])
}

// look returns a copy of the bytes of s.
func (s *extent) look() []byte {
	if s.via != nil && s.via.object != nil {
		s.m.objects.Lock()
		defer s.m.objects.Unlock()
	}
	return bytes.Clone(s.m.b[s.lo:s.hi])
}

// payloads returns the payloads that may come to s, each from the byte on that may come to
// its beginning.
func (s *extent) payloads() [][]byte {
	if s.reads || s.frozen {
		return nil
	}
	if s.late != nil {
		return s.late
	}
	if s.recv == nil {
		return [][]byte{s.op.payload[min(s.off, len(s.op.payload)):]}
	}
	var list [][]byte
	for _, o := range s.recv.messages() {
		if s.off < len(o.payload) {
			list = append(list, o.payload[s.off:])
		}
	}
	return list
}

// verify checks that each byte of b, which was seen in s, may be there.
func (s *extent) verify(b []byte) error {
	want := s.m.want[s.lo:s.hi]
	if bytes.Equal(b, want) {
		return nil
	}
	list := s.payloads()
	for i, c := range b {
		if c == want[i] || slices.ContainsFunc(list, func(p []byte) bool { return i < len(p) && p[i] == c }) {
			continue
		}
		return fmt.Errorf("byte %d of %s was %#02x and is %#02x, which no operation may have "+
			"written",
			s.lo+i, s, want[i], c)
	}
	return nil
}

func (s *extent) String() string {
	what := "?"
	switch {
	case s.recv != nil:
		what = fmt.Sprintf("receive %d", s.recv.id)
	case s.op != nil:
		what = s.op.String()
	}
	return fmt.Sprintf("%s [%d, %d) of %s", s.m.p, s.lo, s.hi, what)
}

// freeze checks b, which was seen in s, and wants it to stay there from now on. The span stays
// open, so that no other operation gets it.
func (s *extent) freeze(w *world, b []byte) {
	if s == nil || s.reads || s.frozen {
		return
	}
	if err := s.verify(b); err != nil {
		w.fail("%v", err)
	}
	copy(s.m.want[s.lo:s.hi], b)
	s.frozen = true
}

// settle checks that b, which was seen in s, is the payload, all of it.
func (s *extent) settle(w *world, b []byte) {
	if s == nil || s.reads {
		return
	}
	p := s.op.payload[s.off:][:len(b)]
	if i := differs(b, p); i >= 0 {
		w.fail("byte %d of %s is %#02x, want %#02x", s.lo+i, s, b[i], p[i])
	}
	copy(s.m.want[s.lo:s.hi], b)
	s.frozen = true
}

func differs(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// seen is what was in a span at some time.
type seen struct {
	s *extent
	b []byte
}

// lookAt looks at the spans that may change.
func lookAt(spans []*extent) []seen {
	var all []seen
	for _, s := range spans {
		if s != nil && !s.reads && !s.frozen {
			all = append(all, seen{s, s.look()})
		}
	}
	return all
}

// through returns the open spans that may change and for which pick is true.
func (m *procMemory) through(pick func(s *extent) bool) []*extent {
	var list []*extent
	for _, s := range m.open {
		if !s.reads && !s.frozen && pick(s) {
			list = append(list, s)
		}
	}
	return list
}

// check compares all of the memory with the model. No other goroutine may be running.
func (m *procMemory) check(w *world) {
	spans := slices.Clone(m.open)
	slices.SortFunc(spans, func(a, b *extent) int { return a.lo - b.lo })
	at := 0
	for _, s := range spans {
		m.compare(w, at, s.lo)
		if err := s.verify(m.b[s.lo:s.hi]); err != nil {
			w.fail("%v", err)
		}
		at = s.hi
	}
	m.compare(w, at, len(m.b))
}

func (m *procMemory) compare(w *world, lo, hi int) {
	if bytes.Equal(m.b[lo:hi], m.want[lo:hi]) {
		return
	}
	i := lo + differs(m.b[lo:hi], m.want[lo:hi])
	where := "in a guard"
	for _, a := range m.areas {
		if i >= a.lo && i < a.hi {
			where = fmt.Sprintf("in the area [%d, %d)", a.lo, a.hi)
		}
	}
	w.fail("byte %d of %s, %s, changed from %#02x to %#02x, but no operation may write there: "+
		"the bytes are in %s",
		i, m.p, where, m.want[i], m.b[i], w.whose(m.b[i:min(i+8, len(m.b))]))
}

// whose says whose payload has these bytes.
func (w *world) whose(b []byte) string {
	for _, o := range w.ops {
		if len(b) >= 4 && bytes.Contains(o.payload, b[:4]) {
			return "the payload of " + o.String()
		}
	}
	return "no payload"
}

// object is the object of a region. Its bytes are in the memory, too, but its calls take time
// and fail.
type object struct {
	m      *procMemory
	lo, hi int
	d      *dice // under m.objects
	slow   time.Duration
	fails  int // one call in so many; 0 for none
	busy   int
}

var errObject = fmt.Errorf("the test has the object fail")

// begin takes the time of a call for n bytes at off, and returns the memory from there on, or an
// error if the call fails: short if there is not so much. It returns with m.objects held.
func (o *object) begin(n int, off int64, short error) ([]byte, error) {
	o.m.objects.Lock()
	o.busy++
	var d time.Duration
	if o.slow > 0 && o.d.oneIn(2) {
		d = time.Duration(o.d.upTo(int(o.slow)))
	}
	fails := o.fails > 0 && o.d.oneIn(o.fails)
	o.m.objects.Unlock()
	time.Sleep(d)
	o.m.objects.Lock()
	o.busy--
	switch {
	case fails:
		return nil, errObject
	case off < 0 || o.lo+int(off)+n > o.hi:
		return nil, short
	}
	return o.m.b[o.lo+int(off) : o.hi], nil
}

func (o *object) ReadAt(b []byte, off int64) (int, error) {
	m, err := o.begin(len(b), off, io.EOF)
	defer o.m.objects.Unlock()
	return copy(b, m), err
}

func (o *object) WriteAt(b []byte, off int64) (int, error) {
	m, err := o.begin(len(b), off, io.ErrShortWrite)
	defer o.m.objects.Unlock()
	return copy(m, b), err
}
