package remote

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"slices"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// FuzzMessage: a message that is read is written to the same bytes, and other bytes are not
// accepted as a message.
func FuzzMessage(f *testing.F) {
	key := []byte("a key")
	write := func(m message) []byte {
		var b bytes.Buffer
		w := bufio.NewWriter(&b)
		if err := writeMessage(w, newAuthenticator(key), &m); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	f.Add(write(message{kind: kindBeat}))
	f.Add(write(message{kind: kindRequest, number: 7, head: []byte(`{"verb":"pull"}`), body: []byte("x")}))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, octets []byte) {
		m, err := readMessage(bufio.NewReader(bytes.NewReader(octets)), newAuthenticator(key), func() {})
		if err != nil {
			if m.head != nil || m.body != nil {
				t.Error("a failure returns bytes")
			}
			return
		}
		if again := write(m); !bytes.HasPrefix(octets, again) {
			t.Errorf("read %x, which is written as %x", octets, again)
		}
	})
}

// TestMessageIsAuthentic: a message with another key, a changed byte or a wrong position is
// refused.
func TestMessageIsAuthentic(t *testing.T) {
	var b bytes.Buffer
	w, out := bufio.NewWriter(&b), newAuthenticator([]byte("key"))
	for range 2 {
		if err := writeMessage(w, out, &message{kind: kindRequest, head: []byte("{}")}); err != nil {
			t.Fatal(err)
		}
	}
	both := b.Bytes()
	one := both[:len(both)/2]
	read := func(octets []byte, key string) error {
		_, err := readMessage(bufio.NewReader(bytes.NewReader(octets)), newAuthenticator([]byte(key)), func() {})
		return err
	}
	if err := read(one, "key"); err != nil {
		t.Error(err)
	}
	if read(one, "another") == nil {
		t.Error("another key is as good")
	}
	if read(both[len(one):], "key") == nil {
		t.Error("the second message is taken for the first")
	}
	for i := range one {
		changed := slices.Clone(one)
		changed[i] ^= 1
		if read(changed, "key") == nil {
			t.Errorf("byte %d may change", i)
		}
	}
	if err := read(one[:len(one)-1], "key"); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut short: %v", err)
	}
}

// FuzzChanges: a list of changes puts bytes into the copies that it made, and nowhere else.
func FuzzChanges(f *testing.F) {
	list := appendRecord(nil, record{what: recordBlock, block: 1 << 16, at: 10, n: 4090})
	list = appendRecord(list, record{recordOctets, 1 << 16, 3, 4, []byte("abcd")})
	f.Add(appendRecord(list, record{what: recordRetire, block: 1 << 16}))
	f.Add(appendRecord(list, record{recordOctets, 1 << 16, 1<<64 - 1, 4, []byte("abcd")}))
	f.Add(appendRecord(nil, record{what: recordBlock, block: 1 << 16, at: 1 << 63}))
	f.Fuzz(func(t *testing.T, octets []byte) {
		s := newServed(&Agent{MaxMemory: 1 << 20}, nil)
		s.slots[1] = true
		err := s.take(octets)
		for number, twin := range s.twins {
			if twin.err != nil {
				continue
			}
			if err := twin.intact(); err != nil {
				t.Error(err)
			}
			if !twin.retired && !bytes.Equal(twin.now, twin.agreed) {
				t.Errorf("block %#x: %x, and %x is agreed", number, twin.now, twin.agreed)
			}
			defer twin.free()
		}
		if s.held > 1<<20 {
			t.Errorf("%d bytes are held", s.held)
		}
		if err == nil { // every record is whole
			for rest := octets; len(rest) > 0; {
				r, after, err := nextRecord(rest)
				if err != nil {
					t.Fatal(err)
				}
				if r.what == recordOctets {
					if again := appendRecord(nil, r); !bytes.Equal(again, rest[:len(rest)-len(after)]) {
						t.Errorf("%x is written as %x", rest, again)
					}
				}
				rest = after
			}
		}
	})
}

