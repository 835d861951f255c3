package engine

import (
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestE2EFairResponses: a Read of little is answered while the responder has
// much to send by itself, and the other way round.
//
//rfc:5040 RDMAP-5.5-13-01 RDMAP submits in ULP order
func TestE2EFairResponses(t *testing.T) {
	far := e2eWire{name: "memory, far away", net: memnet.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond}}
	far.run(t, func(t *testing.T, w e2eWire) {
		const big, count = 1 << 20, 8
		a, b := newE2EPair(t, w, e2eSetup{depth: 16})
		src := b.filled(big, allRights, 1)
		dst := a.region(big, allRights)

		// While b writes a lot, a reads 8 bytes.
		for i := range count {
			b.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMAWrite,
				SGList:     []provider.SGE{sge(src.Region, 0, big)},
				RemoteAddr: dst.Addr(), RKey: dst.RKey(), Flags: provider.SendSignaled})
		}
		small := a.region(8, provider.AccessLocalWrite)
		a.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, SGList: []provider.SGE{sge(small.Region, 0, 8)},
			RemoteAddr: src.Addr(), RKey: src.RKey(), Flags: provider.SendSignaled})
		a.one(a.scq, provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: 8})
		if done := len(drain(t, b.scq)); done > 3 {
			t.Errorf("the Read waited for %d of %d Writes", done, count)
		} else {
			b.wait(b.scq, count-done)
		}

		// While a reads a lot, b sends 8 bytes.
		sink := a.region(big, provider.AccessLocalWrite)
		a.recv(2, sge(small.Region, 0, 8))
		for i := range count {
			a.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMARead,
				SGList:     []provider.SGE{sge(sink.Region, 0, big)},
				RemoteAddr: src.Addr(), RKey: src.RKey(), Flags: provider.SendSignaled})
		}
		a.wait(a.scq, 1) // b is at it
		b.send(provider.SendWR{WRID: 3, Opcode: provider.WRSend, SGList: []provider.SGE{sge(src.Region, 0, 8)}})
		a.one(a.rcq, provider.WC{WRID: 2, Opcode: provider.WCRecv, ByteLen: 8})
		if done := 1 + len(drain(t, a.scq)); done > 4 {
			t.Errorf("the Send waited for %d of %d Reads", done, count)
		} else {
			a.wait(a.scq, count-done)
		}
	})
}
