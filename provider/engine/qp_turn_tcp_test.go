//go:build linux

package engine

import (
	"bytes"
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// TestTurnsGoOn: of a message that takes many turns nothing is left lying, whether
// somebody polls or all wait to be told.
func TestTurnsGoOn(t *testing.T) {
	const size = 24 * turnMost
	for _, spin := range []bool{false, true} {
		for _, op := range []provider.WROpcode{provider.WRRDMAWrite, provider.WRRDMARead} {
			a, b := tcpPair(t, Options{}, true, sideOptions{})
			mine := a.reg(size, provider.AccessLocalWrite)
			theirs := b.reg(size, everything)
			pattern(mine.b, 1)
			pattern(theirs.b, 2)
			a.send(provider.SendWR{Opcode: op, Flags: provider.SendSignaled, SGList: []provider.SGE{mine.sge(0, size)}, RemoteAddr: theirs.to(0), RKey: theirs.m.stag})
			if !spin {
				a.arrives(1)
			}
			a.spin(1)
			if op == provider.WRRDMAWrite { // all of it is there when an answer to what comes after it is
				a.send(provider.SendWR{Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, RemoteAddr: theirs.to(0), RKey: theirs.m.stag})
				a.spin(1)
			}
			if !bytes.Equal(mine.b, theirs.b) {
				t.Errorf("%v, spinning %v: octets differ", op, spin)
			}
		}
	}
}
