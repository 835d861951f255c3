//go:build cgo && linux && !nokernel

package ibv

import (
	"errors"
	"syscall"
	"testing"
	"unsafe"
)

// The batches are plain memory, so tests can check their contents without a device.

func TestSendBatchLinksAndFillsRequests(t *testing.T) {
	b, err := NewSendBatch(3, 2, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()

	w := b.Add(7, 0, 2) // IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED
	w.SetRDMA(0x1122334455667788, 0xa1b2c3d4)
	if !b.AddSGE(0x1000, 10, 1) || !b.AddSGE(0x2000, 20, 2) {
		t.Fatal("no room for the entries that the batch was made for")
	}
	if b.AddSGE(0x3000, 30, 3) {
		t.Error("a third entry was taken by a batch with two per request")
	}
	w = b.Add(8, 3, 8) // IBV_WR_SEND_WITH_IMM, IBV_SEND_INLINE
	w.SetImm(0x01020304)
	if !b.SetInline([]byte("12345678")) {
		t.Fatal("inline data of the size that the batch was made for was refused")
	}
	if b.SetInline([]byte("123456789")) {
		t.Error("nine bytes of inline data were taken by a batch with eight")
	}
	w = b.Add(9, 5, 0) // IBV_WR_ATOMIC_CMP_AND_SWP
	w.SetAtomic(1, 2, 3, 4)
	if !b.Full() {
		t.Error("the batch is not full with three of three requests")
	}

	first, second, third := &b.wrs[0], &b.wrs[1], &b.wrs[2]
	if unsafe.Pointer(first.next) != unsafe.Pointer(second) || unsafe.Pointer(second.next) != unsafe.Pointer(third) || third.next != nil {
		t.Error("the requests are not linked in order")
	}
	if first.wr_id != 7 || first.opcode != 0 || first.send_flags != 2 || first.num_sge != 2 {
		t.Errorf("first request: %+v", *first)
	}
	if got := *(*uint64)(unsafe.Pointer(&first.wr[0])); got != 0x1122334455667788 {
		t.Errorf("remote_addr = %#x", got)
	}
	if got := *(*uint32)(unsafe.Pointer(&first.wr[8])); got != 0xa1b2c3d4 {
		t.Errorf("rkey = %#x", got)
	}
	if got := (*[4]byte)(unsafe.Pointer(&second.anon0)); *got != [4]byte{1, 2, 3, 4} {
		t.Errorf("imm_data = % x, want network order", *got)
	}
	sge := (*SGE)(second.sg_list)
	slot := b.inline[8:16] // the second request's
	if sge.length != 8 || uint64(sge.addr) != uint64(uintptr(unsafe.Pointer(&slot[0]))) || string(slot) != "12345678" {
		t.Errorf("inline entry: %+v", *sge)
	}

	b.Drop()
	if b.Len() != 2 || second.next != nil {
		t.Error("Drop left the last request on the list")
	}
	b.Reset()
	b.Add(10, 2, 0)
	if b.Len() != 1 || first.next != nil || first.num_sge != 0 {
		t.Errorf("a request added after Reset keeps the old one's fields: %+v", *first)
	}
}

func TestRecvBatchLinksAndFillsRequests(t *testing.T) {
	b, err := NewRecvBatch(2, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	b.Add(1)
	if !b.AddSGE(0x1000, 10, 5) || b.AddSGE(0, 0, 0) {
		t.Error("a batch with one entry per request took none, or two")
	}
	b.Add(2)
	if !b.Full() || b.Len() != 2 || b.wrs[0].next == nil || b.wrs[1].num_sge != 0 {
		t.Errorf("requests: %+v", b.wrs)
	}
	b.Drop()
	if b.wrs[0].next != nil {
		t.Error("Drop left the last request on the list")
	}
}

func TestBatchesAreFreedTwice(t *testing.T) {
	s, err := NewSendBatch(0, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRecvBatch(0, 0)
	if err != nil {
		t.Fatal(err)
	}
	w, err := NewWCBatch(0)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		s.Free()
		r.Free()
		w.Free()
	}
}

func TestFillingABatchDoesNotAllocate(t *testing.T) {
	b, err := NewSendBatch(4, 4, 64)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	payload := make([]byte, 64)
	if n := testing.AllocsPerRun(100, func() {
		b.Reset()
		for i := range 4 {
			b.Add(uint64(i), 0, 0).SetRDMA(1, 2)
			b.AddSGE(1, 2, 3)
			b.SetInline(payload)
		}
	}); n != 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

func TestResultConventions(t *testing.T) {
	if err := errnoResult(22); err != syscall.EINVAL {
		t.Errorf("positive errno: %v", err)
	}
	if err := errnoResult(-22); err != syscall.EINVAL {
		t.Errorf("negative errno: %v", err)
	}
	if err := errnoResult(0); err != nil {
		t.Errorf("success: %v", err)
	}
	if err := errnoSet(nil); err != syscall.EIO {
		t.Errorf("failure without errno: %v", err)
	}
	if n, err := posted(22<<32 | 5); n != 5 || err != syscall.EINVAL {
		t.Errorf("partial post: %d, %v", n, err)
	}
	if n, err := posted(5); n != 5 || err != nil {
		t.Errorf("full post: %d, %v", n, err)
	}
}

func TestImmediateDataIsInNetworkOrder(t *testing.T) {
	b, err := NewWCBatch(1)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	wc := b.At(0)
	*(*[4]byte)(unsafe.Pointer(&wc.anon0)) = [4]byte{1, 2, 3, 4}
	if wc.Imm() != 0x01020304 {
		t.Errorf("Imm = %#x", wc.Imm())
	}
}

// The host that runs this may have RDMA devices or none; either is a valid result.
func TestDeviceListIsAnAnswer(t *testing.T) {
	l, err := GetDeviceList()
	if err != nil {
		if !errors.As(err, new(syscall.Errno)) {
			t.Fatalf("not an errno: %v", err)
		}
		return
	}
	for _, d := range l.Devices {
		if d.Name() == "" {
			t.Error("a device without a name")
		}
	}
	l.Free()
}

func TestStrings(t *testing.T) {
	for _, s := range []string{WCStatusStr(0), EventTypeStr(0), NodeTypeStr(4), PortStateStr(4)} {
		if s == "" {
			t.Error("an empty name")
		}
	}
	if c := Constants(); c["IBV_WR_SEND"] != 2 || c["IBV_NODE_UNKNOWN"] != -1 {
		t.Errorf("IBV_WR_SEND %d, IBV_NODE_UNKNOWN %d", c["IBV_WR_SEND"], c["IBV_NODE_UNKNOWN"])
	}
}

func BenchmarkSendBatch(b *testing.B) {
	batch, err := NewSendBatch(16, 4, 0)
	if err != nil {
		b.Fatal(err)
	}
	defer batch.Free()
	b.ReportAllocs()
	for b.Loop() {
		batch.Reset()
		for i := range 16 {
			batch.Add(uint64(i), 0, 2).SetRDMA(1, 2)
			batch.AddSGE(1, 2, 3)
		}
	}
}

func TestSendBatchFillsBind(t *testing.T) {
	b, err := NewSendBatch(1, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Free()
	words := cArray[uint64](2) // stand for structs that are only pointed to
	defer cFree(words)
	mw, mr := (*MW)(unsafe.Pointer(&words[0])), (*MR)(unsafe.Pointer(&words[1]))
	w := b.Add(7, 8, 2) // IBV_WR_BIND_MW, IBV_SEND_SIGNALED
	w.SetBind(mw, 0x12345678, &BindInfo{MR: mr, Addr: 0x1122334455667788, Length: 1 << 40, Access: 6})
	got := readBind(w)
	if got.mw != unsafe.Pointer(mw) || got.rkey != 0x12345678 || got.mr != unsafe.Pointer(mr) ||
		got.addr != 0x1122334455667788 || got.length != 1<<40 || got.access != 6 {
		t.Errorf("C sees %+v", got)
	}
	b.Reset()
	if got := readBind(b.Add(8, 0, 0)); got.mw != nil || got.length != 0 {
		t.Errorf("a request added after Reset keeps the old one's window: %+v", got)
	}
	for old, want := range map[uint32]uint32{0: 1, 0x123456ff: 0x12345600, 0xffffffff: 0xffffff00} {
		if got := IncRKey(old); got != want {
			t.Errorf("IncRKey(%#x) is %#x, want %#x", old, got, want)
		}
	}
}
