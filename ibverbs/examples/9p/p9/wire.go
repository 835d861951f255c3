package p9

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"reflect"
	"syscall"
)

// A message is size[4] type[1] tag[2] and the fields of a struct in messages.go, in order:
// integers are little-endian, a string has a length of 2 bytes before it, a list a count of 2, and
// bytes ([]byte) a length of 4.
const headSize = 7

// errNotMessage is the error of bytes that are not a 9P message: the sender uses another protocol.
var errNotMessage = errors.New("not a 9P2000.L message")

// errTooLong is the error of a message that does not fit the buffer it is written into.
var errTooLong = errors.New("the message is longer than its buffer")

// Encode writes a message into buf, which limits its length, and returns the message's length. m
// points to the message's struct, or is nil if the message has no fields.
func Encode(buf []byte, kind uint8, tag uint16, m any) (int, error) {
	e := encoder{buf, headSize}
	if m != nil {
		v, err := fields(m)
		if err != nil {
			return 0, err
		}
		e.put(v)
	}
	if e.n > len(buf) {
		return 0, fmt.Errorf("type %d, %d bytes, room for %d: %w", kind, e.n, len(buf), errTooLong)
	}
	binary.LittleEndian.PutUint32(buf, uint32(e.n))
	buf[4] = kind
	binary.LittleEndian.PutUint16(buf[5:], tag)
	return e.n, nil
}

// fields returns the struct that m points to.
func fields(m any) (reflect.Value, error) {
	v := reflect.ValueOf(m)
	if v.Kind() != reflect.Pointer || v.IsNil() {
		return v, fmt.Errorf("%T is nil or no pointer to a message's struct: %w", m, syscall.EINVAL)
	}
	return v.Elem(), nil
}

// Header reads the header of a message. b must have the whole message.
func Header(b []byte) (kind uint8, tag uint16, err error) {
	if len(b) < headSize {
		return 0, 0, fmt.Errorf("%d bytes, the header has %d: %w", len(b), headSize, errNotMessage)
	}
	if size := binary.LittleEndian.Uint32(b); uint64(size) != uint64(len(b)) {
		return 0, 0, fmt.Errorf("the size field says %d bytes, there are %d: %w", size, len(b), errNotMessage)
	}
	return b[4], binary.LittleEndian.Uint16(b[5:]), nil
}

// Decode reads the fields of a message into m, a pointer to its struct, or nil if it has none. Byte
// slices of m refer to b. Decode does not look at the header.
func Decode(b []byte, m any) error {
	if len(b) < headSize {
		_, _, err := Header(b)
		return err
	}
	d := decoder{b: b[headSize:]}
	if m != nil {
		v, err := fields(m)
		if err != nil {
			return err
		}
		d.get(v)
	}
	if d.bad || len(d.b) > 0 {
		return fmt.Errorf("type %d, %d bytes: the fields end elsewhere: %w", b[4], len(b), errNotMessage)
	}
	return nil
}

// decoder takes fields from the beginning of b.
type decoder struct {
	b   []byte
	bad bool // b is too short, or a count too large
}

func (d *decoder) get(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			d.get(v.Field(i))
		}
	case reflect.String:
		v.SetString(string(d.take(d.uint(2))))
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			v.SetBytes(d.take(d.uint(4)))
			return
		}
		n := d.uint(2)
		if d.bad = d.bad || n > maxWalk; d.bad {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), int(n), int(n)))
		for i := range int(n) {
			d.get(v.Index(i))
		}
	default:
		v.SetUint(d.uint(v.Type().Size()))
	}
}

// take returns the next n bytes, or nil if there are fewer.
func (d *decoder) take(n uint64) []byte {
	if d.bad || n > uint64(len(d.b)) {
		d.bad = true
		return nil
	}
	b := d.b[:n:n]
	d.b = d.b[n:]
	return b
}

func (d *decoder) uint(size uintptr) uint64 {
	var b [8]byte
	copy(b[:], d.take(uint64(size)))
	return binary.LittleEndian.Uint64(b[:])
}

// encoder puts fields into b from n on. Fields that do not fit are only counted.
type encoder struct {
	b []byte
	n int
}

func (e *encoder) put(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			e.put(v.Field(i))
		}
	case reflect.String:
		e.str(v.String())
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			e.uint(4, uint64(v.Len()))
			// A read has put its bytes in place already, and then this copies nothing.
			copy(e.room(v.Len()), v.Bytes())
			return
		}
		e.uint(2, uint64(v.Len()))
		for i := range v.Len() {
			e.put(v.Index(i))
		}
	default:
		e.uint(v.Type().Size(), v.Uint())
	}
}

// room returns the next k bytes of b, or nil if they do not fit.
func (e *encoder) room(k int) []byte {
	e.n += k
	if e.n > len(e.b) {
		return nil
	}
	return e.b[e.n-k : e.n]
}

func (e *encoder) uint(size uintptr, v uint64) {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	copy(e.room(int(size)), b[:size])
}

func (e *encoder) str(s string) {
	if len(s) > math.MaxUint16 {
		e.n = 1 << 30 // fits nowhere
		return
	}
	e.uint(2, uint64(len(s)))
	copy(e.room(len(s)), s)
}
