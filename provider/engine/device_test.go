package engine

import (
	"context"
	"errors"
	"io"
	"math"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

func TestProvider(t *testing.T) {
	p := New(nil)
	testkit.Equal(t, "the name", p.Name(), "engine")
	list := testkit.Must(p.Devices())(t)
	if len(list) != 1 || list[0].Name != DeviceName || list[0].Provider != "engine" ||
		list[0].NodeType != provider.NodeRNIC || list[0].Transport != provider.TransportIWARP {
		t.Errorf("devices %+v", list)
	}
	wantErr(t, errOf(p.Open("siw0")), syscall.ENODEV)
}

func TestOptions(t *testing.T) {
	for _, bad := range []Options{
		{CRC: -1}, {CRC: 3}, {StartupTimeout: -1}, {CloseTimeout: -1},
		{MaxPending: -1}, {MaxIRD: -1}, {MaxIRD: 129}, {MaxORD: -1}, {MaxORD: 129},
		{Conformance: Conformance{Revision: 3}}, {Conformance: Conformance{Revision: -1}},
		{Conformance: Conformance{Fallback: -1}}, {Conformance: Conformance{Fallback: 3}},
		{Conformance: Conformance{RTR: 8}},
		{Conformance: Conformance{Revision: 1}, PeerToPeer: true},
		{Conformance: Conformance{Fallback: FallbackClosed}, PeerToPeer: true},
		{MaxPendingPerPeer: -1}, {MaxClosing: -1}, {MaxClosingPerPeer: -1},
		{MaxPending: 2, MaxPendingPerPeer: 3}, {MaxAccepted: 2, MaxAcceptedPerPeer: 3}, {MaxClosing: 2, MaxClosingPerPeer: 3},
		{MaxPendingPerPeer: 1025}, {ProgressGoroutines: -1}, {ProgressGoroutines: 257},
	} {
		bad.Network = noNetwork{}
		wantErr(t, errOf(New(&bad).Open("")), syscall.EINVAL)
	}
	_, err := New(&Options{Network: noNetwork{}, MaxORD: -5}).Open("")
	testkit.WantErr(t, "MaxORD", err, syscall.EINVAL,
		"engine.Options.MaxORD is -5, and must be from 1 to 128, or 0 for the default")
	_, err = New(&Options{Network: noNetwork{}, MaxPending: 4, MaxPendingPerPeer: 5}).Open("")
	testkit.WantErr(t, "MaxPendingPerPeer", err, syscall.EINVAL,
		"engine.Options.MaxPendingPerPeer is 5, and must be at most MaxPending, which is 4")
	equal := Options{Network: noNetwork{}, MaxPending: 4, MaxPendingPerPeer: 4, MaxAccepted: -1, MaxAcceptedPerPeer: 4}
	testkit.OK(t, equal.complete())
	both := Options{Network: noNetwork{}}
	both.TCP.DSCP = 8
	wantErr(t, errOf(New(&both).Open("")), syscall.EINVAL)
	revision := Conformance{Revision: 1}
	o := Options{Network: noNetwork{}, Conformance: revision, StartupTimeout: time.Minute, MaxORD: 4}
	testkit.OK(t, o.complete())
	want := Options{
		Network: noNetwork{}, Conformance: revision, StartupTimeout: time.Minute, CloseTimeout: time.Second,
		FPDUTimeout: 30 * time.Second, SendTimeout: time.Minute,
		MaxPending: 1024, MaxPendingPerPeer: 512, MaxAccepted: maxQP, MaxClosing: 1024, MaxClosingPerPeer: 512,
		MaxIRD: 128, MaxORD: 4, BusyWait: DefaultBusyWait, ProgressGoroutines: 1,
	}
	testkit.Equal(t, "the options", o, want)
}

func TestDeviceQueries(t *testing.T) {
	p := New(&Options{Network: noNetwork{}, MaxIRD: 16, MaxORD: 8})
	d := testkit.Must(p.Open(DeviceName))(t)
	attr := testkit.Must(d.Query())(t)
	if attr.MaxQPRdAtom != 16 || attr.MaxQPInitRdAtom != 8 || attr.PhysPortCnt != 1 {
		t.Errorf("attributes %+v", attr)
	}
	testkit.Equal(t, "the node GUID", attr.NodeGUID, 0x00676ffffe767300)
	port := testkit.Must(d.QueryPort(1))(t)
	if port.State != provider.PortActive || port.MaxMsgSz != 1<<32-1 || port.GIDTblLen != 1 {
		t.Errorf("port %+v", port)
	}
	gid := testkit.Must(d.QueryGID(1, 0))(t)
	testkit.Equal(t, "the GID", gid, provider.GID{0x02, 'g', 'o', 'v', 's'})
	testkit.OK(t, d.Close())
	testkit.OK(t, d.Close())
	wantErr(t, errOf(d.Query()), os.ErrClosed)
	wantErr(t, errOf(d.QueryPort(1)), os.ErrClosed)
	wantErr(t, errOf(d.QueryGID(1, 0)), os.ErrClosed)
	wantErr(t, errOf(d.QueryGIDTable()), os.ErrClosed)
	wantErr(t, errOf(d.QueryPkey(1, 0)), os.ErrClosed)
	wantErr(t, errOf(d.AllocPD()), os.ErrClosed)
	wantErr(t, errOf(d.CreateCompChannel()), os.ErrClosed)
	wantErr(t, errOf(d.CreateCQ(provider.CQInitAttr{CQE: 1})), os.ErrClosed)
	wantErr(t, errOf(d.CreateEventChannel()), os.ErrClosed)
	wantErr(t, errOf(d.AsyncEvent(t.Context())), os.ErrClosed)
}

// TestQPN: numbers wrap at 24 bits and pass over what is in use and reserved.
func TestQPN(t *testing.T) {
	d := unwired(t)
	d.nextQPN = 0xfffffe
	d.qpns[0xffffff] = nil
	d.qpns[3] = nil
	for _, want := range []uint32{0xfffffe, 2, 4} {
		testkit.Equal(t, "the QPN", testkit.Must(d.allocQPN())(t), want)
	}
}

// TestDeviceCloseWaitsForTheEndOfStreams: when Close returns nobody is at work for a connection
// any more, though its QP was closed as soon as that was flushed.
func TestDeviceCloseWaitsForTheEndOfStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		s := newSide(t, Options{Network: network}, sideOptions{})
		mine, theirs := connectTransport(t, network, memAddr)
		defer theirs.Close()
		release := make(chan struct{})
		testkit.OK(t, s.qp.start(mine, params(true), func(error) { <-release }))
		go s.qp.abort(errModified)
		synctest.Wait()
		testkit.OK(t, s.qp.Close())
		testkit.OK(t, s.cq.Close())
		testkit.OK(t, s.pd.Close())
		closed := make(chan error, 1)
		go func() { closed <- s.dev.Close() }()
		synctest.Wait()
		select {
		case err := <-closed:
			t.Errorf("the device is closed (%v), and onDown has not returned", err)
		default:
		}
		close(release)
		synctest.Wait()
	})
}

