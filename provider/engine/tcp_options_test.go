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

// TestTCPOptions: the sockets get the options (package transport asks the kernel
// for each), and Open reports what can't be, by name.
func TestTCPOptions(t *testing.T) {
	opts := transport.TCPOptions{
		CongestionControl: "reno", SendBuffer: 64 << 10, ReceiveBuffer: 64 << 10, DSCP: 8, Device: "lo",
		KeepAlive: transport.KeepAlive{Idle: time.Minute}, UserTimeout: time.Second,
	}
	d := testkit.Must(New(&Options{TCP: opts}).Open(""))(t).(*device)
	want := opts
	want.MaxSegment = policy.RecordSegment
	want.LocalReceiveBuffer, want.LocalSendBuffer = policy.LocalReceiveBuffer, policy.LocalSendBuffer
	if got := d.opts.Network.(*transport.TCP).Options(); got != want {
		t.Errorf("options %+v, want %+v", got, want)
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
		{transport.TCPOptions{MaxSegment: 1 << 15}, syscall.EINVAL, "MaxSegment"},
		{transport.TCPOptions{LocalReceiveBuffer: -2}, syscall.EINVAL, "LocalReceiveBuffer"},
		{transport.TCPOptions{LocalSendBuffer: -2}, syscall.EINVAL, "LocalSendBuffer"},
		{transport.TCPOptions{LocalSendBuffer: 1 << 30}, syscall.EINVAL, "LocalSendBuffer"},
	} {
		_, err := New(&Options{TCP: tc.opts}).Open("")
		wantErr(t, err, tc.want)
		if err != nil && !strings.Contains(err.Error(), tc.name) {
			t.Errorf("%v does not name %s", err, tc.name)
		}
	}
}

// TestMaxSegment: connections with CRC have segments of a multiple of four octets. Those without
// have what the path allows, and a value of the program comes first.
func TestMaxSegment(t *testing.T) {
	for _, tc := range []struct {
		opts Options
		want int
	}{
		{Options{}, policy.RecordSegment},
		{Options{CRC: CRCRequired}, policy.RecordSegment},
		{Options{CRC: CRCOff}, 0},
		{Options{TCP: transport.TCPOptions{MaxSegment: 1000}}, 1000},
	} {
		d := testkit.Must(New(&tc.opts).Open(""))(t).(*device)
		if got := d.opts.Network.(*transport.TCP).Options().MaxSegment; got != tc.want {
			t.Errorf("%+v: MaxSegment %d, want %d", tc.opts, got, tc.want)
		}
		testkit.OK(t, d.Close())
	}
}

// TestLocalBuffers: the engine has some of its own, and none where the program wants none.
func TestLocalBuffers(t *testing.T) {
	for _, tc := range []struct{ given, receive, send int }{
		{0, policy.LocalReceiveBuffer, policy.LocalSendBuffer}, {1 << 20, 1 << 20, 1 << 20}, {-1, -1, -1},
	} {
		opts := Options{TCP: transport.TCPOptions{LocalReceiveBuffer: tc.given, LocalSendBuffer: tc.given}}
		d := testkit.Must(New(&opts).Open(""))(t).(*device)
		got := d.opts.Network.(*transport.TCP).Options()
		if got.LocalReceiveBuffer != tc.receive || got.LocalSendBuffer != tc.send {
			t.Errorf("%d: buffers of %d and %d, want %d and %d", tc.given,
				got.LocalReceiveBuffer, got.LocalSendBuffer, tc.receive, tc.send)
		}
		testkit.OK(t, d.Close())
	}
}
