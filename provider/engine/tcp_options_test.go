//go:build linux

package engine

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestTCPOptions: the sockets get the options (package transport asks the kernel
// for each), and Open reports what can't be, by name.
func TestTCPOptions(t *testing.T) {
	opts := transport.TCPOptions{
		CongestionControl: "reno", SendBuffer: 64 << 10, ReceiveBuffer: 64 << 10, DSCP: 8, Device: "lo",
		KeepAlive: transport.KeepAlive{Idle: time.Minute}, UserTimeout: time.Second,
	}
	d := testkit.Must(New(&Options{TCP: opts}).Open(""))(t).(*device)
	if got := d.opts.Network.(*transport.TCP).Options(); got != opts {
		t.Errorf("options %+v, want %+v", got, opts)
	}
	testkit.OK(t, d.Close())
	for _, tc := range []struct {
		opts transport.TCPOptions
		want syscall.Errno
		name string
	}{
		{transport.TCPOptions{CongestionControl: "no-such-thing"}, syscall.ENOENT, `CongestionControl = "no-such-thing"`},
		{transport.TCPOptions{DSCP: 64}, syscall.EINVAL, "DSCP"},
		{transport.TCPOptions{Device: "nosuchif"}, syscall.ENODEV, `Device = "nosuchif"`},
		{transport.TCPOptions{UserTimeout: -1}, syscall.EINVAL, "UserTimeout"},
	} {
		_, err := New(&Options{TCP: tc.opts}).Open("")
		wantErr(t, err, tc.want)
		if err != nil && !strings.Contains(err.Error(), tc.name) {
			t.Errorf("%v does not name %s", err, tc.name)
		}
	}
}
