package remote

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
)

// engines returns an agent whose provider is the engine.
func engines(limit uint64) *Agent {
	return &Agent{MaxMemory: limit, Open: func(string, []string) (provider.Provider, error) {
		return engine.New(nil), nil
	}}
}

// TestObjectsAreBounded: objects of each kind count in MaxMemory until they are closed. After that
// neither the count nor the session keeps anything of them.
func TestObjectsAreBounded(t *testing.T) {
	const limit = 4 << 20
	s := newServed(engines(limit), nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	pd := testkit.Must(asks[made](t, s, "ibv_alloc_pd", d.Handle, none{}))(t)
	ch := testkit.Must(asks[made](t, s, "rdma_create_event_channel", d.Handle, none{}))(t)
	testkit.OK(t, s.take(appendRecord(nil, record{what: recordBlock, block: 1 << 16, at: 4096})))
	held, objects := s.held, len(s.objects)
	slot := uint16(1)
	for _, one := range []struct {
		verb  string
		on    uint32
		args  func() any
		close string
		least uint64 // bytes of one object
	}{
		{"ibv_open_device", 0, func() any { slot++; return openArgs{Slot: slot} }, "ibv_close_device", 36 << 10},
		{"ibv_alloc_pd", d.Handle, func() any { return none{} }, "ibv_dealloc_pd", 64},
		{"ibv_create_comp_channel", d.Handle, func() any { return none{} }, "ibv_destroy_comp_channel", 512},
		{"rdma_create_event_channel", d.Handle, func() any { return none{} }, "rdma_destroy_event_channel", 512},
		{"rdma_create_id", ch.Handle, func() any { return none{} }, "rdma_destroy_id", 512},
		{"ibv_alloc_mw", pd.Handle, func() any { return mwArgs{provider.MWType2} }, "ibv_dealloc_mw", 1024},
		{"ib_alloc_mr", pd.Handle, func() any { return fastArgs{4096} }, "ibv_dereg_mr", 1024},
		{"ibv_reg_mr", pd.Handle, func() any { return regArgs{Span: span{Block: 1 << 16, Len: 9}} }, "ibv_dereg_mr", 1024},
	} {
		for range 2 {
			var got []uint32
			var err error
			for uint64(len(got)) <= limit/one.least {
				var r any
				raw := testkit.Must(json.Marshal(one.args()))(t)
				if r, err = s.perform(t.Context(), &request{Verb: one.verb, On: one.on, Args: raw}); err != nil {
					break
				}
				got = append(got, handleOf(r))
			}
			if len(got) == 0 || !errors.Is(err, syscall.ENOMEM) {
				t.Errorf("%s: %d were made: %v, want ENOMEM", one.verb, len(got), err)
			}
			for _, h := range got {
				for range 2 {
					testkit.Must(asks[none](t, s, one.close, h, none{}))(t)
				}
			}
			if s.held != held || len(s.objects) != objects {
				t.Errorf("%s: %d bytes and %d objects are held after all are closed, want %d and %d",
					one.verb, s.held, len(s.objects), held, objects)
			}
		}
	}
}

// handleOf returns the number of a new object.
func handleOf(res any) uint32 {
	switch r := res.(type) {
	case made:
		return r.Handle
	case opened:
		return r.Handle
	case region:
		return r.Handle
	}
	return 0
}

// TestReregKeepsNothing: a region is removed when Rereg replaces it.
func TestReregKeepsNothing(t *testing.T) {
	s := newServed(engines(0), nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	pd := testkit.Must(asks[made](t, s, "ibv_alloc_pd", d.Handle, none{}))(t)
	testkit.OK(t, s.take(appendRecord(nil, record{what: recordBlock, block: 1 << 16, at: 4096})))
	r := testkit.Must(asks[region](t, s, "ibv_reg_mr", pd.Handle, regArgs{
		Span: span{Block: 1 << 16, Len: 4096}, Access: provider.AccessLocalWrite}))(t)
	held, objects := s.held, len(s.objects)
	for range 3 {
		old := r.Handle
		r = testkit.Must(asks[region](t, s, "ibv_rereg_mr", r.Handle,
			reregArgs{Change: provider.ReregAccess, Access: provider.AccessLocalWrite}))(t)
		testkit.Must(asks[none](t, s, "ibv_dereg_mr", old, none{}))(t) // already closed
	}
	if s.held != held || len(s.objects) != objects {
		t.Errorf("%d bytes and %d objects are held, want %d and %d", s.held, len(s.objects), held, objects)
	}
}

// TestCapturesAreBounded: captures count in MaxMemory while they run, and their files until they
// are sent.
func TestCapturesAreBounded(t *testing.T) {
	a := engines(2 * captureBytes)
	running, size := 0, 1000
	a.Capture = func(uint16) (func() ([]byte, error), error) {
		running++
		return func() ([]byte, error) { running--; return make([]byte, size), nil }, nil
	}
	near, far := net.Pipe()
	s := newServed(a, newConn(near, nil, nil, time.Hour))
	for _, port := range []uint16{1, 1, 2} { // the second replaces the first
		testkit.Must(asks[none](t, s, verbCapture, 0, captureArgs{port}))(t)
	}
	if _, err := asks[none](t, s, verbCapture, 0, captureArgs{3}); !errors.Is(err, syscall.ENOMEM) || running != 2 {
		t.Errorf("a third capture: %v, want ENOMEM; %d are running", err, running)
	}
	file := testkit.Must(asks[rawResult](t, s, verbStop, 0, captureArgs{1}))(t)
	if s.held != captureBytes+uint64(size) {
		t.Errorf("%d bytes are held with a file that waits", s.held)
	}
	go func() { _, _ = io.Copy(io.Discard, far) }()
	testkit.OK(t, s.answer(1, &request{Verb: verbStop}, 0, file, nil))
	size = 2*captureBytes + 1
	if _, err := asks[rawResult](t, s, verbStop, 0, captureArgs{2}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a file beyond the limit: %v, want ENOMEM", err)
	}
	if s.held != 0 || running != 0 {
		t.Errorf("%d bytes are held, and %d captures are running", s.held, running)
	}
	testkit.OK(t, far.Close())
}

// full is a CQ that always has completions.
type full struct{ provider.CQ }

func (full) Poll(wcs []provider.WC) (int, error) { return len(wcs), nil }

// TestCompletionsAreBounded: completions that are polled count in MaxMemory until they are sent,
// because a client may poll often and read no answer. Those without room stay in the CQ, except for
// one, because a poll that fails near the limit would keep the program from going on.
func TestCompletionsAreBounded(t *testing.T) {
	const counted = maxPolled - 1 // of the completions of a poll
	near, far := net.Pipe()
	s := newServed(engines((3*counted+5)*wcBytes), newConn(near, nil, nil, time.Hour))
	s.objects[1] = &thing{device: 1, object: provider.CQ(full{})}
	poll := func() (polled, error) {
		return asks[polled](t, s, "ibv_poll_cq", 1, numberArgs{1 << 20})
	}
	var got []polled
	for _, want := range []int{maxPolled, maxPolled, maxPolled, 1 + 5, 1, 1} {
		some := testkit.Must(poll())(t)
		if got = append(got, some); len(some.WCs) != want {
			t.Errorf("poll %d returns %d completions, want %d", len(got), len(some.WCs), want)
		}
	}
	if s.held != (3*counted+5)*wcBytes {
		t.Errorf("%d bytes are held with all completions", s.held)
	}
	if none, err := asks[polled](t, s, "ibv_poll_cq", 1, numberArgs{0}); err != nil || len(none.WCs) > 0 {
		t.Errorf("a poll for nothing: %d completions, %v", len(none.WCs), err)
	}
	go func() { _, _ = io.Copy(io.Discard, far) }()
	for _, some := range got {
		testkit.OK(t, s.answer(1, &request{Verb: "ibv_poll_cq", On: 1}, 0, some, nil))
	}
	if s.held != 0 {
		t.Errorf("%d bytes are held after the answers", s.held)
	}
	s.objects[1].object = provider.CQ(struct{ provider.CQ }{}) // panics
	if _, err := poll(); err == nil || s.held != 0 {
		t.Errorf("a poll that panics: %v, and %d bytes are held", err, s.held)
	}
	testkit.OK(t, far.Close())
}

// stocked is a provider whose CQs together have so many completions.
type stocked struct {
	provider.Provider
	left int
}

type stockedDevice struct {
	provider.Device
	p *stocked
}

type stockedCQ struct {
	provider.CQ
	p *stocked
}

func (p *stocked) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return &stockedDevice{d, p}, err
}

func (d *stockedDevice) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	q, err := d.Device.CreateCQ(init)
	return &stockedCQ{q, d.p}, err
}

