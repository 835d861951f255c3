package ibverbs_test

import (
	"testing"

	"github.com/govs-rdma/govs/ibverbs/internal/onsiw"
)

// TestOnSiw runs the examples and what nobody should do on siw.
func TestOnSiw(t *testing.T) {
	onsiw.Run(t, "^Example|^TestBad", "TestBadSizes", "TestBadWorkRequests", "TestBadMemory", "TestBadTiming", "Example", "ExampleCompChannel", "ExampleQP_PostSend_read", "ExampleQP_PostSend_write")
}
