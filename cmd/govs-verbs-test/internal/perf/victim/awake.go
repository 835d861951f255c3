package victim

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"runtime"
	"sync/atomic"
)

// latencyDevice is the file in which a process asks that idle CPUs wake within a number
// of microseconds, as long as it has the file open
// (Documentation/power/pm_qos_interface.rst). Within 0 they poll, and wake as fast when
// the machine has little to do as when it has much. A CPU of a guest that sleeps may take
// milliseconds until its host runs it again.
const latencyDevice = "/dev/cpu_dma_latency"

// keepAwake keeps all CPUs awake until end is called. end is nil if the process may not do
// so, or the kernel can't.
func keepAwake() (end func(), err error) {
	f, err := os.OpenFile(latencyDevice, os.O_WRONLY, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(make([]byte, 4)); err != nil { // a 32-bit number in the CPU's byte order
		return nil, errors.Join(err, f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// stayAwake is for machines where keepAwake is not possible: it has this process use all
// CPU time that no other process wants, as hostile peers do. Peers of this process, which
// wait for their sockets, still get it first.
func stayAwake(ctx context.Context) {
	for ctx.Err() == nil {
		for range 1 << 12 {
			spin.Add(1)
		}
		runtime.Gosched()
	}
}

// spin keeps the compiler from leaving out the loop.
var spin atomic.Uint64
