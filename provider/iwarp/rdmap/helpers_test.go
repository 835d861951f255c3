package rdmap

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/iwarp"
)

// unhex decodes hex digits, whatever blanks are between them.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// wire renders an error as the layer/type/code of its Terminate.
func wire(err error) string {
	if err == nil {
		return "ok"
	}
	var e *iwarp.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	return fmt.Sprintf("%d/%d/%02x", e.Layer, e.EType, e.Code)
}

func hexOf(b []byte) string { return hex.EncodeToString(b) }
