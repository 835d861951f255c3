//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

func testRxeDevice(t *testing.T) {
	infos, err := New().Devices()
	if err != nil || len(infos) != 1 {
		t.Fatalf("Devices: %v, %v", infos, err)
	}
	info := infos[0]
	if info.Provider != "kernel" || info.NodeType != provider.NodeCA || info.Transport != provider.TransportIB || info.NodeGUID == 0 || info.Netdev == "" {
		t.Errorf("Devices: %+v", info)
	}
	dev := testkit.Must(New().Open(info.Name))(t)
	defer closeAll(t, dev)
	attr, err := dev.Query()
	if err != nil || attr.NodeGUID != info.NodeGUID || attr.MaxQP == 0 || attr.MaxSGE < 4 || attr.MaxSGERd < 2 || attr.MaxQPRdAtom == 0 || attr.PhysPortCnt != 1 || attr.NumCompVectors < 1 {
		t.Errorf("Query: %+v, %v", attr, err)
	}
	const caps = provider.DeviceMemWindow | provider.DeviceMemWindowType2B | provider.DeviceSRQResize | provider.DeviceRCRNRNakGen | provider.DeviceMemMgtExtensions
	if attr.DeviceCapFlags&caps != caps || attr.MaxMW == 0 || attr.MaxSRQ == 0 || attr.MaxPkeys == 0 {
		t.Errorf("Query: %s, %d windows, %d SRQs, %d P_Keys", attr.DeviceCapFlags, attr.MaxMW, attr.MaxSRQ, attr.MaxPkeys)
	}
	port, err := dev.QueryPort(1)
	if err != nil || port.State != provider.PortActive || port.LinkLayer != 2 || port.PkeyTblLen != 1 || port.ActiveMTU < 256 || port.MaxMTU < port.ActiveMTU {
		t.Errorf("QueryPort: %+v, %v", port, err)
	}
	_, err = dev.QueryPort(9)
	wantErrno(t, "a port that does not exist", err, syscall.EINVAL)
}

func testRxePkeys(t *testing.T) {
	s := newSide(t)
	if key, err := s.dev.QueryPkey(1, 0); key != 0xffff || err != nil {
		t.Errorf("the P_Key is %#x, %v", key, err)
	}
	for _, at := range [][2]int{{1, 1}, {9, 0}} {
		_, err := s.dev.QueryPkey(uint8(at[0]), at[1])
		wantErrno(t, "a P_Key that does not exist", err, syscall.ENOENT)
		if errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%v says that there are none", err)
		}
	}
}

// The GID table has the addresses of the interface, an IPv4 address in IPv6's form.
func testRxeGIDs(t *testing.T) {
	s := newSide(t)
	infos := testkit.Must(New().Devices())(t)
	netdev := testkit.Must(net.InterfaceByName(infos[0].Netdev))(t)
	table, err := s.dev.QueryGIDTable()
	if err != nil || len(table) < 2 {
		t.Fatalf("%+v, %v", table, err)
	}
	want := siwAddr.As16()
	found := slices.ContainsFunc(table, func(e provider.GIDEntry) bool { return [16]byte(e.GID) == want })
	for _, e := range table {
		if e.Port != 1 || e.Type != provider.GIDTypeRoCEv2 || int(e.Ifindex) != netdev.Index {
			t.Errorf("entry %+v, want a RoCE v2 GID of interface %d", e, netdev.Index)
		}
		if gid, err := s.dev.QueryGID(1, e.Index); err != nil || gid != e.GID {
			t.Errorf("QueryGID %d: %x, %v, in the table %x", e.Index, gid, err, e.GID)
		}
		if addr := netip.AddrFrom16(e.GID); !addr.Is4In6() && !addr.IsLinkLocalUnicast() {
			t.Errorf("GID %s is no address of the interface", addr)
		}
	}
	if !found {
		t.Errorf("%s is not in the table: %+v", siwAddr, table)
	}
}

