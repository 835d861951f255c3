package main

import (
	_ "embed" // list.txt
	"encoding/hex"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

//go:embed list.txt
var table string

const captures = "provider/conformance/replay/testdata"

// list returns the vectors of list.txt. It panics if list.txt is malformed.
func list(root string) (all []*vector) {
	for line := range strings.Lines(table) {
		if line == "\n" || line[0] == '#' {
			continue
		}
		cells := strings.Split(line, "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		v := &vector{Name: cells[0], RFC: cells[1], Source: "by hand"}
		v.fill(root, strings.Fields(cells[2]), cells[3])
		if cells[4] != "" {
			v.Refuse = &refusal{}
			must(fmt.Sscanf(cells[4], "%d/%d/%d", &v.Refuse.Layer, &v.Refuse.EType, &v.Refuse.Code))
		}
		all = append(all, v)
	}
	return all
}

// fill sets source, kind, stream and octets.
func (v *vector) fill(root string, kind []string, text string) {
	v.Kind = kind[0]
	switch v.Kind {
	case "siw":
		v.captured(filepath.Join(root, captures), kind[1], must(strconv.Atoi(kind[2])))
		return
	case "crc32c":
		b := unhex(text)
		end := len(b) - mpa.CRCLen
		v.Source, v.Octets, v.CRC32C = "RFC "+v.RFC, b[:end], b[end:]
		return
	case "reply":
		v.Request = startup("Req " + strings.Join(kind[2:], " "))
		fallthrough
	case "request":
		v.Octets = startup(text)
		return
	}
	s := &stream{CRC: true, Version: 1}
	v.Kind, v.Stream, v.Octets = "fpdu", s, unhex(text)
	for _, flag := range kind[1:] {
		switch flag[0] {
		case 'n':
			s.CRC = false
		case 'v':
			s.Version = 0
		case 'x':
			s.RFC7306 = true
		case 'm':
			s.Markers, s.Position = true, must(strconv.Atoi(flag[1:]))
		}
	}
	switch kind[0] {
	case "fpdu":
		f := mpa.NewFramer(s.Markers, s.CRC)
		if s.Position > 0 {
			must(f.AppendFPDU(nil, before(s.Position)))
		}
		v.Octets = must(f.AppendFPDU(nil, v.Octets))
	case "sealed":
		v.Octets = append(v.Octets, 0, 0, 0, 0)
		mpa.SealFPDU(v.Octets)
	case "figure":
		v.Source = "RFC " + v.RFC
	}
}

// captured sets frame n, counted from 1, of the capture name: Request, Reply, and then FPDUs.
func (v *vector) captured(dir, name string, n int) {
	c := must(wire.ReadFile(filepath.Join(dir, name+".pcapng"), 0)).Conns[0]
	v.Source, v.Octets = fmt.Sprintf("siw: %s.pcapng, frame %d", name, n), c.Frames[n-1].Octets
	switch n {
	case 1:
		v.Kind = "request"
	case 2:
		v.Kind, v.Request = "reply", c.Frames[0].Octets
	default:
		v.Kind, v.Stream = "fpdu", &stream{CRC: c.CRC(), Version: 1}
	}
}

// startup returns a start-up frame. text is the third word of its key, and what follows the key.
func startup(text string) []byte {
	word, rest, _ := strings.Cut(text, " ")
	return append([]byte("MPA ID "+word+" Frame"), unhex(rest)...)
}

// before returns the ULPDU of a first FPDU of n octets, 12 to 512, with the Marker before it.
func before(n int) []byte { return make([]byte, n-mpa.MarkerLen-mpa.HeaderLen-mpa.CRCLen) }

var repeated = regexp.MustCompile(`..\*\d+`)

// unhex decodes hexadecimal octets, of which 00*4 are four.
func unhex(text string) []byte {
	text = repeated.ReplaceAllStringFunc(text, func(s string) string {
		return strings.Repeat(s[:2], must(strconv.Atoi(s[3:])))
	})
	return must(hex.DecodeString(strings.Join(strings.Fields(text), "")))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
