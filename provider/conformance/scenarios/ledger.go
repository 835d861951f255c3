package scenarios

import (
	"slices"

	"github.com/govs-rdma/govs/provider/conformance"
)

// Ledger returns the divergences that are known, each seen on a live siw, or over the bridge.
func Ledger() conformance.Ledger {
	return slices.Concat(verbsLedger(), objectsLedger(), rawLedger(), bridgeLedger())
}