// testRxeDrain: a QP in SQD reports when the work posted before is done, and continues when it is
// moved back to RTS. iWARP cannot move it back.
func testRxeDrain(t *testing.T) {
	a, p := connected(t)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	write := provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 5)}, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()}
	a.send(write)
	if err := a.qp.Modify(provider.QPAttr{State: provider.QPSQD, EnSQDAsyncNotify: true}, provider.QPAttrState|provider.QPAttrEnSQDNotify); err != nil {
		t.Fatal(err)
	}
	if wc := a.poll(1)[0]; wc.WRID != 1 || wc.Status != provider.WCSuccess {
		t.Errorf("what was posted before: %+v", wc)
	}
	// rxe checks whether all work is done only when there is something to send.
	write.WRID = 2
	a.send(write)
	if ev, err := a.dev.AsyncEvent(ctx); err != nil || ev.Type != provider.EventSQDrained || ev.QP != a.qp {
		t.Errorf("%s, %v", ev.Type, err)
	}
	a.idle("in SQD")
	if err := a.qp.Modify(provider.QPAttr{State: provider.QPRTS}, provider.QPAttrState); err != nil {
		t.Fatalf("back to RTS: %v", err)
	}
	write.WRID = 3
	a.send(write)
	for i, wc := range a.poll(2) {
		if wc.WRID != uint64(2+i) || wc.Status != provider.WCSuccess {
			t.Errorf("after the way back: %+v", wc)
		}
	}
}

// The states of RC: the transitions that ibv_modify_qp(3) allows, as Query reports them. A QP that
// was in ERR serves a second connection.
func testRxeStates(t *testing.T) {
	s := newSide(t)
	s.qp = testkit.Must(s.pd.CreateQP(s.qpInit()))(t)
	state := func(want provider.QPState) {
		t.Helper()
		if attr, _, err := s.qp.Query(); err != nil || attr.State != want {
			t.Errorf("the QP is in %s, %v; want %s", attr.State, err, want)
		}
	}
	to := func(state provider.QPState) error {
		return s.qp.Modify(provider.QPAttr{State: state}, provider.QPAttrState)
	}
	state(provider.QPReset)
	for _, not := range []provider.QPState{provider.QPRTR, provider.QPRTS, provider.QPSQD, provider.QPSQE} {
		wantErrno(t, "from RESET to "+not.String(), to(not), syscall.EINVAL)
	}
	wantErrno(t, "to INIT without its attributes", to(provider.QPInit), syscall.EINVAL)
	const init = provider.QPAttrState | provider.QPAttrPkeyIndex | provider.QPAttrPort | provider.QPAttrAccessFlags
	if err := s.qp.Modify(provider.QPAttr{State: provider.QPInit, PortNum: 1, Access: provider.AccessRemoteWrite}, init); err != nil {
		t.Fatal(err)
	}
	state(provider.QPInit)
	if attr, _, err := s.qp.Query(); err != nil || attr.PortNum != 1 || attr.Access != provider.AccessRemoteWrite {
		t.Errorf("in INIT: %+v, %v", attr, err)
	}
	wantErrno(t, "to RTR without its attributes", to(provider.QPRTR), syscall.EINVAL)
	wantErrno(t, "a port that does not exist", s.qp.Modify(provider.QPAttr{State: provider.QPInit, PortNum: 2}, provider.QPAttrState|provider.QPAttrPort), syscall.EINVAL)
	s.recv(provider.RecvWR{WRID: 1})
	for _, next := range []provider.QPState{provider.QPErr, provider.QPReset} {
		if err := to(next); err != nil {
			t.Fatalf("to %s: %v", next, err)
		}
		state(next)
		if next == provider.QPErr {
			if wc := s.poll(1)[0]; wc.WRID != 1 || wc.Status != provider.WCWRFlushErr {
				t.Errorf("in ERR: %+v", wc)
			}
		}
	}

	// Like a new one, the QP can be connected.
	p := newSide(t)
	l := p.listen()
	s.resolve(l.LocalAddr())
	param := depth
	param.QP = s.qp
	if err := s.id.Connect(param); err != nil {
		t.Fatal(err)
	}
	p.id = p.want("at the listener", provider.CMConnectRequest).ID
	p.createQP()
	if err := p.id.Accept(depth); err != nil {
		t.Fatal(err)
	}
	s.want("after Connect", provider.CMEstablished)
	p.want("after Accept", provider.CMEstablished)
	state(provider.QPRTS)
	p.recv(provider.RecvWR{WRID: 3})
	s.send(provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled})
	if wc := s.poll(1)[0]; wc.WRID != 2 || wc.Status != provider.WCSuccess {
		t.Errorf("send: %+v", wc)
	}
	p.poll(1)
	closeAll(t, s.qp, s.id, p.qp, p.id, l)
}

