package main

import (
	"bytes"
	"testing"
)

// FuzzPingInfo decodes rping's message, encodes the result, and wants the same bytes.
func FuzzPingInfo(f *testing.F) {
	f.Add(make([]byte, pingInfoLen))
	f.Add([]byte("\x00\x00\x55\x94\xd1\x5c\x91\x70\x87\xd9\xa6\x00\x00\x00\x00\x40"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < pingInfoLen {
			return // the program reads no shorter message
		}
		b = b[:pingInfoLen:pingInfoLen]
		again := make([]byte, pingInfoLen)
		parsePingInfo(b).put(again)
		if !bytes.Equal(again, b) {
			t.Fatalf("% x came back as % x", b, again)
		}
	})
}
