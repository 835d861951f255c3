package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

const signaled = provider.SendSignaled

// bindWR binds a window of type 2 to part of m, with the next key.
func bindWR(id uint64, w provider.MW, m provider.MR, off, n int, access provider.Access) provider.SendWR {
	return provider.SendWR{WRID: id, Opcode: provider.WRBindMW, Flags: signaled, RKey: incRKey(w.RKey()),
		Bind: &provider.MWBindInfo{LKey: m.LKey(), Addr: m.Addr() + uint64(off), Length: uint64(n), Access: access}}
}

// regWR registers what f has mapped, with the next key.
func regWR(id uint64, f provider.FastRegMR, access provider.Access) provider.SendWR {
	return provider.SendWR{WRID: id, Opcode: provider.WRRegMR, Flags: signaled, RKey: incRKey(f.RKey()), Access: access}
}

func invWR(id uint64, stag uint32) provider.SendWR {
	return provider.SendWR{WRID: id, Opcode: provider.WRLocalInv, Flags: signaled | provider.SendFence, InvalidateRKey: stag}
}

// keyWR sends a key to the peer.
func keyWR(id uint64, key uint32) provider.SendWR {
	return provider.SendWR{WRID: id, Opcode: provider.WRSend, Flags: signaled | provider.SendInline, Inline: binary.BigEndian.AppendUint32(nil, key)}
}

// TestWindowE2E gives windows of both types and a region for work requests to the peer, and takes
// them back, many times over, on all kinds of wire. The Send of each key directly follows its bind
// or registration in one list.
func TestWindowE2E(t *testing.T) {
	onWires(t, nil, func(t *testing.T, w e2eWire) {
		const size, rounds = 70000, 12
		a, b := newE2EPair(t, w, e2eSetup{})
		m := a.filled(size, bindable, 0)
		memory := make([]byte, size)
		one, two, fast := testMW(t, a.pd, provider.MWType1), testMW(t, a.pd, provider.MWType2), testFast(t, a.pd, size)
		keys := b.region(4, provider.AccessLocalWrite)
		src, dst := b.filled(size, provider.AccessLocalWrite, 99), b.region(size, provider.AccessLocalWrite)
		const both = provider.AccessRemoteWrite | provider.AccessRemoteRead
		for round := range rounds {
			b.recv(1, sge(keys.Region, 0, 4))
			off, n := round*100, []int{1, 64, 5000, 60000}[round%4]
			at, octets, opcode := m.Addr()+uint64(off), octetsOf(m.Region)[off:off+n], provider.WCBindMW
			switch round % 3 {
			case 0:
				info := provider.MWBindInfo{LKey: m.LKey(), Addr: at, Length: uint64(n), Access: both}
				testkit.OK(t, a.q.BindMW(one, 10, signaled, info))
				a.send(keyWR(11, one.RKey()))
			case 1:
				a.send(bindWR(10, two, m, off, n, both), keyWR(11, incRKey(two.RKey())))
			case 2:
				pattern(memory, round)
				testkit.OK(t, fast.Map(memory[off:off+n]))
				a.send(regWR(10, fast, provider.AccessLocalWrite|both|provider.AccessRemoteInvalidate),
					keyWR(11, incRKey(fast.RKey())))
				at, octets, opcode = fast.Addr(), memory[off:off+n], provider.WCRegMR
				if fast.Len() != uint64(n) || fast.LKey() != fast.RKey() || fast.Access()&both != both {
					t.Fatalf("the region says %d bytes, keys %#x and %#x, rights %s", fast.Len(),
						fast.LKey(), fast.RKey(), fast.Access())
				}
			}
			a.one(a.scq, provider.WC{WRID: 10, Opcode: opcode})
			a.one(a.scq, provider.WC{WRID: 11, Opcode: provider.WCSend})
			b.one(b.rcq, provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: 4})
			key := binary.BigEndian.Uint32(octetsOf(keys.Region))
			old := bytes.Clone(octets)
			b.send(provider.SendWR{WRID: 2, Opcode: provider.WRRDMARead, Flags: signaled,
				SGList:     []provider.SGE{sge(dst.Region, 0, n)},
				RemoteAddr: at, RKey: key})
			b.one(b.scq, provider.WC{WRID: 2, Opcode: provider.WCRDMARead, ByteLen: uint32(n)})
			testkit.EqualBytes(t, fmt.Sprintf("what the peer has read in round %d", round),
				octetsOf(dst.Region)[:n], old)
			b.send(provider.SendWR{Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{sge(src.Region, off, n)},
				RemoteAddr: at, RKey: key})
			// The peer's Send and this end invalidate the window or region in turn.
			if round%2 == 0 && round%3 != 0 {
				a.recv(3)
				b.send(provider.SendWR{WRID: 4, Opcode: provider.WRSendWithInv, Flags: signaled, InvalidateRKey: key})
				b.one(b.scq, provider.WC{WRID: 4, Opcode: provider.WCSend})
				a.one(a.rcq, provider.WC{WRID: 3, Opcode: provider.WCRecv, Flags: provider.WCWithInv, InvalidatedRKey: key})
			} else {
				a.recv(3)
				b.send(provider.SendWR{WRID: 4, Opcode: provider.WRSend, Flags: signaled})
				b.one(b.scq, provider.WC{WRID: 4, Opcode: provider.WCSend})
				a.one(a.rcq, provider.WC{WRID: 3, Opcode: provider.WCRecv})
				if round%3 == 0 {
					testkit.OK(t, a.q.BindMW(one, 12, signaled, provider.MWBindInfo{}))
					a.one(a.scq, provider.WC{WRID: 12, Opcode: provider.WCBindMW})
				} else {
					a.send(invWR(12, key))
					a.one(a.scq, provider.WC{WRID: 12, Opcode: provider.WCLocalInv})
				}
			}
			testkit.EqualBytes(t, fmt.Sprintf("what the peer has written in round %d", round),
				octets, octetsOf(src.Region)[off:off+n])
			_, bound := two.Bound()
			if _, registered := fast.Registered(); m.HasWindows() || bound || registered {
				t.Fatalf("round %d: something is still there", round)
			}
		}
		testkit.Equal(t, "bytes outside of the region are as before", m.untouched(0, size), true)
	})
}

