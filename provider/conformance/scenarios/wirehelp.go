package scenarios

import (
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// isFPDU reports whether a frame is an FPDU of the opcode that RFC 5040 gives
// this name.
func isFPDU(f *wire.Frame, name string) bool {
	return f.Kind == wire.KindFPDU && f.Opcode().String() == name
}

// isLast reports whether a frame is the last segment of a message with this opcode.
func isLast(f *wire.Frame, name string) bool { return isFPDU(f, name) && f.Header.Last }
