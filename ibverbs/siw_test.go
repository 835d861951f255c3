package ibverbs_test

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/onsiw"
)

// TestOnSiw runs the examples, what nobody should do, and memory on siw.
func TestOnSiw(t *testing.T) {
	onsiw.Run(t, "^Example|^TestBad|^TestMemory|^TestQueue|^TestSRQ|^TestEvents|^TestStates", "TestBadSizes", "TestBadWorkRequests", "TestBadMemory", "TestBadTiming", "TestBadErrnos",
		"TestBadRegistrations", "TestBadWindows", "TestMemoryIova", "TestMemoryRereg", "TestMemoryForkExec", "TestMemoryForgotten",
		"TestMemoryPool", "TestMemoryHugePages", "TestBadPool", "ExamplePool",
		"TestMemoryFile", "TestBadFile", "ExamplePD_MapFile",
		"TestQueueResize", "TestQueueOverflow", "TestQueueSharedChannel", "TestQueueSolicited", "TestQueueUnsignalled", "TestQueuePartlyFull",
		"TestEventsOfQPs", "TestEventsSQDrained", "TestEventsOfPorts", "TestEventsWaiting", "TestEventsOfClosedObjects", "TestStates", "TestStatesFlush",
		"TestBadSRQ", "TestSRQOfManyConnections", "TestSRQLimit", "TestSRQRunsDry", "TestSRQOfAnotherPD", "TestSRQOfOwnQP", "TestSRQTypes", "ExampleSRQ",
		"Example", "ExampleCompChannel", "ExamplePD_RegMR", "ExampleQP_PostSend_read", "ExampleQP_PostSend_write")
}
