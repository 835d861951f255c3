package auto

import (
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestNilAndZeroValues: calls on a nil or zero Provider, and Try of none, say so.
func TestNilAndZeroValues(t *testing.T) {
	empty := &testkit.Empty{Patience: time.Minute}
	empty.Zeros(t, &Provider{})
	empty.Func(t, "Try", Try)
}
