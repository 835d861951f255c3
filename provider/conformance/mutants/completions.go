package mutants

import (
	"errors"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// verbsMutants report something wrong to their program, or do something else than the
// program asked for.
func verbsMutants() []*Mutant {
	return append(completionMutants(), postingMutants()...)
}

// polled is a fault that changes completions one by one.
func polled(change func(*provider.WC)) func(*world) *verbsFault {
	return func(*world) *verbsFault {
		return &verbsFault{poll: func(_ *brokenCQ, wc []provider.WC) int {
			for k := range wc {
				change(&wc[k])
			}
			return len(wc)
		}}
	}
}

func completionMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "completion-lost", What: "loses a completion in fifty",
			CaughtBy: []string{"order/many-sends"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{poll: func(q *brokenCQ, wc []provider.WC) int {
					kept := 0
					for _, c := range wc {
						if q.seen++; q.seen%50 != 0 {
							wc[kept] = c
							kept++
						}
					}
					return kept
				}}
			},
		},
		{
			Name: "completions-reversed", What: "reports completions that are there together in reverse",
			CaughtBy: []string{"queue/flush-in-order"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{poll: func(_ *brokenCQ, wc []provider.WC) int {
					slices.Reverse(wc)
					return len(wc)
				}}
			},
		},
		{
			Name: "read-completion-late", What: "reports a Read later than what was posted after it",
			CaughtBy: []string{"order/read-then-send", "order/fence", "read/depth-4"},
			verbs:    func(*world) *verbsFault { return &verbsFault{poll: readsLate} },
		},
		{
			Name: "length-wrong", What: "reports one octet too many",
			CaughtBy: []string{"send/one-octet", "send/zero", "ddp/send-tiny-segments"},
			verbs:    polled(func(c *provider.WC) { c.ByteLen++ }),
		},
		{
			Name: "opcode-wrong", What: "reports receives as Sends",
			CaughtBy: []string{"send/one-octet"},
			verbs: polled(func(c *provider.WC) {
				if c.Opcode == provider.WCRecv {
					c.Opcode = provider.WCSend
				}
			}),
		},
		{
			Name: "flush-succeeds", What: "reports flushed work as done",
			CaughtBy: []string{
				"conn/disconnect-initiator", "conn/disconnect-responder", "queue/post-after-end", "protection/write-flushes", "protection/read-flushes", "objects/error-before-connect",
				"mpa/reset", "rdmap/post-after-terminate",
				"rdmap/post-after-fin", "rdmap/response-never",
			},
			verbs: polled(func(c *provider.WC) {
				if c.Status == provider.WCWRFlushErr {
					c.Status = provider.WCSuccess
				}
			}),
		},
		{
			Name: "errors-succeed", What: "reports work that failed as done",
			CaughtBy: []string{"product/receive-beyond-region", "protection/local-bad-key",
				"protection/local-beyond-end", "protection/receive-too-small", "rdmap/local-fault"},
			verbs: polled(func(c *provider.WC) { c.Status = provider.WCSuccess }),
		},
		{
			Name: "errors-are-flushes", What: "reports every error as a flush",
			CaughtBy: []string{"protection/local-bad-key", "protection/receive-too-small",
				"protection/local-fault-last", "window/fault-last"},
			verbs: polled(func(c *provider.WC) {
				if c.Status != provider.WCSuccess {
					c.Status = provider.WCWRFlushErr
				}
			}),
		},
		{
			Name: "receive-mistold", What: "reports every receive but a CQ's first as failed",
			CaughtBy: []string{"rdmap/sends-before-end", "send/unsignalled", "queue/partial-post",
				"order/many-sends", "rdmap/solicited-event"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{poll: func(q *brokenCQ, wc []provider.WC) int {
					for k := range wc {
						if wc[k].Opcode != provider.WCRecv || wc[k].Status != provider.WCSuccess {
							continue
						}
						if q.seen++; q.seen > 1 {
							wc[k].Status = provider.WCGeneralErr
						}
					}
					return len(wc)
				}}
			},
		},
		{
			Name: "completion-invented", What: "reports something on every CQ that is polled while it is empty",
			CaughtBy: []string{"write/one-octet", "read/one-octet", "objects/post-before-connect"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{poll: func(q *brokenCQ, wc []provider.WC) int {
					if len(wc) > 0 || q.seen > 0 {
						return len(wc)
					}
					q.seen++
					wc = append(wc, provider.WC{Opcode: provider.WCRecv})
					return len(wc)
				}}
			},
		},
		{
			Name: "invalidation-untold", What: "does not report which key a Send with Invalidate ended",
			CaughtBy: []string{"send/with-invalidate", "send/solicited-with-invalidate", "window/invalidated-by-peer"},
			verbs:    polled(func(c *provider.WC) { c.Flags, c.InvalidatedRKey = 0, 0 }),
		},
		{
			Name: "event-lost", What: "loses an event in six of a completion channel",
			CaughtBy: []string{"queue/events-together"},
			verbs: func(*world) *verbsFault {
				var seen atomic.Int32
				return &verbsFault{unheard: func() bool { return seen.Add(1)%6 == 0 }}
			},
		},
		{
			Name: "solicited-arms-all", What: "gives an event for every completion when it is armed for solicited ones",
			CaughtBy: []string{"send/solicited", "rdmap/solicited-event", "srq/solicited"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{notify: func(bool) bool { return false }}
			},
		},
	}
}

