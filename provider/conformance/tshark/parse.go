package tshark

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// kind is what tshark calls a frame.
type kind string

const (
	request kind = "Request frame header"
	reply   kind = "Reply frame header"
	fpdu    kind = "FPDU"
)

// frame is what tshark shows of a start-up frame or FPDU: values by label. If a label comes several
// times, its first value counts.
type frame struct {
	kind   kind
	values map[string]string
}

// conn is a connection as tshark decodes it, from its Request on.
type conn struct {
	initiator, responder netip.AddrPort
	frames               [2][]*frame // by wire.Direction
}

func (c *conn) String() string { return c.initiator.String() + " -> " + c.responder.String() }

var (
	ipLine  = regexp.MustCompile(`^Internet Protocol Version [46], Src: ([^ ,]+), Dst: ([^ ,]+)`)
	tcpLine = regexp.MustCompile(`^Transmission Control Protocol, Src Port: ([0-9]+), Dst Port: ([0-9]+)`)

	// bitColumn is the text before fields that are some of an octet's bits.
	bitColumn = regexp.MustCompile(`^[01.]{4}(?: [01.]{4})* = `)
)

// parser reads tshark's text. Each packet has a line for each protocol. After the lines of MPA, DDP
// and RDMAP come their fields, indented.
type parser struct {
	conns    []*conn
	src, dst netip.Addr
	from, to netip.AddrPort
	inMPA    bool // the lines belong to frames
	current  *frame
}

func parse(text string) ([]*conn, error) {
	var p parser
	n := 0
	for line := range strings.Lines(text) {
		n++
		if err := p.line(strings.TrimRight(line, "\n")); err != nil {
			return nil, fmt.Errorf("tshark's output, line %d: %w", n, err)
		}
	}
	return p.conns, nil
}

func (p *parser) line(line string) error {
	if !strings.HasPrefix(line, " ") {
		return p.heading(line)
	}
	if !p.inMPA {
		return nil
	}
	line = strings.TrimLeft(line, " ")
	line = line[len(bitColumn.FindString(line)):]
	switch k := kind(line); k {
	case request, reply, fpdu:
		p.current = &frame{kind: k, values: make(map[string]string)}
		return p.add(p.current)
	}
	label, value, ok := strings.Cut(line, ": ")
	if !ok || p.current == nil {
		return nil
	}
	label = plain(label)
	if _, there := p.current.values[label]; !there {
		p.current.values[label] = value
	}
	return nil
}

// plain removes from a label what depends on another field's value.
func plain(label string) string {
	for _, prefix := range []string{"Error Types", "Error Code"} {
		if strings.HasPrefix(label, prefix) {
			return prefix
		}
	}
	return label
}

// heading parses the line that begins a protocol.
func (p *parser) heading(line string) error {
	p.inMPA = strings.HasPrefix(line, "iWARP ") // the heading of MPA, or of DDP and RDMAP
	var err error
	if m := ipLine.FindStringSubmatch(line); m != nil {
		if p.src, err = netip.ParseAddr(m[1]); err != nil {
			return err
		}
		if p.dst, err = netip.ParseAddr(m[2]); err != nil {
			return err
		}
	}
	if m := tcpLine.FindStringSubmatch(line); m != nil {
		p.current = nil
		for i, to := range []*netip.AddrPort{&p.from, &p.to} {
			port, err := strconv.ParseUint(m[i+1], 10, 16)
			if err != nil {
				return err
			}
			*to = netip.AddrPortFrom([]netip.Addr{p.src, p.dst}[i], uint16(port))
		}
	}
	return nil
}

// add appends a frame to its connection. A Request begins a connection, unless it is the
// responder's answer to another Request.
func (p *parser) add(f *frame) error {
	answer := slices.ContainsFunc(p.conns, func(c *conn) bool { return c.responder == p.from && c.initiator == p.to })
	if f.kind == request && !answer {
		c := &conn{initiator: p.from, responder: p.to}
		c.frames[wire.ToResponder] = []*frame{f}
		p.conns = append(p.conns, c)
		return nil
	}
	for i := len(p.conns) - 1; i >= 0; i-- {
		c := p.conns[i]
		switch {
		case c.initiator == p.from && c.responder == p.to:
			c.frames[wire.ToResponder] = append(c.frames[wire.ToResponder], f)
			return nil
		case c.responder == p.from && c.initiator == p.to:
			c.frames[wire.ToInitiator] = append(c.frames[wire.ToInitiator], f)
			return nil
		}
	}
	return fmt.Errorf("a %s from %s to %s before any Request", f.kind, p.from, p.to)
}

// coded finds the number after a value's name: "Send (0x3)".
var coded = regexp.MustCompile(`\((0x[0-9a-f]+)\)$`)

// number reads a value that is a number, a named number, a number with its unit,
// or a flag.
func number(value string) (uint64, error) {
	switch value {
	case "True", "Set":
		return 1, nil
	case "False", "Not set":
		return 0, nil
	}
	if m := coded.FindStringSubmatch(value); m != nil {
		value = m[1]
	}
	value, _, _ = strings.Cut(value, " ")
	return strconv.ParseUint(value, 0, 64)
}
