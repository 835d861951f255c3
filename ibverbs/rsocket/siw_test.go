package rsocket_test

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
)

// onKernel is for tests whose expectations differ by device.
var onKernel = ondevice.OnKernel

// elsewhere matches the tests that also run on siw, and the examples.
const elsewhere = "^TestNetConn|^TestConn|^Example"

// TestOnSiw runs the tests of elsewhere on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// notOnSiw are the tests for which siw lacks features, or which do not involve siw.
var notOnSiw = map[string]string{
	"TestConnHTTP": "it is about net/http and TLS on a Conn, and TestNetConn has what they ask of one",
	"TestConnClosesUnderFlood": "siw closes its socket while the peer's bytes are in it, so that " +
		"TCP resets the connection and drops what the peer has not received",
}
