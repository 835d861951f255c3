package ibverbs_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// What ibv_alloc_mw(3), ibv_bind_mw(3), ibv_post_send(3) and ibv_dereg_mr(3) say about windows. siw
// has none, which TestBadWindows checks.

// completed waits for the next completion of the CQ, and checks that it is a success of this
// request.
func completed(t *testing.T, what string, cq *ibverbs.CQ, wrid uint64, opcode ibverbs.WCOpcode) ibverbs.WC {
	t.Helper()
	wc := take(t, cq, 1)[0]
	if wc.Err() != nil || wc.WRID != wrid || wc.Opcode != opcode {
		t.Fatalf("%s: %+v, %v", what, wc, wc.Err())
	}
	return wc
}

// exchange makes the client write a text to the memory of the key, read it back, and invalidate the
// key with a Send if it may.
func (j *joined) exchange(t *testing.T, at ibverbs.RemoteRegion, text string, invalidate bool) {
	t.Helper()
	qp := j.client.QP()
	copy(j.mr.Bytes(), text)
	clear(j.mr.Bytes()[100:200])
	sge, back := testkit.Must(j.mr.SGE(0, len(text)))(t), testkit.Must(j.mr.SGE(100, len(text)))(t)
	testkit.OK(t, j.server.QP().PostRecv(ibverbs.RecvWR{WRID: 9}))
	end := ibverbs.SendWR{WRID: 3, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled | ibverbs.SendFence}
	if invalidate {
		end.Opcode, end.InvalidateRKey = ibverbs.WRSendWithInv, at.RKey
	}
	testkit.OK(t, qp.PostSend(
		ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{sge}, RemoteAddr: at.Addr, RKey: at.RKey},
		ibverbs.SendWR{WRID: 2, Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{back}, RemoteAddr: at.Addr, RKey: at.RKey},
		end))
	completed(t, "the Read", j.client.SendCQ(), 2, ibverbs.WCRDMARead)
	completed(t, "the Send", j.client.SendCQ(), 3, ibverbs.WCSend)
	wc := completed(t, "the receive", j.server.RecvCQ(), 9, ibverbs.WCRecv)
	if told := wc.Flags&ibverbs.WCWithInv != 0 && wc.InvalidatedRKey == at.RKey; told != invalidate {
		t.Errorf("the receive says %+v", wc)
	}
	if got := string(j.mr.Bytes()[100 : 100+len(text)]); got != text {
		t.Errorf("read %q, written was %q", got, text)
	}
}