// TestFastRegLocal: a region that a work request registers is one for our own work
// after it, and none any more after its invalidation.
func TestFastRegLocal(t *testing.T) {
	onWires(t, plain, func(t *testing.T, w e2eWire) {
		const size = 40000
		a, b := newE2EPair(t, w, e2eSetup{})
		out, in := testFast(t, a.pd, size), testFast(t, b.pd, size)
		octets, got := make([]byte, size), make([]byte, size)
		pattern(octets, 1)
		testkit.OK(t, out.Map(octets))
		testkit.OK(t, in.Map(got))
		b.send(regWR(1, in, provider.AccessLocalWrite))
		b.one(b.scq, provider.WC{WRID: 1, Opcode: provider.WCRegMR})
		b.recv(2, provider.SGE{Addr: in.Addr(), Length: size, LKey: in.LKey()})
		reg := regWR(3, out, 0)
		whole := []provider.SGE{{Addr: out.Addr(), Length: size, LKey: reg.RKey}}
		list := []provider.SendWR{reg,
			{WRID: 4, Opcode: provider.WRSend, Flags: signaled, SGList: whole},
			invWR(5, reg.RKey), // after the Send: it is with TCP by then, or copied
			{WRID: 6, Opcode: provider.WRSend, Flags: signaled, SGList: whole}}
		a.send(list...)
		a.one(a.scq, provider.WC{WRID: 3, Opcode: provider.WCRegMR})
		a.one(a.scq, provider.WC{WRID: 4, Opcode: provider.WCSend})
		a.one(a.scq, provider.WC{WRID: 5, Opcode: provider.WCLocalInv})
		if wc := a.wait(a.scq, 1)[0]; wc.WRID != 6 || wc.Status != provider.WCLocProtErr {
			t.Errorf("the Send after the invalidation: %+v", wc)
		}
		b.one(b.rcq, provider.WC{WRID: 2, Opcode: provider.WCRecv, ByteLen: size})
		testkit.EqualBytes(t, "what has come", got, octets)
		terminated(t, a.ended(), false, 0, 0, 0xff)
		terminated(t, b.ended(), true, 0, 0, 0xff)
	})
}

