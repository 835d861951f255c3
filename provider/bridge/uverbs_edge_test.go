package bridge

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/engine"
)

// asyncEvent reads an asynchronous event, and fails the test if none comes.
func (d *libDevice) asyncEvent() (e abi.AsyncEvent) {
	d.t.Helper()
	if !pollIn(d.async, int(patience.Milliseconds())) {
		d.t.Fatal("no asynchronous event")
	}
	var buf [64]byte
	n, err := unix.Read(d.async, buf[:])
	if err == nil {
		_, err = abi.Decode(buf[:n], &e)
	}
	if err != nil {
		d.t.Fatal(err)
	}
	return e
}

// quiet reports whether a descriptor is not readable.
func quiet(fd int) bool {
	return !pollIn(fd, 0)
}

// libSRQ is an SRQ in the form of libsiw.
type libSRQ struct {
	handle, num, put uint32
	rq               []byte
}

func (d *libDevice) createSRQ(req abi.CreateSRQ) *libSRQ {
	d.t.Helper()
	var resp abi.CreateSRQResp
	var siw abi.SiwCreateSRQResp
	d.must(abi.UverbsCreateSRQ, &req, nil, &resp, &siw)
	return &libSRQ{handle: resp.SRQHandle, num: siw.NumRQE, rq: d.mmap(siw.SRQKey,
		uintptr(siw.NumRQE)*rqeSize)}
}

// TestSharedReceives: messages take receives from an SRQ, and one event is raised when fewer
// receives than the limit are left.
func TestSharedReceives(t *testing.T) {
	a := newEnd(t, nil)
	b := newEnd(t, nil)
	const user = 0x5e9
	srq := b.createSRQ(abi.CreateSRQ{PDHandle: b.pd, MaxWR: 5, MaxSGE: 2, SRQLimit: 2,
		UserHandle: user})
	b.must(abi.UverbsDestroyQP, &abi.DestroyQP{QPHandle: b.qp.handle}, nil, &abi.DestroyResp{}, nil)
	b.qp = b.createQP(abi.CreateQP{PDHandle: b.pd, SendCQHandle: b.cq.handle,
		RecvCQHandle: b.cq.handle, MaxSendWR: 1,
		QPType: typeRC, IsSRQ: 1, SRQHandle: srq.handle})
	src, dst := a.regMR(a.pd, 64, 1), b.regMR(b.pd, 4096, 1)
	for id := range uint64(4) {
		if !postRQE(srq.rq, srq.num, &srq.put, id, dst.sge(int(id)*100, 100)) {
			t.Fatal("the SRQ is full")
		}
	}
	connect(t, a, b)
	for id := range uint64(3) {
		if !quiet(b.async) {
			t.Fatalf("an event with %d receives left, where the limit is 2", 4-id)
		}
		sqe := abi.SiwSQE{ID: id, Opcode: abi.SiwSend, NumSGE: 1}
		sqe.SGE[0] = src.sge(0, 10)
		if err := a.qp.postSend(sqe); err != nil {
			t.Fatal(err)
		}
		b.wantWC("receive", id, abi.SiwReceive, abi.SiwWCSuccess, 10)
	}
	if e := b.asyncEvent(); e.EventType != uint32(ibverbs.EventSRQLimitReached) ||
		e.Element != user {
		t.Errorf("event %s", abi.Format(e))
	}
	var attr abi.QuerySRQResp
	b.must(abi.UverbsQuerySRQ, &abi.QuerySRQ{SRQHandle: srq.handle}, nil, &attr, nil)
	if attr.MaxWR != 8 || attr.MaxSGE != 2 || attr.SRQLimit != 2 {
		t.Errorf("the SRQ is %s", abi.Format(attr))
	}
	b.wantErrno("another size", syscall.EOPNOTSUPP, abi.UverbsModifySRQ,
		&abi.ModifySRQ{SRQHandle: srq.handle, AttrMask: srqMaxWR}, nil, nil, nil)
	b.wantErrno("too high a limit", syscall.EINVAL, abi.UverbsModifySRQ,
		&abi.ModifySRQ{SRQHandle: srq.handle, AttrMask: srqLimit, SRQLimit: 9}, nil, nil, nil)
	b.wantErrno("an SRQ with a QP", syscall.EBUSY, abi.UverbsDestroySRQ,
		&abi.DestroySRQ{SRQHandle: srq.handle}, nil, &abi.DestroyResp{}, nil)
	b.must(abi.UverbsDestroyQP, &abi.DestroyQP{QPHandle: b.qp.handle}, nil, &abi.DestroyResp{}, nil)
	var gone abi.DestroyResp
	b.must(abi.UverbsDestroySRQ, &abi.DestroySRQ{SRQHandle: srq.handle}, nil, &gone, nil)
	if gone.EventsReported != 1 {
		t.Errorf("%d events reported, want the one that was read", gone.EventsReported)
	}
}

