package figures

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path/filepath"
)

// A profile is a gzipped protocol buffer, Profile of profile.proto (it comes with
// google/pprof): fields that each begin with a tag, which is the number of the
// field and how the value is written. All text is in one list of strings, whose
// entries other fields number.
const (
	stringTable = 6 // the field string_table

	wireVarint = 0
	wireBytes  = 2 // a length, and so many octets
)

// withoutFolderOf is a profile that names a program by its last element only. The linker
// knows how to leave folders out of the names of sources (-trimpath), but the names of
// mapped files are those that the kernel reports.
func withoutFolderOf(program string, profile []byte) ([]byte, error) {
	zr, err := gzip.NewReader(bytes.NewReader(profile))
	if err != nil {
		return nil, fmt.Errorf("the profile: %w", err)
	}
	text, err := io.ReadAll(zr)
	if err != nil {
		return nil, fmt.Errorf("the profile: %w", err)
	}
	var out bytes.Buffer
	zw := gzip.NewWriter(&out)
	for len(text) > 0 {
		field, err := firstField(text)
		if err != nil {
			return nil, err
		}
		text = text[len(field):]
		if bytes.Equal(field, tableEntry(program)) {
			field = tableEntry(filepath.Base(program))
		}
		if _, err := zw.Write(field); err != nil {
			return nil, err
		}
	}
	err = zw.Close()
	return out.Bytes(), err
}

var errNoProfile = errors.New("the profile is not one that can be read")

// firstField is the field that text begins with.
func firstField(text []byte) ([]byte, error) {
	tag, n := binary.Uvarint(text)
	if n <= 0 {
		return nil, errNoProfile
	}
	value, k := binary.Uvarint(text[n:])
	if k <= 0 {
		return nil, errNoProfile
	}
	n += k
	switch tag & 7 {
	case wireVarint:
		return text[:n], nil
	case wireBytes:
		if value <= uint64(len(text)-n) {
			return text[:n+int(value)], nil
		}
	}
	return nil, errNoProfile // cut short, or what a Profile has none of
}

// tableEntry is an entry of the list of strings.
func tableEntry(s string) []byte {
	b := binary.AppendUvarint([]byte{stringTable<<3 | wireBytes}, uint64(len(s)))
	return append(b, s...)
}
