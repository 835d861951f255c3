package remote

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
)

// asks sends a request to a session at the agent and returns its result.
func asks[R any](t *testing.T, s *served, verb string, on uint32, args any) (R, error) {
	t.Helper()
	raw := testkit.Must(json.Marshal(args))(t)
	res, err := s.perform(t.Context(), &request{Verb: verb, On: on, Args: raw})
	r, _ := res.(R)
	return r, err
}

// TestMemoryOfAnotherDevice: a client cannot register memory of another device, because it is freed
// with the other device.
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

// meeting is a provider that opens devices two at a time.
type meeting struct {
	provider.Provider
	both *sync.WaitGroup
}

func (m meeting) Open(name string) (provider.Device, error) {
	m.both.Done()
	m.both.Wait()
	return m.Provider.Open(name)
}

// TestSlotIsTakenOnce: two devices that are opened at the same time do not share a slot, which
// would make them share memory.
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

// TestBlocksAreBounded: the number of blocks is limited even if there is no memory for them. Such
// blocks take less than 64 bytes each, because they do not count in MaxMemory, but their regions
// are refused.
func TestBlocksAreBounded(t *testing.T) {
	s := newServed(&Agent{MaxMemory: 1 << 20}, nil)
	for slot := range uint16(maxBlocks>>16 + 1) {
		s.slots[slot] = true
	}
	var body []byte
	for i := range uint32(maxBlocks + 1) {
		body = appendRecord(body, record{what: recordBlock, block: i, at: 1 << 21})
	}
	before := heap()
	if err := s.take(body); !errors.Is(err, errFrame) || len(s.twins) != maxBlocks {
		t.Errorf("%d blocks: %v", len(s.twins), err)
	}
	if takes := heap() - before; takes >= 64*maxBlocks {
		t.Errorf("%d blocks without memory take %d bytes", maxBlocks, takes)
	}
	const one = 1<<16 | 1 // a block of slot 1
	s.objects[1] = &thing{device: 1, slot: 1}
	testkit.OK(t, s.take(appendRecord(nil, record{what: recordRetire, block: one})))
	if _, err := s.buffer("ibv_reg_mr", 1, span{Block: one + 1, Len: 1}); !errors.Is(err, syscall.ENOMEM) {
		t.Errorf("a region of a block without memory: %v, want ENOMEM", err)
	}
	runtime.KeepAlive(body)
}

// heap returns how many bytes of the heap are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestBlocksCostWhatTheyTake: the agent has two copies of each block, and guard pages beside one of
// them.
func TestBlocksCostWhatTheyTake(t *testing.T) {
	s := newServed(&Agent{}, nil)
	s.slots[1] = true
	testkit.OK(t, s.take(appendRecord(nil, record{what: recordBlock, block: 1 << 16, at: 1 << 20, n: 4095})))
	b := s.twins[1<<16]
	if takes := uint64(len(b.pages) + len(b.agreed)); s.held < takes {
		t.Errorf("a block that takes %d bytes costs %d", takes, s.held)
	}
	testkit.OK(t, s.take(appendRecord(nil, record{what: recordBlock, block: 1<<16 | 1, at: 1<<63 + 1})))
	if b := s.twins[1<<16|1]; !errors.Is(b.err, syscall.ENOMEM) {
		t.Errorf("a block of 2^63 + 1 bytes: %v", b.err)
	}
	if s.forget(1); s.held != 0 {
		t.Errorf("%d bytes are held, and no block", s.held)
	}
}