// TestCompletionQueueFull: completions for which there is no room are lost, and raise one CQ_ERR.
func TestCompletionQueueFull(t *testing.T) {
	e := newEnd(t, nil)
	cq := e.createCQ(2, -1, 77)
	q := e.createQP(abi.CreateQP{PDHandle: e.pd, SendCQHandle: cq.handle, RecvCQHandle: cq.handle,
		MaxSendWR: 1, MaxRecvWR: 8,
		MaxRecvSGE: 1, QPType: typeRC})
	m := e.regMR(e.pd, 64, 1)
	for id := range uint64(5) {
		q.postRecv(id, m.sge(0, 1))
	}
	e.must(abi.UverbsModifyQP, &abi.ModifyQP{QPHandle: q.handle, AttrMask: maskState,
		QPState: uint8(ibverbs.QPErr)}, nil, nil, nil)
	for id := range uint64(2) {
		if wc, ok := cq.poll(); !ok || wc.ID != id || wc.Status != abi.SiwWCWRFlushErr {
			t.Errorf("completion %s, %v", abi.Format(wc), ok)
		}
	}
	if wc, ok := cq.poll(); ok {
		t.Errorf("a third completion in a CQ for two: %s", abi.Format(wc))
	}
	if ev := e.asyncEvent(); ev.EventType != uint32(ibverbs.EventCQErr) || ev.Element != 77 {
		t.Errorf("event %s", abi.Format(ev))
	}
	if !quiet(e.async) {
		t.Error("a second event")
	}
}

// TestCompletionQueueLargest: a CQ may have the device's maximum size, although its ring is then
// larger.
func TestCompletionQueueLargest(t *testing.T) {
	e := newEnd(t, nil)
	var dev abi.QueryDeviceResp
	e.must(abi.UverbsQueryDevice, &abi.Response{}, nil, &dev, nil)
	if cq := e.createCQ(dev.MaxCQE, -1, 0); cq.num < dev.MaxCQE {
		t.Errorf("a CQ for %d completions has room for %d", dev.MaxCQE, cq.num)
	}
}

// TestDoorbell: work that is posted before the connection stays in the queue and is sent when the
// QP is connected. A request that cannot be posted ends the connection.
func TestDoorbell(t *testing.T) {
	a, b := newEnd(t, nil), newEnd(t, nil)
	src, dst := a.regMR(a.pd, 64, 1), b.regMR(b.pd, 64, 1)
	b.qp.postRecv(1, dst.sge(0, 64))
	b.qp.postRecv(2, dst.sge(0, 64))
	sqe := abi.SiwSQE{ID: 10, Opcode: abi.SiwSend, NumSGE: 1, Flags: abi.SiwWQESignalled}
	sqe.SGE[0] = src.sge(0, 20)
	if err := a.qp.postSend(sqe); !errors.Is(err, syscall.ENOTCONN) {
		t.Errorf("a doorbell without a connection: %v, want ENOTCONN", err)
	}
	connect(t, a, b)
	a.b.queuePairByNumber(a.qp.qpn).connected(true) // as rdma_cm calls it with ESTABLISHED
	a.wantWC("what was posted before", 10, abi.SiwSend, abi.SiwWCSuccess, -1)
	b.wantWC("its receive", 1, abi.SiwReceive, abi.SiwWCSuccess, 20)

	for what, bad := range map[string]abi.SiwSQE{
		"wrong opcode": {Opcode: abi.SiwReadResponse}, "too many SGEs": {Opcode: abi.SiwSend,
			NumSGE: 7},
		"too long inline data": {Opcode: abi.SiwSend, NumSGE: 1, Flags: abi.SiwWQEInline,
			SGE: [6]abi.SiwSGE{{Length: 81}}},
	} {
		bad.ID = 66
		if err := a.qp.postSend(bad); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		a.wantWC(what, 66, abi.SiwSend, abi.SiwWCLocQPOpErr, -1)
	}
	b.wantWC("the receive that is left", 2, abi.SiwReceive, abi.SiwWCWRFlushErr, -1)
}

