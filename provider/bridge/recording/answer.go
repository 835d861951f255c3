package recording

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// Place returns the address of a command's answer in the program's memory, and the number of bytes
// that fit there. n is 0 if the command has no answer. file is Uverbs or CM.
func Place(file string, request []byte) (addr uint64, n int) {
	switch file {
	case Uverbs:
		return uverbsPlace(request)
	case CM:
		return cmPlace(request)
	}
	return 0, 0
}

func uverbsPlace(request []byte) (addr uint64, n int) {
	var h abi.UverbsHeader
	rest, err := abi.Decode(request, &h)
	if err != nil {
		return 0, 0
	}
	if h.Command&abi.UverbsExtended != 0 {
		var x abi.UverbsExHeader
		if _, err := abi.Decode(rest, &x); err != nil || x.Response == 0 {
			return 0, 0
		}
		return x.Response, (int(h.OutWords) + int(x.ProviderOutWords)) * 8
	}
	if abi.UverbsCommands[h.Command].Response == nil || len(rest) < 8 {
		return 0, 0
	}
	return binary.NativeEndian.Uint64(rest), int(h.OutWords) * 4
}

func cmPlace(request []byte) (addr uint64, n int) {
	var h abi.CMHeader
	rest, err := abi.Decode(request, &h)
	c := abi.CMCommands[h.Cmd]
	if err != nil || c.Response == nil {
		return 0, 0
	}
	for _, f := range abi.Fields(c.Request) {
		if f.Name == "response" && len(rest) >= f.Offset+8 {
			return binary.NativeEndian.Uint64(rest[f.Offset:]), int(h.Out)
		}
	}
	return 0, 0
}

// mark is a byte that fills the place of the answer, to show what the device has not written.
const mark = 0xa5

// leastMarks is how many marks at the end show that it was not written: fewer may be a value.
const leastMarks = 4

// Marked returns n marks for the place of an answer.
func Marked(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = mark
	}
	return b
}

// Written returns the part of an answer that the device has written over Marked's bytes.
func Written(answer []byte) []byte {
	n := len(answer)
	for n > 0 && answer[n-1] == mark {
		n--
	}
	if len(answer)-n < leastMarks {
		n = len(answer)
	}
	return answer[:n]
}
