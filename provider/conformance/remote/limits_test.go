package remote

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestCallIsTooLong: a call whose arguments do not fit into a message fails, and the session does
// not end.
func TestCallIsTooLong(t *testing.T) {
	c := session(t, engines(0))
	_, err := c.Provider("engine", []string{strings.Repeat("x", maxHead)}).Devices()
	if !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("%v, want EMSGSIZE", err)
	}
	testkit.Must(c.Provider("engine", nil).Devices())(t)
}

// TestAnswerIsTooLong: a call whose error does not fit into a message fails, and the session does
// not end. Errors quote arguments, with several bytes for one.
func TestAnswerIsTooLong(t *testing.T) {
	a := engines(0)
	a.Open = func(_ string, options []string) (provider.Provider, error) {
		return nil, fmt.Errorf("no such option: %q", options)
	}
	c := session(t, a)
	_, err := c.Provider("engine", []string{strings.Repeat("\x7f", maxHead/4)}).Devices()
	if !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("%v, want EMSGSIZE", err)
	}
	_, err = c.Provider("engine", []string{"short"}).Devices()
	if !strings.Contains(fmt.Sprint(err), `"short"`) {
		t.Errorf("the next call: %v", err)
	}
}

// TestCallsAreBounded: a call fails while as many calls wait as the agent permits, and the session
// does not end.
func TestCallsAreBounded(t *testing.T) {
	c := session(t, engines(0))
	c.mu.Lock()
	for i := range uint64(maxUnderWay) {
		c.waiting[1<<32+i] = nil // calls that the agent does not answer
	}
	c.mu.Unlock()
	if _, err := c.Provider("engine", nil).Devices(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("%v, want EAGAIN", err)
	}
	c.mu.Lock()
	clear(c.waiting)
	c.mu.Unlock()
	testkit.Must(c.Provider("engine", nil).Devices())(t)
}

// TestRecordsAfterTheDevice: the agent accepts records of a block that it has freed with its
// device. Here another goroutine of the program closes the device before the call that closes the
// region has returned.
func TestRecordsAfterTheDevice(t *testing.T) {
	c := session(t, engines(0))
	other := testkit.Must(c.Provider("engine", nil).Open(""))(t).(*Device)
	d := testkit.Must(c.Provider("engine", nil).Open(""))(t).(*Device)
	pd := testkit.Must(d.AllocPD())(t)
	buf := make([]byte, 64)
	region := testkit.Must(pd.RegMR(buf, provider.AccessLocalWrite))(t).(*mr)
	testkit.OK(t, region.plain("ibv_dereg_mr", none{}))
	testkit.OK(t, pd.Close())
	testkit.OK(t, d.plain("ibv_close_device", none{}))
	buf[0] = 1
	if err := d.Push(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Push of a closed device: %v", err)
	}
	c.release(region.mem, region.block)
	testkit.OK(t, other.Push())
	testkit.OK(t, other.Close())
}

// TestClosedDeviceKeepsNothing: a region that is refused because its device is closed leaves
// nothing at either end.
func TestClosedDeviceKeepsNothing(t *testing.T) {
	s := newServed(engines(0), nil)
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	testkit.Must(asks[none](t, s, "ibv_close_device", d.Handle, none{}))(t)
	body := appendRecord(nil, record{what: recordBlock, block: 1 << 16, at: 1 << 20})
	body = appendRecord(body, record{recordOctets, 1 << 16, 9, 1, []byte("x")})
	testkit.OK(t, s.take(appendRecord(body, record{what: recordRetire, block: 1 << 16})))
	if len(s.twins) != 0 || s.held != 0 {
		t.Errorf("%d blocks and %d bytes are held", len(s.twins), s.held)
	}

	c := session(t, engines(0))
	far := testkit.Must(c.Provider("engine", nil).Open(""))(t).(*Device)
	pd := testkit.Must(far.AllocPD())(t)
	testkit.OK(t, pd.Close())
	testkit.OK(t, far.Close())
	if _, err := pd.RegMR(make([]byte, 64), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("RegMR: %v, want os.ErrClosed", err)
	}
	if len(c.blocks) != 0 || len(far.memory.blocks) != 0 {
		t.Errorf("the session has %d blocks, and the device %d", len(c.blocks), len(far.memory.blocks))
	}
	other := testkit.Must(c.Provider("engine", nil).Open(""))(t).(*Device)
	testkit.OK(t, other.Push())
	testkit.OK(t, other.Close())
}

// TestSlotsComeAgain: a session can open more devices than there are slots, if it closes others.
// Neither the end of a closed device's region nor an attempt to register another one changes the
// regions of the device that has its slot.
func TestSlotsComeAgain(t *testing.T) {
	c := session(t, engines(0))
	buf := make([]byte, 64)
	open := func(slot uint16) (*Device, provider.PD, *mr) {
		t.Helper()
		d := testkit.Must(c.Provider("engine", nil).Open(""))(t).(*Device)
		if d.memory.slot != slot {
			t.Errorf("slot %d, want %d", d.memory.slot, slot)
		}
		pd := testkit.Must(d.AllocPD())(t)
		return d, pd, testkit.Must(pd.RegMR(buf, provider.AccessLocalWrite))(t).(*mr)
	}
	open(1)
	second, closed, old := open(2)
	c.lastSlot = math.MaxUint16 - 1
	open(math.MaxUint16)
	open(3)
	// The second device's slot comes again, with the number of its region's block.
	testkit.OK(t, old.plain("ibv_dereg_mr", none{}))
	testkit.OK(t, closed.Close())
	testkit.OK(t, second.Close())
	c.lastSlot = 1
	again, pd, fresh := open(2)
	if fresh.block.number != old.block.number {
		t.Errorf("blocks %#x and %#x", old.block.number, fresh.block.number)
	}
	testkit.OK(t, old.Close())
	if _, err := closed.RegMR(make([]byte, 64), 0); !errors.Is(err, os.ErrClosed) {
		t.Errorf("RegMR on a closed device: %v", err)
	}
	testkit.OK(t, again.Push())
	testkit.OK(t, testkit.Must(pd.RegMR(make([]byte, 64), provider.AccessLocalWrite))(t).Close())
}

// TestClosedObjectsAreForgotten: a session keeps nothing of an object that the program has closed.
func TestClosedObjectsAreForgotten(t *testing.T) {
	c := session(t, engines(0))
	d := testkit.Must(c.Provider("engine", nil).Open(""))(t)
	pd := testkit.Must(d.AllocPD())(t)
	ch := testkit.Must(d.CreateEventChannel())(t)
	cq := testkit.Must(d.CreateCQ(provider.CQInitAttr{CQE: 4}))(t)
	qp := testkit.Must(pd.CreateQP(provider.QPInitAttr{SendCQ: cq, RecvCQ: cq, Type: provider.QPTypeRC,
		Cap: provider.QPCap{MaxSendWR: 1}}))(t)
	srq := testkit.Must(pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
	id := testkit.Must(ch.CreateID(nil))(t)
	for _, o := range []io.Closer{qp, srq, cq, id} {
		testkit.OK(t, o.Close())
	}
	if len(c.objects) != 0 {
		t.Errorf("%d objects are left", len(c.objects))
	}
	for _, o := range []io.Closer{ch, pd, d} {
		testkit.OK(t, o.Close())
	}
}