// TestMemoryWorkFails: work on our own memory that can't be done ends the connection,
// after what was posted before it, and with a completion that says what it was. It has
// changed nothing. TestBindChecks and TestInvalidations have all reasons.
//
//rfc:5040 RDMAP-7.1-1-01 Local error: Terminate without headers
func TestMemoryWorkFails(t *testing.T) {
	const both = provider.AccessRemoteWrite | provider.AccessRemoteRead
	for _, c := range []struct {
		name string
		post func(t *testing.T, a *e2eEnd, m, plain *guarded) error
	}{
		{"no right to bind", func(t *testing.T, a *e2eEnd, _, plain *guarded) error {
			return a.post(bindWR(2, testMW(t, a.pd, provider.MWType2), plain, 0, 64, both))
		}},
		{"registered twice", func(t *testing.T, a *e2eEnd, _, _ *guarded) error {
			f := testFast(t, a.pd, 10)
			testkit.OK(t, f.Map(make([]byte, 10)))
			wr := regWR(0, f, allRights)
			wr.Flags = 0
			a.send(wr)
			return a.post(regWR(2, f, allRights))
		}},
		{"invalidation of nothing", func(_ *testing.T, a *e2eEnd, _, _ *guarded) error { return a.post(invWR(2, 0)) }},
		{"a window that was closed in between", func(t *testing.T, a *e2eEnd, m, _ *guarded) error {
			w := testMW(t, a.pd, provider.MWType2)
			wr := bindWR(2, w, m, 0, 64, both)
			a.q.stream.Load().tx.mu.Lock() // as if somebody were transmitting
			_, err := a.q.PostSend([]provider.SendWR{wr})
			testkit.OK(t, w.Close())
			a.q.stream.Load().tx.mu.Unlock()
			a.q.stream.Load().resume()
			return err
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			onWires(t, plain, func(t *testing.T, w e2eWire) {
				a, b := newE2EPair(t, w, e2eSetup{})
				m, plain := a.region(64, bindable), a.region(64, allRights)
				b.recv(7)
				a.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled})
				testkit.OK(t, c.post(t, a, m, plain))
				a.one(a.scq, provider.WC{WRID: 1, Opcode: provider.WCSend})
				if wc := a.wait(a.scq, 1)[0]; wc.WRID != 2 || wc.Status != provider.WCMWBindErr {
					t.Errorf("%+v", wc)
				}
				b.one(b.rcq, provider.WC{WRID: 7, Opcode: provider.WCRecv})
				terminated(t, a.ended(), false, 0, 0, 0xff)
				terminated(t, b.ended(), true, 0, 0, 0xff)
			})
		})
	}
}

// post posts one send WR.
func (e *e2eEnd) post(wr provider.SendWR) error {
	_, err := e.q.PostSend([]provider.SendWR{wr})
	return err
}

