package metrics

import (
	"strconv"

	"github.com/govs-rdma/govs/ibverbs"
)

func direction(t ibverbs.TerminateCount) string {
	if t.Remote {
		return "received"
	}
	return "sent"
}

func digit(n uint8) string { return strconv.Itoa(int(n)) }
