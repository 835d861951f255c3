//go:build cgo && linux && !nokernel

package ibv

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
)

// TestSiw tests the calls that need a device but no connection, in the guest of ci/vm. The tests of
// provider/kernel cover the others.
func TestSiw(t *testing.T) {
	if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{})
		return
	}
	if err := ForkInit(); err != nil {
		t.Errorf("ForkInit: %v", err)
	}
	if s := IsForkInitialized(); s != 1 && s != 2 {
		t.Errorf("IsForkInitialized: %d", s)
	}
	ctx := openFirst(t)
	pd, err := ctx.AllocPD()
	check(t, "AllocPD", err)
	if pd.Context() != ctx {
		t.Error("the PD is of another context")
	}
	buf := make([]byte, 4096)
	mr, err := pd.RegMR(unsafe.Pointer(&buf[0]), len(buf), 1)
	check(t, "RegMR", err)
	if mr.LKey() == 0 || mr.RKey() == 0 {
		t.Errorf("lkey %#x, rkey %#x", mr.LKey(), mr.RKey())
	}
	testQueues(t, ctx, pd, mr, buf)
	testSRQ(t, pd, mr, buf)
	testInvalidKey(t, ctx)
	if err := pd.Dealloc(); err != syscall.EBUSY {
		t.Errorf("Dealloc of a PD with an MR: %v", err)
	}
	check(t, "Dereg", mr.Dereg())
	check(t, "Dealloc", pd.Dealloc())
	check(t, "Close", ctx.Close())
}

