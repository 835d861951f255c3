package object

import (
	"context"

	"github.com/govs-rdma/govs/provider"
)

// What package ibverbs lends to package rdmacm without showing it to users.
// The parameters of type any are pointers to types of package ibverbs, which
// this package can't name; ibverbs sets the variables when it is initialised.
var (
	// Device returns the device under an *ibverbs.Context that is not nil,
	// and its lifetime.
	Device func(vctx any) (provider.Device, *Object)

	// CreateQP does what PD.CreateQP does, but lets create make the QP, and
	// enters it with owner, too.
	CreateQP func(op string, pd, init any, owner *Object,
		create func(provider.PD, provider.QPInitAttr) (provider.QP, error)) (qp any, err error)

	// RetirePD closes an *ibverbs.PD with its last MR, at once if it has none.
	RetirePD func(pd any) error

	// TakeCQ has an *ibverbs.CQ that is not nil refuse Poll and PollWait, with EBUSY and what why
	// returns, but to the CQTaker. owns reports which WRIDs are of work that the caller posts,
	// whose numbers are left out of QP.Cause. EBUSY if somebody has it already.
	TakeCQ func(cq any, why func() string, owns func(wrid uint64) bool) (CQTaker, error)

	// Polled returns EINVAL if Poll of an *ibverbs.CQ returns no completions, so that op, which
	// needs some of its own, can't use it.
	Polled func(cq any, op string) error

	// QP returns the QP under an *ibverbs.QP that is not nil.
	QP func(qp any) provider.QP

	// OpenStream sends an empty RDMA Write over an *ibverbs.QP that is connected, and waits
	// for its completion, which the program does not see.
	OpenStream func(ctx context.Context, qp any) error
)

// A CQTaker polls a CQ that the program may not poll.
type CQTaker interface {
	Poll(wc []provider.WC) (int, error)
	PollWait(ctx context.Context, wc []provider.WC) (int, error)
	Release() // the program may poll again
}