// TestLimitsOfObjects: of each kind of object there are as many as the device
// says, and not one more. The counts are lowered, so that they can be reached:
// the limits that Query returns are those that are enforced.
//
//rfc:5040 RDMAP-8.1.2-5-01 CQ entry allocation controlled
//rfc:5042 SEC-6.4.1-01 Scarce resources under a manager
//rfc:5042 SEC-6.4.3.2-01 CQ entries controlled
func TestLimitsOfObjects(t *testing.T) {
	d := unwired(t)
	full := testkit.Must(d.Query())(t)
	for name, got := range map[string][2]int{
		"MaxQP": {full.MaxQP, maxQP}, "MaxCQ": {full.MaxCQ, maxCQ}, "MaxMR": {full.MaxMR,
			maxMR}, "MaxPD": {full.MaxPD, maxPD},
		"MaxSRQ": {full.MaxSRQ, maxSRQ},
		"MaxCQE": {full.MaxCQE, maxCQE}, "NumCompVectors": {full.NumCompVectors, 1},
		"MaxResRdAtom": {full.MaxResRdAtom, maxRdAtom * maxQP},
	} {
		testkit.Equal(t, name, got[0], got[1])
	}
	d.qps.Max, d.cqs.Max, d.memory.MRs.Max, d.pds.Max, d.srqs.Max = 3, 4, 5, 6, 7
	a := testkit.Must(d.Query())(t)
	p, c := testPD(t, d), testCQ(t, d, 8, nil)
	for _, l := range []struct {
		name     string
		max, had int
		make     func() (io.Closer, error)
	}{
		{"PDs", a.MaxPD, 1, func() (io.Closer, error) { return d.AllocPD() }},
		{"CQs", a.MaxCQ, 1, func() (io.Closer, error) { return d.CreateCQ(provider.CQInitAttr{CQE: 1}) }},
		{"MRs", a.MaxMR, 0, func() (io.Closer, error) { return p.RegMR(make([]byte, 8), 0) }},
		{"SRQs", a.MaxSRQ, 0, func() (io.Closer, error) {
			return p.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 1}})
		}},
		{"QPs", a.MaxQP, 0, func() (io.Closer, error) {
			return p.CreateQP(provider.QPInitAttr{SendCQ: c, RecvCQ: c, Cap: provider.QPCap{MaxSendWR: 1}})
		}},
	} {
		t.Run(l.name, func(t *testing.T) {
			var made []io.Closer
			for range l.max - l.had {
				made = append(made, testkit.Must(l.make())(t))
			}
			wantErr(t, errOf(l.make()), syscall.ENOMEM)
			testkit.OK(t, made[0].Close())
			testkit.OK(t, made[0].Close())
			made[0] = testkit.Must(l.make())(t) // a place that is given back can be used, once
			wantErr(t, errOf(l.make()), syscall.ENOMEM)
			for _, m := range made {
				testkit.OK(t, m.Close())
			}
		})
	}
}