// TestSendQueueFull: a program that signals nothing may post more than fits into the device's
// queue. The rest waits in the queue that the program maps.
func TestSendQueueFull(t *testing.T) {
	const writes, size = 60, 4 << 20 // posting them takes less time than sending them
	a, b := newEnd(t, nil), newEnd(t, nil)
	src, dst := a.regMR(a.pd, size, 1), b.regMR(b.pd, size, 3)
	connect(t, a, b)
	for i := range writes {
		sqe := abi.SiwSQE{ID: uint64(i), Opcode: abi.SiwWrite, NumSGE: 1, RAddr: dst.addr,
			RKey: dst.RKey}
		sqe.SGE[0] = src.sge(0, size)
		if i == writes-1 {
			sqe.Flags = abi.SiwWQESignalled
		}
		for end := time.Now().Add(patience); ; {
			err := a.qp.postSend(sqe)
			if err == nil {
				break
			}
			if !errors.Is(err, syscall.ENOMEM) || time.Now().After(end) {
				t.Fatalf("Write %d: %v", i, err)
			}
			a.b.prog.File(a.fd).(*uverbsFile).Progress(a.cq.handle)
		}
	}
	a.wantWC("the last Write", writes-1, abi.SiwWrite, abi.SiwWCSuccess, -1)
	if a.qp.doorbells == writes {
		t.Error("the queue was never full: the test shows nothing")
	}
}

// TestLargest makes queues of the device's maximum sizes.
func TestLargest(t *testing.T) {
	e := newEnd(t, nil)
	var dev abi.QueryDeviceResp
	e.must(abi.UverbsQueryDevice, &abi.Response{}, nil, &dev, nil)
	cq := e.createCQ(dev.MaxCQE, -1, 1)
	srq := e.createSRQ(abi.CreateSRQ{PDHandle: e.pd, MaxWR: dev.MaxSRQWR, MaxSGE: dev.MaxSRQSGE})
	q := e.createQP(abi.CreateQP{PDHandle: e.pd, SendCQHandle: cq.handle, RecvCQHandle: cq.handle,
		MaxSendWR: dev.MaxQPWR, MaxRecvWR: dev.MaxQPWR, MaxSendSGE: dev.MaxSGE,
		MaxRecvSGE: dev.MaxSGE, QPType: typeRC})
	if cq.num < dev.MaxCQE || srq.num < dev.MaxSRQWR || q.nsq < dev.MaxQPWR || q.nrq < dev.MaxQPWR {
		t.Errorf("%d completions, %d shared receives, %d sends, %d receives; the device says %s",
			cq.num, srq.num, q.nsq, q.nrq, abi.Format(&dev))
	}
	e.must(abi.UverbsDestroyQP, &abi.DestroyQP{QPHandle: q.handle}, nil, &abi.DestroyResp{}, nil)
	e.must(abi.UverbsDestroySRQ, &abi.DestroySRQ{SRQHandle: srq.handle}, nil, &abi.DestroyResp{},
		nil)
	e.must(abi.UverbsDestroyCQ, &abi.DestroyCQ{CQHandle: cq.handle}, nil, &abi.DestroyCQResp{}, nil)
}

// TestQueryDevice: the vendor id shows programs that the library is siw's, and the part id that the
// driver is not.
func TestQueryDevice(t *testing.T) {
	e := newEnd(t, nil)
	var resp abi.QueryDeviceResp
	e.must(abi.UverbsQueryDevice, &abi.Response{}, nil, &resp, nil)
	if resp.VendorID != 0x626d74 || resp.VendorPartID != 0x676f7673 {
		t.Errorf("vendor %#x, part %#x", resp.VendorID, resp.VendorPartID)
	}
}

