// Command vectors makes docs/vectors.json: frames of MPA, DDP and RDMAP in hexadecimal with their
// fields, for tests of other implementations. docs/vectors.md describes the file.
//
// Octets come from captures of siw, from RFCs, or from list.txt, where they are typed; the layers
// add length, Markers, pad and CRC to the latter. The layers decode all of them into fields. The
// tests encode the fields again, and compare them with what tshark sees in the same octets.
//
// Usage: go run ./ci/vectors [root]
package main

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp"
)

const output = "docs/vectors.json"

func main() {
	root := "."
	if len(os.Args) > 1 {
		root = os.Args[1]
	}
	text, err := generate(root)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, output), text, 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "vectors:", err)
		os.Exit(1)
	}
}

// A vector is one line of the file.
type vector struct {
	Name    string          `json:"name"`
	RFC     string          `json:"rfc"`
	Source  string          `json:"source"`
	Kind    string          `json:"kind"`              // crc32c, request, reply or fpdu
	Request octets          `json:"request,omitempty"` // reply: the Request that it answers
	Stream  *stream         `json:"stream,omitempty"`  // fpdu
	Octets  octets          `json:"octets"`
	CRC32C  octets          `json:"crc32c,omitempty"`
	Fields  json.RawMessage `json:"fields,omitempty"`
	Refuse  *refusal        `json:"refuse,omitempty"`

	frame *wire.Frame // nil if the octets can't be decoded
}

// A stream is what the start-up agreed on, and the FPDU's place.
type stream struct {
	CRC      bool  `json:"crc"`
	Markers  bool  `json:"markers"`
	Position int   `json:"position"` // octets before the FPDU since the start-up; 0 without Markers
	Version  uint8 `json:"version"`  // DV and RV: 1, or 0 for the RDMA Consortium's protocols
	RFC7306  bool  `json:"rfc7306"`
}

// A refusal is the error that a receiver reports. Without a Terminate it closes the connection.
type refusal struct {
	Layer     iwarp.Layer `json:"layer"`
	EType     iwarp.EType `json:"etype"`
	Code      iwarp.Code  `json:"code"`
	Reason    string      `json:"reason"`
	Terminate octets      `json:"terminate,omitempty"` // payload of the Terminate message
}

// octets are written in hexadecimal.
type octets []byte

func (o octets) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, o), nil }

func (o *octets) UnmarshalText(b []byte) (err error) {
	*o, err = hex.DecodeString(string(b))
	return err
}

// generate returns the file. It fails if the layers do not accept or refuse a vector as the list
// says.
func generate(root string) ([]byte, error) {
	all := list(root)
	decode(all)
	lines := make([]string, len(all))
	for i, v := range all {
		if err := v.judge(); err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		line, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", v.Name, err)
		}
		lines[i] = string(line)
	}
	return []byte("[\n" + strings.Join(lines, ",\n") + "\n]\n"), nil
}
