package rsocket_test

import (
	"io"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestLinger: Close of a connection whose peer takes nothing returns, and says how much is lost.
func TestLinger(t *testing.T) {
	for _, linger := range []time.Duration{200 * time.Millisecond, -1} {
		vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{CloseTimeout: 50 * time.Millisecond}), ""))(t)
		peer, addr := startServer(t, "rsocket", "large")
		d := rsocket.Dialer{Config: rsocket.Config{SendBuffer: 32 << 20, SendQueue: 2000, Linger: linger}}
		c := testkit.Must(d.Dial(timeout(t), vctx, "tcp", addr))(t)
		testkit.Must(io.ReadFull(c, make([]byte, 1)))(t) // it has granted its ring
		testkit.OK(t, peer.Process.Signal(syscall.SIGSTOP))
		testkit.Must(c.Write(make([]byte, 24<<20)))(t)
		began := time.Now()
		err := c.Close()
		took := time.Since(began)
		if linger > 0 {
			wantErr(t, "Close", err, os.ErrDeadlineExceeded, "were not handed to TCP within 200ms")
		} else {
			testkit.OK(t, err)
		}
		if took > patience || linger > 0 && took < linger {
			t.Errorf("Close took %v, with %v", took, linger)
		}
		testkit.OK(t, peer.Process.Kill())
		_ = peer.Wait()
		closeDevice(t, vctx)
	}
}
