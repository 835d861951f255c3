package rdmap

import (
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/provider/iwarp"
)

// wire formats an error as the layer/type/code of its Terminate.
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
