package rsocket_test

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
)

// onKernel is for tests that ask what device they run on.
var onKernel = ondevice.OnKernel

// elsewhere are the tests that run on siw, too, and the examples.
const elsewhere = "^TestNetConn|^TestConn|^Example"

// TestOnSiw runs them on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// notOnSiw are those that siw lacks the means for, or has no part in.
var notOnSiw = map[string]string{
	"TestConnHTTP": "it is about net/http and TLS on a Conn, and TestNetConn has what they ask of one",
	"TestConnClosesUnderFlood": "siw closes its socket while the peer's bytes are in it, so that " +
		"TCP resets the connection and drops what the peer has not received",
}
