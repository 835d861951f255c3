package cm

import (
	"fmt"
	"testing"
)

// TestStatesHaveNames: no two states have the same name.
func TestStatesHaveNames(t *testing.T) {
	seen := make(map[string]bool)
	for s := idIdle; s <= idClosed; s++ {
		if seen[fmt.Sprint(s)] || fmt.Sprint(s) == "" {
			t.Errorf("state %d is called %q", uint8(s), s)
		}
		seen[fmt.Sprint(s)] = true
	}
}