func check(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func openFirst(t *testing.T) *Context {
	t.Helper()
	list, err := GetDeviceList()
	check(t, "GetDeviceList", err)
	defer list.Free()
	if len(list.Devices) == 0 {
		t.Fatal("no device")
	}
	d := list.Devices[0]
	if d.Name() != os.Getenv("VM_LINK") || d.NodeType() != 4 || d.TransportType() != 1 || d.GUID() == 0 || d.Index() < 0 || d.IBDevPath() == "" {
		t.Errorf("device %q, node type %d, transport %d, guid %#x, index %d, path %q", d.Name(), d.NodeType(), d.TransportType(), d.GUID(), d.Index(), d.IBDevPath())
	}
	ctx, err := OpenDevice(d)
	check(t, "OpenDevice", err)
	if ctx.Device() != d || ctx.NumCompVectors() < 1 {
		t.Errorf("opened %v with %d completion vectors", ctx.Device(), ctx.NumCompVectors())
	}
	attr, err := ctx.QueryDevice()
	check(t, "QueryDevice", err)
	if attr.VendorID != 0x626d74 || attr.NodeGUID != d.GUID() || attr.MaxSRQ == 0 || attr.MaxSGERd != 1 || attr.FWVer == "" {
		t.Errorf("QueryDevice: %+v", attr)
	}
	port, err := ctx.QueryPort(1)
	check(t, "QueryPort", err)
	if port.State != 4 || port.GIDTblLen != 1 {
		t.Errorf("QueryPort: %+v", port)
	}
	gid, err := ctx.QueryGID(1, 0)
	check(t, "QueryGID", err)
	if gid == ([16]byte{}) {
		t.Error("the GID is zero")
	}
	return ctx
}

func testQueues(t *testing.T, ctx *Context, pd *PD, mr *MR, buf []byte) {
	ch, err := ctx.CreateCompChannel()
	check(t, "CreateCompChannel", err)
	check(t, "non-blocking", errors.Join(syscall.SetNonblock(ch.FD(), true), syscall.SetNonblock(ctx.AsyncFD(), true)))
	if _, _, err := ch.GetCQEvent(); err != syscall.EAGAIN {
		t.Errorf("GetCQEvent of nothing: %v", err)
	}
	if _, err := ctx.GetAsyncEvent(); err != syscall.EAGAIN {
		t.Errorf("GetAsyncEvent of nothing: %v", err)
	}
	cq, err := ctx.CreateCQ(10, 77, ch, 0)
	check(t, "CreateCQ", err)
	if cq.CQE() < 10 {
		t.Errorf("CQ of %d entries", cq.CQE())
	}
	attr := QPInitAttr{Token: 88, SendCQ: cq, RecvCQ: cq, Cap: QPCap{MaxSendWR: 5, MaxRecvWR: 5, MaxSendSGE: 2, MaxRecvSGE: 2, MaxInlineData: 16}, Type: 2, SQSigAll: true}
	qp, err := pd.CreateQP(&attr)
	check(t, "CreateQP", err)
	got, init, err := qp.Query(1 << 19) // IBV_QP_CAP
	check(t, "Query", err)
	if got.Cap.MaxSendWR < 5 || init.Token != 88 || init.SendCQ != cq || init.RecvCQ != cq || init.SRQ != nil || init.Type != 2 {
		t.Errorf("Query: %+v, %+v", got, init)
	}
	if err := ch.Destroy(); err != syscall.EBUSY {
		t.Errorf("Destroy of a channel with a CQ: %v", err)
	}

	// A receive on a QP in the error state: siw flushes earlier ones.
	b, err := NewRecvBatch(1, 1)
	check(t, "NewRecvBatch", err)
	defer b.Free()
	b.Add(99)
	b.AddSGE(uint64(uintptr(unsafe.Pointer(&buf[0]))), 8, mr.LKey())
	if n, err := qp.PostRecv(b); n != 1 || err != nil {
		t.Errorf("PostRecv: %d, %v", n, err)
	}
	check(t, "ReqNotify", cq.ReqNotify(false))
	check(t, "Modify", qp.Modify(&QPAttr{State: 6}, 1))
	wcs, err := NewWCBatch(4)
	check(t, "NewWCBatch", err)
	defer wcs.Free()
	n := 0
	for end := time.Now().Add(time.Minute); n == 0 && time.Now().Before(end); {
		n, err = cq.Poll(wcs, 10)
		check(t, "Poll", err)
	}
	if n != 1 || wcs.At(0).WRID() != 99 || wcs.At(0).Status() != 5 || wcs.At(0).QPNum() != qp.QPNum() {
		t.Errorf("%d completions, the first %d: status %d of qp %d", n, wcs.At(0).WRID(), wcs.At(0).Status(), wcs.At(0).QPNum())
	}
	from, token, err := ch.GetCQEvent()
	check(t, "GetCQEvent", err)
	if from != cq || token != 77 {
		t.Errorf("event of CQ %p with token %d", from, token)
	}
	cq.AckEvents(1)
	check(t, "destroy the queues", errors.Join(qp.Destroy(), cq.Destroy(), ch.Destroy()))
}

func testSRQ(t *testing.T, pd *PD, mr *MR, buf []byte) {
	attr := SRQAttr{MaxWR: 5, MaxSGE: 2}
	srq, err := pd.CreateSRQ(&attr, 66)
	check(t, "CreateSRQ", err)
	check(t, "Modify", srq.Modify(SRQAttr{Limit: 2}, 2)) // IBV_SRQ_LIMIT
	// The kernel's siw supports it, but libsiw does not pass the call on.
	if got, err := srq.Query(); err != syscall.EOPNOTSUPP {
		t.Errorf("Query: %+v, %v", got, err)
	}
	if attr.MaxWR < 5 || attr.MaxWR > 16 || attr.MaxSGE < 2 {
		t.Errorf("granted: %+v", attr)
	}
	b, err := NewRecvBatch(16, 1)
	check(t, "NewRecvBatch", err)
	defer b.Free()
	for i := range 16 {
		b.Add(uint64(i))
		b.AddSGE(uint64(uintptr(unsafe.Pointer(&buf[0]))), 8, mr.LKey())
	}
	if n, err := srq.PostRecv(b); n != 8 || err != syscall.ENOMEM {
		t.Errorf("PostRecv of 16 to an SRQ that siw rounds up to 8: %d, %v", n, err)
	}
	check(t, "Destroy", srq.Destroy())
}

// testInvalidKey makes the kernel assign all mmap keys below the one that libsiw takes to mean
// "none"; each CQ of one entry takes one. Then nothing more can be created until a reservation has
// that key.
func testInvalidKey(t *testing.T, ctx *Context) {
	var cqs []*CQ
	create := func() error {
		cq, err := ctx.CreateCQ(1, 0, nil, 0)
		if err == nil {
			cqs = append(cqs, cq)
		}
		return err
	}
	below := SiwInvalidKey / os.Getpagesize()
	for range below {
		check(t, "CreateCQ", create())
	}
	for range 3 {
		if err := create(); err != syscall.EIO {
			t.Errorf("a CQ at page %d: %v; has libsiw been corrected?", below, err)
		}
	}
	// Lower keys that become free are used first.
	check(t, "Destroy", cqs[10].Destroy())
	cqs = append(cqs[:10], cqs[11:]...)
	low, err := ctx.SiwReserve()
	check(t, "SiwReserve", err)
	if low.Key != uint64(10*os.Getpagesize()) {
		t.Errorf("key %#x, the lowest that is free is that of page 10", low.Key)
	}
	r, err := ctx.SiwReserve()
	check(t, "SiwReserve", err)
	if r.Key != SiwInvalidKey {
		t.Errorf("key %#x, expected %#x", r.Key, SiwInvalidKey)
	}
	check(t, "Release", low.Release())
	for range 100 {
		check(t, "CreateCQ with the key reserved", create())
	}
	check(t, "Release", r.Release())
	if err := create(); err != syscall.EIO {
		t.Errorf("a CQ after Release: %v", err)
	}
	for _, cq := range cqs {
		check(t, "Destroy", cq.Destroy())
	}
}
