package rdmacm_test

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
)

// What the tests ask for the device that they run on, where devices differ.
var onSiw, onRxe, onKernel = ondevice.OnSiw, ondevice.OnRxe, ondevice.OnKernel

// elsewhere are the tests that run on devices of the kernel, too, and the examples.
const elsewhere = "^TestConn|^TestNames$|^TestLinkLocal$|^Example"

// TestOnSiw runs them on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// TestOnRxe runs them on rxe.
func TestOnRxe(t *testing.T) { ondevice.Run(t, ondevice.Rxe, elsewhere, notOnRxe) }

// notOnSiw are those that siw lacks the means for.
var notOnSiw = map[string]string{
	"TestConnReadDepths":              "siw does not report the depths that it has negotiated",
	"TestConnReceiverOfWritesWithImm": "siw has no immediate data",
	"TestConnAnswerBeforeDial": "the accepting side sends before the dialling one has read its " +
		"Reply, and siw refuses octets after a Reply (kernel-notes/siw-responder-speaks-first.md)",
}

// notOnRxe are those that rxe lacks the means for.
var notOnRxe = map[string]string{
	"TestConnClientGoesAway": "its clients speak MPA over TCP",
	"TestConnPeerGoesAway":   "its peers speak MPA over TCP",
	"TestConnectOrder":       "RoCE's requests are datagrams, whose order nothing promises",
	"TestConnReadDepths":     "on RoCE the acceptor's depths are what it says",
	"TestConnShutdownNamesTheTerminate": "on RoCE the completion of a Send or Write says what " +
		"the peer made of it",
}
