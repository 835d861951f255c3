package provider

import (
	"fmt"
	"strings"
)

var accessNames = []struct {
	right Access
	name  string
}{
	{AccessLocalWrite, "IBV_ACCESS_LOCAL_WRITE"},
	{AccessRemoteWrite, "IBV_ACCESS_REMOTE_WRITE"},
	{AccessRemoteRead, "IBV_ACCESS_REMOTE_READ"},
	{AccessRemoteAtomic, "IBV_ACCESS_REMOTE_ATOMIC"},
	{AccessMWBind, "IBV_ACCESS_MW_BIND"},
	{AccessZeroBased, "IBV_ACCESS_ZERO_BASED"},
	{AccessRemoteInvalidate, "AccessRemoteInvalidate"}, // C has none
}

// String returns the C names of the rights: "IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ". It
// returns "local read" for an empty set, which still allows local reading.
func (a Access) String() string {
	var names []string
	for _, n := range accessNames {
		if a&n.right != 0 {
			names = append(names, n.name)
			a &^= n.right
		}
	}
	switch {
	case a != 0:
		names = append(names, fmt.Sprintf("%#x", uint32(a)))
	case len(names) == 0:
		return "local read"
	}
	return strings.Join(names, "|")
}

// String describes the completion: "work request 0x7 of qp 17: IBV_WC_RECV, 64 bytes", "work
// request 0x8 of qp 17: IBV_WC_WR_FLUSH_ERR".
func (wc WC) String() string {
	s := fmt.Sprintf("work request %#x of qp %d: ", wc.WRID, wc.QPN)
	if wc.Status != WCSuccess {
		return s + wc.Status.String()
	}
	s += wc.Opcode.String()
	if wc.Opcode&WCRecv != 0 || wc.ByteLen > 0 {
		s += fmt.Sprintf(", %d bytes", wc.ByteLen)
	}
	if wc.Flags&WCWithImm != 0 {
		s += fmt.Sprintf(", immediate data %#x", wc.Imm)
	}
	if wc.Flags&WCWithInv != 0 {
		s += fmt.Sprintf(", key %#x invalidated", wc.InvalidatedRKey)
	}
	return s
}