// TestMemoryWorkRefused: what can be seen at once is refused by the call, and harms
// nobody.
func TestMemoryWorkRefused(t *testing.T) {
	onWires(t, func(w e2eWire) bool { return w.name == "memory" }, func(t *testing.T, w e2eWire) {
		a, b := newE2EPair(t, w, e2eSetup{})
		m := a.region(64, bindable)
		one, two, fast := testMW(t, a.pd, provider.MWType1), testMW(t, a.pd, provider.MWType2), testFast(t, a.pd, 64)
		other := testPD(t, a.dev)
		foreign, foreignMR, foreignFast := testMW(t, other, provider.MWType2), testMR(t, other, 64, bindable), testFast(t, other, 64)
		foreignOne := testMW(t, other, provider.MWType1)
		testkit.OK(t, foreignFast.Map(make([]byte, 64)))
		closed := testMW(t, a.pd, provider.MWType1)
		testkit.OK(t, closed.Close())
		elsewhere := testMW(t, testPD(t, b.dev), provider.MWType1)
		good := bindWR(1, two, m, 0, 64, provider.AccessRemoteRead)
		change := func(wr provider.SendWR, how func(*provider.SendWR)) provider.SendWR {
			if wr.Bind != nil {
				info := *wr.Bind
				wr.Bind = &info
			}
			how(&wr)
			return wr
		}
		for _, c := range []struct {
			name string
			wr   provider.SendWR
			want syscall.Errno
		}{
			{"key of nothing", change(good, func(wr *provider.SendWR) { wr.RKey ^= 0x5a5a00 }), syscall.EINVAL},
			{"key 0", change(good, func(wr *provider.SendWR) { wr.RKey = 0 }), syscall.EINVAL},
			{"key of a region", change(good, func(wr *provider.SendWR) { wr.RKey = m.RKey() }), syscall.EINVAL},
			{"key of a fast region", change(good, func(wr *provider.SendWR) { wr.RKey = incRKey(fast.RKey()) }), syscall.EINVAL},
			{"no region", change(good, func(wr *provider.SendWR) { wr.Bind.LKey = 0 }), syscall.EINVAL},
			{"the right of local writing", change(good, func(wr *provider.SendWR) { wr.Bind.Access |= provider.AccessLocalWrite }), syscall.EINVAL},
			{"the right to bind", change(good, func(wr *provider.SendWR) { wr.Bind.Access |= provider.AccessMWBind }), syscall.EINVAL},
			{"window of another PD", bindWR(1, foreign, foreignMR, 0, 64, 0), syscall.EPERM},
			{"inline", change(good, func(wr *provider.SendWR) { wr.Flags |= provider.SendInline }), syscall.EINVAL},
			{"solicited", change(good, func(wr *provider.SendWR) { wr.Flags |= provider.SendSolicited }), syscall.EINVAL},
			{"with SGEs", change(good, func(wr *provider.SendWR) { wr.SGList = []provider.SGE{sge(m.Region, 0, 1)} }), syscall.EINVAL},
			{"fast region of another PD", regWR(1, foreignFast, allRights), syscall.EPERM},
			{"registration of a window", change(regWR(1, fast, allRights), func(wr *provider.SendWR) { wr.RKey = incRKey(two.RKey()) }), syscall.EINVAL},
			{"inline invalidation", provider.SendWR{Opcode: provider.WRLocalInv, Flags: provider.SendInline}, syscall.EINVAL},
		} {
			n, err := a.q.PostSend([]provider.SendWR{c.wr})
			if n != 0 || provider.Errno(err) != c.want {
				t.Errorf("%s: %d posted, %v; want %v", c.name, n, err, c.want)
			}
		}
		testkit.OK(t, fast.Map(make([]byte, 64)))
		for name, wr := range map[string]provider.SendWR{
			"the key that it has":   change(regWR(1, fast, allRights), func(wr *provider.SendWR) { wr.RKey = fast.RKey() }),
			"remote without local":  regWR(1, fast, provider.AccessRemoteWrite),
			"rights that are none":  regWR(1, fast, 1<<20),
			"atomics without local": regWR(1, fast, provider.AccessRemoteAtomic),
		} {
			testkit.WantErr(t, "registration, "+name, a.post(wr), syscall.EINVAL)
		}
		info := *good.Bind
		for _, c := range []struct {
			name  string
			w     provider.MW
			flags provider.SendFlags
			info  provider.MWBindInfo
			want  syscall.Errno
		}{
			{"another device's", elsewhere, 0, info, syscall.EINVAL},
			{"nil", nil, 0, info, syscall.EINVAL},
			{"another PD's", foreignOne, 0, info, syscall.EPERM},
			{"inline", one, provider.SendInline, info, syscall.EINVAL},
			{"rights", one, 0, provider.MWBindInfo{LKey: m.STag(), Addr: m.Addr(), Length: 1,
				Access: provider.AccessRemoteInvalidate}, syscall.EINVAL},
		} {
			before := one.RKey()
			err := a.q.BindMW(c.w, 1, c.flags, c.info)
			testkit.Equal(t, "BindMW, "+c.name, provider.Errno(err), c.want)
			testkit.Equal(t, "the key after BindMW, "+c.name, one.RKey(), before)
		}
		wantErr(t, a.q.BindMW(closed, 1, 0, info), os.ErrClosed)
		unconnected := a.newQP(e2eSetup{})
		wantErr(t, unconnected.BindMW(one, 1, 0, info), syscall.EINVAL)
		a.none(a.scq)
		// The connection is as good as before.
		a.send(good, invWR(2, good.RKey))
		a.one(a.scq, provider.WC{WRID: 1, Opcode: provider.WCBindMW})
		a.one(a.scq, provider.WC{WRID: 2, Opcode: provider.WCLocalInv})
	})
}

