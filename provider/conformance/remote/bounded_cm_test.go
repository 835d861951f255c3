package remote

import (
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
)

// nowhere is an address that no host can have a route to: link-local, and without a zone.
var nowhere = netip.MustParseAddrPort("[fe80::1]:1")

// TestEventsAreBounded: a program can resolve the address of an id again after a failure, and each
// time another event waits. The event counts in MaxMemory until it is fetched or the id is closed.
func TestEventsAreBounded(t *testing.T) {
	const limit = 1 << 20
	s := newServed(engines(limit), nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	ch := testkit.Must(asks[made](t, s, "rdma_create_event_channel", d.Handle, none{}))(t)
	before := s.held
	id := testkit.Must(asks[made](t, s, "rdma_create_id", ch.Handle, none{}))(t)
	with := s.held
	fill := func() (n int) {
		for ; n <= limit/eventBytes; n++ {
			_, err := asks[none](t, s, "rdma_resolve_addr", id.Handle, resolveArgs{Dst: nowhere})
			if errors.Is(err, syscall.ENOMEM) {
				return n
			}
			testkit.OK(t, err)
		}
		t.Fatalf("%d events wait in %d bytes", n, limit)
		return n
	}
	for range fill() {
		e := testkit.Must(asks[cmEvent](t, s, "rdma_get_cm_event", ch.Handle, none{}))(t)
		if e.Type != provider.CMAddrError {
			t.Fatalf("event %v, want %v", e.Type, provider.CMAddrError)
		}
	}
	if s.held != with {
		t.Errorf("%d bytes are held after all events are fetched, want %d", s.held, with)
	}
	fill()
	testkit.Must(asks[none](t, s, "rdma_destroy_id", id.Handle, none{}))(t)
	if s.held != before {
		t.Errorf("%d bytes are held after the id is closed, want %d", s.held, before)
	}
}

// TestLongZone: a zone that is too long for an interface's name is refused, because the id would
// keep it.
func TestLongZone(t *testing.T) {
	s := newServed(engines(0), nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	ch := testkit.Must(asks[made](t, s, "rdma_create_event_channel", d.Handle, none{}))(t)
	id := testkit.Must(asks[made](t, s, "rdma_create_id", ch.Handle, none{}))(t)
	long := netip.AddrPortFrom(nowhere.Addr().WithZone(strings.Repeat("0", 1000)+"1"), 1)
	for _, args := range []resolveArgs{{Dst: long}, {Src: long, Dst: nowhere}} {
		if _, err := asks[none](t, s, "rdma_resolve_addr", id.Handle, args); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("a zone of 1001 bytes: %v, want EINVAL", err)
		}
	}
}

// TestIntactFits: the answer of Intact fits into a message, however many blocks were written to.
func TestIntactFits(t *testing.T) {
	near, far := net.Pipe()
	testkit.OK(t, far.Close())
	s := newServed(&Agent{}, newConn(near, nil, nil, time.Hour))
	for i := range uint32(40_000) {
		b := []byte{1}
		s.twins[1<<16|i] = &twin{pages: b, now: b, agreed: []byte{0}, retired: true}
	}
	err := s.answer(1, &request{Verb: verbIntact}, 1, none{}, s.intact(1))
	if err == nil || strings.Contains(err.Error(), "too long") {
		t.Errorf("the answer: %v, want that the client has left", err)
	}
	clear(s.twins)
}

// TestRecordingsEndWithTheRun: recordings end with the run even if a provider does not return from
// a call.
func TestRecordingsEndWithTheRun(t *testing.T) {
	a := engines(0)
	running := 0
	a.Capture = func(uint16) (func() ([]byte, error), error) {
		running++
		return func() ([]byte, error) { running--; return nil, nil }, nil
	}
	s := newServed(a, nil)
	testkit.Must(asks[none](t, s, verbCapture, 0, captureArgs{1}))(t)
	if left := s.disconnect(); running != 0 || left != nil {
		t.Errorf("%d recordings are running, errors %v", running, left)
	}
	testkit.Must(asks[none](t, s, verbCapture, 0, captureArgs{2}))(t) // by a running request
	if left := s.free(); running != 0 || left != nil {
		t.Errorf("%d recordings are running at the end, errors %v", running, left)
	}
}

// stubborn is a provider whose devices cannot be closed at first.
type stubborn struct{ provider.Provider }

type stubbornDevice struct {
	provider.Device
	asked bool
}

func (p stubborn) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return &stubbornDevice{Device: d}, err
}

func (d *stubbornDevice) Close() error {
	if !d.asked {
		d.asked = true
		return syscall.EBUSY
	}
	return d.Device.Close()
}

// TestRefusedDeviceIsClosed: a device that does not get its slot cannot be closed if a client has
// already made an object on it. It counts until the session ends, and is closed then.
func TestRefusedDeviceIsClosed(t *testing.T) {
	s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) {
		return stubborn{engine.New(nil)}, nil
	}}, nil)
	if _, err := asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 0}); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("a device without a slot: %v, want EBUSY of its Close", err)
	}
	if len(s.objects) != 1 || s.held != deviceBytes {
		t.Errorf("%d objects and %d bytes are held, and one device is open", len(s.objects), s.held)
	}
	if left := s.free(); left != nil {
		t.Errorf("not freed: %v", left)
	}
}

// TestNoSlotNoMemory: a device without a slot has no memory.
func TestNoSlotNoMemory(t *testing.T) {
	s := newServed(engines(0), nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	pd := testkit.Must(asks[made](t, s, "ibv_alloc_pd", d.Handle, none{}))(t)
	s.objects[d.Handle].slot = 0 // as between Open and occupy
	testkit.OK(t, s.take(appendRecord(nil, record{what: recordBlock, block: 1, at: 4096})))
	_, err := asks[region](t, s, "ibv_reg_mr", pd.Handle, regArgs{Span: span{Block: 1, Len: 4096}})
	if !errors.Is(err, errFrame) {
		t.Errorf("a region over memory of no device: %v", err)
	}
}