// TestQueuesAreBounded: the queues of CQs, QPs and SRQs count in MaxMemory from when they are made
// or resized until they are closed.
func TestQueuesAreBounded(t *testing.T) {
	s := newServed(&Agent{MaxMemory: 4 << 20, Open: func(string, []string) (provider.Provider, error) {
		return engine.New(nil), nil
	}}, nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	pd := testkit.Must(asks[made](t, s, "ibv_alloc_pd", d.Handle, none{}))(t)
	small := testkit.Must(asks[made](t, s, "ibv_create_cq", d.Handle, cqArgs{CQE: 16}))(t)
	srq := testkit.Must(asks[made](t, s, "ibv_create_srq", pd.Handle,
		srqArgs{Attr: provider.SRQAttr{MaxWR: 16, MaxSGE: 16}}))(t)
	before := s.held
	for name, one := range map[string]struct {
		verb  string
		on    uint32
		args  any
		close string
	}{
		"CQ": {"ibv_create_cq", d.Handle, cqArgs{CQE: 8192}, "ibv_destroy_cq"},
		"SRQ": {"ibv_create_srq", pd.Handle, srqArgs{Attr: provider.SRQAttr{MaxWR: 2048, MaxSGE: 16}},
			"ibv_destroy_srq"},
		"QP": {"ibv_create_qp", pd.Handle, qpArgs{SendCQ: small.Handle, RecvCQ: small.Handle,
			Type: provider.QPTypeRC, Cap: provider.QPCap{MaxSendWR: 1024, MaxRecvWR: 1024,
				MaxSendSGE: 16, MaxRecvSGE: 16, MaxInlineData: 512}}, "ibv_destroy_qp"},
	} {
		for range 2 {
			var got []made
			var err error
			for range 64 {
				var m made
				if m, err = asks[made](t, s, one.verb, one.on, one.args); err != nil {
					break
				}
				got = append(got, m)
			}
			if len(got) == 0 || !errors.Is(err, syscall.ENOMEM) {
				t.Fatalf("%s: %d were made: %v, want ENOMEM", name, len(got), err)
			}
			for _, m := range got {
				_ = testkit.Must(asks[none](t, s, one.close, m.Handle, none{}))(t)
			}
			if s.held != before {
				t.Errorf("%s: %d bytes are held after all are closed, want %d", name, s.held, before)
			}
		}
	}
	_, err := asks[none](t, s, "ibv_resize_cq", small.Handle, numberArgs{1 << 20})
	_, err2 := asks[none](t, s, "ibv_modify_srq", srq.Handle,
		srqArgs{Attr: provider.SRQAttr{MaxWR: 1 << 18}, Mask: provider.SRQAttrMaxWR})
	if !errors.Is(err, syscall.ENOMEM) || !errors.Is(err2, syscall.ENOMEM) || s.held != before {
		t.Errorf("resizing: %v and %v, want ENOMEM; %d bytes are held, want %d", err, err2, s.held, before)
	}
	_ = testkit.Must(asks[none](t, s, "ibv_resize_cq", small.Handle, numberArgs{32}))(t)
	if s.held != before+16*wcBytes {
		t.Errorf("%d bytes are held, want %d", s.held, before+16*wcBytes)
	}
	_ = testkit.Must(asks[none](t, s, "ibv_destroy_srq", srq.Handle, none{}))(t)
	_ = testkit.Must(asks[none](t, s, "ibv_destroy_cq", small.Handle, none{}))(t)
	if s.held != deviceBytes+objectBytes { // the device and the PD
		t.Errorf("%d bytes are held, and no queue", s.held)
	}
}

// TestQueueOfAllKinds: a QP is charged at least for the memory of its queues after work of each
// kind has been in them.
func TestQueueOfAllKinds(t *testing.T) {
	s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) {
		return engine.New(&engine.Options{Extensions: true}), nil
	}}, nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	pd := testkit.Must(asks[made](t, s, "ibv_alloc_pd", d.Handle, none{}))(t)
	cq := testkit.Must(asks[made](t, s, "ibv_create_cq", d.Handle, cqArgs{CQE: 16}))(t)
	charged, before := s.held, heap()
	q := testkit.Must(asks[made](t, s, "ibv_create_qp", pd.Handle, qpArgs{SendCQ: cq.Handle,
		RecvCQ: cq.Handle, Type: provider.QPTypeRC,
		Cap: provider.QPCap{MaxSendWR: 1 << 14, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
	_ = testkit.Must(asks[none](t, s, "ibv_modify_qp", q.Handle,
		modifyArgs{Attr: provider.QPAttr{State: provider.QPErr}, Mask: provider.QPAttrState}))(t)
	for _, op := range []provider.WROpcode{provider.WRRDMAWrite, provider.WRLocalInv, provider.WRAtomicFetchAdd} {
		wr := provider.SendWR{Opcode: op}
		if op == provider.WRAtomicFetchAdd {
			wr.SGList = []provider.SGE{{Length: 8}}
		}
		if _, err := asks[posted](t, s, "ibv_post_send", q.Handle, sendArgs{[]provider.SendWR{wr}}); err != nil {
			t.Errorf("opcode %d: %v", op, err)
		}
	}
	takes := heap() - before
	const noise = 64 << 10 // other allocations of the process; the queues have 2.8 MB
	if cost := s.held - charged; cost+noise < takes {
		t.Errorf("a QP that takes %d bytes costs %d", takes, cost)
	}
	runtime.KeepAlive(s)
}

// TestClosedTwice: Close is idempotent, and other methods return os.ErrClosed after it.
func TestClosedTwice(t *testing.T) {
	s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) {
		return engine.New(nil), nil
	}}, nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	cq := testkit.Must(asks[made](t, s, "ibv_create_cq", d.Handle, cqArgs{CQE: 16}))(t)
	for range 2 {
		if _, err := asks[none](t, s, "ibv_destroy_cq", cq.Handle, none{}); err != nil || s.held != deviceBytes {
			t.Errorf("Close: %v; %d bytes are held", err, s.held)
		}
		if _, err := asks[none](t, s, "ibv_resize_cq", cq.Handle, numberArgs{1}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("Resize after Close: %v", err)
		}
	}
	if _, err := asks[none](t, s, "ibv_destroy_srq", d.Handle, none{}); !errors.Is(err, errFrame) {
		t.Errorf("destroying a device as an SRQ: %v", err)
	}
}

// TestNoObject: verbs of objects fail on number 0, which no object has.
func TestNoObject(t *testing.T) {
	s := newServed(engines(0), nil)
	for verb := range verbs {
		if _, alone := sessionVerbs[verb]; alone {
			continue
		}
		if _, err := asks[none](t, s, verb, 0, none{}); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s: %v", verb, err)
		}
	}
}