// TestMemoryWorkOrder: operations on memory take their turn among Sends and Reads, in
// completions too, are held back by a fence, and fill the queue like all others.
func TestMemoryWorkOrder(t *testing.T) {
	so := sideOptions{cap: provider.QPCap{MaxSendWR: 8, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 8}}
	storyOn(t, memnet.Options{}, Options{}, params(true), so, func(s *side, r *raw) {
		sink, m := s.reg(100, provider.AccessLocalWrite), s.reg(100, bindable)
		w := testMW(s.t, s.pd, provider.MWType2)
		bind := bindWR(3, w, m.m, 0, 100, provider.AccessRemoteRead)
		s.send(
			provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: signaled | provider.SendInline, Inline: []byte("x")},
			provider.SendWR{WRID: 2, Opcode: provider.WRRDMARead, Flags: signaled, SGList: []provider.SGE{sink.sge(0, 100)}, RemoteAddr: 7, RKey: 8},
			bind,
			provider.SendWR{WRID: 4, Opcode: provider.WRSend, Flags: signaled},
			invWR(5, bind.RKey), // with a fence
			provider.SendWR{WRID: 6, Opcode: provider.WRSend, Flags: signaled})
		r.want("the first Send", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		req := r.wantReadRequest("the Read", 1)
		r.want("the Send after the bind", rdmap.SendHeader(rdmap.OpSend, 0, 2, 0, true))
		r.wantIdle("the fence holds back the invalidation, and what is after it")
		s.wantWC("the first Send", provider.WC{WRID: 1, Opcode: provider.WCSend})
		s.noWC("the bind is reported after the Read")
		r.readReq(rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 10, SourceSTag: bind.RKey, SourceTO: m.to(0)})
		r.want("the window can be read", rdmap.ReadResponseHeader(1, 2, true))
		r.answer(req)
		s.wantWC("the Read", provider.WC{WRID: 2, Opcode: provider.WCRDMARead, ByteLen: 100})
		s.wantWC("the bind", provider.WC{WRID: 3, Opcode: provider.WCBindMW})
		s.wantWC("the Send after it", provider.WC{WRID: 4, Opcode: provider.WCSend})
		s.wantWC("the invalidation", provider.WC{WRID: 5, Opcode: provider.WCLocalInv})
		r.want("the last Send", rdmap.SendHeader(rdmap.OpSend, 0, 3, 0, true))
		s.wantWC("the last Send", provider.WC{WRID: 6, Opcode: provider.WCSend})

		one := testMW(s.t, s.pd, provider.MWType1)
		info := provider.MWBindInfo{LKey: m.m.STag(), Addr: m.to(0), Length: 1}
		s.send(provider.SendWR{WRID: 7, Opcode: provider.WRRDMARead, RemoteAddr: 7, RKey: 8})
		req = r.wantReadRequest("the Read that nothing passes", 2)
		n := 1
		var err error
		for ; err == nil; n++ {
			err = s.qp.BindMW(one, uint64(n), provider.SendFence, info)
		}
		if provider.Errno(err) != syscall.ENOMEM || n != 9 {
			t.Errorf("%d binds in a queue of 8, then %v", n-1, err)
		}
		if n, err := s.qp.PostSend([]provider.SendWR{invWR(1, 1)}); n != 0 || provider.Errno(err) != syscall.ENOMEM {
			t.Errorf("an invalidation in a full queue: %v", err)
		}
		r.answer(req)
		s.noWC("the Read and the binds are unsignalled")
		for range 20 { // so are these, and give back their places when they are done
			testkit.OK(t, s.qp.BindMW(one, 0, 0, info))
		}
	})
}

