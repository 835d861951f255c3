package bridge

import (
	"testing"
	"unsafe"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// inlineOf returns the place of the inline data of an element.
func inlineOf(e *abi.SiwSQE) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&e.SGE[1])), abi.SiwMaxInline)
}

// TestElementSizes: the structs of package abi have the same layout in memory as encoded, so the
// queues can be arrays of them.
func TestElementSizes(t *testing.T) {
	for _, x := range []struct {
		name   string
		memory uintptr
		msg    any
	}{
		{"SQE", unsafe.Sizeof(abi.SiwSQE{}), abi.SiwSQE{}},
		{"RQE", unsafe.Sizeof(abi.SiwRQE{}), abi.SiwRQE{}},
		{"CQE", unsafe.Sizeof(abi.SiwCQE{}), abi.SiwCQE{}},
		{"CQ control", unsafe.Sizeof(abi.SiwCQCtrl{}), abi.SiwCQCtrl{}},
	} {
		if int(x.memory) != abi.Size(x.msg) {
			t.Errorf("%s: %d bytes in memory, %d encoded", x.name, x.memory, abi.Size(x.msg))
		}
	}
	for name, off := range map[string]uintptr{"SQE": unsafe.Offsetof(abi.SiwSQE{}.Flags),
		"RQE": unsafe.Offsetof(abi.SiwRQE{}.Flags)} {
		if off != flagsOffset {
			t.Errorf("%s: the flags are at %d, those of a CQE at %d", name, off, flagsOffset)
		}
	}
}
