package engine

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
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
	if want := "engine.Options.MaxORD is -5, and must be from 1 to 128, or 0 for the default"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q in it", err, want)
	}
	_, err = New(&Options{Network: noNetwork{}, MaxPending: 4, MaxPendingPerPeer: 5}).Open("")
	if want := "engine.Options.MaxPendingPerPeer is 5, and must be at most MaxPending, which is 4"; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q in it", err, want)
	}
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
	for _, port := range []uint8{0, 2} {
		wantErr(t, errOf(d.QueryPort(port)), syscall.EINVAL)
		wantErr(t, errOf(d.QueryGID(port, 0)), syscall.EINVAL)
	}
	for _, index := range []int{-1, 1} {
		wantErr(t, errOf(d.QueryGID(1, index)), syscall.EINVAL)
	}

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
