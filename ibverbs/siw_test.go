package ibverbs_test

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
)

// Questions of the tests about the device that they run on, where devices differ.
var onSiw, onRxe, onKernel = ondevice.OnSiw, ondevice.OnRxe, ondevice.OnKernel

// elsewhere matches the tests and examples that also run on kernel devices: invalid uses, memory,
// queues, SRQs, events and states.
const elsewhere = "^Example|^TestBad|^TestMemory|^TestQueue|^TestSRQ|^TestEvents|^TestStates|^TestWrongUses"

// TestOnSiw runs the tests of elsewhere on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// TestOnRxe runs the tests of elsewhere on rxe.
func TestOnRxe(t *testing.T) { ondevice.Run(t, ondevice.Rxe, elsewhere, notOnRxe) }

// notOnSiw are the tests for which siw lacks features.
var notOnSiw = map[string]string{}

// notOnRxe are the tests for which rxe lacks features.
var notOnRxe = map[string]string{
	"TestEventsSQDrained": "rxe looks whether all is done when there is something to send, and tells whether it was asked to or not: kernel.TestRxe has what holds",
	"TestSRQRunsDry":      "RoCE sends a message without a receive again, and the connection goes on: kernel.TestRxe (receiver not ready)",
	"TestSRQStats":        "RoCE sends a message without a receive again, and the connection goes on",
	"TestStates":          "RC moves with InfiniBand's attributes only: kernel.TestRxe (QP states)",
	"TestWrongUses":       "the table is of iWARP",
}
