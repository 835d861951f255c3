package ibverbs

import "github.com/govs-rdma/govs/provider"

// The counters. The engine has all of them. A kernel device has the counters of its driver, if the
// driver counts (rxe and drivers of hardware do, siw does not); its QPs and CQs have none. TCP_INFO
// of siw's sockets is not available, because the sockets belong to the kernel.
type (
	// DeviceStats are a device's totals: Sent, Received, FlushedSends, FlushedRecvs, CRCErrors,
	// CQLost, Terminates by code and direction, Refused by limit, Connections, Failures; what is
	// open; and for kernel devices Counters, from the driver. The fields are in
	// [provider.DeviceStats].
	DeviceStats = provider.DeviceStats

	// QPStats are of one QP: Sent, Received, FlushedSends, FlushedRecvs, CRCErrors;
	// SendsPosted, SendsHeld, HeldForPeer, ReadsOut, RecvsPosted, LowestRecvs; Local,
	// Remote and TCP of its connection. The fields are in [provider.QPStats].
	QPStats = provider.QPStats

	// CQStats are of one CQ: Completions, Errors, Lost; CQE, Waiting, MostWaiting. Its method
	// LowestFree returns the lowest number of free places so far. The fields are in
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

	// OpCount is a number of messages and of their bytes: see [provider.OpCount].
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

// Stats returns the device's counters since it was opened. It takes time in proportion to the
// number of open QPs, so call it every few seconds at most. It blocks the data path of one QP at a
// time, while it copies that QP's counters. A device without counters returns
// errors.ErrUnsupported.
func (c *Context) Stats() (DeviceStats, error) {
	if err := c.ok("stats"); err != nil {
		return DeviceStats{}, err
	}
	if d, ok := c.dev.(provider.DeviceStater); ok {
		return d.Stats()
	}
	return DeviceStats{}, noStats("device")
}

// Stats returns the QP's counters since it was made, over all of its connections. Kernel devices
// have none: errors.ErrUnsupported.
func (qp *QP) Stats() (QPStats, error) {
	if err := qp.ok("stats"); err != nil {
		return QPStats{}, err
	}
	if q, ok := qp.p.(provider.QPStater); ok {
		return q.Stats()
	}
	return QPStats{}, noStats("QP")
}

// Stats returns the CQ's counters since it was made. Kernel devices have none:
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

// Stats returns the SRQ's counters since it was made. Kernel devices have none:
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