// TestWindows binds windows of both types and a region for work requests, and makes the peer use
// them, in many rounds.
func TestWindows(t *testing.T) {
	vctx, l := queueWorld(t)
	attr := testkit.Must(vctx.Query())(t)
	const caps = ibverbs.DeviceMemWindow | ibverbs.DeviceMemWindowType2B | ibverbs.DeviceMemMgtExtensions
	if attr.MaxMW < 1000 || attr.DeviceCapFlags&caps != caps || attr.DeviceCapFlags&ibverbs.DeviceMemWindowType2A != 0 {
		t.Errorf("%d windows, %s", attr.MaxMW, attr.DeviceCapFlags)
	}
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}})
	defer j.close(t)
	j.begin(t)
	pd, qp := j.server.PD(), j.server.QP()
	mr := testkit.Must(pd.AllocMR(4096, ibverbs.AccessLocalWrite|ibverbs.AccessMWBind))(t)
	one := testkit.Must(pd.AllocMW(ibverbs.MWType1))(t)
	two := testkit.Must(pd.AllocMW(ibverbs.MWType2))(t)
	if one.Type() != ibverbs.MWType1 || two.Type() != ibverbs.MWType2 || one.PD() != pd || one.RKey() == two.RKey() {
		t.Errorf("windows: %v and %v, keys %#x and %#x", one.Type(), two.Type(), one.RKey(), two.RKey())
	}
	fast := testkit.Must(pd.AllocFastRegMR(4096))(t)
	memory := make([]byte, 4096)
	const both = ibverbs.AccessRemoteWrite | ibverbs.AccessRemoteRead
	for round := range 300 { // the key's byte wraps
		off := round * 8
		info := testkit.Must(mr.BindInfo(off, 24, both))(t)
		old := one.RKey()
		testkit.OK(t, qp.BindMW(one, ibverbs.MWBind{WRID: 1, Flags: ibverbs.SendSignaled, Info: info}))
		if one.RKey() != ibverbs.IncRKey(old) {
			t.Fatalf("key %#x behind %#x", one.RKey(), old)
		}
		completed(t, "the bind", j.server.SendCQ(), 1, ibverbs.WCBindMW)
		j.exchange(t, ibverbs.RemoteRegion{Addr: info.Addr, Len: 24, RKey: one.RKey()}, "through a window", false)
		if got := mr.Bytes()[off : off+16]; string(got) != "through a window" {
			t.Fatalf("the region has %q", got)
		}
		zero := testkit.Must(mr.BindInfo(off, 24, both|ibverbs.AccessZeroBased))(t)
		testkit.OK(t, qp.PostSend(ibverbs.SendWR{WRID: 2, Opcode: ibverbs.WRBindMW, Flags: ibverbs.SendSignaled, RKey: ibverbs.IncRKey(two.RKey()), Bind: &zero}))
		completed(t, "the bind of type 2", j.server.SendCQ(), 2, ibverbs.WCBindMW)
		j.exchange(t, ibverbs.RemoteRegion{Addr: 0, Len: 24, RKey: two.RKey()}, "type 2, at zero", true)

		testkit.OK(t, fast.Map(memory[off:off+20]))
		testkit.OK(t, qp.PostSend(ibverbs.SendWR{WRID: 3, Opcode: ibverbs.WRRegMR, Flags: ibverbs.SendSignaled, RKey: ibverbs.IncRKey(fast.RKey()),
			Access: ibverbs.AccessLocalWrite | both}))
		completed(t, "the registration", j.server.SendCQ(), 3, ibverbs.WCRegMR)
		at := testkit.Must(fast.Remote(0, 20))(t)
		j.exchange(t, at, "registered by a WR", false)
		testkit.OK(t, qp.PostSend(ibverbs.SendWR{WRID: 4, Opcode: ibverbs.WRLocalInv, Flags: ibverbs.SendSignaled, InvalidateRKey: fast.RKey()}))
		completed(t, "the invalidation", j.server.SendCQ(), 4, ibverbs.WCLocalInv)
		if got := fast.Bytes(); string(got[:18]) != "registered by a WR" || &got[0] != &memory[off] {
			t.Fatalf("the region has %q", got)
		}
	}
	if !bytes.Equal(mr.Bytes()[300*8+24:], make([]byte, 4096-300*8-24)) {
		t.Error("bytes behind the windows were written")
	}
	refused(t, "a region with a window bound to it is closed", mr.Close(), syscall.EBUSY)
	refused(t, "and re-registered", mr.Rereg(ibverbs.ReregAccess, nil, nil, 0), syscall.EBUSY)
	testkit.OK(t, qp.BindMW(one, ibverbs.MWBind{WRID: 5, Flags: ibverbs.SendSignaled}))
	completed(t, "the end of the bind", j.server.SendCQ(), 5, ibverbs.WCBindMW)
	testkit.OK(t, mr.Close())
	testkit.OK(t, fast.Close())
	testkit.OK(t, one.Close())
	testkit.OK(t, two.Close())
}

