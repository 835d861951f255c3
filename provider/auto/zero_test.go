package auto

import (
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestNilAndZeroValues: methods of a nil or zero Provider, and Try of a nil provider, return errors
// that say so.
func TestNilAndZeroValues(t *testing.T) {
	empty := &testkit.Empty{Patience: time.Minute}
	empty.Zeros(t, &Provider{})
	empty.Func(t, "Try", Try)
}
