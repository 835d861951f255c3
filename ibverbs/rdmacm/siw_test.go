package rdmacm_test

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
)

// What the tests ask for the device that they run on, where devices differ.
var onSiw, onRxe, onKernel = ondevice.OnSiw, ondevice.OnRxe, ondevice.OnKernel

// repeats returns how often a test does something: engine, or kernel on a device of the kernel,
// where a connection takes much longer.
func repeats(engine, kernel int) int {
	if onKernel() {
		return kernel
	}
	return engine
}

// elsewhere are the tests that run on siw, too, and the examples.
const elsewhere = "^TestConn|^TestNames$|^TestLinkLocal$|^Example"

// TestOnSiw runs them on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// onlyOnRxe are those of them that run on rxe: what rxe does otherwise, names and addresses, and
// one for each way to use a connection. They show that nothing in this package is bound to siw;
// what connections do on rxe shows in kernel.TestRxe.
const onlyOnRxe = "^TestConn(PrivateData|ReceiverOfWritesWithImm|PeerDisconnectsUnasked|AnswerBeforeAccept|" +
	"ShutdownDelivers|NobodyThere|SharedParts|Do|DoFaults|DoOfMany|Receiver|ReceiverOfSRQ|ReceiverFaults|" +
	"Messages|SendBytesOfMany)$" +
	"|^TestNames$|^TestLinkLocal$|^Example"

// TestOnRxe runs them.
func TestOnRxe(t *testing.T) { ondevice.Run(t, ondevice.Rxe, onlyOnRxe, nil) }

// notOnSiw are those that siw lacks the means for.
var notOnSiw = map[string]string{
	"TestConnReadDepths":              "siw does not report the depths that it has negotiated",
	"TestConnReceiverOfWritesWithImm": "siw has no immediate data",
	"TestConnAnswerBeforeDial": "the accepting side sends before the dialling one has read its " +
		"Reply, and siw refuses bytes after a Reply (kernel-notes/siw-responder-speaks-first.md)",
}