// panics is a provider whose devices' CQs panic in every call.
type panics struct{ provider.Provider }

type panicsDevice struct{ provider.Device }

type panicsCQ struct{ provider.CQ }

func (p panics) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return panicsDevice{d}, err
}

func (d panicsDevice) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	if init.CQE == 1 {
		panic("no CQ")
	}
	q, err := d.Device.CreateCQ(init)
	return panicsCQ{q}, err
}

func (panicsCQ) Resize(int) error { panic("no other size") }

// TestPanicsCostNothing: an object that the provider did not make because it panicked is not
// counted.
func TestPanicsCostNothing(t *testing.T) {
	s := newServed(&Agent{Open: func(string, []string) (provider.Provider, error) {
		return panics{engine.New(nil)}, nil
	}}, nil)
	defer func() { _ = s.free() }()
	d := testkit.Must(asks[opened](t, s, "ibv_open_device", 0, openArgs{Slot: 1}))(t)
	cq := testkit.Must(asks[made](t, s, "ibv_create_cq", d.Handle, cqArgs{CQE: 16}))(t)
	before := s.held
	if _, err := asks[made](t, s, "ibv_create_cq", d.Handle, cqArgs{CQE: 1}); err == nil || s.held != before {
		t.Errorf("CreateCQ: %v, and %d bytes are held, want %d", err, s.held, before)
	}
	if _, err := asks[none](t, s, "ibv_resize_cq", cq.Handle, numberArgs{32}); err == nil || s.held != before {
		t.Errorf("Resize: %v, and %d bytes are held, want %d", err, s.held, before)
	}
}

// TestCapturePanics: a capture that panics at the end of a run does not end the agent, and other
// captures are ended all the same.
func TestCapturePanics(t *testing.T) {
	a, ended := engines(0), 0
	a.Capture = func(port uint16) (func() ([]byte, error), error) {
		return func() ([]byte, error) {
			if port == 2 {
				panic("a fault")
			}
			ended++
			return nil, nil
		}, nil
	}
	s := newServed(a, nil)
	for port := range uint16(4) {
		testkit.Must(asks[none](t, s, verbCapture, 0, captureArgs{port}))(t)
	}
	left := s.disconnect()
	const want = "port 2: the agent's capture panics: a fault"
	if ended != 3 || len(left) != 1 || !strings.Contains(left[0].Error(), want) {
		t.Errorf("%d captures are ended, errors %v", ended, left)
	}
}

