package memnet_test

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport/transporttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func harness(opts *memnet.Options, addr string) transporttest.Harness {
	return transporttest.Harness{
		Network:  memnet.New(opts),
		Local:    netip.AddrPortFrom(netip.MustParseAddr(addr), 0),
		NotLocal: netip.MustParseAddr("198.51.100.7"),
		NoRoute:  netip.MustParseAddr("203.0.113.7"),
	}
}

func TestContract(t *testing.T) {
	for _, tc := range []struct {
		name string
		addr string
		opts memnet.Options
	}{
		{"instant", "192.0.2.1", memnet.Options{}},
		{"instant over IPv6", "2001:db8::1", memnet.Options{}},
		{"cut to pieces", "192.0.2.1", memnet.Options{Seed: 7, Cut: true}},
		{"slow", "192.0.2.2", memnet.Options{Seed: 8, MinDelay: time.Millisecond, MaxDelay: 5 * time.Millisecond}},
		{"slow and cut to pieces", "192.0.2.2", memnet.Options{Seed: 9, MaxDelay: time.Second, Cut: true, Window: 3000}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			transporttest.Run(t, func(t *testing.T, test func(*testing.T, transporttest.Harness)) {
				synctest.Test(t, func(t *testing.T) { test(t, harness(&tc.opts, tc.addr)) })
			})
		})
	}
}