// TestLimitsOfQueues: a QP may have what the device says, really has it, and can't have more.
// TestCreateCQArguments and ibverbs.TestBadSRQ have the others.
//
//rfc:5042 SEC-7.2-01 IRRQ allocation privileged, fair
//rfc:5042 SEC-7.2-02 One local ULP cannot take more than its share of the IRRQ
func TestLimitsOfQueues(t *testing.T) {
	s := newSide(t, Options{Network: memnet.New(nil), MaxIRD: 8, MaxORD: 4}, sideOptions{})
	a := testkit.Must(s.dev.Query())(t)
	most := provider.QPCap{MaxSendWR: a.MaxQPWR, MaxRecvWR: a.MaxQPWR, MaxSendSGE: a.MaxSGE,
		MaxRecvSGE: a.MaxSGE, MaxInlineData: a.MaxInline}
	create := func(k provider.QPCap) (provider.QP, error) {
		return s.pd.CreateQP(provider.QPInitAttr{SendCQ: s.cq, RecvCQ: s.cq, Cap: k})
	}
	for name, beyond := range map[string]func(*provider.QPCap){
		"MaxQPWR, sending":   func(k *provider.QPCap) { k.MaxSendWR++ },
		"MaxQPWR, receiving": func(k *provider.QPCap) { k.MaxRecvWR++ },
		"MaxSGE, sending":    func(k *provider.QPCap) { k.MaxSendSGE++ },
		"MaxSGE, receiving":  func(k *provider.QPCap) { k.MaxRecvSGE++ },
		"MaxInline":          func(k *provider.QPCap) { k.MaxInlineData++ },
	} {
		k := most
		beyond(&k)
		testkit.WantErr(t, "one more than "+name, errOf(create(k)), syscall.EINVAL)
	}
	q := testkit.Must(create(most))(t)
	defer q.Close()
	attr, _ := testkit.Must2(q.Query())(t)
	testkit.Equal(t, "what is granted", attr.Cap, most)
	recvs := make([]provider.RecvWR, a.MaxQPWR+1)
	recvs[0].SGList = make([]provider.SGE, a.MaxSGE)
	if n, err := q.PostRecv(recvs); n != a.MaxQPWR || !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("%d receives of %d: %v", n, len(recvs), err)
	}
	_, err := create(provider.QPCap{MaxSendWR: 1, MaxSendSGE: a.MaxSGERd + 1})
	if a.MaxSGERd > a.MaxSGE || a.MaxSGERd == a.MaxSGE && !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a Read of more than MaxSGERd: %v", err)
	}

	depths := provider.QPAttr{MaxRdAtomic: a.MaxQPInitRdAtom, MaxDestRdAtomic: a.MaxQPRdAtom}
	const both = provider.QPAttrMaxRdAtomic | provider.QPAttrMaxDestRdAtomic
	testkit.OK(t, q.Modify(depths, both))
	depths.MaxRdAtomic++
	wantErr(t, q.Modify(depths, both), syscall.EINVAL)
	depths.MaxRdAtomic--
	depths.MaxDestRdAtomic++
	wantErr(t, q.Modify(depths, both), syscall.EINVAL)
	for mask, attr := range map[provider.QPAttrMask]provider.QPAttr{
		provider.QPAttrMaxRdAtomic: {MaxRdAtomic: -1}, provider.QPAttrCurState: {CurState: provider.QPRTS},
		provider.QPAttrCap: {}, provider.QPAttrState: {State: 77},
	} {
		wantErr(t, q.Modify(attr, mask), syscall.EINVAL)
	}
	const right = provider.AccessRemoteRead
	testkit.OK(t, q.Modify(provider.QPAttr{Access: right}, provider.QPAttrAccessFlags))
	attr, _ = testkit.Must2(q.Query())(t)
	testkit.Equal(t, "the rights", attr.Access, right)
}

