package rdmacm_test

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
)

// Questions of the tests about the device that they run on, where devices differ.
var onSiw, onRxe, onKernel = ondevice.OnSiw, ondevice.OnRxe, ondevice.OnKernel

// repeats returns how often a test repeats its steps: engine, or kernel on a kernel device, where a
// connection takes much longer.
func repeats(engine, kernel int) int {
	if onKernel() {
		return kernel
	}
	return engine
}

// elsewhere matches the tests that also run on siw, and the examples.
const elsewhere = "^TestConn|^TestNames$|^TestLinkLocal$|^Example"

// TestOnSiw runs the tests of elsewhere on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// onlyOnRxe are the tests of elsewhere that run on rxe. They cover rxe's differences, names and
// addresses, and each way to use a connection. They show that nothing in this package is bound to
// siw; kernel.TestRxe covers connections on rxe.
const onlyOnRxe = "^TestConn(PrivateData|ReceiverOfWritesWithImm|PeerDisconnectsUnasked|AnswerBeforeAccept|" +
	"ShutdownDelivers|NobodyThere|SharedParts|Do|DoFaults|DoOfMany|Receiver|ReceiverOfSRQ|ReceiverFaults|" +
	"Messages|SendBytesOfMany)$" +
	"|^TestNames$|^TestLinkLocal$|^Example"

// TestOnRxe runs the tests of onlyOnRxe on rxe.
func TestOnRxe(t *testing.T) { ondevice.Run(t, ondevice.Rxe, onlyOnRxe, nil) }

// notOnSiw are the tests for which siw lacks features.
var notOnSiw = map[string]string{
	"TestConnReadDepths":              "siw does not report the depths that it has negotiated",
	"TestConnReceiverOfWritesWithImm": "siw has no immediate data",
	"TestConnAnswerBeforeDial": "the accepting side sends before the dialling one has read its " +
		"Reply, and siw refuses bytes after a Reply (kernel-notes/siw-responder-speaks-first.md)",
}