// The attributes that the connection manager sets, and which of them can still be changed.
func testRxeAttributes(t *testing.T) {
	a, p := connected(t)
	attr, _, err := a.qp.Query()
	testkit.OK(t, err)
	peer, _, err := p.qp.Query()
	testkit.OK(t, err)
	if attr.DestQPN != p.qp.QPN() || peer.DestQPN != a.qp.QPN() || attr.PathMTU < 256 || attr.PathMTU != peer.PathMTU || attr.PortNum != 1 || attr.PkeyIndex != 0 {
		t.Errorf("QP %d: %+v; its peer %d: %+v", a.qp.QPN(), attr, p.qp.QPN(), peer)
	}
	if attr.RQPSN != peer.SQPSN || attr.SQPSN != peer.RQPSN || attr.Timeout == 0 || attr.RetryCnt != 7 || attr.RNRRetry != 7 {
		t.Errorf("QP: %+v; its peer: %+v", attr, peer)
	}
	const remote = provider.AccessRemoteWrite | provider.AccessRemoteRead | provider.AccessRemoteAtomic
	if attr.Access&remote != remote || attr.MaxRdAtomic != 4 || attr.MaxDestRdAtomic != 4 {
		t.Errorf("rights %s, ORD %d, IRD %d", attr.Access, attr.MaxRdAtomic, attr.MaxDestRdAtomic)
	}
	// The rights of the QP apply here in addition to the region's.
	if err := p.qp.Modify(provider.QPAttr{Access: provider.AccessRemoteRead, MinRNRTimer: 14}, provider.QPAttrAccessFlags|provider.QPAttrMinRNRTimer); err != nil {
		t.Fatal(err)
	}
	if peer, _, err = p.qp.Query(); err != nil || peer.Access != provider.AccessRemoteRead || peer.MinRNRTimer != 14 {
		t.Errorf("after Modify: %+v, %v", peer, err)
	}
	wantErrno(t, "a number of the peer's QP in RTS", p.qp.Modify(provider.QPAttr{DestQPN: 9}, provider.QPAttrDestQPN), syscall.EINVAL)
	a.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 5)}, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()})
	if wc := a.poll(1)[0]; wc.Status != provider.WCRemInvReqErr {
		t.Errorf("a Write to a QP without the right: %+v", wc)
	}
}

func testRxeIova(t *testing.T) {
	a, p := connected(t)
	buf := testkit.Must(unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS))(t)
	defer func() {
		if err := unix.Munmap(buf); err != nil {
			t.Error(err)
		}
	}()
	zero := testkit.Must(p.pd.RegMR(buf, allRights|provider.AccessZeroBased))(t)
	const at = 0x7000_0000_0000
	iova := testkit.Must(p.pd.RegMRIova(buf, at, allRights))(t)
	if zero.Addr() != 0 || iova.Addr() != at {
		t.Errorf("the regions begin at %#x and %#x", zero.Addr(), iova.Addr())
	}
	copy(a.buf, "zeroiova")
	write := func(from int, mr provider.MR, off uint64) provider.SendWR {
		return provider.SendWR{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(from, 4)}, RemoteAddr: mr.Addr() + off, RKey: mr.RKey()}
	}
	a.send(write(0, zero, 5000), write(4, iova, 5004))
	for _, wc := range a.poll(2) {
		if wc.Status != provider.WCSuccess {
			t.Errorf("%+v", wc)
		}
	}
	if got := string(buf[5000:5008]); got != "zeroiova" {
		t.Errorf("%q was written", got)
	}
	// An iova with another offset in its page than the memory.
	_, err := p.pd.RegMRIova(buf, at+1, allRights)
	wantErrno(t, "an address within a page of memory that begins one", err, syscall.EINVAL)
	closeAll(t, zero, iova)
}

func testRxeRereg(t *testing.T) {
	s := newSide(t)
	_, err := s.mr.Rereg(provider.ReregAccess, nil, nil, provider.AccessLocalWrite)
	if err == nil || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("Rereg: %v", err)
	}
	if s.mr.Access() != allRights {
		t.Error("the region is not what it was")
	}
}

