package ibverbs

import "github.com/govs-rdma/govs/provider"

// What is counted. The engine counts all of it. A kernel device has the counters of its driver,
// if that has any (rxe and drivers of hardware do, siw does not); its QPs and CQs count nothing,
// and TCP_INFO of siw's sockets can't be had, because they belong to the kernel.
type (
	// DeviceStats are the sums of a device: Sent, Received, FlushedSends, FlushedRecvs,
	// CRCErrors, CQLost, Terminates by code and direction, Refused by limit, Connections,
	// Failures; what is open; and for kernel devices Counters, those of the driver. The
	// fields are in [provider.DeviceStats].
	DeviceStats = provider.DeviceStats

	// QPStats are of one QP: Sent, Received, FlushedSends, FlushedRecvs, CRCErrors;
	// SendsPosted, SendsHeld, HeldForPeer, ReadsOut, RecvsPosted, LowestRecvs; Local,
	// Remote and TCP of its connection. The fields are in [provider.QPStats].
	QPStats = provider.QPStats

	// CQStats are of one CQ: Completions, Errors, Lost; CQE, Waiting, MostWaiting. Its
	// method LowestFree is the least number of places that were free. The fields are in
	// [provider.CQStats].
	CQStats = provider.CQStats

	// SRQStats are of one SRQ: Posted, Taken, Empty; RecvsPosted, LowestRecvs. The fields are
	// in [provider.SRQStats].
	SRQStats = provider.SRQStats

	// ListenerStats are of one listener: Connections, Requests, Refused, Failed; Pending
	// and MaxPending. The fields are in [provider.ListenerStats].
	ListenerStats = provider.ListenerStats

	// Traffic counts messages in one direction: Send, Write, ReadRequest, ReadResponse,
	// AtomicRequest, AtomicResponse, Immediate, each a [provider.OpCount]. See
	// [provider.Traffic].
	Traffic = provider.Traffic

	// OpCount is a number of messages, and the bytes in them: see [provider.OpCount].
	OpCount = provider.OpCount

	// TerminateCount counts Terminates of one code: Remote (received), Layer, EType,
	// Code, Count. The fields are in [provider.TerminateCount].
	TerminateCount = provider.TerminateCount

	// TCPStats is a part of TCP_INFO: RTTMicros, CongWindow, TotalRetrans and more. The
	// fields are in [provider.TCPStats].
	TCPStats = provider.TCPStats
)

func noStats(what string) error {
	return &UnsupportedError{Feature: "counters of a " + what, Reason: "the provider doesn't count"}
}

// Stats returns what the device has counted since it was opened. It takes time in
// proportion to the number of open QPs: it is for every few seconds. It holds up the data
// path of one QP at a time, for as long as copying its counts takes. A device that doesn't
// count is errors.ErrUnsupported.
func (c *Context) Stats() (DeviceStats, error) {
	if err := c.ok("stats"); err != nil {
		return DeviceStats{}, err
	}
	if d, ok := c.dev.(provider.DeviceStater); ok {
		return d.Stats()
	}
	return DeviceStats{}, noStats("device")
}

// Stats returns what the QP has counted since it was made, over all of its connections.
// Kernel devices don't count: errors.ErrUnsupported.
func (qp *QP) Stats() (QPStats, error) {
	if err := qp.ok("stats"); err != nil {
		return QPStats{}, err
	}
	if q, ok := qp.p.(provider.QPStater); ok {
		return q.Stats()
	}
	return QPStats{}, noStats("QP")
}

// Stats returns what the CQ has counted since it was made. Kernel devices don't count:
// errors.ErrUnsupported.
func (cq *CQ) Stats() (CQStats, error) {
	if err := cq.ok("stats"); err != nil {
		return CQStats{}, err
	}
	if q, ok := cq.p.(provider.CQStater); ok {
		return q.Stats()
	}
	return CQStats{}, noStats("CQ")
}

// Stats returns what the SRQ has counted since it was made. Kernel devices don't count:
// errors.ErrUnsupported.
func (srq *SRQ) Stats() (SRQStats, error) {
	if err := srq.ok("stats"); err != nil {
		return SRQStats{}, err
	}
	if r, ok := srq.p.(provider.SRQStater); ok {
		return r.Stats()
	}
	return SRQStats{}, noStats("shared receive queue")
}
