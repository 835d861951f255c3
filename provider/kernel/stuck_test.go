//go:build cgo && linux && !nokernel

package kernel

import (
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// TestStuck: a full send queue is one for ever if the device waits for signalled work to
// be reported, and as many as have room were posted since the last.
func TestStuck(t *testing.T) {
	unsignalled, signalled := provider.SendWR{}, provider.SendWR{Flags: provider.SendSignaled}
	for _, c := range []struct {
		name     string
		siw, rxe bool
		all      bool
		wrs      []provider.SendWR
		want     bool
	}{
		{"nothing signalled", false, false, false, []provider.SendWR{unsignalled, unsignalled, unsignalled}, true},
		{"one signalled before a full queue", false, false, false, []provider.SendWR{signalled, unsignalled, unsignalled, unsignalled}, true},
		{"one signalled in the queue", false, false, false, []provider.SendWR{unsignalled, signalled, unsignalled, unsignalled}, false},
		{"all signalled", false, false, true, []provider.SendWR{unsignalled, unsignalled, unsignalled}, false},
		{"siw", true, false, false, []provider.SendWR{unsignalled, unsignalled, unsignalled}, false},
		{"rxe", false, true, false, []provider.SendWR{unsignalled, unsignalled, unsignalled}, false},
	} {
		q := &qp{dev: &device{siw: c.siw, rxe: c.rxe}, init: provider.QPInitAttr{SQSigAll: c.all, Cap: provider.QPCap{MaxSendWR: 3}}}
		for i := range c.wrs { // one at a time, as the queue had room
			q.countSilent(c.wrs[i : i+1])
		}
		if q.stuck() != c.want {
			t.Errorf("%s: stuck %v", c.name, q.stuck())
		}
	}
}