// TestUnfencedInvalidation: a Read whose sink is invalidated before the response has
// come ends the connection, and nothing is placed.
func TestUnfencedInvalidation(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		f := testFast(s.t, s.pd, 100)
		memory := bytes.Repeat([]byte{0xa5}, 100)
		testkit.OK(t, f.Map(memory))
		reg := regWR(1, f, provider.AccessLocalWrite)
		s.send(reg)
		inv := invWR(3, reg.RKey)
		inv.Flags = signaled
		sink := []provider.SGE{{Addr: f.Addr(), Length: 100, LKey: f.LKey()}}
		s.send(provider.SendWR{WRID: 2, Opcode: provider.WRRDMARead, Flags: signaled, SGList: sink,
			RemoteAddr: 7, RKey: 8}, inv)
		s.wantWC("the registration", provider.WC{WRID: 1, Opcode: provider.WCRegMR})
		req := r.wantReadRequest("the Read", 1)
		h := rdmap.ReadResponseHeader(req.SinkSTag, req.SinkTO, true)
		r.send(h, make([]byte, 100))
		r.wantTerminate("the sink is gone", fault{1, 0, 0}, nil, 0, nil)
		s.wantWC("the Read", provider.WC{WRID: 2, Status: provider.WCLocProtErr})
		s.wantWC("the invalidation is after it", provider.WC{WRID: 3, Status: provider.WCWRFlushErr})
		testkit.EqualBytes(t, "the sink", memory, bytes.Repeat([]byte{0xa5}, 100))
	})
}

// TestWindowGoesInflight: a Read of the peer that is being answered ends with a Terminate
// when its window goes, at the segment that can't be read any more.
//
//rfc:5040 RDMAP-4.8-11 Partly processed ReadReq: header updated to progress
//rfc:5041 DDP-8.3-2-01 STag validity can be revoked any time
func TestWindowGoesInflight(t *testing.T) {
	for _, how := range []string{"invalidation", "Close", "zero length"} {
		t.Run(how, func(t *testing.T) {
			story(t, Options{}, params(true), func(s *side, r *raw) {
				const size = 8 << 20
				m := s.reg(size, bindable)
				typ := provider.MWType2
				if how == "zero length" {
					typ = provider.MWType1
				}
				w := testMW(s.t, s.pd, typ)
				if typ == provider.MWType1 {
					testkit.OK(t, s.qp.BindMW(w, 1, signaled,
						provider.MWBindInfo{LKey: m.m.STag(), Addr: m.to(0), Length: size,
							Access: provider.AccessRemoteRead}))
				} else {
					s.send(bindWR(1, w, m.m, 0, size, provider.AccessRemoteRead))
				}
				s.wantWC("the bind", provider.WC{WRID: 1, Opcode: provider.WCBindMW})
				req := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: size, SourceSTag: w.RKey(), SourceTO: m.to(0)}
				header := r.readReq(req)
				s.noWC("the request arrives, and the socket fills up")
				switch how {
				case "invalidation":
					s.send(invWR(2, w.RKey()))
				case "Close":
					testkit.OK(t, w.Close())
				default:
					testkit.OK(t, s.qp.BindMW(w, 2, 0, provider.MWBindInfo{}))
				}
				done := uint32(0)
				for {
					h, payload := r.next("a segment of the response, or the Terminate")
					if h.Tagged {
						done += uint32(len(payload))
						continue
					}
					if done == 0 || done >= size {
						t.Fatalf("%d bytes of %d were sent", done, size)
					}
					term := testkit.Must(rdmap.ParseTerminate(payload, rdmap.PhaseAfterFirstFPDU))(t)
					if term.EType != 1 || term.Code != 0 || term.DDP != header || term.Read != req.Advance(done) {
						t.Fatalf("Terminate %+v after %d bytes", term, done)
					}
					break
				}
				s.wantTerm("the QP ends", false, 0, 1, 0)
			})
		})
	}
}

