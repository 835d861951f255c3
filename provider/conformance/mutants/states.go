package mutants

import (
	"errors"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// stateMutants are wrong about ibv_modify_qp.
func stateMutants() []*Mutant {
	// became replaces the state of a change by another.
	became := func(from, to provider.QPState) func(*world) *verbsFault {
		return func(*world) *verbsFault {
			return &verbsFault{modify: func(attr *provider.QPAttr, mask *provider.QPAttrMask, do func() error) error {
				if *mask&provider.QPAttrState != 0 && attr.State == from {
					attr.State = to
					*mask &^= provider.QPAttrEnSQDNotify
				}
				return do()
			}}
		}
	}
	// tells makes SQD report that the queue is drained, or not, whatever the program asked for.
	tells := func(notify bool) func(*world) *verbsFault {
		return func(*world) *verbsFault {
			return &verbsFault{modify: func(attr *provider.QPAttr, mask *provider.QPAttrMask, do func() error) error {
				if *mask&provider.QPAttrState != 0 && attr.State == provider.QPSQD {
					*mask |= provider.QPAttrEnSQDNotify
					attr.EnSQDAsyncNotify = notify
				}
				return do()
			}}
		}
	}
	return []*Mutant{
		{
			Name: "changes-never-refused", What: "says of changes of a QP that it refuses that they are made",
			CaughtBy: []string{"states/unconnected", "states/connected", "states/attributes", "states/sqd-event"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{modify: func(_ *provider.QPAttr, _ *provider.QPAttrMask, do func() error) error {
					if err := do(); !errors.Is(err, syscall.EINVAL) {
						return err
					}
					return nil
				}}
			},
		},
		{
			Name: "init-refused", What: "leaves no QP out of RESET but to the connection manager",
			CaughtBy: []string{"states/unconnected", "states/attributes"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{modify: func(attr *provider.QPAttr, mask *provider.QPAttrMask, do func() error) error {
					if *mask&provider.QPAttrState != 0 && attr.State == provider.QPInit {
						return syscall.EINVAL
					}
					return do()
				}}
			},
		},
		{
			Name: "attributes-in-part", What: "makes the change of state of a change whose attributes it refuses",
			CaughtBy: []string{"states/attributes"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{modify: func(attr *provider.QPAttr, mask *provider.QPAttrMask, do func() error) error {
					err := do()
					if errors.Is(err, syscall.EINVAL) && *mask&provider.QPAttrState != 0 {
						*mask = provider.QPAttrState
						_ = do()
					}
					return err
				}}
			},
		},
		{
			Name: "drained-untold", What: "never reports that a send queue is drained",
			CaughtBy: []string{"states/sqd-event", "states/sqd-drains"},
			verbs:    tells(false),
		},
		{
			Name:     "drained-unasked",
			What:     "reports that a send queue is drained although nothing asked for it",
			CaughtBy: []string{"states/sqd-quiet"},
			verbs:    tells(true),
		},
		{
			Name: "sqd-abrupt", What: "takes SQD for ERR, so that what was posted before is flushed",
			CaughtBy: []string{"states/sqd-drains", "states/sqd-event"},
			verbs:    became(provider.QPSQD, provider.QPErr),
		},
		{
			Name: "reset-ignored", What: "leaves QPs that are to be reset in their state",
			CaughtBy: []string{"states/reuse", "states/unconnected"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{modify: func(attr *provider.QPAttr, mask *provider.QPAttrMask, do func() error) error {
					if *mask&provider.QPAttrState != 0 && attr.State == provider.QPReset {
						return nil
					}
					return do()
				}}
			},
		},
		{
			Name: "err-ignored", What: "leaves QPs that are to be moved to ERR connected",
			CaughtBy: []string{"product/peer-state", "states/err"},
			verbs:    became(provider.QPErr, provider.QPRTS),
		},
		{
			Name: "sqe-silent", What: "takes SQE for ERR, so that the peer does not learn why " +
				"the connection ends",
			CaughtBy: []string{"states/sqe"},
			verbs:    became(provider.QPSQE, provider.QPErr),
		},
		{
			Name: "err-blamed", What: "takes ERR for SQE, so that the peer gets an error",
			CaughtBy: []string{"states/err"},
			verbs:    became(provider.QPErr, provider.QPSQE),
		},
	}
}

// Modify implements provider.QP.
func (q *brokenQP) Modify(attr provider.QPAttr, mask provider.QPAttrMask) error {
	do := func() error { return q.QP.Modify(attr, mask) }
	if f := q.dev.fault.modify; f != nil {
		return q.dev.refusal(f(&attr, &mask, do))
	}
	return q.dev.refusal(do())
}