func (q *stockedCQ) Poll(wcs []provider.WC) (int, error) {
	n := min(len(wcs), q.p.left)
	q.p.left -= n
	return n, nil
}

// TestPollReturnsAll: Poll returns as many completions as the CQ has, if the program has room for
// them, although one answer of the agent has fewer: at most maxPolled, or what MaxMemory permits.
func TestPollReturnsAll(t *testing.T) {
	for what, c := range map[string]struct {
		limit uint64
		has   int // completions in the CQ; at first twice as many
	}{
		"of maxPolled":   {0, 2*maxPolled + 100},
		"near MaxMemory": {deviceBytes + 2*objectBytes + 16*wcBytes, 300}, // room for 85
	} {
		p := &stocked{engine.New(nil), 2 * c.has}
		a := engines(c.limit)
		a.Open = func(string, []string) (provider.Provider, error) { return p, nil }
		d := testkit.Must(session(t, a).Provider("engine", nil).Open(""))(t)
		cq := testkit.Must(d.CreateCQ(provider.CQInitAttr{CQE: 16}))(t)
		wcs := make([]provider.WC, c.has+1)
		for i, want := range []int{c.has + 1, c.has - 1, 0} {
			if n, err := cq.Poll(wcs); n != want || err != nil {
				t.Errorf("%s: poll %d returns %d completions, want %d: %v", what, i, n, want, err)
			}
		}
		testkit.OK(t, cq.Close())
		testkit.OK(t, d.Close())
	}
}