// TestBadWindows checks errnos, and that siw has no windows, and rxe no registration by work
// request.
func TestBadWindows(t *testing.T) {
	vctx, l := queueWorld(t)
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16}})
	defer j.close(t)
	pd, qp := j.client.PD(), j.client.QP()
	unsupported := func(what string, err error) {
		t.Helper()
		var why *ibverbs.UnsupportedError
		if !errors.As(err, &why) || !errors.Is(err, errors.ErrUnsupported) || why.Reason == "" {
			t.Errorf("%s: %v, want an *UnsupportedError", what, err)
		}
	}
	for _, typ := range []ibverbs.MWType{0, 3} {
		_, err := pd.AllocMW(typ)
		refused(t, "a type that there is not", err, syscall.EINVAL)
	}
	refused(t, "mapping of a region that is registered all its life", j.mr.Map(make([]byte, 1)), syscall.EINVAL)
	_, err := (*ibverbs.PD)(nil).AllocMW(ibverbs.MWType1)
	refused(t, "a window of no PD", err, syscall.EINVAL)
	refused(t, "a bind of no window", qp.BindMW(nil, ibverbs.MWBind{}), syscall.EINVAL)
	refused(t, "a bind without what to bind to", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRBindMW}), syscall.EINVAL)
	if onSiw() {
		_, err := pd.AllocMW(ibverbs.MWType1)
		unsupported("a window", err)
		_, err = pd.AllocMW(ibverbs.MWType2)
		unsupported("a window of type 2", err)
		_, err = pd.AllocFastRegMR(4096)
		unsupported("a region for work requests", err)
		unsupported("a registration", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRegMR}))
		refused(t, "a bind of no window", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: 0x100, Bind: &ibverbs.MWBindInfo{}}), syscall.EINVAL)
		if attr := testkit.Must(vctx.Query())(t); attr.MaxMW != 0 {
			t.Errorf("siw has %d windows", attr.MaxMW)
		}
		return
	}
	mr := testkit.Must(pd.AllocMR(64, ibverbs.AccessLocalWrite|ibverbs.AccessMWBind))(t)
	defer mr.Close()
	other := testkit.Must(vctx.AllocPD())(t)
	theirs := testkit.Must(other.AllocMR(64, ibverbs.AccessMWBind))(t)
	foreign := testkit.Must(other.AllocMW(ibverbs.MWType1))(t)
	one := testkit.Must(pd.AllocMW(ibverbs.MWType1))(t)
	two := testkit.Must(pd.AllocMW(ibverbs.MWType2))(t)
	elsewhere, _ := open()
	farPD := testkit.Must(elsewhere.AllocPD())(t)
	far := testkit.Must(farPD.AllocMW(ibverbs.MWType1))(t)
	info := testkit.Must(mr.BindInfo(0, 64, ibverbs.AccessRemoteRead))(t)
	theirInfo := testkit.Must(theirs.BindInfo(0, 64, ibverbs.AccessRemoteRead))(t)
	next := ibverbs.IncRKey(two.RKey())
	const einval, eperm = syscall.EINVAL, syscall.EPERM
	_, beyond := mr.BindInfo(1, 64, 0)
	type row struct {
		what string
		err  error
		want syscall.Errno
	}
	rows := []row{
		{"window of type 2 by BindMW", qp.BindMW(two, ibverbs.MWBind{Info: info}), einval},
		{"window of type 1 by a WR", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: ibverbs.IncRKey(one.RKey()), Bind: &info}), einval},
		{"window of another PD", qp.BindMW(foreign, ibverbs.MWBind{Info: info}), eperm},
		{"region of another PD", qp.BindMW(one, ibverbs.MWBind{Info: theirInfo}), eperm},
		{"region of another PD, type 2", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: next, Bind: &theirInfo}), eperm},
		{"window of another device", qp.BindMW(far, ibverbs.MWBind{Info: info}), einval},
		{"no region, but an address", qp.BindMW(one, ibverbs.MWBind{Info: ibverbs.MWBindInfo{Addr: 1}}), einval},
		{"inline bind", qp.BindMW(one, ibverbs.MWBind{Flags: ibverbs.SendInline, Info: info}), einval},
		{"the key that it has", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: two.RKey(), Bind: &info}), einval},
		{"beyond the region", beyond, einval},
		{"PD with windows", other.Close(), syscall.EBUSY},
	}
	var fast *ibverbs.MR
	if onRxe() {
		_, err = pd.AllocFastRegMR(64)
		unsupported("a region for work requests", err)
		unsupported("a registration", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRegMR}))
	} else {
		_, err = pd.AllocFastRegMR(0)
		refused(t, "a region for nothing", err, einval)
		fast = testkit.Must(pd.AllocFastRegMR(64))(t)
		rows = append(rows,
			// rxe reports it when the request's turn comes, which ends the work after it.
			row{"type 2, length zero", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRBindMW, RKey: next, Bind: &ibverbs.MWBindInfo{LKey: mr.LKey()}}), einval},
			row{"registration of nothing", qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRegMR, RKey: ibverbs.IncRKey(fast.RKey())}), einval},
			row{"SGE of what isn't registered", second(fast.SGE(0, 1)), einval},
			row{"mapping of nothing", fast.Map(nil), einval},
			row{"mapping of too much", fast.Map(make([]byte, 65)), einval})
		unsupported("re-registration", fast.Rereg(ibverbs.ReregAccess, nil, nil, 0))
	}
	for _, c := range rows {
		refused(t, c.what, c.err, c.want)
		if provider.Errno(c.err) != c.want {
			t.Errorf("%s: %v, want %v", c.what, c.err, c.want)
		}
	}
	for _, close := range []func() error{one.Close, one.Close, two.Close, foreign.Close, far.Close, fast.Close, theirs.Close, other.Close, farPD.Close, elsewhere.Close} {
		testkit.OK(t, close())
	}
	wantErr(t, "a bind of a closed window", qp.BindMW(one, ibverbs.MWBind{Info: info}), os.ErrClosed)
	if fast != nil {
		wantErr(t, "mapping of a closed region", fast.Map(make([]byte, 1)), os.ErrClosed)
	}
	if none := (*ibverbs.MW)(nil); none.RKey() != 0 || none.Type() != 0 || none.PD() != nil || none.Close() != nil {
		t.Error("a nil window")
	}
	// The connection still works.
	testkit.OK(t, j.write(t, 1, ibverbs.SendSignaled))
	completed(t, "in the end", j.client.SendCQ(), 1, ibverbs.WCRDMAWrite)
}

