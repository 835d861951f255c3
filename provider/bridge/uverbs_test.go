package bridge

import (
	"bytes"
	"context"
	"net/netip"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/engine"
)

// newBridge makes a bridge over the engine, and a program that it serves.
func newBridge(t *testing.T, opts *engine.Options) (*Bridge, *testProgram) {
	t.Helper()
	vctx, err := ibverbs.Open(engine.New(opts), "")
	if err != nil {
		t.Fatal(err)
	}
	prog := newProgram(t)
	b := New(vctx, prog, nil)
	t.Cleanup(func() {
		b.Close()
		if err := vctx.Close(); err != nil {
			t.Errorf("something of the device is still open: %v", err)
		}
	})
	return b, prog
}

// patience limits how long a test waits for what must come.
const patience = 2 * time.Minute

// libEnd is one end of a connection: a program with a QP.
type libEnd struct {
	*libDevice
	b    *Bridge
	pd   uint32
	comp int
	cq   *libCQ
	qp   *libQP
}

const cqUser = 0xc0de

func newEnd(t *testing.T, srq *uint32) *libEnd {
	t.Helper()
	b, prog := newBridge(t, nil)
	e := &libEnd{libDevice: openDevice(t, b, prog), b: b}
	e.pd = e.allocPD()
	e.comp = e.channel()
	e.cq = e.createCQ(64, e.comp, cqUser)
	req := abi.CreateQP{PDHandle: e.pd, SendCQHandle: e.cq.handle, RecvCQHandle: e.cq.handle,
		MaxSendWR: 16, MaxRecvWR: 16,
		MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 80, QPType: 2, UserHandle: 0x9b}
	if srq != nil {
		req.IsSRQ, req.SRQHandle = 1, *srq
	}
	e.qp = e.createQP(req)
	t.Cleanup(func() {
		e.prog.close(e.comp)
		e.close()
	})
	return e
}

// connect connects two ends, with Go's connection manager.
func connect(t *testing.T, a, b *libEnd) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	channel := func(e *libEnd) *rdmacm.EventChannel {
		ch, err := rdmacm.CreateEventChannel(e.b.vctx)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = ch.Close() })
		return ch
	}
	create := func(ch *rdmacm.EventChannel) *rdmacm.ID {
		id, err := ch.CreateID(nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = id.Close() })
		return id
	}
	next := func(ch *rdmacm.EventChannel, want rdmacm.EventType) *rdmacm.Event {
		t.Helper()
		e, err := ch.GetEvent(ctx)
		if err != nil || e.Type != want {
			t.Fatalf("event %v, want %v: %v", e, want, err)
		}
		return e
	}
	ach, bch := channel(a), channel(b)
	l := create(bch)
	testkit.OK(t, l.BindAddr(netip.MustParseAddrPort("127.0.0.1:0")))
	testkit.OK(t, l.Listen(1))
	id := create(ach)
	testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), patience))
	next(ach, rdmacm.AddrResolved)
	testkit.OK(t, id.ResolveRoute(patience))
	next(ach, rdmacm.RouteResolved)
	qp := func(e *libEnd) *ibverbs.QP { return e.b.queuePairByNumber(e.qp.qpn).qp }
	testkit.OK(t, id.Connect(&rdmacm.ConnParam{QP: qp(a), InitiatorDepth: 4, ResponderResources: 4}))
	req := next(bch, rdmacm.ConnectRequest).ID
	t.Cleanup(func() { _ = req.Close() })
	testkit.OK(t, req.Accept(&rdmacm.ConnParam{QP: qp(b), InitiatorDepth: 4, ResponderResources: 4}))
	next(bch, rdmacm.Established)
	next(ach, rdmacm.Established)
}

// wc waits for a completion.
func (e *libEnd) wc() abi.SiwCQE {
	e.t.Helper()
	for end := time.Now().Add(patience); ; {
		if wc, ok := e.cq.poll(); ok {
			return wc
		}
		if time.Now().After(end) {
			e.t.Fatal("no completion")
		}
		e.b.prog.File(e.fd).(*uverbsFile).Progress(e.cq.handle)
	}
}

func (e *libEnd) wantWC(what string, id uint64, opcode uint8, status uint16, octets int) {
	e.t.Helper()
	wc := e.wc()
	if wc.ID != id || wc.Opcode != opcode || wc.Status != status || octets >= 0 &&
		int(wc.Bytes) != octets || wc.QPID != uint64(e.qp.qpn) {
		e.t.Errorf("%s: completion %s, want id %d, opcode %d, status %d, %d bytes", what,
			abi.Format(wc), id, opcode, status, octets)
	}
}

