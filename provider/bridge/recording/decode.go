package recording

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// A Message is a part of a command or of an answer.
type Message struct {
	Name    string // request or answer; for a netlink message with its number
	Value   any    // a pointer to a struct of package abi, or nil if no layout is known
	Octets  []byte // the bytes of Value, or bytes without a known layout
	Missing int    // bytes at the end of Value that were not written and count as zero
}

// Decode returns the name of the call and its parts. A netlink socket's entry has no parts; use
// DecodeNetlink.
func (e *Entry) Decode() (name string, parts []Message, err error) {
	if e.Op != Write || e.File == Netlink {
		return e.File + "." + e.Op, nil, nil
	}
	var header any
	var c abi.Command
	var known bool
	rest := e.Request
	switch e.File {
	case Uverbs:
		var h abi.UverbsHeader
		if rest, err = abi.Decode(rest, &h); err != nil {
			return "", nil, err
		}
		header = &h
		parts = append(parts, Message{"header", header, e.Request[:8], 0})
		number := h.Command &^ abi.UverbsExtended
		if h.Command == number {
			c, known = abi.UverbsCommands[number]
			break
		}
		c, known = abi.UverbsExCommands[number]
		var x abi.UverbsExHeader
		octets := rest
		if rest, err = abi.Decode(rest, &x); err != nil {
			return "", nil, err
		}
		parts = append(parts, Message{"header", &x, octets[:16], 0})
	case CM:
		var h abi.CMHeader
		if rest, err = abi.Decode(rest, &h); err != nil {
			return "", nil, err
		}
		parts = append(parts, Message{"header", &h, e.Request[:8], 0})
		if c, known = abi.CMCommands[h.Cmd]; known && h.Cmd == abi.CMQuery {
			c.Response = queryResponse(rest)
		}
	default:
		return "", nil, fmt.Errorf("%q takes no commands", e.File)
	}
	name = c.Name
	if !known {
		name = fmt.Sprintf("command_%#x", binary.NativeEndian.Uint32(e.Request))
	}
	parts = appendParts(parts, "request", rest, c.Request, c.DriverRequest)
	if e.Errno == 0 {
		parts = appendParts(parts, "answer", e.Answer, c.Response, c.DriverResponse)
	}
	return e.File + "." + name, parts, nil
}

// queryResponse returns the layout of the answer to a QUERY request.
func queryResponse(request []byte) any {
	var q abi.Query
	if _, err := abi.DecodePadded(request, &q); err != nil {
		return nil
	}
	layout, err := abi.QueryResponse(q.Option)
	if err != nil {
		return nil
	}
	return layout
}

// appendParts decodes b by layouts, one after the other, as far as b reaches.
func appendParts(parts []Message, name string, b []byte, layouts ...any) []Message {
	for _, layout := range layouts {
		if layout == nil || len(b) == 0 {
			continue
		}
		msg := reflect.New(reflect.TypeOf(layout)).Interface()
		n := min(abi.Size(msg), len(b))
		if _, err := abi.DecodePadded(b, msg); err != nil {
			continue // no fixed size: the bytes stay undecoded
		}
		parts = append(parts, Message{name, msg, b[:n], abi.Size(msg) - n})
		b = b[n:]
	}
	if len(b) > 0 {
		parts = append(parts, Message{name, nil, b, 0})
	}
	return parts
}

// A NetlinkMessage is a request to a netlink socket, or a part of the answer.
type NetlinkMessage struct {
	abi.NLMessage
	Octets []byte
	Errno  int32         // of NLMsgError and NLMsgDone, as in the message: negative, or 0
	Of     *abi.NLHeader // of NLMsgError, the header of the request
}

// DecodeNetlink returns the messages of a request, or of an answer.
func DecodeNetlink(b []byte) (messages []NetlinkMessage, err error) {
	for len(b) > 0 {
		m, h, rest, err := abi.DecodeNL(b)
		if err != nil {
			return messages, err
		}
		n := NetlinkMessage{NLMessage: m, Octets: b[:len(b)-len(rest)]}
		if m.Type == abi.NLMsgError || m.Type == abi.NLMsgDone {
			payload := b[abi.Size(h):h.Length]
			if len(payload) < 4 {
				return messages, fmt.Errorf("%w: no errno", abi.ErrNetlink)
			}
			n.Errno = int32(binary.NativeEndian.Uint32(payload))
			if m.Type == abi.NLMsgError {
				n.Of = &abi.NLHeader{}
				if _, err := abi.Decode(payload[4:], n.Of); err != nil {
					return messages, err
				}
			}
		}
		messages = append(messages, n)
		b = rest
	}
	return messages, nil
}

// Encode returns the bytes of the messages that Decode returned. They equal the bytes that were
// written if the layouts are right.
func Encode(parts []Message, name string) []byte {
	var b []byte
	for _, p := range parts {
		if p.Name != name {
			continue
		}
		if p.Value == nil {
			b = append(b, p.Octets...)
			continue
		}
		b = abi.Append(b, p.Value)
		b = b[:len(b)-p.Missing]
	}
	return b
}

// EncodeNetlink returns the bytes of messages that DecodeNetlink has returned.
func EncodeNetlink(messages []NetlinkMessage) []byte {
	var b []byte
	for _, m := range messages {
		switch {
		case m.Of != nil:
			b = abi.AppendNLError(b, m.Of, m.Errno, m.PID)
		default:
			b = abi.AppendNL(b, &m.NLMessage)
		}
	}
	return b
}

// text formats the value of a field that does not stand for an object.
func text(f *abi.Field) string {
	if f.Value.Kind() != reflect.Array {
		return fmt.Sprint(f.Value.Interface())
	}
	if f.Value.Type().Elem().Kind() != reflect.Uint8 {
		return strings.ReplaceAll(fmt.Sprint(f.Value.Interface()), " ", ",")
	}
	octets := make([]byte, f.Value.Len())
	reflect.Copy(reflect.ValueOf(octets), f.Value)
	octets = []byte(strings.TrimRight(string(octets), "\x00"))
	if len(octets) == 0 {
		return "0"
	}
	return "x" + string(appendOctets(nil, slices.Clip(octets)))
}

// number formats a number.
func number[T ~int | ~int32 | ~int64 | ~uint16 | ~uint32](n T) string {
	return strconv.FormatInt(int64(n), 10)
}