// TestQueryQueuePair compares the answers of CREATE_QP and QUERY_QP.
func TestQueryQueuePair(t *testing.T) {
	e := newEnd(t, nil)
	query := func() (resp abi.QueryQPResp) {
		t.Helper()
		e.must(abi.UverbsQueryQP, &abi.QueryQP{QPHandle: e.qp.handle}, nil, &resp, nil)
		return resp
	}
	q := query()
	if q.MaxSendWR != 16 || q.MaxRecvWR != 16 || q.MaxSendSGE != 4 || q.MaxRecvSGE != 4 ||
		q.MaxInlineData != 80 || q.QPState != 0 {
		t.Errorf("a new QP is %s", abi.Format(q))
	}
	var port abi.QueryPortResp
	e.must(abi.UverbsQueryPort, &abi.QueryPort{PortNum: 1}, nil, &port, nil)
	if q.PathMTU != port.ActiveMTU {
		t.Errorf("the QP's path_mtu is %d, the port's active_mtu %d", q.PathMTU, port.ActiveMTU)
	}
	e.must(abi.UverbsModifyQP, &abi.ModifyQP{QPHandle: e.qp.handle, AttrMask: maskState,
		QPState: uint8(ibverbs.QPErr)}, nil, nil, nil)
	if q := query(); q.QPState != uint8(ibverbs.QPErr) {
		t.Errorf("after ERR the state is %d", q.QPState)
	}
}

// TestUverbsRefusals checks the errnos of refused commands against the kernel's (uverbs_cmd.c,
// siw_verbs.c).
//
//rfc:5042 SEC-7.3-01 Manager verifies the ULP's right to the memory it registers
func TestUverbsRefusals(t *testing.T) {
	e := newEnd(t, nil)
	_, addr := e.prog.alloc(4096)
	mr := func(change func(*abi.RegMR)) *abi.RegMR {
		m := &abi.RegMR{Start: addr, HCAVA: addr, Length: 100, PDHandle: e.pd, AccessFlags: 1}
		change(m)
		return m
	}
	qp := func(change func(*abi.CreateQP)) *abi.CreateQP {
		q := &abi.CreateQP{PDHandle: e.pd, SendCQHandle: e.cq.handle, RecvCQHandle: e.cq.handle,
			MaxSendWR: 1, MaxRecvWR: 1, QPType: typeRC}
		change(q)
		return q
	}
	modify := func(mask uint32, change func(*abi.ModifyQP)) *abi.ModifyQP {
		m := &abi.ModifyQP{QPHandle: e.qp.handle, AttrMask: mask}
		change(m)
		return m
	}
	type refusal struct {
		what                          string
		want                          syscall.Errno
		number                        uint32
		req, driver, resp, driverResp any
	}
	regMR := func(what string, want syscall.Errno, change func(*abi.RegMR)) refusal {
		return refusal{what, want, abi.UverbsRegMR, mr(change), &abi.SiwRegMRReq{},
			&abi.RegMRResp{}, &abi.SiwRegMRResp{}}
	}
	createQP := func(what string, want syscall.Errno, change func(*abi.CreateQP)) refusal {
		return refusal{what, want, abi.UverbsCreateQP, qp(change), nil, &abi.CreateQPResp{},
			&abi.SiwCreateQPResp{}}
	}
	createCQ := func(what string, want syscall.Errno, cq abi.CreateCQ) refusal {
		return refusal{what, want, abi.UverbsCreateCQ, &cq, nil, &abi.CreateCQResp{},
			&abi.SiwCreateCQResp{}}
	}
	modifyQP := func(what string, want syscall.Errno, mask uint32,
		change func(*abi.ModifyQP)) refusal {
		return refusal{what, want, abi.UverbsModifyQP, modify(mask, change), nil, nil, nil}
	}
	for _, x := range []refusal{
		regMR("remote rights without the local one", syscall.EINVAL,
			func(m *abi.RegMR) { m.AccessFlags = accessRemoteWrite }),
		regMR("unknown rights", syscall.EINVAL, func(m *abi.RegMR) { m.AccessFlags |= 1 << 15 }),
		regMR("rights of devices that flush", syscall.EINVAL,
			func(m *abi.RegMR) { m.AccessFlags |= 1 << 8 }),
		regMR("no bytes", syscall.EINVAL, func(m *abi.RegMR) { m.Length = 0 }),
		regMR("bytes that wrap around", syscall.EINVAL,
			func(m *abi.RegMR) { m.Length = ^uint64(0) }),
		regMR("memory that is not there", syscall.EFAULT, func(m *abi.RegMR) {
			m.Start,
				m.HCAVA = 0x1000, 0x1000
		}),
		regMR("another place in the page", syscall.EINVAL, func(m *abi.RegMR) { m.HCAVA++ }),
		regMR("no such PD", syscall.ENOENT, func(m *abi.RegMR) { m.PDHandle = 99 }),
		createCQ("no completions", syscall.EINVAL, abi.CreateCQ{CompChannel: -1}),
		createCQ("too many completions", syscall.EINVAL, abi.CreateCQ{CQE: maxCQE + 1,
			CompChannel: -1}),
		createCQ("a second vector", syscall.EINVAL, abi.CreateCQ{CQE: 1, CompVector: 1,
			CompChannel: -1}),
		createCQ("a channel that is none", syscall.EBADF, abi.CreateCQ{CQE: 1,
			CompChannel: int32(e.fd)}),
		createQP("datagrams", syscall.EOPNOTSUPP, func(q *abi.CreateQP) { q.QPType = typeUD }),
		createQP("an initiator of XRC, which has no CQ for receives", syscall.EOPNOTSUPP,
			func(q *abi.CreateQP) { q.QPType, q.RecvCQHandle, q.IsSRQ = typeXRCIni, 99, 1 }),
		createQP("an unknown type", syscall.EINVAL, func(q *abi.CreateQP) { q.QPType = 77 }),
		createQP("no sends", syscall.EINVAL, func(q *abi.CreateQP) { q.MaxSendWR = 0 }),
		createQP("too many sends", syscall.EINVAL, func(q *abi.CreateQP) {
			q.MaxSendWR = maxQueue +
				1
		}),
		createQP("too many SGEs", syscall.EINVAL, func(q *abi.CreateQP) { q.MaxRecvSGE = 7 }),
		createQP("too much inline data", syscall.EINVAL,
			func(q *abi.CreateQP) { q.MaxInlineData = 81 }),
		createQP("no such CQ", syscall.ENOENT, func(q *abi.CreateQP) { q.RecvCQHandle = 99 }),
		createQP("no such SRQ", syscall.ENOENT,
			func(q *abi.CreateQP) { q.IsSRQ = 1; q.SRQHandle = 99 }),
		modifyQP("port 2", syscall.EINVAL, maskPort, func(m *abi.ModifyQP) { m.PortNum = 2 }),
		modifyQP("an unknown state", syscall.EINVAL, maskState,
			func(m *abi.ModifyQP) { m.QPState = 7 }),
		modifyQP("RTS without a connection", syscall.EINVAL, maskState,
			func(m *abi.ModifyQP) { m.QPState = uint8(ibverbs.QPRTS) }),
		modifyQP("an unknown attribute", syscall.EOPNOTSUPP, 1<<25, func(*abi.ModifyQP) {}),
		{"windows", syscall.EOPNOTSUPP, abi.UverbsAllocMW, &abi.AllocMW{PDHandle: e.pd, MWType: 1},
			nil, &abi.AllocMWResp{}, nil},
		{"another size of a CQ", syscall.EOPNOTSUPP, abi.UverbsResizeCQ,
			&abi.ResizeCQ{CQHandle: e.cq.handle, CQE: 9}, nil, &abi.ResizeCQResp{}, nil},
	} {
		e.wantErrno(x.what, x.want, x.number, x.req, x.driver, x.resp, x.driverResp)
	}
	// A change without effect is not an error.
	for _, state := range []ibverbs.QPState{ibverbs.QPInit, ibverbs.QPRTR} {
		e.must(abi.UverbsModifyQP, modify(maskState,
			func(m *abi.ModifyQP) { m.QPState = uint8(state) }), nil, nil, nil)
	}
}