// slow is a provider whose Resize of CQs waits until resize is closed.
type slow struct {
	provider.Provider
	resizing, resize chan struct{}
}

type slowDevice struct {
	provider.Device
	p *slow
}

type slowCQ struct {
	provider.CQ
	p *slow
}

func (p *slow) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return &slowDevice{d, p}, err
}

func (d *slowDevice) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	q, err := d.Device.CreateCQ(init)
	return &slowCQ{q, d.p}, err
}

func (q *slowCQ) Resize(cqe int) error {
	close(q.p.resizing)
	<-q.p.resize
	return q.CQ.Resize(cqe)
}

// TestResizeHoldsNobodyUp: while a provider changes the size of a queue, other queues can be made
// and closed. The queue itself can be closed too, and then costs nothing.
func TestResizeHoldsNobodyUp(t *testing.T) {
	p := &slow{engine.New(nil), make(chan struct{}), make(chan struct{})}
	s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) { return p, nil }}, nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	before := s.held
	cq := testkit.Must(asks[made](t, s, "ibv_create_cq", d.Handle, cqArgs{CQE: 16}))(t)
	var resizing, others sync.WaitGroup
	resizing.Go(func() {
		_, err := asks[none](t, s, "ibv_resize_cq", cq.Handle, numberArgs{32})
		if !errors.Is(err, os.ErrClosed) {
			t.Errorf("Resize of a CQ that is closed: %v", err)
		}
	})
	<-p.resizing
	others.Go(func() {
		other, err := asks[made](t, s, "ibv_create_cq", d.Handle, cqArgs{CQE: 16})
		if err != nil {
			t.Error(err)
		}
		for _, h := range []uint32{other.Handle, cq.Handle} {
			if _, err := asks[none](t, s, "ibv_destroy_cq", h, none{}); err != nil {
				t.Error(err)
			}
		}
	})
	done := make(chan struct{})
	go func() { others.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Error("nothing can be made or closed while a CQ is resized")
	}
	close(p.resize)
	resizing.Wait()
	<-done
	if s.held != before {
		t.Errorf("%d bytes are held, want %d", s.held, before)
	}
}
