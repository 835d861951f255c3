package engine

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestE2EOperations moves messages of every size class with every operation,
// from and to one and several SGEs, in both directions.
//
//rfc:5041 DDP-5.3-01 Messages transmitted in submission order
//rfc:5040 RDMAP-5.1-06 Zero-length Write allowed, not STag-checked
//rfc:5040 RDMAP-5.3-11 SendInv: ULP told which STag
//rfc:5044 MPA-4.4-06 CRC handling invisible to the ULP
//rfc:5041 DDP-3-03 Segment and message boundaries preserved
//rfc:5040 RDMAP-5.2.2-08 Sink of a Read needs no remote-write right
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
		_, got := dst.Shut()
		testkit.Equal(t, op.String()+": invalidated", got, op == provider.WRSendWithInv)
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
	testkit.EqualBytes(t, op, octetsOf(r.Region)[off:off+len(message)], message)
	testkit.Equal(t, op+": bytes beside it are as before", r.untouched(off, len(message)), true)
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
		a.send(wrs...)
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

// TestE2EFairResponses: a Read of little is answered while the responder has
// much to send by itself, and the other way round.
//
//rfc:5040 RDMAP-5.5-13-01 RDMAP submits in ULP order
func TestE2EFairResponses(t *testing.T) {
	far := e2eWire{name: "memory, far away",
		net: memnet.Options{MinDelay: time.Millisecond, MaxDelay: time.Millisecond}}
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

// TestE2ECQOverflow: what finds no room in the CQ is lost and reported, and the
// connection goes on.
//
//rfc:5040 RDMAP-8.1.1-10-01 CQ overflow leaves other streams unaffected
//rfc:5042 SEC-6.4.6-01 CQ overflow never affects other streams
func TestE2ECQOverflow(t *testing.T) {
	onWires(t, plain, func(t *testing.T, w e2eWire) {
		a, b := newE2EPair(t, w, e2eSetup{cqe: 4})
		for i := range 10 {
			b.recv(uint64(i))
		}
		for range 10 {
			a.send(provider.SendWR{Opcode: provider.WRSend})
		}
		e := testkit.Must(b.dev.AsyncEvent(t.Context()))(t)
		testkit.Equal(t, "the event", e, provider.AsyncEvent{Type: provider.EventCQErr, CQ: b.rcq})
		// Polling makes room for those that have not come yet.
		waitFor(t, "all Sends have come", func() bool { return b.q.rq.head.Load() == 10 })
		for i, wc := range b.wait(b.rcq, 4) {
			testkit.Equal(t, "the WRID", wc.WRID, uint64(i))
		}
		b.recv(20)
		a.send(provider.SendWR{Opcode: provider.WRSend})
		// The tenth may be about to be reported.
		for wc := b.wait(b.rcq, 1)[0]; wc.WRID != 20; wc = b.wait(b.rcq, 1)[0] {
			testkit.Equal(t, "the status", wc.Status, provider.WCSuccess)
		}
	})
}

// TestE2EMRCloseUnderFire: a peer writes and reads all the time while the region
// is closed. Close returns, and from then on no byte changes.
//
//rfc:5042 SEC-6.2.2-02 No modification after revocation, even with frames in flight
func TestE2EMRCloseUnderFire(t *testing.T) {
	onWires(t, nil, func(t *testing.T, w e2eWire) {
		a, b := newE2EPair(t, w, e2eSetup{})
		n := 200_000
		if w.net.Cut {
			n = 20_000 // as many bytes as a connection takes that gets them in short pieces
		}
		target := b.region(2*n, allRights) // Writes go to the first half, Reads come from the second
		local := a.region(2*n, provider.AccessLocalWrite)
		wr := func(i uint64) provider.SendWR {
			op, half := provider.WRRDMAWrite, 0
			if i%3 == 2 {
				op, half = provider.WRRDMARead, n
			}
			return provider.SendWR{WRID: i, Opcode: op, SGList: []provider.SGE{sge(local.Region, half, n)},
				RemoteAddr: target.Addr() + uint64(half), RKey: target.RKey(), Flags: provider.SendSignaled}
		}
		const flight = 30
		begun := make(chan struct{})
		var last provider.WC
		var firing sync.WaitGroup
		firing.Go(func() { // until the connection ends
			for i := range uint64(flight) {
				a.send(wr(i))
			}
			for i := uint64(0); last.Status == provider.WCSuccess; i++ {
				last = a.wait(a.scq, 1)[0]
				if last.WRID != i {
					t.Errorf("completion %+v, want that of %d", last, i)
					return
				}
				a.send(wr(i + flight))
				if i == 10 {
					close(begun)
				}
			}
		})
		<-begun
		testkit.OK(t, target.Close())
		testkit.Equal(t, "bytes that nobody named are as before", target.untouched(0, n), true)
		for i := range octetsOf(target.Region) {
			octetsOf(target.Region)[i] = 0x11 // it is ours again
		}
		err := b.ended()
		var te *provider.TerminateError
		if !errors.As(err, &te) || te.Remote || te.ECode != 0 || te.EType != 1 {
			t.Errorf("cause %v, want an invalid STag", err)
		}
		a.ended()
		testkit.Equal(t, "bytes that changed after Close",
			len(bytes.Trim(octetsOf(target.Region), "\x11")), 0)
		firing.Wait()
		for i, wc := range a.wait(a.scq, flight) {
			if wc.WRID != last.WRID+1+uint64(i) ||
				wc.Status != provider.WCWRFlushErr && wc.Status != provider.WCRemAccessErr {
				t.Errorf("completion %+v after the failure of %d", wc, last.WRID)
			}
		}
		a.none(a.scq)
		testkit.Equal(t, "bytes that nobody named are as before", local.untouched(n, n), true)
	})
}

// TestNoRouteTexts: the event about a link-local address without a route says what the
// address lacks.
func TestNoRouteTexts(t *testing.T) {
	dev := testkit.Must(New(nil).Open(""))(t)
	defer func() { _ = dev.Close() }()
	for addr, want := range map[string][]string{
		"[fe80::1]:7471": {"route to fe80::1: invalid argument",
			"a link-local address needs a zone, as in fe80::1%eth0"},
		"[fe80::1%no-such-if]:7471": {"no such device",
			"this machine may have no interface no-such-if"},
	} {
		ch := testkit.Must(dev.CreateEventChannel())(t)
		id := testkit.Must(ch.CreateID(nil))(t)
		bound := id.BindAddr(netip.MustParseAddrPort(addr))
		if bound == nil || !strings.Contains(bound.Error(), want[1]) {
			t.Errorf("bind to %s: %v does not say %q", addr, bound, want[1])
		}
		testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort(addr), time.Second))
		ev := testkit.Must(ch.Next(t.Context()))(t)
		if ev.Type != provider.CMAddrError || ev.Cause == nil ||
			ev.Status != -int(syscall.EINVAL) && ev.Status != -int(syscall.ENODEV) {
			t.Errorf("%s: %v, status %d, cause %v", addr, ev.Type, ev.Status, ev.Cause)
			continue
		}
		for _, part := range want {
			if !strings.Contains(ev.Cause.Error(), part) {
				t.Errorf("%s: %q does not say %q", addr, ev.Cause, part)
			}
		}
		_, _ = id.Close(), ch.Close()
	}
}
