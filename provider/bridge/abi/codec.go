// Package abi has the messages between programs and the kernel's RDMA subsystem, as structs that
// are encoded and decoded byte for byte: commands of uverbs and rdma_cm, siw's additions to them,
// siw's queues, and addresses.
//
// Each struct corresponds to a struct of the kernel's headers (rdma/ib_user_verbs.h,
// rdma/rdma_user_cm.h, rdma/siw-abi.h). A field's tag is its name there. All numbers are in the
// machine's byte order, unless the field says otherwise. A blank field is padding, as the C
// compiler would insert it. Bytes that follow a struct, for example a driver's additions, are a
// separate struct.
//
// The package uses neither cgo nor I/O. A bridge decodes commands and encodes answers; a program
// that watches another one decodes both.
package abi

import (
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
)

// ErrShort is in the error for a message that has fewer bytes than its layout.
var ErrShort = errors.New("message too short")

// Size returns the size in bytes of msg, a struct of this package or a pointer to one.
func Size(msg any) int {
	n := binary.Size(msg)
	if n < 0 {
		panic(fmt.Sprintf("abi: %T has no fixed size", msg)) // a bug of the caller
	}
	return n
}

// Append appends the bytes of msg, a struct of this package or a pointer to one.
func Append(b []byte, msg any) []byte {
	b, err := binary.Append(b, binary.NativeEndian, msg)
	if err != nil {
		panic(fmt.Sprintf("abi: %T: %v", msg, err)) // it has no fixed size
	}
	return b
}

// Decode fills msg, a pointer to a struct of this package, from the beginning of b, and returns the
// rest of b. If b has fewer bytes than msg, the error wraps ErrShort and msg is unchanged.
func Decode(b []byte, msg any) (rest []byte, err error) {
	n := Size(msg)
	if len(b) < n {
		return nil, fmt.Errorf("%w: %s has %d bytes, and there are %d", ErrShort, name(msg), n, len(b))
	}
	if _, err := binary.Decode(b[:n], binary.NativeEndian, msg); err != nil {
		return nil, fmt.Errorf("%s: %w", name(msg), err)
	}
	return b[n:], nil
}

// DecodePadded decodes a message whose end may be missing. It sets missing bytes to zero, as the
// kernel does in uverbs_request and for some commands of rdma_cm, because these messages have
// grown.
func DecodePadded(b []byte, msg any) (rest []byte, err error) {
	if n := Size(msg); len(b) < n {
		padded := make([]byte, n)
		copy(padded, b)
		b = padded
	}
	return Decode(b, msg)
}

// name returns a message's name for errors.
func name(msg any) string {
	t := reflect.TypeOf(msg)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

// A Field is a field of a message.
type Field struct {
	Name   string // in C, after the names of its enclosing structs, separated by dots
	Offset int    // in bytes
	Size   int    // in bytes
	Value  reflect.Value
}

// Fields returns the fields of msg, a struct of this package or a pointer to one, in order. It
// replaces inner structs by their fields and leaves out padding.
func Fields(msg any) []Field {
	v := reflect.Indirect(reflect.ValueOf(msg))
	return appendFields(nil, "", 0, v)
}

// appendFields appends the fields of v, which begins at offset at.
func appendFields(fields []Field, prefix string, at int, v reflect.Value) []Field {
	for i := range v.NumField() {
		t, f := v.Type().Field(i), v.Field(i)
		size := int(f.Type().Size())
		if f.Kind() == reflect.Struct {
			size = binary.Size(f.Interface())
		}
		tag := t.Tag.Get("c")
		switch {
		case tag == "": // padding
		case f.Kind() == reflect.Struct:
			fields = appendFields(fields, prefix+tag+".", at, f)
		default:
			fields = append(fields, Field{Name: prefix + tag, Offset: at, Size: size, Value: f})
		}
		at += size
	}
	return fields
}

// Format returns msg as strace would print it: name=value for each field, in braces. Bytes are in
// hexadecimal, without the zeros at their end.
func Format(msg any) string {
	var b strings.Builder
	b.WriteByte('{')
	for i, f := range Fields(msg) {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(f.Name)
		b.WriteByte('=')
		switch octets, isOctets := f.octets(); {
		case isOctets && len(octets) == 0:
			b.WriteByte('0')
		case isOctets:
			fmt.Fprintf(&b, "%x", octets)
		case f.Value.Kind() == reflect.Array:
			fmt.Fprintf(&b, "%v", f.Value.Interface())
		case f.Size == 8:
			fmt.Fprintf(&b, "%#x", f.Value.Interface())
		default:
			fmt.Fprintf(&b, "%d", f.Value.Interface())
		}
	}
	b.WriteByte('}')
	return b.String()
}

// octets returns the field if it is an array of bytes, without the zeros at its end.
func (f *Field) octets() (octets []byte, ok bool) {
	if f.Value.Kind() != reflect.Array || f.Value.Type().Elem().Kind() != reflect.Uint8 {
		return nil, false
	}
	octets = make([]byte, f.Value.Len())
	reflect.Copy(reflect.ValueOf(octets), f.Value)
	return []byte(strings.TrimRight(string(octets), "\x00")), true
}
