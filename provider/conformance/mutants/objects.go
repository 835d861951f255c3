package mutants

import (
	"errors"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// objectMutants make and close objects the wrong way.
func objectMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "limits-untold", What: "reports a device that has room for nothing",
			CaughtBy: []string{"objects/query"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{query: func(a *provider.DeviceAttr) { *a = provider.DeviceAttr{} }}
			},
		},
		{
			Name: "objects-few", What: "makes no more than 250 objects of a kind, those that were closed included",
			CaughtBy: []string{"product/qps-under-reads", "objects/many-cqs", "objects/many-qps",
				"objects/many-mrs"},
			verbs: func(*world) *verbsFault {
				var cqs, qps, mrs atomic.Int32
				one := func(n *atomic.Int32) error {
					if n.Add(1) > 250 {
						return syscall.ENOMEM
					}
					return nil
				}
				return &verbsFault{
					createCQ: func(*provider.CQInitAttr) error { return one(&cqs) },
					createQP: func(*provider.QPInitAttr) error { return one(&qps) },
					regMR:    func() error { return one(&mrs) },
				}
			},
		},
		{
			Name: "empty-queue-refused", What: "makes no QP with a queue that has no room",
			CaughtBy: []string{"objects/no-receive-queue"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{createQP: func(init *provider.QPInitAttr) error {
					if init.Cap.MaxSendWR == 0 || init.Cap.MaxRecvWR == 0 {
						return syscall.EINVAL
					}
					return nil
				}}
			},
		},
		{
			Name: "arguments-mended", What: "takes sizes that make no sense for ones that do",
			CaughtBy: []string{"objects/bad-arguments"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{createCQ: func(init *provider.CQInitAttr) error {
					init.CQE, init.CompVector = min(max(init.CQE, 1), 1<<16), 0
					return nil
				}}
			},
		},
		{
			Name: "close-refused", What: "says of PDs and CQs that nothing is open on that they are in use, the first time",
			CaughtBy: []string{"objects/close-order"},
			verbs:    func(*world) *verbsFault { return &verbsFault{clings: true} },
		},
		{
			Name: "closed-mistold", What: "reports a closed QP as a bad argument",
			CaughtBy: []string{"objects/use-after-close"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{failed: func(err error) error {
					if errors.Is(err, os.ErrClosed) {
						return syscall.EINVAL
					}
					return err
				}}
			},
		},
	}
}
