//go:build linux

package engine

import (
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

// TestTurnsGoOn: a message that takes many turns is sent to its end, whether the program polls
// or waits for an event.
func TestTurnsGoOn(t *testing.T) {
	size := 24 * policy.BudgetMost
	if testkit.Race {
		size = 8 * policy.BudgetMost
	}
	for _, spin := range []bool{false, true} {
		for _, op := range []provider.WROpcode{provider.WRRDMAWrite, provider.WRRDMARead} {
			a, b := tcpPair(t, Options{}, true, sideOptions{})
			mine := a.reg(size, provider.AccessLocalWrite)
			theirs := b.reg(size, everything)
			pattern(mine.b, 1)
			pattern(theirs.b, 2)
			a.send(provider.SendWR{
				Opcode: op, Flags: signaled, SGList: []provider.SGE{mine.sge(0, size)},
				RemoteAddr: theirs.to(0), RKey: theirs.m.STag(),
			})
			if !spin {
				a.arrives(1)
			}
			a.spin(1)
			// when a Read after it is answered, all of it has arrived
			if op == provider.WRRDMAWrite {
				a.send(provider.SendWR{
					Opcode: provider.WRRDMARead, Flags: signaled, RemoteAddr: theirs.to(0),
					RKey: theirs.m.STag(),
				})
				a.spin(1)
			}
			testkit.EqualBytes(t, fmt.Sprintf("the bytes of %v, spinning %v", op, spin), mine.b,
				theirs.b)
		}
	}
}
