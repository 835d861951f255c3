//go:build !race

package bridge

import (
	"testing"
	"unsafe"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestDoorbellAllocs: posting a Write and taking its completion allocates nothing. Under the race
// detector everything allocates.
func TestDoorbellAllocs(t *testing.T) {
	a, b := newEnd(t, nil), newEnd(t, nil)
	src, dst := a.regMR(a.pd, 64, 1), b.regMR(b.pd, 64, 3)
	connect(t, a, b)
	file := a.prog.File(a.fd)
	request := abi.Append(nil, &abi.UverbsHeader{Command: abi.UverbsPostSend, InWords: 8,
		OutWords: 1})
	_, response := a.prog.alloc(4)
	request = abi.Append(request, &abi.PostSend{Response: response, QPHandle: a.qp.handle,
		WQESize: 128})
	sges := [abi.SiwMaxSGE]abi.SiwSGE{src.sge(0, 64)}
	round := func() {
		at := unsafe.Pointer(&a.qp.sq[uintptr(a.qp.sput%a.qp.nsq)*sqeSize])
		e := (*abi.SiwSQE)(at)
		e.RAddr, e.RKey, e.SGE = dst.addr, dst.RKey, sges
		setHead(at, wqeHead{flags: abi.SiwWQEValid | abi.SiwWQESignalled, numSGE: 1,
			opcode: abi.SiwWrite})
		a.qp.sput++
		if _, err := file.Write(request); err != nil {
			t.Fatal(err)
		}
		for {
			if wc, ok := a.cq.poll(); ok {
				if wc.Status != abi.SiwWCSuccess {
					t.Fatalf("completion %s", abi.Format(wc))
				}
				return
			}
			file.(*uverbsFile).Progress(a.cq.handle)
		}
	}
	for range 50 {
		round()
	}
	if got := testing.AllocsPerRun(500, round); got != 0 {
		t.Errorf("%v allocations for a Write", got)
	}
}
