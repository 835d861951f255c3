package bridge

import "github.com/govs-rdma/govs/ibverbs"

// queuePair is a QP of the program.
type queuePair struct {
	qp *ibverbs.QP
}

// connected is called when a connection of the QP is established: what was posted before is sent.
func (q *queuePair) connected() {}