func (m *libMR) sge(off, n int) abi.SiwSGE {
	return abi.SiwSGE{LAddr: m.addr + uint64(off), Length: uint32(n), LKey: m.LKey}
}

// TestQueues does what libsiw does with the queues that it maps. A Send, a Write, a Read and inline
// data arrive, and posted work is flushed when the connection ends.
func TestQueues(t *testing.T) {
	a, b := newEnd(t, nil), newEnd(t, nil)
	src := a.regMR(a.pd, 1<<16, 1)
	dst := b.regMR(b.pd, 1<<16, 7)
	for i := range src.buf {
		src.buf[i] = byte(i * 7)
	}
	for id := range uint64(5) {
		if !b.qp.postRecv(100+id, dst.sge(int(id)*4096, 2048), dst.sge(int(id)*4096+2048, 2048)) {
			t.Fatal("the receive queue is full")
		}
	}
	connect(t, a, b)

	// A Send is scattered to the SGEs of the receive.
	send := abi.SiwSQE{ID: 1, Flags: abi.SiwWQESignalled, Opcode: abi.SiwSend, NumSGE: 2}
	send.SGE[0], send.SGE[1] = src.sge(0, 1000), src.sge(1000, 2000)
	if err := a.qp.postSend(send); err != nil {
		t.Fatal(err)
	}
	a.wantWC("Send", 1, abi.SiwSend, abi.SiwWCSuccess, -1)
	b.wantWC("receive", 100, abi.SiwReceive, abi.SiwWCSuccess, 3000)
	if !bytes.Equal(dst.buf[:3000], src.buf[:3000]) {
		t.Error("the Send has other bytes")
	}

	// Inline data is in the element.
	inline := abi.SiwSQE{ID: 2, Flags: abi.SiwWQESignalled | abi.SiwWQEInline, Opcode: abi.SiwSend,
		NumSGE: 1}
	inline.SGE[0].Length = 80
	copy(inlineOf(&inline), bytes.Repeat([]byte("inline!"), 12))
	if err := a.qp.postSend(inline); err != nil {
		t.Fatal(err)
	}
	a.wantWC("inline Send", 2, abi.SiwSend, abi.SiwWCSuccess, -1)
	b.wantWC("receive of inline data", 101, abi.SiwReceive, abi.SiwWCSuccess, 80)
	if got := dst.buf[4096 : 4096+80]; !bytes.Equal(got, bytes.Repeat([]byte("inline!"), 12)[:80]) {
		t.Errorf("inline data: %q", got)
	}

	// A Write and a Read, the first without a completion.
	write := abi.SiwSQE{ID: 3, Opcode: abi.SiwWrite, NumSGE: 1, RAddr: dst.addr + 30000,
		RKey: dst.RKey}
	write.SGE[0] = src.sge(100, 5000)
	read := abi.SiwSQE{ID: 4, Flags: abi.SiwWQESignalled, Opcode: abi.SiwRead, NumSGE: 1,
		RAddr: dst.addr + 30000, RKey: dst.RKey}
	sink := a.regMR(a.pd, 8192, 1|2)
	read.SGE[0] = sink.sge(0, 5000)
	for _, sqe := range []abi.SiwSQE{write, read} {
		if err := a.qp.postSend(sqe); err != nil {
			t.Fatal(err)
		}
	}
	a.wantWC("Read", 4, abi.SiwRead, abi.SiwWCSuccess, 5000)
	if !bytes.Equal(sink.buf[:5000], src.buf[100:5100]) {
		t.Error("the Read returns other bytes than were written")
	}

	// Three receives are left; they are flushed.
	a.must(abi.UverbsModifyQP, &abi.ModifyQP{QPHandle: a.qp.handle, AttrMask: 1, QPState: 6}, nil,
		nil, nil)
	for id := uint64(102); id < 105; id++ {
		b.wantWC("flushed receive", id, abi.SiwReceive, abi.SiwWCWRFlushErr, -1)
	}
	if err := a.qp.postSend(send); err != nil {
		t.Errorf("posting after the end: %v", err)
	}
	a.wantWC("Send after the end", 1, abi.SiwSend, abi.SiwWCWRFlushErr, -1)
}

