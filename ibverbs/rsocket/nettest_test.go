package rsocket_test

import (
	"net"
	"testing"

	"golang.org/x/net/nettest"

	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// TestNetConn runs x/net's tests for every net.Conn.
func TestNetConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		vctx, addr := device(t)
		a, b := pair(t, vctx, addr, rsocket.Config{}, rsocket.Config{})
		return a, b, func() {
			a.Close()
			b.Close()
		}, nil
	})
}
