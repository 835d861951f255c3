package wire_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
)

func newCapture() *wiretest.Capture { return &wiretest.Capture{} }

func wiretestAddr(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// story is a connection's ladder without times.
func story(c *wire.Conn) []string {
	var out []string
	for _, line := range c.Ladder() {
		out = append(out, strings.TrimSpace(line[13:]))
	}
	return out
}

func lastLine(c *wire.Conn) string {
	s := story(c)
	if len(s) == 0 {
		return "(nothing)"
	}
	return s[len(s)-1]
}

// want compares a connection's story with lines.
func want(t *testing.T, c *wire.Conn, lines ...string) {
	t.Helper()
	got := story(c)
	for i := range max(len(got), len(lines)) {
		switch {
		case i >= len(got):
			t.Errorf("line %d is missing: %s", i, lines[i])
		case i >= len(lines):
			t.Errorf("line %d is too many: %s", i, got[i])
		case got[i] != lines[i]:
			t.Errorf("line %d:\n got %s\nwant %s", i, got[i], lines[i])
		}
	}
}

// octets returns n octets that differ from place to place.
func octets(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func keys(diffs []wire.Difference) string {
	var out []string
	for _, d := range diffs {
		out = append(out, fmt.Sprintf("%s[%s|%s]", d.Key, d.Reference, d.Got))
	}
	return strings.Join(out, " ")
}
