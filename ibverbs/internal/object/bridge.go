package object

import (
	"context"

	"github.com/govs-rdma/govs/provider"
)

// Functions of package ibverbs that package rdmacm uses and users do not see. Parameters of type
// any are pointers to types of package ibverbs, which this package cannot name. Package ibverbs
// sets the variables when it is initialised.
var (
	// Device returns the device of a non-nil *ibverbs.Context, and the context's lifetime.
	Device func(vctx any) (provider.Device, *Object)

	// CreateQP makes a QP as PD.CreateQP does, but through create. It makes owner a parent of the
	// QP, too.
	CreateQP func(op string, pd, init any, owner *Object,
		create func(provider.PD, provider.QPInitAttr) (provider.QP, error)) (qp any, err error)

	// RetirePD closes an *ibverbs.PD when its last MR is closed, at once if it has none.
	RetirePD func(pd any) error

	// TakeCQ makes Poll and PollWait of a non-nil *ibverbs.CQ return EBUSY and the text of why,
	// except through the CQTaker. owns reports which WRIDs are of work that the caller posts;
	// QP.Cause leaves these WRIDs out. EBUSY: the CQ has a taker already.
	TakeCQ func(cq any, why func() string, owns func(wrid uint64) bool) (CQTaker, error)

	// Polled returns EINVAL if Poll of an *ibverbs.CQ returns no completions, so that op cannot use
	// it.
	Polled func(cq any, op string) error

	// QP returns the provider's QP of a non-nil *ibverbs.QP.
	QP func(qp any) provider.QP

	// Mark sends an empty RDMA Write over a connected *ibverbs.QP, and waits for its completion,
	// which the program does not see.
	Mark func(ctx context.Context, qp any) error
)

// A CQTaker polls a CQ that the program may not poll.
type CQTaker interface {
	Poll(wc []provider.WC) (int, error)
	PollWait(ctx context.Context, wc []provider.WC) (int, error)
	Release() // the program may poll again
}