// TestLimitsOfMessages: what MaxInline and MaxSGERd promise can be sent.
func TestLimitsOfMessages(t *testing.T) {
	a := testkit.Must(newSide(t, Options{Network: memnet.New(nil)}, sideOptions{}).dev.Query())(t)
	cap := provider.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: a.MaxSGE, MaxRecvSGE: a.MaxSGE,
		MaxInlineData: a.MaxInline}
	x, y := pair(t, memnet.New(nil), "192.0.2.1:1", Options{}, sideOptions{cap: cap}, params(true))
	sink, src := x.reg(a.MaxSGERd, provider.AccessLocalWrite), y.reg(a.MaxInline,
		provider.AccessLocalWrite|provider.AccessRemoteRead)
	pattern(src.b, 1)
	read := provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
		RemoteAddr: src.to(0), RKey: src.m.STag()}
	for i := range a.MaxSGERd {
		read.SGList = append(read.SGList, sink.sge(i, 1))
	}
	x.send(read)
	x.wantWC("a Read of MaxSGERd entries", provider.WC{WRID: 1, Opcode: provider.WCRDMARead,
		ByteLen: uint32(a.MaxSGERd)})
	testkit.Equal(t, "what the Read brought", string(sink.b), string(src.b[:a.MaxSGERd]))
	read.SGList = append(read.SGList, sink.sge(0, 1))
	wantErr(t, errOf(x.qp.PostSend([]provider.SendWR{read})), syscall.EINVAL)

	y.recv(provider.RecvWR{WRID: 9, SGList: []provider.SGE{src.sge(0, a.MaxInline)}})
	long := make([]byte, a.MaxInline+1)
	pattern(long, 2)
	x.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, Inline: long[:a.MaxInline]})
	y.wantWC("a Send of MaxInline bytes", provider.WC{WRID: 9, Opcode: provider.WCRecv, ByteLen: uint32(a.MaxInline)})
	testkit.Equal(t, "what the Send brought", string(src.b), string(long[:a.MaxInline]))
	wantErr(t, errOf(x.qp.PostSend([]provider.SendWR{
		{Opcode: provider.WRSend, Flags: provider.SendInline, Inline: long},
	})), syscall.EINVAL)
}