// FuzzUverbs writes arbitrary commands. The result is an errno of the kernel or success, and the
// bridge continues.
func FuzzUverbs(f *testing.F) {
	for number := range abi.UverbsCommands {
		f.Add(number, uint16(8), uint16(16), make([]byte, 24))
	}
	f.Add(uint32(abi.UverbsExtended|abi.UverbsCreateQP), uint16(9), uint16(5), make([]byte, 16+72))
	f.Fuzz(func(t *testing.T, command uint32, in, out uint16, body []byte) {
		e := newEnd(t, nil)
		b := append(abi.Append(nil, &abi.UverbsHeader{Command: command, InWords: in,
			OutWords: out}), body...)
		if n, err := e.prog.File(e.fd).Write(b); err != nil && errnoOf(err) == 0 || err == nil &&
			n != len(b) {
			t.Errorf("%d bytes taken, %v", n, err)
		}
		var resp abi.QueryQPResp
		if err := e.command(abi.UverbsQueryQP, &abi.QueryQP{QPHandle: e.qp.handle}, nil, &resp,
			nil); err != nil &&
			command != abi.UverbsDestroyQP {
			t.Errorf("after it: %v", err)
		}
	})
}

// TestLateEvents: an event that is being raised while its object is destroyed is not sent
// afterwards, because the program would follow a pointer to freed memory.
func TestLateEvents(t *testing.T) {
	e := newEnd(t, nil)
	ch := e.channel()
	defer e.prog.close(ch)
	srq := e.createSRQ(abi.CreateSRQ{PDHandle: e.pd, MaxWR: 1, MaxSGE: 1, UserHandle: 11})
	cq := e.createCQ(1, ch, 22)
	q := e.createQP(abi.CreateQP{PDHandle: e.pd, SendCQHandle: cq.handle, RecvCQHandle: cq.handle,
		MaxSendWR: 1, MaxRecvWR: 1, QPType: typeRC, UserHandle: 33})
	h := &e.prog.File(e.fd).(*uverbsFile).handles
	s, err := lookup[*sharedQueue](h, srq.handle)
	if err != nil {
		t.Fatal(err)
	}
	c, err := lookup[*completionQueue](h, cq.handle)
	if err != nil {
		t.Fatal(err)
	}
	qp, err := lookup[*queuePair](h, q.handle)
	if err != nil {
		t.Fatal(err)
	}
	late := func() {
		s.ring.low()
		c.file.raise(ibverbs.EventCQErr, c.user, &c.asyncFired)
		c.ring.Notify()
		qp.file.raise(ibverbs.EventSQDrained, qp.user, &qp.asyncFired)
	}

	// Earlier events are withdrawn and not reported.
	late()
	var gone abi.DestroyResp
	var goneCQ abi.DestroyCQResp
	e.must(abi.UverbsDestroyQP, &abi.DestroyQP{QPHandle: q.handle}, nil, &gone, nil)
	if gone.EventsReported != 0 {
		t.Errorf("%d events of the QP reported, and none was read", gone.EventsReported)
	}
	e.must(abi.UverbsDestroySRQ, &abi.DestroySRQ{SRQHandle: srq.handle}, nil, &gone, nil)
	if gone.EventsReported != 0 {
		t.Errorf("%d events of the SRQ reported, and none was read", gone.EventsReported)
	}
	e.must(abi.UverbsDestroyCQ, &abi.DestroyCQ{CQHandle: cq.handle}, nil, &goneCQ, nil)
	if goneCQ != (abi.DestroyCQResp{}) {
		t.Errorf("events of the CQ reported: %s, and none was read", abi.Format(&goneCQ))
	}
	late()
	if !quiet(e.async) {
		t.Errorf("an event after the destruction: %s", abi.Format(e.asyncEvent()))
	}
	if !quiet(ch) {
		t.Error("a completion event after the destruction")
	}
}

