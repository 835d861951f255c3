package tshark

import (
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// tshark knows RFC 7306, and sees in the octets of its figures what we see.
func TestExtensions(t *testing.T) {
	need(t)
	var c wiretest.Capture
	c.Extended()
	trace := agree(t, &c)
	for i := range trace.Conns[0].Frames { // and says so where we do not
		if f := &trace.Conns[0].Frames[i]; f.Atomic != nil {
			f.Atomic.Mask++
		}
	}
	_, file, _ := show(t, &c, 0)
	if w := about(file, 0, trace); w.Agrees {
		t.Error("tshark agrees to another mask")
	}
}

// tshark takes version 0 for what it is.
func TestVersionZero(t *testing.T) {
	need(t)
	var c wiretest.Capture
	s := c.Open(wiretest.Client, wiretest.Server).Start(wiretest.RDMACFrame(mpa.KindRequest), wiretest.RDMACFrame(mpa.KindReply))
	old := func(h ddp.Header) ddp.Header { rdmap.SetRDMAC(&h); return h }
	s.FPDU(wire.ToResponder, old(rdmap.WriteHeader(0x100, 8, true)), make([]byte, 900))
	s.FPDU(wire.ToInitiator, old(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)), make([]byte, 5))
	if conn := agree(t, &c).Conns[0]; !conn.RDMAC() || len(conn.Frames) != 4 {
		t.Errorf("RDMAC %v: %v", conn.RDMAC(), conn.Ladder())
	}
}
