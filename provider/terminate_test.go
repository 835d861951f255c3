package provider_test

import (
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider"
)

// TestUnexpectedOpcodeNamesExtensions: a peer without the extensions refuses their operations.
func TestUnexpectedOpcodeNamesExtensions(t *testing.T) {
	for remote, want := range map[bool]bool{true: true, false: false} {
		err := &provider.TerminateError{Remote: remote, EType: 2, ECode: 6, Text: "unexpected opcode"}
		if got := strings.Contains(err.Error(), "engine.Options.Extensions"); got != want {
			t.Errorf("remote %v: %v", remote, err)
		}
	}
}

// TestUnknownStateNamesSiw: the text of a QP state that siw does not report says why it is unknown.
func TestUnknownStateNamesSiw(t *testing.T) {
	if text := provider.QPUnknown.String(); !strings.HasPrefix(text, "IBV_QPS_UNKNOWN") || !strings.Contains(text, "siw") {
		t.Errorf("QPUnknown is printed as %q", text)
	}
	if text := provider.QPRTS.String(); text != "IBV_QPS_RTS" {
		t.Errorf("QPRTS is printed as %q", text)
	}
}
