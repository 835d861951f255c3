// Package locks gives each lock of the engine, its transport and its network in memory a rank. The
// ranks stand in the order in which the locks may be taken: a goroutine that holds one may wait
// only for those further down. Builds with the tag "schedules" check that at each Lock (see package
// sched), and ci/test runs the engine's tests in such a build.
//
// A tried lock (TryLock) waits for nothing, and may be taken in any order. A goroutine that holds a
// lock waits only for other locks, with two exceptions, which always end. It may wait for the uses
// of a region that is invalidated or closed (rundown.Gate), because a use lasts as long as a copy.
// A poller's Wait holds the lock Waiting while it waits. Calls of the program (onDown, events) are
// made without a lock.
package locks

import "github.com/govs-rdma/govs/provider/engine/internal/sched"

// Locks of the connection manager. A listener's ID comes before the IDs of its requests.
type (
	ID struct { // cm.ID.mu
		sched.First
		sched.Nests
	}
	Wire struct{ sched.After[ID] } // cm.wire.mu
)

// Locks of a stream: its two sides, and the end of its connection.
type (
	RX          struct{ sched.After[Wire] }        // receiver.mu
	TX          struct{ sched.After[RX] }          // sender.mu
	Linger      struct{ sched.After[TX] }          // closer.mu
	RefusedConn struct{ sched.After[Linger] }      // refusedConn.mu
	Watch       struct{ sched.After[RefusedConn] } // stream.watchMu
	Stalls      struct{ sched.After[Watch] }       // stalls.mu, of a device
)

// Locks of a queue pair, of its queues, and of what its work requests name.
type (
	QP            struct{ sched.After[Stalls] }        // qp.mu
	WindowPosting struct{ sched.After[QP] }            // memory.Window.Posting
	SendPosting   struct{ sched.After[WindowPosting] } // sendQueue.mu
	RecvPosting   struct{ sched.After[SendPosting] }   // recvQueue.mu
	FastReg       struct{ sched.After[RecvPosting] }   // memory.FastRegion.mu
	Window        struct{ sched.After[FastReg] }       // memory.Window.mu
	RegPosting    struct{ sched.After[Window] }        // memory.FastRegion.posting
	SendDone      struct{ sched.After[RegPosting] }    // sendQueue.done
	RecvDone      struct{ sched.After[SendDone] }      // recvQueue.done
	Deferred      struct{ sched.After[RecvDone] }      // deferredQPs.mu, of a CQ
)

// Leaves: work under one of these is short and calls no other code.
type (
	BoundWindows struct { // memory.boundWindows.mu
		sched.After[Deferred]
		sched.Leaf
	}
	SRQ struct { // srq.mu
		sched.After[BoundWindows]
		sched.Leaf
	}
	CQ struct { // cq.mu
		sched.After[SRQ]
		sched.Leaf
	}
	CompChannel struct { // compChannel.mu
		sched.After[CQ]
		sched.Leaf
	}
	Async struct { // asyncQueue.mu
		sched.After[CompChannel]
		sched.Leaf
	}
	EventChannel struct { // cm.EventChannel.mu
		sched.After[Async]
		sched.Leaf
	}
	Listening struct { // cm.listening.mu
		sched.After[EventChannel]
		sched.Leaf
	}
	Admission struct { // cm.admission.mu
		sched.After[Listening]
		sched.Leaf
	}
	QPNumbers struct { // device.qpnMu
		sched.After[Admission]
		sched.Leaf
	}
	STags struct { // memory.Table.mu
		sched.After[QPNumbers]
		sched.Leaf
	}
	ClosingConns struct { // closingConns.mu
		sched.After[STags]
		sched.Leaf
	}
	Dropping struct { // closingConns.dropping
		sched.After[ClosingConns]
		sched.Leaf
	}
	FreeList struct { // freelist.List.mu
		sched.After[Dropping]
		sched.Leaf
	}
	Tally struct { // tally.mu, of a device
		sched.After[FreeList]
		sched.Leaf
	}
	Log struct { // logger.mu, of a device
		sched.After[Tally]
		sched.Leaf
	}
)

// Locks of the transport, and of the network in memory that replaces it. They may be taken while
// any of the above is held.
type (
	Waiting struct { // parker.waiting, memnet's poller.waiting: of the one Wait of a poller
		sched.After[Log]
		sched.Leaf
	}
	Network struct { // memnet.Network.mu
		sched.After[Waiting]
		sched.Leaf
	}
	Binding struct { // tcpBinding.mu, memnet's binding.mu
		sched.After[Network]
		sched.Leaf
	}
	Registry struct { // registry.mu
		sched.After[Binding]
		sched.Leaf
	}
	Conn struct { // tcpConn.mu, memnet's link.mu
		sched.After[Registry]
		sched.Leaf
	}
	Poller struct { // memnet's poller.mu
		sched.After[Conn]
		sched.Leaf
	}
	Tap struct { // TapEnd.mu
		sched.After[Poller]
		sched.Leaf
	}
)
