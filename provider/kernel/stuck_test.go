//go:build cgo && linux && !nokernel

package kernel

import (
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// TestStuck: a full send queue stays full if everything in it is unsignalled, and the device
// frees places only when signalled work is reported.
func TestStuck(t *testing.T) {
	// unsignalled, signalled
	u, s := provider.SendWR{}, provider.SendWR{Flags: provider.SendSignaled}
	for _, c := range []struct {
		name     string
		siw, rxe bool
		all      bool
		wrs      []provider.SendWR
		want     bool
	}{
		{"nothing signalled", false, false, false, []provider.SendWR{u, u, u}, true},
		{"one signalled before a full queue", false, false, false, []provider.SendWR{s, u, u, u},
			true},
		{"one signalled in the queue", false, false, false, []provider.SendWR{u, s, u, u}, false},
		{"all signalled", false, false, true, []provider.SendWR{u, u, u}, false},
		{"siw", true, false, false, []provider.SendWR{u, u, u}, false},
		{"rxe", false, true, false, []provider.SendWR{u, u, u}, false},
	} {
		q := &qp{dev: &device{libsiw: c.siw, rxe: c.rxe}}
		q.init = provider.QPInitAttr{SQSigAll: c.all, Cap: provider.QPCap{MaxSendWR: 3}}
		for i := range c.wrs { // one at a time, as long as the queue has room
			q.countSilent(c.wrs[i : i+1])
		}
		if q.stuck() != c.want {
			t.Errorf("%s: stuck %v", c.name, q.stuck())
		}
	}
}
