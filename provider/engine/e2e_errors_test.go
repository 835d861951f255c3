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

// TestE2EProtection makes a peer use memory in each way that it may not. It is
// terminated with the RFC's code, not a byte changes, and everything posted
// completes once.
//
//rfc:5040 RDMAP-6.2.1-01 Terminate used on RDMAP or LLP error
//rfc:5041 DDP-7.1t1-01 Tagged: STag valid for this stream
//rfc:5041 DDP-7.1t2-01 Tagged: STag has a buffer allowing placement (rights)
//rfc:5041 DDP-7.1t3-01 Tagged: TO within registered range
//rfc:5041 DDP-7.1t4-01 Tagged: TO+len within range
//rfc:5041 DDP-7.1t5-01 Tagged: 64-bit TO+len does not wrap
func TestE2EProtection(t *testing.T) {
	const n = 5000
	type code struct{ layer, etype, code uint8 }
	for _, c := range []struct {
		name   string
		rights provider.Access
		spoil  func(b *e2eEnd, m *guarded, to *uint64, stag *uint32)
		write  code
		read   code
	}{
		{"bad key", allRights, func(_ *e2eEnd, _ *guarded, _ *uint64, stag *uint32) { *stag ^= 0x100 }, code{1, 1, 0}, code{0, 1, 0}},
		{"STag 0", allRights, func(_ *e2eEnd, _ *guarded, _ *uint64, stag *uint32) { *stag = 0 }, code{1, 1, 0}, code{0, 1, 0}},
		{"one byte beyond", allRights, func(_ *e2eEnd, _ *guarded, to *uint64, _ *uint32) { *to++ },
			code{1, 1, 1}, code{0, 1, 1}},
		{"one byte before", allRights, func(_ *e2eEnd, _ *guarded, to *uint64, _ *uint32) { *to-- },
			code{1, 1, 1}, code{0, 1, 1}},
		{"far away", allRights, func(_ *e2eEnd, _ *guarded, to *uint64, _ *uint32) { *to = 1 << 60 }, code{1, 1, 1}, code{0, 1, 1}},
		{"wraps", allRights, func(_ *e2eEnd, _ *guarded, to *uint64, _ *uint32) { *to = 1<<64 - 2 }, code{1, 1, 3}, code{0, 1, 4}},
		{"no right", provider.AccessLocalWrite, func(*e2eEnd, *guarded, *uint64, *uint32) {}, code{1, 1, 0}, code{0, 1, 2}},
		{"the other right", 0, nil, code{1, 1, 0}, code{0, 1, 2}},
		{"closed", allRights, func(b *e2eEnd, m *guarded, _ *uint64, _ *uint32) { testkit.OK(b.t, m.Close()) },
			code{1, 1, 0}, code{0, 1, 0}},
		{"invalidated", allRights, func(b *e2eEnd, m *guarded, _ *uint64, _ *uint32) {
			testkit.OK(b.t, ofPD(b.pd).Invalidate(m.STag()))
		}, code{1, 1, 0}, code{0, 1, 0}},
		{"other PD", 0, func(b *e2eEnd, _ *guarded, to *uint64, stag *uint32) {
			other := testkit.Must(b.dev.AllocPD())(b.t)
			m := testkit.Must(other.RegMR(make([]byte, n), allRights))(b.t)
			b.t.Cleanup(func() { closeAll(b.t, "MR and PD", m, other) })
			*to, *stag = m.Addr(), m.RKey()
		}, code{1, 1, 2}, code{0, 1, 3}},
	} {
		for _, op := range []provider.WROpcode{provider.WRRDMAWrite, provider.WRRDMARead} {
			t.Run(c.name+", "+op.String(), func(t *testing.T) {
				onWires(t, func(w e2eWire) bool { return plain(w) || long(w) }, func(t *testing.T, w e2eWire) {
					a, b := newE2EPair(t, w, e2eSetup{})
					rights, want := c.rights, c.write
					if op == provider.WRRDMARead {
						want = c.read
					}
					if c.spoil == nil { // the other right
						rights = provider.AccessRemoteRead
						if op == provider.WRRDMARead {
							rights = provider.AccessLocalWrite | provider.AccessRemoteWrite
						}
					}
					target := b.region(n, rights)
					local := a.region(n, provider.AccessLocalWrite)
					to, stag := target.Addr(), target.RKey()
					if c.spoil != nil {
						c.spoil(b, target, &to, &stag)
					}
					b.recv(100)
					b.recv(101)
					a.recv(200)
					wrs := []provider.SendWR{
						{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled},
						{WRID: 2, Opcode: op, SGList: []provider.SGE{sge(local.Region, 0, n)},
							RemoteAddr: to, RKey: stag},
						{WRID: 3, Opcode: provider.WRSend, Flags: provider.SendSignaled},
					}
					if k, err := a.q.PostSend(wrs); k != 3 || err != nil {
						t.Fatal(k, err)
					}
					terminated(t, b.ended(), false, want.layer, want.etype, want.code)
					terminated(t, a.ended(), true, want.layer, want.etype, want.code)
					if !target.untouched(0, 0) || !local.untouched(0, 0) {
						t.Error("bytes changed")
					}
					b.one(b.rcq, provider.WC{WRID: 100, Opcode: provider.WCRecv})
					b.flushed(b.rcq, 101, 1)
					a.flushed(a.rcq, 200, 1)
					checkBlamed(t, a, op)
				})
			})
		}
	}
}

// checkBlamed checks the completions of a whose second WR was refused by the
// peer. How far a got before the Terminate came decides which of the others succeeded,
// but for the Read, which can't.
func checkBlamed(t *testing.T, a *e2eEnd, op provider.WROpcode) {
	t.Helper()
	seen := map[uint64]provider.WCStatus{}
	var wc [8]provider.WC
	n := testkit.Must(a.scq.Poll(wc[:]))(t)
	for _, c := range wc[:n] {
		if _, twice := seen[c.WRID]; twice {
			t.Errorf("work request %d completed twice", c.WRID)
		}
		seen[c.WRID] = c.Status
	}
	if s, got := seen[1]; !got || s != provider.WCSuccess {
		t.Errorf("the Send before: %v", seen)
	}
	if s, got := seen[3]; !got || s != provider.WCSuccess && s != provider.WCWRFlushErr {
		t.Errorf("the Send after: %v", seen)
	}
	s, got := seen[2]
	switch {
	case op == provider.WRRDMARead:
		if s != provider.WCRemAccessErr {
			t.Errorf("the refused Read: %v", seen)
		}
	case got && s != provider.WCWRFlushErr: // a Write whose first segment was refused while the rest waited for room
		t.Errorf("the refused Write: %v", seen)
	}
	if seen[2] != 0 && seen[3] == provider.WCSuccess {
		t.Error("a success after a failure")
	}
}

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
			if wc.WRID != uint64(i) {
				t.Errorf("completion %d is %+v", i, wc)
			}
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
		if len(bytes.Trim(octetsOf(target.Region), "\x11")) != 0 {
			t.Error("bytes changed after Close")
		}
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