// TestMemoryWorkOfEndedQP: on a QP in ERR work on memory is flushed, and not done. A window of type
// 2 goes with the QP that bound it, at the latest when that is closed or made ready for another
// peer.
func TestMemoryWorkOfEndedQP(t *testing.T) {
	set := func(q *qp, to provider.QPState) error {
		return q.Modify(provider.QPAttr{State: to}, provider.QPAttrState)
	}
	ends := map[string]func(q *qp) error{
		"Close": (*qp).Close, "RESET": func(q *qp) error { return set(q, provider.QPReset) },
	}
	onWires(t, plain, func(t *testing.T, w e2eWire) {
		for how, end := range ends {
			a, _ := newE2EPair(t, w, e2eSetup{})
			m := a.region(64, bindable)
			one, fast := testMW(t, a.pd, provider.MWType1), testFast(t, a.pd, 64)
			two, bound := testMW(t, a.pd, provider.MWType2), testMW(t, a.pd, provider.MWType2)
			testkit.OK(t, fast.Map(make([]byte, 64)))
			a.send(bindWR(1, bound, m, 0, 64, provider.AccessRemoteWrite))
			a.one(a.scq, provider.WC{WRID: 1, Opcode: provider.WCBindMW})
			testkit.OK(t, set(a.q, provider.QPErr))
			a.send(bindWR(2, two, m, 0, 64, 0), regWR(3, fast, allRights), invWR(4, two.RKey()))
			testkit.OK(t, a.q.BindMW(one, 5, 0, provider.MWBindInfo{LKey: m.STag(), Addr: m.Addr(), Length: 1}))
			a.flushed(a.scq, 2, 4)
			testkit.OK(t, end(a.q))
			_, registered := fast.Registered()
			testkit.Equal(t, how+": it is registered, or bound", registered || m.HasWindows(), false)
			testkit.OK(t, m.Close())
		}
	})
}

// TestMemoryWorkAllocs: giving and taking back a window or region allocates nothing.
func TestMemoryWorkAllocs(t *testing.T) {
	onWires(t, func(w e2eWire) bool { return w.name == "TCP" }, func(t *testing.T, w e2eWire) {
		a, _ := newE2EPair(t, w, e2eSetup{})
		m := a.region(4096, bindable)
		one, two, fast := testMW(t, a.pd, provider.MWType1), testMW(t, a.pd, provider.MWType2), testFast(t, a.pd, 64)
		testkit.OK(t, fast.Map(make([]byte, 64)))
		bind, reg := bindWR(1, two, m, 0, 64, provider.AccessRemoteWrite), regWR(2, fast, allRights)
		wrs := []provider.SendWR{bind, reg, invWR(3, 0), invWR(4, 0)}
		var wc [8]provider.WC
		round := func() {
			wrs[0].RKey, wrs[1].RKey = incRKey(two.RKey()), incRKey(fast.RKey())
			wrs[2].InvalidateRKey, wrs[3].InvalidateRKey = wrs[0].RKey, wrs[1].RKey
			_, err := a.q.PostSend(wrs)
			testkit.OK(t, err)
			testkit.OK(t, a.q.BindMW(one, 5, signaled, *bind.Bind))
			n, err := a.scq.Poll(wc[:])
			if n != 5 || err != nil {
				t.Fatalf("%d completions: %v", n, err)
			}
			for _, c := range wc[:n] {
				testkit.Equal(t, "the status", c.Status, provider.WCSuccess)
			}
		}
		wantNoAllocs(t, round)
	})
}

// TestResponderBinds: a responder that must not send yet can give and take windows.
//
//rfc:5044 MPA-7.1.2-4-01 Responder sends nothing before the first valid FPDU
func TestResponderBinds(t *testing.T) {
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		m := s.reg(10, bindable)
		w := testMW(s.t, s.pd, provider.MWType2)
		bind := bindWR(1, w, m.m, 0, 10, provider.AccessRemoteWrite)
		s.send(bind, provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: signaled}, invWR(3, bind.RKey))
		s.wantWC("the bind is done", provider.WC{WRID: 1, Opcode: provider.WCBindMW})
		r.wantIdle("nothing before the first FPDU")
		r.send(rdmap.WriteHeader(bind.RKey, m.to(0), true), []byte("0123456789"))
		r.want("the Send", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		s.wantWC("the Send", provider.WC{WRID: 2, Opcode: provider.WCSend})
		s.wantWC("the invalidation after it", provider.WC{WRID: 3, Opcode: provider.WCLocalInv})
		testkit.Equal(t, "the region", string(m.b), "0123456789")
	})
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		s.send(invWR(1, 0))
		s.wantWC("what can't be done fails", provider.WC{WRID: 1, Status: provider.WCMWBindErr})
		r.wantFIN("without a Terminate, which would be an FPDU")
		s.wantTerm("the QP ends", false, 0, 0, 0xff)
	})
}