// TestCompletionEvents: an armed CQ raises one event, which the program reads from the channel, and
// DESTROY_CQ returns the number of events read.
func TestCompletionEvents(t *testing.T) {
	a, b := newEnd(t, nil), newEnd(t, nil)
	src, dst := a.regMR(a.pd, 4096, 1), b.regMR(b.pd, 4096, 1)
	for id := range uint64(8) {
		b.qp.postRecv(id, dst.sge(0, 64))
	}
	connect(t, a, b)
	send := func(flags uint16) {
		t.Helper()
		sqe := abi.SiwSQE{Opcode: abi.SiwSend, NumSGE: 1, Flags: flags}
		sqe.SGE[0] = src.sge(0, 10)
		if err := a.qp.postSend(sqe); err != nil {
			t.Fatal(err)
		}
	}
	readable := func(wait int) bool { return pollIn(b.comp, wait) }
	event := func() {
		t.Helper()
		if !readable(int(patience.Milliseconds())) {
			t.Fatal("no event")
		}
		var buf [16]byte
		n, err := unix.Read(b.comp, buf[:])
		var e abi.CompEvent
		if _, bad := abi.Decode(buf[:max(n, 0)], &e); err != nil || bad != nil ||
			e.CQHandle != cqUser {
			t.Errorf("event %s of %d bytes: %v", abi.Format(e), n, err)
		}
	}
	b.cq.arm(abi.SiwNotifySolicited | abi.SiwNotifyNextCompletion)
	send(0)
	event()
	b.wantWC("first", 0, abi.SiwReceive, abi.SiwWCSuccess, 10)

	// Not armed: no event. Armed for solicited completions: only a solicited Send raises one.
	send(0)
	b.wantWC("second", 1, abi.SiwReceive, abi.SiwWCSuccess, 10)
	b.cq.arm(abi.SiwNotifySolicited)
	send(0)
	b.wantWC("third", 2, abi.SiwReceive, abi.SiwWCSuccess, 10)
	if readable(0) {
		t.Error("an event for which the CQ is not armed")
	}
	send(abi.SiwWQESolicited)
	event()
	b.wantWC("fourth", 3, abi.SiwReceive, abi.SiwWCSuccess, 10)

	// An event that the program does not read is withdrawn, and not counted.
	b.cq.arm(abi.SiwNotifySolicited | abi.SiwNotifyNextCompletion)
	send(0)
	if !readable(int(patience.Milliseconds())) {
		t.Fatal("no event")
	}
	b.must(abi.UverbsDestroyQP, &abi.DestroyQP{QPHandle: b.qp.handle}, nil, &abi.DestroyResp{}, nil)
	var resp abi.DestroyCQResp
	b.must(abi.UverbsDestroyCQ, &abi.DestroyCQ{CQHandle: b.cq.handle}, nil, &resp, nil)
	if resp.CompEventsReported != 2 || readable(0) {
		t.Errorf("%d events reported, want 2; the channel is readable: %v", resp.CompEventsReported,
			readable(0))
	}
}

// TestObjectsInUse: objects that others need cannot be destroyed, and a handle is valid for one
// kind and one device only.
func TestObjectsInUse(t *testing.T) {
	e := newEnd(t, nil)
	e.regMR(e.pd, 100, 1)
	e.wantErrno("PD with an MR", syscall.EBUSY, abi.UverbsDeallocPD, &abi.DeallocPD{PDHandle: e.pd},
		nil, nil, nil)
	e.wantErrno("CQ with a QP", syscall.EBUSY, abi.UverbsDestroyCQ,
		&abi.DestroyCQ{CQHandle: e.cq.handle}, nil, &abi.DestroyCQResp{}, nil)
	e.wantErrno("no such PD", syscall.ENOENT, abi.UverbsDeallocPD, &abi.DeallocPD{PDHandle: 999},
		nil, nil, nil)
	e.wantErrno("a CQ for a PD", syscall.EINVAL, abi.UverbsDeallocPD,
		&abi.DeallocPD{PDHandle: e.cq.handle}, nil, nil, nil)
	e.wantErrno("a PD for a QP", syscall.EINVAL, abi.UverbsModifyQP, &abi.ModifyQP{QPHandle: e.pd},
		nil, nil, nil)
	other := openDevice(t, e.b, e.prog)
	defer other.close()
	other.wantErrno("a QP of another descriptor", syscall.ENOENT, abi.UverbsDestroyQP,
		&abi.DestroyQP{QPHandle: e.qp.handle}, nil, &abi.DestroyResp{}, nil)
	e.wantErrno("a second context", syscall.EINVAL, abi.UverbsGetContext, &abi.Response{}, nil,
		&abi.GetContextResp{}, &abi.SiwAllocCtxResp{})
}

