package provider

import (
	"fmt"
	"net/netip"
)

// The interfaces below are optional. A provider that does not count something does not implement
// the interface for it.

// DeviceStater is a Device that counts.
type DeviceStater interface{ Stats() (DeviceStats, error) }

// QPStater is a QP that counts.
type QPStater interface{ Stats() (QPStats, error) }

// CQStater is a CQ that counts.
type CQStater interface{ Stats() (CQStats, error) }

// SRQStater is an SRQ that counts.
type SRQStater interface{ Stats() (SRQStats, error) }

// ListenerStater is an ID that counts while it listens.
type ListenerStater interface {
	ListenerStats() (ListenerStats, error)
}

// OpCount counts messages of one kind. A message is counted when its last segment is built or
// placed. Its bytes are counted then, or segment by segment.
type OpCount struct {
	Messages uint64
	Octets   uint64 // payload
}

func (c *OpCount) add(o OpCount) {
	c.Messages += o.Messages
	c.Octets += o.Octets
}

// Traffic counts the messages of one direction by their type on the wire.
type Traffic struct {
	Send           OpCount // with Invalidate or Solicited Event, too
	Write          OpCount
	ReadRequest    OpCount // Octets: the bytes requested
	ReadResponse   OpCount
	AtomicRequest  OpCount
	AtomicResponse OpCount
	Immediate      OpCount // Immediate Data messages of RFC 7306
}

// Add adds the counts of o.
func (t *Traffic) Add(o *Traffic) {
	t.Send.add(o.Send)
	t.Write.add(o.Write)
	t.ReadRequest.add(o.ReadRequest)
	t.ReadResponse.add(o.ReadResponse)
	t.AtomicRequest.add(o.AtomicRequest)
	t.AtomicResponse.add(o.AtomicResponse)
	t.Immediate.add(o.Immediate)
}

// QPStats holds a QP's counters since it was made, over all its connections, and the fill levels of
// its queues.
type QPStats struct {
	Sent, Received Traffic

	FlushedSends, FlushedRecvs uint64
	CRCErrors                  uint64

	SendsPosted int  // work requests in the send queue that are not reported yet
	SendsHeld   int  // of these, the ones that are deferred or of which nothing has been built
	HeldForPeer bool // they wait for the peer's first message (RFC 5044 section 7.1.2)
	ReadsOut    int  // Reads and atomic operations that wait for the peer's response

	RecvsPosted int // of the QP's own receive queue
	// LowestRecvs is the lowest number of receives left after a message took one. It is -1 if no
	// message has taken one, or if the QP has an SRQ.
	LowestRecvs int

	Local, Remote netip.AddrPort // of the connection, zero without one
	TCP           *TCPStats      // of the connection; nil if it does not use TCP
}

// TCPStats is a part of TCP_INFO.
type TCPStats struct {
	RTTMicros, RTTVarMicros uint32
	SendMSS, CongWindow     uint32 // bytes; segments
	Unacked, Lost, Retrans  uint32 // segments, currently
	TotalRetrans            uint32 // segments, since the start
	BytesAcked              uint64
	BytesReceived           uint64
	NotSentBytes            uint32
	DeliveryRate            uint64 // bytes per second
}

// String makes fmt print the contents in a QPStats instead of the address.
func (t *TCPStats) String() string {
	if t == nil {
		return "none"
	}
	return fmt.Sprintf("%+v", *t)
}

// CQStats holds a CQ's counters since it was made.
type CQStats struct {
	// Completions counts completions that were put into the CQ or returned at once. It includes the
	// completions of work that packages rdmacm and ibverbs post for themselves, although no poll
	// returns them: the Write that opens a stream, and the markers of Drain and Shutdown.
	Completions uint64
	Errors      uint64 // of these, the failures, flushes included
	Lost        uint64 // completions lost because the CQ was full

	CQE     int // capacity: the capacity asked for, rounded up to a power of two
	Waiting int // completions in the CQ

	// MostWaiting is the highest number of completions in the CQ since it was made or last resized.
	// On the engine, one read of a connection completes all receives that have arrived, up to
	// hundreds. The poll that reads returns those that fit, at most 255 of each connection
	// directly; the others pass through the CQ and count here. The flushes at the end of a
	// connection count too, so read MostWaiting before it.
	MostWaiting int
}

// LowestFree returns the lowest number of free places since the CQ was made or last resized. As
// with MostWaiting, completions that polls return directly do not count, so a program that polls
// less often has a lower number.
func (s *CQStats) LowestFree() int { return s.CQE - s.MostWaiting }

// SRQStats holds an SRQ's counters since it was made. It does not count receives of a RecvSource.
type SRQStats struct {
	Posted uint64 // receives that were posted
	Taken  uint64 // of these, the receives that messages have taken
	Empty  uint64 // messages that found no receive, which ends their connections

	RecvsPosted int // receives in the SRQ
	// LowestRecvs is the lowest number of receives left after a message took one; -1 if no message
	// has taken one.
	LowestRecvs int
}

// TerminateCount counts Terminates of one code in one direction (RFC 5040 section 4.8).
type TerminateCount struct {
	Remote             bool // received; otherwise sent
	Layer, EType, Code uint8
	Count              uint64
}

// DeviceStats holds a device's counters since it was opened. Sums include all QPs, open and closed.
type DeviceStats struct {
	Sent, Received             Traffic
	FlushedSends, FlushedRecvs uint64
	CRCErrors                  uint64
	CQLost                     uint64 // completions lost in full CQs

	// Terminates are ordered by direction, layer, type and code.
	Terminates []TerminateCount
	// OtherTerminates counts Terminates with other codes than the 64 that are counted singly.
	OtherTerminates uint64

	// Refused counts, by limit, what was refused or ended because of it. The keys are names of
	// fields of engine.Options (MaxAccepted, MaxPendingPerPeer, FPDUTimeout) and DeviceAttr (MaxQP,
	// MaxCQ), and FPDUMemory for the memory of unfinished FPDUs.
	Refused map[string]uint64

	Connections uint64 // streams that have begun
	Failures    uint64 // start-ups that have failed, on either side

	QPs, CQs, MRs, MWs, PDs, SRQs int // open

	Connected int // QPs that have a connection

	// Accepted counts the connections towards MaxAccepted, Closing those towards MaxClosing.
	Accepted, Closing int

	// Counters holds the counters of a kernel device's driver under the driver's names, with the
	// port's number for a port ("1/sent_pkts"). They count for all processes since the driver was
	// loaded. A kernel device has only these counters: the fields above are zero. On the engine
	// Counters is nil.
	Counters map[string]uint64
}

// ListenerStats holds a listener's counters since Listen.
type ListenerStats struct {
	Connections uint64 // accepted by TCP
	Requests    uint64 // that became a CONNECT_REQUEST
	Refused     uint64 // reset because of a limit
	Failed      uint64 // that sent no valid Request in time
	Pending     int    // in the start-up, or waiting for the program's answer
	MaxPending  int
}