// FuzzDifferences: the records of the differences turn the old bytes into the new ones, and contain
// no byte that is the same in both.
func FuzzDifferences(f *testing.F) {
	f.Add([]byte("the old bytes"), []byte("the new bytes"))
	f.Add(make([]byte, 5000), append(make([]byte, 4095), 1, 2, 3))
	f.Fuzz(func(t *testing.T, old, now []byte) {
		n := min(len(old), len(now))
		old, now = old[:n], now[:n]
		agreed, far := slices.Clone(old), slices.Clone(old)
		list, end := appendDifferences(nil, 5, now, agreed, 0, 1<<30)
		if end != n || !bytes.Equal(agreed, now) {
			t.Errorf("%x is agreed, of %x", agreed, now)
		}
		for len(list) > 0 {
			r, rest, err := nextRecord(list)
			if err != nil || r.block != 5 || r.what != recordOctets {
				t.Fatal(r, err)
			}
			for i, octet := range r.data {
				if old[int(r.at)+i] == octet {
					t.Errorf("byte %d is the same, and sent", int(r.at)+i)
				}
			}
			copy(far[r.at:], r.data)
			list = rest
		}
		if !bytes.Equal(far, now) {
			t.Errorf("the other end has %x, not %x", far, now)
		}
	})
}

// FuzzHello: a hello that is read is written to the same bytes.
func FuzzHello(f *testing.F) {
	h := newHello("devel")
	f.Add(h.append(nil))
	f.Add([]byte("govsagnt\x00\x02\x03new"))
	f.Fuzz(func(t *testing.T, octets []byte) {
		h, err := readHello(bytes.NewReader(octets))
		if err == nil && !bytes.HasPrefix(octets, h.append(nil)) {
			t.Errorf("read %x", octets)
		}
	})
}

// FuzzError: whatever an agent sends decodes to an error, which is encoded to the same bytes.
func FuzzError(f *testing.F) {
	for _, err := range []error{syscall.EBUSY, os.ErrClosed,
		&provider.Error{Op: "op", Err: &provider.TerminateError{Layer: 1, Err: io.EOF}}} {
		head, jerr := json.Marshal(encodeError(err))
		if jerr != nil {
			f.Fatal(jerr)
		}
		f.Add(head)
	}
	f.Add([]byte(`{"kind":"error","wraps":[null]}`))
	f.Add([]byte(`{"kind":"terminate"}`))
	f.Fuzz(func(t *testing.T, head []byte) {
		var w *wireError
		if json.Unmarshal(head, &w) != nil || w == nil {
			return
		}
		err := w.decode()
		if err == nil {
			t.Fatal("no error")
		}
		if again := encodeError(err).decode(); again.Error() != err.Error() {
			t.Errorf("%q crosses back as %q", err, again)
		}
	})
}

// TestErrors: errors of the contract keep their types and texts, and errors.Is matches the same
// errors.
func TestErrors(t *testing.T) {
	for _, err := range []error{
		syscall.EBUSY, io.EOF, os.ErrClosed, provider.ErrNoneSignaled,
		&provider.Error{Op: "ibv_x", Object: "qp 3", Err: os.ErrClosed},
		&provider.UnsupportedError{Feature: "windows", Reason: "none"},
		&provider.WCError{Status: provider.WCWRFlushErr, WRID: 4, QPN: 5},
		&provider.TerminateError{Remote: true, Layer: 1, EType: 2, ECode: 3, Text: "x",
			Err: &provider.WorkError{Opcode: provider.WRSend, WRID: 9, Text: "bad", Err: syscall.EIO}},
		&provider.RejectedError{Status: -111, PrivateData: []byte("no"), Cause: errors.New("why")},
		errors.Join(errors.New("one"), syscall.ENOMEM), ownEnd{},
	} {
		raw, jerr := json.Marshal(encodeError(err))
		if jerr != nil {
			t.Fatal(jerr)
		}
		var w *wireError
		if jerr := json.Unmarshal(raw, &w); jerr != nil {
			t.Fatal(jerr)
		}
		got := w.decode()
		if got.Error() != err.Error() {
			t.Errorf("%q arrives as %q", err, got)
		}
		for name, s := range sentinels {
			if errors.Is(got, s) != errors.Is(err, s) {
				t.Errorf("%q: errors.Is(%s) is %v", err, name, errors.Is(got, s))
			}
		}
		if provider.Errno(got) != provider.Errno(err) {
			t.Errorf("%q: errno %v", err, provider.Errno(got))
		}
		var want, have *provider.TerminateError
		if errors.As(err, &want) && (!errors.As(got, &have) || have.ECode != want.ECode) {
			t.Errorf("%q has lost its type", err)
		}
	}
	if encodeError(nil).decode() != nil {
		t.Error("nil arrives as an error")
	}
}

// ownEnd is an error that only errors.Is matches with another.
type ownEnd struct{}

func (ownEnd) Error() string        { return "this side ended it" }
func (ownEnd) Is(target error) bool { return target == os.ErrClosed }
