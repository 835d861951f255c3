package engine

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestE2ECQOverflow: what finds no room in the CQ is lost and reported, and the
// connection goes on.
//
//rfc:5040 RDMAP-8.1.1-10-01 CQ overflow leaves other streams unaffected
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
		if e.Type != provider.EventCQErr || e.CQ != provider.CQ(b.rcq) {
			t.Errorf("event %+v", e)
		}
		// Polling makes room for those that have not come yet.
		waitFor(t, "all Sends have come", func() bool { return b.q.rq.head.Load() == 10 })
		for i, wc := range b.wait(b.rcq, 4) {
			testkit.Equal(t, "the WRID", wc.WRID, uint64(i))
		}
		b.recv(20)
		a.send(provider.SendWR{Opcode: provider.WRSend})
		for wc := b.wait(b.rcq, 1)[0]; wc.WRID != 20; wc = b.wait(b.rcq, 1)[0] { // the tenth may be about to be reported
			if wc.Status != provider.WCSuccess {
				t.Fatalf("completion %+v", wc)
			}
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
		if !target.untouched(0, n) {
			t.Error("bytes changed that nobody named")
		}
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
			if wc.WRID != last.WRID+1+uint64(i) || wc.Status != provider.WCWRFlushErr && wc.Status != provider.WCRemAccessErr {
				t.Errorf("completion %+v after the failure of %d", wc, last.WRID)
			}
		}
		a.none(a.scq)
		if !local.untouched(n, n) {
			t.Error("bytes changed that nobody named")
		}
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
