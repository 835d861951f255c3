//go:build linux

package engine

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestTCPOptions: the sockets get the program's options (package transport asks the kernel for
// each), and those that the engine has of its own: with CRC segments of a multiple of four bytes,
// and buffers for connections within the host. Open reports what can't be, by name.
func TestTCPOptions(t *testing.T) {
	set := transport.TCPOptions{
		CongestionControl: "reno", SendBuffer: 64 << 10, ReceiveBuffer: 64 << 10, DSCP: 8, Device: "lo",
		KeepAlive: transport.KeepAlive{Idle: time.Minute}, UserTimeout: time.Second,
		MaxSegment: 1000, LocalReceiveBuffer: 1 << 20, LocalSendBuffer: 1 << 20,
	}
	own := transport.TCPOptions{MaxSegment: policy.RecordSegment,
		LocalReceiveBuffer: policy.LocalReceiveBuffer, LocalSendBuffer: policy.LocalSendBuffer}
	long, none := own, own
	long.MaxSegment = 0
	none.LocalReceiveBuffer, none.LocalSendBuffer = -1, -1
	for _, tc := range []struct {
		opts Options
		want transport.TCPOptions
	}{
		{Options{}, own},
		{Options{CRC: CRCRequired}, own},
		{Options{CRC: CRCOff}, long},
		{Options{TCP: set}, set},
		{Options{TCP: transport.TCPOptions{LocalReceiveBuffer: -1, LocalSendBuffer: -1}}, none},
	} {
		d := testkit.Must(New(&tc.opts).Open(""))(t).(*device)
		testkit.Equal(t, "the options", d.opts.Network.(*transport.TCP).Options(), tc.want)
		testkit.OK(t, d.Close())
	}
	_, err := New(&Options{TCP: transport.TCPOptions{CongestionControl: "no-such-thing"}}).Open("")
	wantErr(t, err, syscall.ENOENT)
	if !strings.Contains(err.Error(), `CongestionControl = "no-such-thing"`) {
		t.Errorf("%v does not name the option", err)
	}
}
