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