// TestPostsAreCounted: an agent that claims that it has posted more work requests than there were
// ends the session, because a program would look for the others.
func TestPostsAreCounted(t *testing.T) {
	for _, n := range []int{-1, 2} {
		a := engines(0)
		a.Open = func(string, []string) (provider.Provider, error) {
			return miscounting{engine.New(nil), n}, nil
		}
		c := session(t, a)
		d := testkit.Must(c.Provider("engine", nil).Open(""))(t)
		pd := testkit.Must(d.AllocPD())(t)
		srq := testkit.Must(pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
		if got, err := srq.PostRecv(make([]provider.RecvWR, 1)); got != 0 || !errors.Is(err, errFrame) {
			t.Errorf("%d of 1: %d, %v", n, got, err)
		}
		<-c.Done()
	}
}

// miscounting is a provider whose SRQs claim that they have posted n receives.
type miscounting struct {
	provider.Provider
	n int
}

type miscountingDevice struct {
	provider.Device
	n int
}

type miscountingPD struct {
	provider.PD
	n int
}

type miscountingSRQ struct {
	provider.SRQ
	n int
}

func (p miscounting) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return miscountingDevice{d, p.n}, err
}

func (d miscountingDevice) AllocPD() (provider.PD, error) {
	pd, err := d.Device.AllocPD()
	return miscountingPD{pd, d.n}, err
}

func (pd miscountingPD) CreateSRQ(init provider.SRQInitAttr) (provider.SRQ, error) {
	s, err := pd.PD.CreateSRQ(init)
	return miscountingSRQ{s, pd.n}, err
}

func (s miscountingSRQ) PostRecv([]provider.RecvWR) (int, error) { return s.n, nil }

// busyOnce is an object that can only be closed at the second try.
type busyOnce struct{ closed int }

func (b *busyOnce) Close() error {
	if b.closed++; b.closed == 1 {
		return syscall.EBUSY
	}
	return nil
}

// TestEndOfBusyObjects: an id that cannot be closed while a call makes its QP is closed when the
// call has returned. Otherwise its device would stay open.
func TestEndOfBusyObjects(t *testing.T) {
	s := newServed(engines(0), nil)
	var id busyOnce
	s.objects[1] = &thing{rank: rankID, object: &id}
	if left := append(s.disconnect(), s.free()...); id.closed != 2 || len(left) > 0 || len(s.objects) > 0 {
		t.Errorf("closed %d times; %d objects, %v are left", id.closed, len(s.objects), left)
	}
}

// named is a connection of a peer.
type named struct {
	net.Conn
	from   net.Addr
	closed bool
}

func (n *named) RemoteAddr() net.Addr { return n.from }
func (n *named) Close() error         { n.closed = true; return nil }

// TestStrangersDisplace: a new connection displaces the oldest one of the address with most
// connections.
func TestStrangersDisplace(t *testing.T) {
	s := &strangers{most: 4}
	from := func(ip string) *named {
		c := &named{from: &net.TCPAddr{IP: net.ParseIP(ip)}}
		s.add(c)
		return c
	}
	want := func(what string, displaced *named, others ...*named) {
		t.Helper()
		if !displaced.closed {
			t.Errorf("%s: the connection is still there", what)
		}
		for _, c := range others {
			if c.closed {
				t.Errorf("%s: displaces another connection", what)
			}
		}
	}
	honest := from("192.0.2.1")
	a, b, c := from("2001:db8::1"), from("2001:db8::2"), from("2001:db8::3")
	d := from("192.0.2.9")
	want("a fifth", a, honest, b, c, d)
	e := from("2001:db8::4")
	want("another of the peer that has most", b, honest, c, d, e)
	s.remove(honest)
	s.remove(a) // it has already been removed
	f, g := from("192.0.2.1"), from("192.0.2.1")
	want("with two peers that have two each", c, honest, d, e, f, g)
}
