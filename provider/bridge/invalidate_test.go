package bridge

import (
	"testing"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestPeerInvalidates: a peer can end the remote use of a region that it can access, and of no
// other.
func TestPeerInvalidates(t *testing.T) {
	const localWrite, remoteRead = 1 << 0, 1 << 2
	for name, c := range map[string]struct {
		access uint32
		status uint16
	}{
		"with a right": {localWrite | remoteRead, abi.SiwWCSuccess},
		"private":      {localWrite, abi.SiwWCRemInvReqErr},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := newEnd(t, nil), newEnd(t, nil)
			region, dst := b.regMR(b.pd, 4096, c.access), b.regMR(b.pd, 4096, localWrite)
			b.qp.postRecv(1, dst.sge(0, 64))
			connect(t, a, b)
			sqe := abi.SiwSQE{ID: 2, Flags: abi.SiwWQESignalled, Opcode: abi.SiwSendRemoteInv,
				RKey: region.RKey}
			if err := a.qp.postSend(sqe); err != nil {
				t.Fatal(err)
			}
			b.wantWC("receive", 1, abi.SiwReceive, c.status, -1)
		})
	}
}