// readsLate holds successful Reads back until something else has completed, and returns
// them after that, as far as there is room.
func readsLate(q *brokenCQ, wc []provider.WC) int {
	var now []provider.WC
	other := false
	for _, c := range wc {
		if c.Status == provider.WCSuccess && c.Opcode == provider.WCRDMARead {
			q.late = append(q.late, c)
			continue
		}
		other = true
		now = append(now, c)
	}
	n := copy(wc, now)
	if other {
		k := copy(wc[n:], q.late)
		q.late = q.late[k:]
		n += k
	}
	return n
}

// sending is a fault that changes send work requests.
func sending(change func(*provider.SendWR)) func(*world) *verbsFault {
	return func(*world) *verbsFault {
		return &verbsFault{postSend: func(wrs []provider.SendWR) {
			for k := range wrs {
				change(&wrs[k])
			}
		}}
	}
}

// refusalHidden is a fault that reports refused work as posted.
func refusalHidden(errno syscall.Errno) func(*world) *verbsFault {
	return func(*world) *verbsFault {
		return &verbsFault{posted: func(n, all int, err error) (int, error) {
			if errors.Is(err, errno) {
				return all, nil
			}
			return n, err
		}}
	}
}

func postingMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "fence-ignored", What: "does not wait for Reads before a fenced Send",
			CaughtBy: []string{"order/fence"},
			verbs:    sending(func(wr *provider.SendWR) { wr.Flags &^= provider.SendFence }),
		},
		{
			Name: "all-signalled", What: "reports unsignalled work, too",
			CaughtBy: []string{"send/unsignalled"},
			verbs:    sending(func(wr *provider.SendWR) { wr.Flags |= provider.SendSignaled }),
		},
		{
			Name: "inline-lost", What: "sends zeros for inline payload",
			CaughtBy: []string{"send/inline"},
			verbs:    sending(func(wr *provider.SendWR) { wr.Inline = make([]byte, len(wr.Inline)) }),
		},
		{
			Name: "gather-reversed", What: "gathers from the last SGE to the first",
			CaughtBy: []string{"send/gather-scatter", "write/gather"},
			verbs: sending(func(wr *provider.SendWR) {
				wr.SGList = slices.Clone(wr.SGList)
				slices.Reverse(wr.SGList)
			}),
		},
		{
			Name: "full-queue-hidden", What: "says that work was posted which a full queue refused",
			CaughtBy: []string{"queue/send-queue-full", "queue/receive-queue-full"},
			verbs:    refusalHidden(syscall.ENOMEM),
		},
		{
			Name: "bad-work-hidden", What: "says that work was posted which is malformed",
			CaughtBy: []string{"queue/too-many-sges", "queue/partial-post", "objects/post-before-connect"},
			verbs:    refusalHidden(syscall.EINVAL),
		},
		{
			Name: "refusals-alike", What: "gives EIO as the reason of every refusal to post",
			CaughtBy: []string{
				"queue/send-queue-full", "queue/receive-queue-full", "queue/too-many-sges", "queue/partial-post", "objects/post-before-connect",
				"mpa/reply-ird-0",
			},
			verbs: func(*world) *verbsFault {
				return &verbsFault{posted: func(n, _ int, err error) (int, error) {
					if err != nil {
						err = syscall.EIO
					}
					return n, err
				}}
			},
		},
		{
			Name: "posted-miscounted", What: "says of a list that was refused in part that nothing of it was posted",
			CaughtBy: []string{"queue/partial-post"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{posted: func(n, _ int, err error) (int, error) {
					if err != nil {
						n = 0
					}
					return n, err
				}}
			},
		},
	}
}
