package bridge

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestHandleNumbers: a new object gets the lowest free number.
func TestHandleNumbers(t *testing.T) {
	var h handles
	for want := range uint32(100) {
		if got := h.add(int(want)); got != want {
			t.Fatalf("number %d, want %d", got, want)
		}
	}
	for _, id := range []uint32{70, 3, 50} {
		if err := remove(&h, id, func(int) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []uint32{3, 50, 70, 100} {
		if got := h.add("new"); got != want {
			t.Errorf("number %d, want %d", got, want)
		}
	}
}

// TestHandleCost: allocating a number takes about the same time with many objects as with few, even
// if the lowest number is freed again and again.
func TestHandleCost(t *testing.T) {
	const few, many = 1 << 6, 1 << 18
	cost := func(objects int) time.Duration {
		var h handles
		for i := range objects {
			h.add(i)
		}
		began := time.Now()
		for range 100 {
			testkit.OK(t, remove(&h, 0, func(int) error { return nil }))
			low, high := h.add(0), h.add(0)
			if low != 0 || high != uint32(objects) {
				t.Fatalf("numbers %d and %d, want 0 and %d", low, high, objects)
			}
			testkit.OK(t, remove(&h, high, func(int) error { return nil }))
		}
		return time.Since(began)
	}
	testkit.Once(t, func() error {
		if a, b := cost(few), cost(many); b > 50*a {
			return fmt.Errorf("%v beside %d objects, %v beside %d", a, few, b, many)
		}
		return nil
	})
}

// A handled command names an object; handle makes its request.
type handled struct {
	number   uint32
	destroys bool
	request  func(handle uint32) any
	resp     any
	driver   any
	respSiw  any
}

// handledCommands returns all commands that name an object; the other objects in them are valid.
func (e *libEnd) handledCommands(srq uint32, mr *libMR) map[string]handled {
	qp := abi.CreateQP{PDHandle: e.pd, SendCQHandle: e.cq.handle, RecvCQHandle: e.cq.handle,
		MaxSendWR: 1, MaxRecvWR: 1, QPType: typeRC}
	createQP := func(change func(*abi.CreateQP, uint32)) handled {
		return handled{abi.UverbsCreateQP, false, func(h uint32) any {
			q := qp
			change(&q, h)
			return &q
		}, &abi.CreateQPResp{}, nil, &abi.SiwCreateQPResp{}}
	}
	return map[string]handled{
		"dealloc_pd": {abi.UverbsDeallocPD, true,
			func(h uint32) any { return &abi.DeallocPD{PDHandle: h} }, nil, nil, nil},
		"dereg_mr": {abi.UverbsDeregMR, true,
			func(h uint32) any { return &abi.DeregMR{MRHandle: h} }, nil, nil, nil},
		"destroy_cq": {abi.UverbsDestroyCQ, true,
			func(h uint32) any { return &abi.DestroyCQ{CQHandle: h} }, &abi.DestroyCQResp{}, nil, nil},
		"destroy_qp": {abi.UverbsDestroyQP, true,
			func(h uint32) any { return &abi.DestroyQP{QPHandle: h} }, &abi.DestroyResp{}, nil, nil},
		"destroy_srq": {abi.UverbsDestroySRQ, true,
			func(h uint32) any { return &abi.DestroySRQ{SRQHandle: h} }, &abi.DestroyResp{}, nil, nil},
		"reg_mr": {abi.UverbsRegMR, false, func(h uint32) any {
			return &abi.RegMR{Start: mr.addr, HCAVA: mr.addr, Length: 1, AccessFlags: 1, PDHandle: h}
		}, &abi.RegMRResp{}, &abi.SiwRegMRReq{}, &abi.SiwRegMRResp{}},
		"create_srq": {abi.UverbsCreateSRQ, false,
			func(h uint32) any { return &abi.CreateSRQ{PDHandle: h, MaxWR: 1, MaxSGE: 1} },
			&abi.CreateSRQResp{}, nil, &abi.SiwCreateSRQResp{}},
		"create_qp, PD":      createQP(func(q *abi.CreateQP, h uint32) { q.PDHandle = h }),
		"create_qp, send CQ": createQP(func(q *abi.CreateQP, h uint32) { q.SendCQHandle = h }),
		"create_qp, recv CQ": createQP(func(q *abi.CreateQP, h uint32) { q.RecvCQHandle = h }),
		"create_qp, SRQ": createQP(func(q *abi.CreateQP, h uint32) {
			q.IsSRQ, q.SRQHandle = 1, h
		}),
		"query_qp": {abi.UverbsQueryQP, false,
			func(h uint32) any { return &abi.QueryQP{QPHandle: h} }, &abi.QueryQPResp{}, nil, nil},
		"modify_qp": {abi.UverbsModifyQP, false,
			func(h uint32) any { return &abi.ModifyQP{QPHandle: h} }, nil, nil, nil},
		"post_send": {abi.UverbsPostSend, false,
			func(h uint32) any { return &abi.PostSend{QPHandle: h, WQESize: 128} },
			&abi.PostResp{}, nil, nil},
		"query_srq": {abi.UverbsQuerySRQ, false,
			func(h uint32) any { return &abi.QuerySRQ{SRQHandle: h} }, &abi.QuerySRQResp{}, nil, nil},
		"modify_srq": {abi.UverbsModifySRQ, false,
			func(h uint32) any { return &abi.ModifySRQ{SRQHandle: h, AttrMask: srqLimit} },
			nil, nil, nil},
	}
}

// objects counts the program's objects on a device, and its descriptors.
func (d *libDevice) objects() (objects, descriptors int) {
	h := &d.prog.File(d.fd).(*uverbsFile).handles
	d.prog.mu.Lock()
	defer d.prog.mu.Unlock()
	return len(all[any](h)), len(d.prog.files) + len(d.prog.owned)
}

// TestHandles: commands with an object that does not exist, is of another kind, or belongs to
// another descriptor (rdma_lookup_get_uobject).
//
//rfc:5040 RDMAP-8.1.1-9-01 CQ not shared between distrusting ULPs
//rfc:5042 SEC-7.1-01 CQ not shared across distrusting ULPs
func TestHandles(t *testing.T) {
	e := newEnd(t, nil)
	other := openDevice(t, e.b, e.prog)
	defer other.close()
	for range 20 {
		other.allocPD() // with numbers that e does not have
	}
	mr := e.regMR(e.pd, 4096, 1)
	srq := e.createSRQ(abi.CreateSRQ{PDHandle: e.pd, MaxWR: 1, MaxSGE: 1})
	was, had := e.objects()
	for name, x := range e.handledCommands(srq.handle, mr) {
		t.Run(name, func(t *testing.T) {
			try := func(what string, want syscall.Errno, handle uint32) {
				t.Helper()
				if err := e.command(x.number, x.request(handle), x.driver, x.resp,
					x.respSiw); !errors.Is(err, want) {
					t.Errorf("%s: %v, want %v", what, err, want)
				}
			}
			try("no such object", syscall.ENOENT, 9999)
			try("the highest number", syscall.ENOENT, ^uint32(0))
			try("an object of another descriptor", syscall.ENOENT, 19)
			for kind, handle := range map[string]uint32{"PD": e.pd, "MR": mr.MRHandle,
				"CQ": e.cq.handle, "QP": e.qp.handle, "SRQ": srq.handle} {
				if !x.names(kind) {
					try(kind+" instead", syscall.EINVAL, handle)
				}
			}
		})
	}
	if now, has := e.objects(); now != was || has != had {
		t.Errorf("%d objects and %d descriptors, want %d and %d", now, has, was, had)
	}
	// While one thread destroys an object, another thread cannot.
	h := &e.prog.File(e.fd).(*uverbsFile).handles
	err := remove(h, srq.handle, func(s *sharedQueue) error {
		e.wantErrno("an SRQ that is being destroyed", syscall.EBUSY, abi.UverbsDestroySRQ,
			&abi.DestroySRQ{SRQHandle: srq.handle}, nil, &abi.DestroyResp{}, nil)
		e.wantErrno("asking about it", syscall.EBUSY, abi.UverbsQuerySRQ,
			&abi.QuerySRQ{SRQHandle: srq.handle}, nil, &abi.QuerySRQResp{}, nil)
		return s.destroy()
	})
	if err != nil {
		t.Error(err)
	}
}

// names reports whether a command names objects of a kind.
func (x handled) names(kind string) bool {
	switch r := x.request(77).(type) {
	case *abi.DeallocPD, *abi.RegMR, *abi.CreateSRQ:
		return kind == "PD"
	case *abi.DeregMR:
		return kind == "MR"
	case *abi.DestroyCQ, *abi.ReqNotifyCQ:
		return kind == "CQ"
	case *abi.DestroyQP, *abi.QueryQP, *abi.ModifyQP, *abi.PostSend:
		return kind == "QP"
	case *abi.CreateQP:
		return kind == "PD" && r.PDHandle == 77 || kind == "SRQ" && r.SRQHandle == 77 ||
			kind == "CQ" && (r.SendCQHandle == 77 || r.RecvCQHandle == 77)
	}
	return kind == "SRQ"
}

// TestCutShort: each command cut short, with a length that differs from its header, and with too
// little room for the answer.
func TestCutShort(t *testing.T) {
	e := newEnd(t, nil)
	mr := e.regMR(e.pd, 4096, 1)
	srq := e.createSRQ(abi.CreateSRQ{PDHandle: e.pd, MaxWR: 1, MaxSGE: 1})
	_, addr := e.prog.alloc(4096)
	was, had := e.objects()
	for number, c := range abi.UverbsCommands {
		if _, ok := uverbsCommands[number]; !ok && number != abi.UverbsPostSend {
			continue // siw does not have it
		}
		size := 8 + abi.Size(c.Request)
		room := 0
		if c.Response != nil {
			room = abi.Size(c.Response)
		}
		try := func(what string, want syscall.Errno, says, out, n int) {
			t.Helper()
			b := abi.Append(nil, &abi.UverbsHeader{Command: number, InWords: uint16(says / 4),
				OutWords: uint16(out / 4)})
			b = append(append(b, abi.Append(nil, &abi.Response{Response: addr})...), make([]byte, 999)...)
			if err := e.write(b[:n]); !errors.Is(err, want) {
				t.Errorf("%s: %s: %v, want %v", c.Name, what, err, want)
			}
		}
		for n := 8; n < size; n += 4 {
			if number == abi.UverbsDestroyCQ && n == 16 {
				continue // rdma-core 18 writes this
			}
			try("cut short", syscall.ENOSPC, n, room, n)
		}
		for _, n := range []int{0, 1, 7} {
			try("without a header", syscall.EINVAL, size, room, n)
		}
		try("shorter than it says", syscall.EINVAL, size+4, room, size)
		try("longer than it says", syscall.EINVAL, size-4, room, size)
		try("with a byte more", syscall.EINVAL, size, room, size+1)
		if room > 0 {
			try("with less room for the answer", syscall.ENOSPC, size, room-4, size)
			try("with no room for the answer", syscall.ENOSPC, size, 0, size)
		}
	}
	if now, has := e.objects(); now != was || has != had {
		t.Errorf("%d objects and %d descriptors, want %d and %d", now, has, was, had)
	}
	for _, x := range e.handledCommands(srq.handle, mr) {
		if x.names("QP") && !x.destroys {
			if err := e.command(x.number, x.request(e.qp.handle), x.driver, x.resp,
				x.respSiw); err != nil && !errors.Is(err, syscall.EINVAL) &&
				!errors.Is(err, syscall.ENOTCONN) {
				t.Errorf("%s afterwards: %v", abi.UverbsCommands[x.number].Name, err)
			}
		}
	}
}

// TestNoAnswer: a command whose answer cannot be written returns EFAULT and makes nothing.
func TestNoAnswer(t *testing.T) {
	e := newEnd(t, nil)
	mr := e.regMR(e.pd, 4096, 1)
	srq := e.createSRQ(abi.CreateSRQ{PDHandle: e.pd, MaxWR: 1, MaxSGE: 1})
	fresh, err := e.b.OpenUverbs(0)
	if err != nil {
		t.Fatal(err)
	}
	defer e.prog.close(fresh)
	was, had := e.objects()
	try := func(fd int, number uint32, req any, driver any, resp, siw any) {
		t.Helper()
		room := abi.Size(resp)
		if siw != nil {
			room += abi.Size(siw)
		}
		body := abi.Append(nil, req)
		copy(body, abi.Append(nil, &abi.Response{Response: 8}))
		if driver != nil {
			body = abi.Append(body, driver)
		}
		b := abi.Append(nil, &abi.UverbsHeader{Command: number, InWords: uint16((8 + len(body)) / 4),
			OutWords: uint16(room / 4)})
		if _, err := e.prog.File(fd).Write(append(b, body...)); !errors.Is(err, syscall.EFAULT) {
			t.Errorf("%s: %v, want EFAULT", abi.UverbsCommands[number].Name, err)
		}
	}
	try(fresh, abi.UverbsGetContext, &abi.Response{}, nil, abi.GetContextResp{},
		abi.SiwAllocCtxResp{})
	try(e.fd, abi.UverbsQueryDevice, &abi.Response{}, nil, abi.QueryDeviceResp{}, nil)
	try(e.fd, abi.UverbsQueryPort, &abi.QueryPort{PortNum: 1}, nil, abi.QueryPortResp{}, nil)
	try(e.fd, abi.UverbsAllocPD, &abi.Response{}, nil, abi.AllocPDResp{}, nil)
	try(e.fd, abi.UverbsCreateCompChannel, &abi.Response{}, nil, abi.CreateCompChannelResp{}, nil)
	try(e.fd, abi.UverbsCreateCQ, &abi.CreateCQ{CQE: 1, CompChannel: int32(e.comp)}, nil,
		abi.CreateCQResp{}, abi.SiwCreateCQResp{})
	commands := e.handledCommands(srq.handle, mr)
	for name, handle := range map[string]uint32{"reg_mr": e.pd, "create_srq": e.pd,
		"create_qp, PD": e.pd, "create_qp, SRQ": srq.handle, "query_qp": e.qp.handle,
		"query_srq": srq.handle} {
		x := commands[name]
		try(e.fd, x.number, x.request(handle), x.driver, x.resp, x.respSiw)
	}
	if now, has := e.objects(); now != was || has != had {
		t.Errorf("%d objects and %d descriptors, want %d and %d", now, has, was, had)
	}
	// The destruction still happens, as with the kernel.
	try(e.fd, abi.UverbsDestroySRQ, &abi.DestroySRQ{SRQHandle: srq.handle}, nil, abi.DestroyResp{},
		nil)
	e.wantErrno("destroying it again", syscall.ENOENT, abi.UverbsDestroySRQ,
		&abi.DestroySRQ{SRQHandle: srq.handle}, nil, &abi.DestroyResp{}, nil)
}

// TestDescriptorsBeyond: a descriptor that the program cannot adopt, because its number is beyond
// the table, is EMFILE, and nothing of it remains.
func TestDescriptorsBeyond(t *testing.T) {
	b, prog := newBridge(t, nil)
	d := openDevice(t, b, prog)
	defer d.close()
	bare := testkit.Must(b.OpenUverbs(unix.O_CLOEXEC))(t)
	defer prog.close(bare)
	without := &libDevice{t: t, prog: prog, fd: bare}
	held := testkit.Must(b.OpenCM(unix.O_CLOEXEC))(t) // otherwise the first one would start goroutines
	defer prog.close(held)
	before := descriptors(t)
	prog.full = true
	defer func() { prog.full = false }()
	ways := map[string]func() error{
		"uverbs": func() error { _, err := b.OpenUverbs(unix.O_CLOEXEC); return err },
		"CM":     func() error { _, err := b.OpenCM(unix.O_CLOEXEC); return err },
		"asynchronous events": func() error {
			return without.command(abi.UverbsGetContext, &abi.Response{}, nil, &abi.GetContextResp{},
				&abi.SiwAllocCtxResp{})
		},
		"completions": func() error {
			return d.command(abi.UverbsCreateCompChannel, &abi.Response{}, nil,
				&abi.CreateCompChannelResp{}, nil)
		},
	}
	const rounds = 32 // so many that what earlier tests still close doesn't count
	for range rounds {
		for name, open := range ways {
			if err := open(); !errors.Is(err, syscall.EMFILE) {
				t.Errorf("%s: %v, want EMFILE", name, err)
			}
		}
	}
	if n := descriptors(t); n > before+rounds/2 {
		t.Errorf("%d descriptors are open after %d rounds, before there were %d", n, rounds, before)
	}
	if b.cm.files != 1 {
		t.Errorf("%d descriptors of rdma_cm are counted, there is 1", b.cm.files)
	}
}

// descriptors returns the process's number of descriptors.
func descriptors(t *testing.T) int {
	t.Helper()
	return len(testkit.Must(os.ReadDir("/proc/self/fd"))(t))
}
