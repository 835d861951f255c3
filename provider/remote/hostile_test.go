package remote

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
)

// asks returns the result of a request to a session at the agent.
func asks[R any](t *testing.T, s *served, verb string, on uint32, args any) (R, error) {
	t.Helper()
	raw := testkit.Must(json.Marshal(args))(t)
	res, err := s.perform(t.Context(), &request{Verb: verb, On: on, Args: raw})
	r, _ := res.(R)
	return r, err
}

// TestMemoryOfAnotherDevice: a client can't register what is another device's, because that goes
// away with the other device.
func TestMemoryOfAnotherDevice(t *testing.T) {
	s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) {
		return engine.New(nil), nil
	}}, nil)
	defer func() { _ = s.free() }()
	_ = testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 2}))(t)
	pd := testkit.Must(asks[made](t, s, "ibv_alloc_pd", d.Handle, none{}))(t)
	for _, block := range []uint32{1<<16 | 1, 2<<16 | 1} {
		testkit.OK(t, s.take(appendRecord(nil, record{what: recordBlock, block: block, at: 4096})))
		_, err := asks[region](t, s, "ibv_reg_mr", pd.Handle, regArgs{Span: span{Block: block, Len: 4096},
			Access: provider.AccessLocalWrite})
		if own := block>>16 == 2; own != (err == nil) || !own && !errors.Is(err, errFrame) {
			t.Errorf("block %#x: %v", block, err)
		}
	}
}

// meeting is a provider whose devices are opened two at a time.
type meeting struct {
	provider.Provider
	both *sync.WaitGroup
}

func (m meeting) Open(name string) (provider.Device, error) {
	m.both.Done()
	m.both.Wait()
	return m.Provider.Open(name)
}

// TestSlotIsTakenOnce: two devices that are opened at the same time don't share a slot, and with it
// their memory.
func TestSlotIsTakenOnce(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) {
		return meeting{engine.New(nil), &both}, nil
	}}, nil)
	defer func() { _ = s.free() }()
	failed := make(chan error, 2)
	for range 2 {
		go func() {
			_, err := asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1})
			failed <- err
		}()
	}
	if a, b := <-failed, <-failed; (a == nil) == (b == nil) {
		t.Errorf("%v and %v, want one device", a, b)
	}
	if len(s.objects) != 1 {
		t.Errorf("%d objects are left, want 1", len(s.objects))
	}
}

// TestBlocksAreBounded: blocks for which there is no memory are bounded, too.
func TestBlocksAreBounded(t *testing.T) {
	s := newServed(&Agent{MaxMemory: 1 << 20}, nil)
	var body []byte
	for i := range uint32(maxObjects + 1) {
		body = appendRecord(body, record{what: recordBlock, block: i, at: 1 << 21})
	}
	if err := s.take(body); !errors.Is(err, errFrame) || len(s.twins) != maxObjects {
		t.Errorf("%d blocks: %v", len(s.twins), err)
	}
}