// TestBindFails: a bind that fails only when its turn comes.
func TestBindFails(t *testing.T) {
	vctx, l := queueWorld(t)
	for name, access := range map[string]ibverbs.Access{"without MW_BIND": ibverbs.AccessLocalWrite, "not writable": ibverbs.AccessMWBind} {
		j := joinWith(t, vctx, l, rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 16}})
		mr := testkit.Must(j.client.PD().AllocMR(64, access))(t)
		mw := testkit.Must(j.client.PD().AllocMW(ibverbs.MWType1))(t)
		info := testkit.Must(mr.BindInfo(0, 64, ibverbs.AccessRemoteWrite))(t)
		testkit.OK(t, j.client.QP().BindMW(mw, ibverbs.MWBind{WRID: 7, Info: info}))
		if wc := take(t, j.client.SendCQ(), 1)[0]; wc.WRID != 7 || wc.Status != ibverbs.WCMWBindErr {
			t.Errorf("%s: %+v", name, wc)
		}
		var term *ibverbs.TerminateError
		if err := j.server.Wait(context.Background()); !errors.As(j.server.QP().Cause(), &term) || !term.Remote || term.Layer != 0 || term.EType != 0 {
			t.Errorf("%s: the peer was told %v, %v", name, err, j.server.QP().Cause())
		}
		testkit.OK(t, mw.Close())
		testkit.OK(t, mr.Close())
		j.close(t)
	}
}

// BindMW, through an object of every layer, does not allocate.
func TestWindowsOfFake(t *testing.T) {
	o := newObjects(t)
	mw := testkit.Must(o.pd.AllocMW(ibverbs.MWType1))(t)
	before := mw.RKey()
	bind := ibverbs.MWBind{WRID: 1, Info: testkit.Must(o.mr.BindInfo(8, 100, ibverbs.AccessRemoteRead))(t)}
	if bind.Info.LKey != o.mr.LKey() || bind.Info.Addr != o.mr.Addr()+8 || bind.Info.Length != 100 {
		t.Errorf("%+v", bind.Info)
	}
	testkit.OK(t, o.qp.BindMW(mw, bind))
	if mw.RKey() != before+1 || o.fake.Count("bind mw") != 1 {
		t.Error("the bind did not get through")
	}
	refused(t, "a PD with a window", o.pd.Close(), syscall.EBUSY)
	o.fake.Fail("close mw", syscall.EIO)
	wantErrno(t, "a window that can't be freed", mw.Close(), syscall.EIO)
	o.fake.Fail("close mw", nil)
	testkit.OK(t, mw.Close())
	o.fake.Fail("alloc mw", syscall.ENOMEM)
	_, err := o.pd.AllocMW(ibverbs.MWType2)
	wantErrno(t, "no memory", err, syscall.ENOMEM)
	for old, want := range map[uint32]uint32{0: 1, 0x123456ff: 0x12345600, 0xfffffffe: 0xffffffff} {
		if got := ibverbs.IncRKey(old); got != want {
			t.Errorf("IncRKey(%#x) is %#x, want %#x", old, got, want)
		}
	}
}