// peerLeaves is a device on which the peer ends a QP's connection right after Query, so Query
// returns RTS although the QP has left it.
type peerLeaves struct{ provider.Provider }

type peerLeavesDevice struct{ provider.Device }

type peerLeavesPD struct{ provider.PD }

type peerLeavesQP struct {
	provider.QP
	queried bool
}

func (p peerLeaves) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return peerLeavesDevice{d}, err
}

func (d peerLeavesDevice) AllocPD() (provider.PD, error) {
	pd, err := d.Device.AllocPD()
	return peerLeavesPD{pd}, err
}

func (pd peerLeavesPD) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	q, err := pd.PD.CreateQP(init)
	return &peerLeavesQP{QP: q}, err
}

func (q *peerLeavesQP) Query() (provider.QPAttr, provider.QPInitAttr, error) {
	attr, init, err := q.QP.Query()
	if !q.queried {
		attr.State, q.queried = provider.QPRTS, true
	}
	return attr, init, err
}

// TestBothDisconnect: if two programs disconnect at once, neither gets an error, as with siw. The
// peer may end the connection between the query of the state and its change.
func TestBothDisconnect(t *testing.T) {
	for _, to := range []ibverbs.QPState{ibverbs.QPSQD, ibverbs.QPSQE} {
		vctx := testkit.Must(ibverbs.Open(peerLeaves{engine.New(nil)}, ""))(t)
		pd := testkit.Must(vctx.AllocPD())(t)
		cq := testkit.Must(vctx.CreateCQ(1, nil))(t)
		q := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq,
			Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
		if err := (&queuePair{qp: q}).modifyState(to, false); err != nil {
			t.Errorf("to %s: %v", to, err)
		}
		testkit.OK(t, q.Close())
		testkit.OK(t, cq.Close())
		testkit.OK(t, pd.Close())
		testkit.OK(t, vctx.Close())
	}
}
