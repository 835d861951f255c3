package engine

import "github.com/govs-rdma/govs/provider"

// qp is a queue pair.
type qp struct{ provider.QP }

// newQP makes a QP of p. It holds p and attaches to its CQs until it is closed.
func newQP(p *pd, init provider.QPInitAttr) (*qp, error) {
	return nil, failUnsupported("queue pairs", "not built yet")
}
