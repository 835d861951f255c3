package tshark

import (
	"strings"
	"testing"
)

// FuzzParse gives the parser text that tshark may never write: it returns an error, or
// connections that begin with a Request, and whose values have one line each.
func FuzzParse(f *testing.F) {
	const head = "Internet Protocol Version 4, Src: 192.0.2.1, Dst: 192.0.2.2\n" +
		"Transmission Control Protocol, Src Port: 40000, Dst Port: 7, Seq: 1\n"
	f.Add(head + "iWARP Marker Protocol data unit Aligned framing\n    Request frame header\n" +
		"        ID Req frame: 4d\n        .1.. .... = CRC flag: True\n")
	f.Add(head + "iWARP Marker Protocol data unit Aligned framing\n    FPDU\n        ULPDU length: 18 bytes\n")
	f.Add("Internet Protocol Version 6, Src: 2001:db8::1, Dst: 2001:db8::2\n")
	f.Fuzz(func(t *testing.T, text string) {
		conns, err := parse(text)
		if err != nil && len(conns) > 0 {
			t.Fatalf("%d connections and %v", len(conns), err)
		}
		for _, c := range conns {
			if len(c.frames[0]) == 0 || c.frames[0][0].kind != request {
				t.Fatalf("%v does not begin with a Request", c)
			}
			for _, dir := range c.frames {
				for _, f := range dir {
					for label, value := range f.values {
						if strings.ContainsAny(label+value, "\n") {
							t.Fatalf("%q is %q", label, value)
						}
					}
				}
			}
		}
	})
}
