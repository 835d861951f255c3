package engine

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestE2EOperations moves messages of every size class with every operation,
// from and to one and several SGEs, in both directions.
//
//rfc:5041 DDP-5.3-01 Messages transmitted in submission order
//rfc:5040 RDMAP-5.1-06 Zero-length Write allowed, not STag-checked
//rfc:5040 RDMAP-5.3-11 SendInv: ULP told which STag
func TestE2EOperations(t *testing.T) {
	if testkit.Race {
		t.Skip("one message at a time shows the race detector nothing that TestE2ESoup does not, " +
			"over the same wires; ci/test runs this without it")
	}
	onWires(t, nil, func(t *testing.T, w e2eWire) {
		a, b := newE2EPair(t, w, e2eSetup{})
		a.recv(1) // for the edges of b's wire: it may send once it has received
		b.recv(1)
		a.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled})
		a.wait(a.scq, 1)
		b.wait(b.rcq, 1)
		b.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled})
		b.wait(b.scq, 1)
		a.wait(a.rcq, 1)
		for _, dir := range []struct {
			name     string
			from, to *e2eEnd
		}{{"there", a, b}, {"back", b, a}} {
			for _, n := range a.edges() {
				if n > 100_000 && testing.Short() && w.net.Cut {
					continue // a minute and a half where it is cut
				}
				for _, k := range []int{1, 3} {
					t.Logf("%s, %d bytes, %d SGEs", dir.name, n, k)
					tryOperations(t, dir.from, dir.to, n, k)
				}
			}
		}
	})
}

func tryOperations(t *testing.T, from, to *e2eEnd, n, k int) {
	t.Helper()
	const pad = 7 // bytes of the region before the message
	src := from.filled(n, provider.AccessLocalWrite, uint64(n+k))
	message := octetsOf(src.Region)[:n]
	gather := split(src.Region, 0, n, k)

	for _, op := range []provider.WROpcode{provider.WRSend, provider.WRSendWithInv} {
		dst := to.region(n+pad, allRights)
		to.recv(17, split(dst.Region, pad, n, k)...)
		wr := provider.SendWR{WRID: 5, Opcode: op, SGList: gather, Flags: provider.SendSignaled}
		want := provider.WC{WRID: 17, Opcode: provider.WCRecv, ByteLen: uint32(n)}
		if op == provider.WRSendWithInv {
			wr.InvalidateRKey = dst.RKey()
			want.Flags, want.InvalidatedRKey = provider.WCWithInv, dst.RKey()
		}
		from.send(wr)
		from.one(from.scq, provider.WC{WRID: 5, Opcode: provider.WCSend})
		to.one(to.rcq, want)
		checkMessage(t, fmt.Sprint(op), dst, pad, message)
		if _, got := dst.Shut(); got != (op == provider.WRSendWithInv) {
			t.Errorf("%s: invalidated %v", op, got)
		}
		testkit.OK(t, dst.Close())
	}

	dst := to.region(n+pad, allRights)
	from.send(provider.SendWR{WRID: 6, Opcode: provider.WRRDMAWrite, SGList: gather, Flags: provider.SendSignaled,
		RemoteAddr: dst.Addr() + pad, RKey: dst.RKey()})
	from.one(from.scq, provider.WC{WRID: 6, Opcode: provider.WCRDMAWrite})
	// A Write is not reported to the target; a Send after it is.
	to.recv(18)
	from.send(provider.SendWR{WRID: 7, Opcode: provider.WRSend})
	to.one(to.rcq, provider.WC{WRID: 18, Opcode: provider.WCRecv})
	checkMessage(t, "write", dst, pad, message)

	sink := from.region(n+pad, provider.AccessLocalWrite)
	from.send(provider.SendWR{WRID: 8, Opcode: provider.WRRDMARead,
		SGList: split(sink.Region, pad, n, k), Flags: provider.SendSignaled,
		RemoteAddr: dst.Addr() + pad, RKey: dst.RKey()})
	from.one(from.scq, provider.WC{WRID: 8, Opcode: provider.WCRDMARead, ByteLen: uint32(n)})
	checkMessage(t, "read", sink, pad, message)

	for _, m := range []*guarded{src, dst, sink} {
		testkit.OK(t, m.Close())
	}
}

func checkMessage(t *testing.T, op string, r *guarded, off int, message []byte) {
	t.Helper()
	got := octetsOf(r.Region)[off : off+len(message)]
	if !bytes.Equal(got, message) {
		i := 0
		for got[i] == message[i] {
			i++
		}
		t.Fatalf("%s: byte %d of %d is %#02x, want %#02x", op, i, len(message), got[i], message[i])
	}
	if !r.untouched(off, len(message)) {
		t.Fatalf("%s: bytes beside the message changed", op)
	}
}

// Writes that are gathered from as many places as can be fill a batch with
// entries of the vector before they fill it with anything else.
func TestE2EManyGathered(t *testing.T) {
	const writes, octets = 96, 4096
	onWires(t, nil, func(t *testing.T, w e2eWire) {
		a, b := newE2EPair(t, w, e2eSetup{cap: provider.QPCap{MaxSendWR: writes, MaxRecvWR: 1, MaxSendSGE: maxSGE, MaxRecvSGE: 1}, cqe: writes})
		a.recv(1) // for b's edge of the wire
		src := a.filled(writes*octets, provider.AccessLocalWrite, 5)
		dst := b.region(writes*octets, allRights)
		wrs := make([]provider.SendWR, writes)
		for i := range wrs {
			wrs[i] = provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMAWrite,
				SGList:     split(src.Region, i*octets, octets, maxSGE),
				RemoteAddr: dst.Region.Addr() + uint64(i*octets), RKey: dst.RKey(), Flags: provider.SendSignaled}
		}
		if n, err := a.q.PostSend(wrs); n != writes || err != nil {
			t.Fatalf("%d of %d posted: %v", n, writes, err)
		}
		// A Read after them is answered when they are placed.
		sink := a.region(1, provider.AccessLocalWrite)
		for i, wc := range a.wait(a.scq, writes) {
			if wc.WRID != uint64(i) || wc.Status != provider.WCSuccess {
				t.Fatalf("completion %d is of WR %d: %s", i, wc.WRID, wc.Status)
			}
		}
		a.send(provider.SendWR{WRID: writes, Opcode: provider.WRRDMARead,
			SGList:     []provider.SGE{sge(sink.Region, 0, 1)},
			RemoteAddr: dst.Region.Addr(), RKey: dst.RKey(), Flags: provider.SendSignaled})
		a.one(a.scq, provider.WC{WRID: writes, Opcode: provider.WCRDMARead, ByteLen: 1})
		if !bytes.Equal(octetsOf(dst.Region)[:writes*octets],
			octetsOf(src.Region)[:writes*octets]) || !dst.untouched(0, writes*octets) {
			t.Error("what was gathered is not what was placed")
		}
	})
}
