//go:build linux

package engine

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestTimerOfManyQPs: if all Ps compute, the timer's goroutine transmits the deferred posts of many
// QPs as soon as it runs. It yields after a turn, not after each QP, because that would take 100 ms
// of computing and more, instead of 20 to 60. The time that others have the CPU does not count.
func TestTimerOfManyQPs(t *testing.T) {
	const n, most = 64, 80 * time.Millisecond
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	testkit.Once(t, func() error {
		_, _, qps := waitingQPs(t, transport.NewTCP(nil), tcpAddr, n, signalledSend(), nil)
		first, last := time.Duration(0), time.Duration(0)
		for began := time.Now(); time.Since(began) < patience; { // it computes
			sent := 0
			for _, s := range qps {
				if s.qp.sq.free.Load() == 3 {
					sent++
				}
			}
			if sent > 0 && first == 0 {
				first = cpuTime(t)
			}
			if sent == n {
				last = cpuTime(t)
				break
			}
		}
		if last == 0 || last-first > most {
			return fmt.Errorf("between the first QP that has sent and the last were %v of computing", last-first)
		}
		return nil
	})
}
