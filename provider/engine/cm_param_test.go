package engine

import (
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// TestRequestOfOptions looks at the Request that options lead to, byte by byte.
//
//rfc:5044 MPA-7.1.1-01 Req key is the 16 octets 'MPA ID Req Frame'
//rfc:5044 MPA-7.1.1-12 Res bits zero on send
//rfc:5044 MPA-7.1.1-14 Rev=1 for this spec
//rfc:5044 MPA-7.1.1-17 PD_Length equals private data length
//rfc:6581 MPA2-6-01 S=1 iff private data starts with the enhanced block
//rfc:6581 MPA2-6-06 PD_Length includes the 4-octet block
//rfc:6581 MPA2-9.2-10 A=0 for client-server
//rfc:6581 MPA2-9.2-12 A=0 forces B=C=D=0 on send
func TestRequestOfOptions(t *testing.T) {
	for _, tc := range []struct {
		opts Options
		want string // after the key
	}{
		{Options{}, "\x50\x02\x00\x06" + "\x00\x04" + "\x00\x05" + "hi"},
		{Options{CRC: CRCOff}, "\x10\x02\x00\x06" + "\x00\x04" + "\x00\x05" + "hi"},
		{Options{Conformance: Conformance{Markers: true}}, "\xd0\x02\x00\x06" + "\x00\x04" + "\x00\x05" + "hi"},
		{Options{Conformance: Conformance{Revision: 1}}, "\x40\x01\x00\x02" + "hi"},
		{Options{Conformance: Conformance{Revision: 1, Markers: true}, CRC: CRCOff}, "\x80\x01\x00\x02" + "hi"},
	} {
		inMemory(t, tc.opts, func(t *testing.T, w *cmWorld) {
			client, p, f := w.toRaw(provider.ConnParam{ResponderResources: 3, InitiatorDepth: 5,
				PrivateData: []byte("hi")})
			if got := string(f.AppendTo(nil)); got != "MPA ID Req Frame"+tc.want {
				t.Errorf("%+v: Request %q, want %q after the key", tc.opts, got, tc.want)
			}
			p.close()
			w.active.want("the peer hung up", client, provider.CMRejected, syscall.ECONNRESET)
		})
	}
}