// A CQ grows and shrinks with completions in it.
func testRxeResize(t *testing.T) {
	a, p := newSide(t), newSide(t)
	cq := testkit.Must(a.dev.CreateCQ(provider.CQInitAttr{CQE: 4}))(t)
	closeAll(t, a.cq)
	a.cq = cq
	establish(t, a, p)
	post := func(n int) {
		t.Helper()
		for i := range n {
			a.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()})
		}
	}
	post(3)
	p.idle("the target of Writes") // and they have completed by then
	if err := cq.Resize(60); err != nil || cq.CQE() < 60 {
		t.Fatalf("grown to %d: %v", cq.CQE(), err)
	}
	post(40)
	p.idle("the target of Writes") // and they have completed by then
	wantErrno(t, "fewer than are there", cq.Resize(2), syscall.EINVAL)
	wantErrno(t, "none", cq.Resize(0), syscall.EINVAL)
	for i, wc := range a.poll(43) {
		want := uint64(i)
		if i >= 3 {
			want -= 3
		}
		if wc.WRID != want || wc.Status != provider.WCSuccess {
			t.Errorf("completion %d: %+v", i, wc)
		}
	}
	if err := cq.Resize(3); err != nil || cq.CQE() < 3 || cq.CQE() > 60 {
		t.Errorf("shrunk to %d: %v", cq.CQE(), err)
	}
	post(2)
	a.poll(2)
	closeAll(t, a.qp, p.qp, a.id, p.id)
}

// An SRQ through libibverbs' own calls: query, limit with its event, resize.
func testRxeSRQ(t *testing.T) {
	a, p := newSide(t), newSide(t)
	srq := testkit.Must(p.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 40, MaxSGE: 2, Limit: 30}, Cookie: p}))(t)
	p.srq = srq
	attr, err := srq.Query()
	if err != nil || attr.MaxWR < 40 || attr.MaxSGE < 2 || attr.Limit != 0 {
		t.Errorf("Query: %+v, %v", attr, err)
	}
	wrs := make([]provider.RecvWR, 5)
	for i := range wrs {
		wrs[i] = provider.RecvWR{WRID: uint64(i), SGList: []provider.SGE{p.sge(i*16, 8), p.sge(i*16+8, 8)}}
	}
	if n, err := srq.PostRecv(wrs); n != 5 || err != nil {
		t.Errorf("PostRecv: %d, %v", n, err)
	}
	establish(t, a, p)
	p.noEvent("before a limit is set")
	if err := srq.Modify(provider.SRQAttr{Limit: 4}, provider.SRQAttrLimit); err != nil {
		t.Fatal(err)
	}
	if attr, err := srq.Query(); err != nil || attr.Limit != 4 {
		t.Errorf("Query: %+v, %v", attr, err)
	}
	send := provider.SendWR{WRID: 9, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 12)}}
	a.send(send, send)
	a.poll(2)
	for i, wc := range p.poll(2) {
		if want := (provider.WC{WRID: uint64(i), Opcode: provider.WCRecv, QPN: p.qp.QPN(), ByteLen: 12}); wc != want {
			t.Errorf("completion %+v, want %+v", wc, want)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if ev, err := p.dev.AsyncEvent(ctx); err != nil || ev.Type != provider.EventSRQLimitReached || ev.SRQ != srq {
		t.Errorf("event %s, %v", ev.Type, err)
	}
	p.noEvent("a second time")
	if attr, err := srq.Query(); err != nil || attr.Limit != 0 {
		t.Errorf("Query after the event: %+v, %v", attr, err)
	}
	// Larger, with receives in it.
	before := attr.MaxWR
	if err := srq.Modify(provider.SRQAttr{MaxWR: 200}, provider.SRQAttrMaxWR); err != nil {
		t.Fatalf("resizing: %v", err)
	}
	if attr, err = srq.Query(); err != nil || attr.MaxWR < 200 || attr.MaxWR <= before {
		t.Errorf("Query after resizing: %+v, %v", attr, err)
	}
	if n, err := srq.PostRecv(make([]provider.RecvWR, 150)); n != 150 || err != nil {
		t.Errorf("PostRecv: %d, %v", n, err)
	}
	a.send(send)
	a.poll(1)
	if wc := p.poll(1)[0]; wc.WRID != 2 || wc.ByteLen != 12 || wc.Status != provider.WCSuccess {
		t.Errorf("after resizing: %+v", wc)
	}
	wantErrno(t, "no receives", srq.Modify(provider.SRQAttr{}, provider.SRQAttrMaxWR), syscall.EINVAL)
	wantErrno(t, "a limit beyond the queue", srq.Modify(provider.SRQAttr{Limit: 1 << 20}, provider.SRQAttrLimit), syscall.EINVAL)
	n, err := p.qp.PostRecv(wrs[:1])
	if n != 0 {
		t.Errorf("%d posted to the QP", n)
	}
	wantErrno(t, "posting to the QP", err, syscall.EINVAL)
	wantErrno(t, "Close of an SRQ with a QP", srq.Close(), syscall.EBUSY)
	closeAll(t, a.qp, p.qp, a.id, p.id, srq)
}