// TestProgramsUse: the engine sees when a program takes completions and when it waits for some. If
// the program writes garbage into its queue, the engine reads no more elements than the queue has.
func TestProgramsUse(t *testing.T) {
	a, b := newEnd(t, nil), newEnd(t, nil)
	src, dst := a.regMR(a.pd, 64, 0), b.regMR(b.pd, 64, 1)
	for id := range uint64(3) {
		b.qp.postRecv(id, dst.sge(0, 64))
	}
	connect(t, a, b)
	for range 3 {
		sqe := abi.SiwSQE{Opcode: abi.SiwSend, NumSGE: 1}
		sqe.SGE[0] = src.sge(0, 10)
		testkit.OK(t, a.qp.postSend(sqe))
	}
	f := b.prog.File(b.fd).(*uverbsFile)
	c := testkit.Must(lookup[*completionQueue](&f.handles, b.cq.handle))(t)
	for end := time.Now().Add(patience); c.ring.put.Load() != 3; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d completions", c.ring.put.Load())
		}
		f.Progress(b.cq.handle)
	}
	if c.ring.Taken() != 0 || c.ring.Waits() {
		t.Errorf("%d taken; the program waits: %t", c.ring.Taken(), c.ring.Waits())
	}
	for n := uint32(1); n <= 2; n++ {
		if _, ok := b.cq.poll(); !ok || c.ring.Taken() != n {
			t.Errorf("%d taken, want %d; there was one: %t", c.ring.Taken(), n, ok)
		}
	}
	clear(b.cq.mem)
	if n := c.ring.Taken(); n != 3 {
		t.Errorf("%d taken of a queue that the program has cleared, want 3", n)
	}
	b.cq.arm(abi.SiwNotifySolicited)
	if !c.ring.Waits() {
		t.Error("the program waits, and it is not seen")
	}
}

// TestPeerInvalidates: a peer can end the remote use of a region that it can access, and of no
// other.
func TestPeerInvalidates(t *testing.T) {
	const localWrite, remoteRead = 1 << 0, 1 << 2
	for name, c := range map[string]struct {
		access uint32
		status uint16
	}{
		"with a right": {localWrite | remoteRead, abi.SiwWCSuccess},
		"private":      {localWrite, abi.SiwWCRemInvReqErr},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newEnd(t, nil), newEnd(t, nil)
			region, dst := b.regMR(b.pd, 4096, c.access), b.regMR(b.pd, 4096, localWrite)
			b.qp.postRecv(1, dst.sge(0, 64))
			connect(t, a, b)
			sqe := abi.SiwSQE{ID: 2, Flags: abi.SiwWQESignalled, Opcode: abi.SiwSendRemoteInv,
				RKey: region.RKey}
			if err := a.qp.postSend(sqe); err != nil {
				t.Fatal(err)
			}
			b.wantWC("receive", 1, abi.SiwReceive, c.status, -1)
		})
	}
}

// TestMemoryEndsWhileRegistered: if another thread remaps memory while it is being registered, the
// memory does not belong to the region after both calls have returned.
func TestMemoryEndsWhileRegistered(t *testing.T) {
	b, prog := newBridge(t, nil)
	d := openDevice(t, b, prog)
	defer d.close()
	pd := d.allocPD()
	ended := make(chan error)
	prog.registering = func() {
		go func() { ended <- b.EndMemory(prog.base(), prog.base()+1<<24) }()
	}
	for range 200 {
		d.regMR(pd, 64, accessLocalWrite|accessRemoteWrite)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		left := len(b.memory)
		b.mu.Unlock()
		if left != 0 {
			t.Fatal("the region has the memory still")
		}
	}
}

// TestMemoryEndsWhileReleased: EndMemory, after which the program maps something else, waits for
// another thread that is deregistering the memory. That thread may still unmap what was reserved.
func TestMemoryEndsWhileReleased(t *testing.T) {
	b, prog := newBridge(t, nil)
	d := openDevice(t, b, prog)
	defer d.close()
	mr := d.regMR(d.allocPD(), 64, accessLocalWrite)
	ended := make(chan error, 1)
	prog.releasing = func() {
		go func() { ended <- b.EndMemory(prog.base(), prog.base()+1<<24) }()
		stacks := make([]byte, 1<<20)
		for len(ended) == 0 {
			all := stacks[:runtime.Stack(stacks, true)]
			if bytes.Count(all, []byte("(*memoryRegion).destroy(")) == 2 {
				return // EndMemory waits for this call
			}
		}
		t.Error("EndMemory returns before the memory is released")
	}
	d.must(abi.UverbsDeregMR, &abi.DeregMR{MRHandle: mr.MRHandle}, nil, nil, nil)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