// TestTables: the tables have the lengths that the port's attributes have.
func TestTables(t *testing.T) {
	d := unwired(t)
	port := testkit.Must(d.QueryPort(1))(t)
	table := testkit.Must(d.QueryGIDTable())(t)
	testkit.Equal(t, "GIDs", len(table), port.GIDTblLen)
	for _, e := range table {
		if gid := testkit.Must(d.QueryGID(uint8(e.Port),
			e.Index))(t); gid != e.GID || e.Type != provider.GIDTypeIB || e.Ifindex != 0 {
			t.Errorf("entry %+v, alone % x", e, gid)
		}
	}
	testkit.Equal(t, "P_Keys", port.PkeyTblLen, 0)
	_, err := d.QueryPkey(1, 0)
	wantErr(t, err, errors.ErrUnsupported)
	wantErr(t, err, syscall.ENOENT)
	var why *provider.UnsupportedError
	if !errors.As(err, &why) || why.Feature != "P_Key table" {
		t.Errorf("the reason is %v", why)
	}
	wantErr(t, errOf(d.QueryPkey(2, 0)), syscall.ENOENT)
}

func TestDeviceCapNames(t *testing.T) {
	for c, want := range map[provider.DeviceCap]string{
		0:                              "0",
		provider.DeviceMemWindowType2B: "IBV_DEVICE_MEM_WINDOW_TYPE_2B",
		provider.DeviceCurrQPStateMod | provider.DeviceSysImageGUID | 1<<40: "IBV_DEVICE_CURR_QP_STATE_MOD|IBV_DEVICE_SYS_IMAGE_GUID|0x10000000000",
	} {
		testkit.Equal(t, "the name", c.String(), want)
	}
	testkit.Equal(t, "the names", provider.AtomicGlob.String()+provider.AtomicCap(7).String(),
		"IBV_ATOMIC_GLOBibv_atomic_cap 7")
}

// TestNilAndZeroNetworks: an engine over a network that is nil, or was not made by New, says so.
func TestNilAndZeroNetworks(t *testing.T) {
	empty := &testkit.Empty{Patience: patience}
	for what, network := range map[string]transport.Network{
		"a nil TCP": (*transport.TCP)(nil), "a nil memnet": (*memnet.Network)(nil),
		"a zero memnet": new(memnet.Network),
	} {
		empty.Func(t, "Listen over "+what, func() error {
			vctx, err := ibverbs.Open(New(&Options{Network: network}), "")
			if err != nil {
				return err
			}
			defer func() { testkit.OK(t, vctx.Close()) }()
			_, err = rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort("0.0.0.0:0"), nil)
			return err
		})
	}
}

const allRights = provider.AccessLocalWrite | provider.AccessRemoteWrite |
	provider.AccessRemoteRead | provider.AccessRemoteInvalidate

// testPD makes a PD that is closed when the test ends.
func testPD(t testing.TB, d *device) *pd {
	t.Helper()
	p := testkit.Must(d.AllocPD())(t).(*pd)
	t.Cleanup(func() { testkit.OK(t, p.Close()) })
	return p
}

// ofPD is the peer of a QP of p.
func ofPD(p *pd) *memory.Peer { return &memory.Peer{Domain: &p.Domain} }

// testMR registers n bytes until the test ends.
func testMR(t testing.TB, p *pd, n int, access provider.Access) *memory.Region {
	t.Helper()
	m := testkit.Must(p.RegMR(make([]byte, n), access))(t).(*memory.Region)
	t.Cleanup(func() { m.Close() })
	return m
}

const bindable = provider.AccessLocalWrite | provider.AccessMWBind

// testMW makes a window that is closed when the test ends.
func testMW(t testing.TB, p *pd, typ provider.MWType) *memory.Window {
	t.Helper()
	w := testkit.Must(p.AllocMW(typ))(t).(*memory.Window)
	t.Cleanup(func() { closeAll(t, "window", w) })
	return w
}

// testFast makes a region for work requests that is closed when the test ends.
func testFast(t testing.TB, p *pd, n uint64) *memory.FastRegion {
	t.Helper()
	f := testkit.Must(p.AllocFastRegMR(n))(t).(*memory.FastRegion)
	t.Cleanup(func() { closeAll(t, "region", f) })
	return f
}

func sge(m *memory.Region, off, n int) provider.SGE {
	return provider.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.LKey()}
}

