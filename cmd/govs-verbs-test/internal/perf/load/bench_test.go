package load

import (
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/provider/engine"
)

// BenchmarkEngine has client and server in one process, which says less of the
// engine than the command's processes with a CPU each do; it is for profiles.
func BenchmarkEngine(b *testing.B) {
	for _, op := range Ops() {
		for _, size := range []int{64, 65536, 1 << 20} {
			b.Run(fmt.Sprintf("%s/%d", op, size), func(b *testing.B) {
				c := pair(b, engine.Options{})
				s := Spec{Op: op, Size: size, Iters: 1, TxDepth: 32}
				if op.Latency() {
					s.TxDepth = 1
				}
				run(b, c, s) // connects
				b.SetBytes(int64(size))
				s.Iters = b.N
				b.ResetTimer()
				r := run(b, c, s)
				b.StopTimer()
				b.ReportMetric(r.Client.AllocsPerOp, "allocs/message")
			})
		}
	}
}
