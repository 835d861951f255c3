package proto

import (
	"encoding/binary"
	"testing"
)

// FuzzHello: encoding accepted private data again returns the same bytes, except for unused fields.
func FuzzHello(f *testing.F) {
	f.Add((&Hello{Credits: 1, SGL: Region{1, 2, 2}, Data: Region{3, 4, 5}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHello(b)
		if err != nil {
			return
		}
		again := h.Append(nil)
		if h2, err := ParseHello(again); err != nil || h2 != h {
			t.Errorf("%x is %+v, which is encoded as %x: %+v, %v", b, h, again, h2, err)
		}
		end := h.Data.Addr + 2*uint64(h.Data.Len)
		if end < h.Data.Addr || binary.BigEndian.Uint16(b[2:]) == 0 {
			t.Errorf("%+v is accepted", h)
		}
	})
}
