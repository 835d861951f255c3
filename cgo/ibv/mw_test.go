//go:build cgo && linux && !nokernel

package ibv

import (
	"testing"
	"unsafe"
)

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
	if got.mw != unsafe.Pointer(mw) || got.rkey != 0x12345678 || got.mr != unsafe.Pointer(mr) || got.addr != 0x1122334455667788 || got.length != 1<<40 || got.access != 6 {
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