// octetsOf are all bytes of m.
func octetsOf(m *memory.Region) []byte {
	b, _ := m.Slice(m.Addr(), m.Len())
	return b
}

func TestPDCloseOrder(t *testing.T) {
	d := unwired(t)
	p := testkit.Must(d.AllocPD())(t)
	m := testkit.Must(p.RegMR(make([]byte, 1), 0))(t)
	wantErr(t, p.Close(), syscall.EBUSY)
	wantErr(t, d.Close(), syscall.EBUSY)
	other := testkit.Must(p.RegMR(make([]byte, 1), 0))(t) // EBUSY changed nothing
	testkit.OK(t, other.Close())
	testkit.OK(t, m.Close())
	testkit.OK(t, m.Close())
	testkit.OK(t, p.Close())
	testkit.OK(t, p.Close())
	wantErr(t, errOf(p.RegMR(make([]byte, 1), 0)), os.ErrClosed)
	wantErr(t, errOf(p.CreateQP(provider.QPInitAttr{})), os.ErrClosed)
}

// brittle is a network whose pollers fail when the test says so.
type brittle struct {
	transport.Network
	fail chan struct{}
}

type brittlePoller struct {
	transport.Poller
	fail chan struct{}
}

func (n brittle) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	return brittlePoller{p, n.fail}, err
}

func (p brittlePoller) Wait(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.fail:
			cancel()
		case <-inner.Done():
		}
	}()
	err := p.Poller.Wait(inner)
	select {
	case <-p.fail:
		return syscall.EBADF
	default:
		return err
	}
}

// TestDeviceFatal: a device whose poller has failed raises one event, and leaves nobody waiting.
// Posted work is flushed, connections end, new ones are refused, and the device can be closed.
func TestDeviceFatal(t *testing.T) {
	net := brittle{memnet.New(nil), make(chan struct{})}
	s := newSide(t, Options{Network: net}, sideOptions{events: true})
	mine, theirs := connectTransport(t, net, memAddr)
	defer theirs.Close()
	s.start(mine, params(true))
	s.recv(provider.RecvWR{WRID: 7})
	idle := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 1}})
	testkit.OK(t, s.cq.ReqNotify(false))
	close(net.fail)
	if err := s.wantDown("the device has failed"); !errors.Is(err, syscall.EIO) || !errors.Is(err, syscall.EBADF) {
		t.Errorf("ended with %v", err)
	}
	testkit.Must(s.ch.Next(t.Context()))(t)
	s.wantWC("the receive", provider.WC{WRID: 7, Status: provider.WCWRFlushErr})
	e := testkit.Must(s.dev.AsyncEvent(t.Context()))(t)
	testkit.Equal(t, "the event", e, provider.AsyncEvent{Type: provider.EventDeviceFatal})
	if e, _, ok, _ := s.dev.async.pop(); ok {
		t.Errorf("another event: %v", e.Type)
	}
	again, peer := connectTransport(t, net, memAddr)
	defer peer.Close()
	testkit.WantErr(t, "a new connection", idle.start(again, params(true), nil), syscall.EIO)
	testkit.OK(t, again.Close())
	testkit.OK(t, idle.Close())
}

// firstBrittle is a network of which only the first poller fails.
type firstBrittle struct {
	transport.Network
	fail chan struct{}
	n    *int // pollers so far
}

func (n firstBrittle) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	if *n.n++; *n.n == 1 {
		p = brittlePoller{p, n.fail}
	}
	return p, err
}

// TestBusyWaitAfterFailure: a goroutine that polls before it sleeps is not kept there when the
// first loop's poller has failed and the others' have not.
func TestBusyWaitAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := firstBrittle{memnet.New(nil), make(chan struct{}), new(int)}
		s := newSide(t, Options{Network: net, ProgressGoroutines: 3}, sideOptions{events: true})
		close(net.fail)
		testkit.Must(s.dev.AsyncEvent(t.Context()))(t)
		s.dev.prog.netpolled.Store(math.MinInt64 / 2) // the bubble's time is before epoch
		s.dev.pollNetpoller()                         // a goroutine that waits forever fails the test
	})
}
