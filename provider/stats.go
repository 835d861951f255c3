package provider

import (
	"fmt"
	"net/netip"
)

// What follows is what a provider may count. Each of its interfaces is optional: a
// provider that lacks one says so by not implementing it.

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

// OpCount counts messages of one kind. A message counts when its last segment was built
// or placed, and its bytes with it or with their segments.
type OpCount struct {
	Messages uint64
	Octets   uint64 // payload
}

func (c *OpCount) add(o OpCount) {
	c.Messages += o.Messages
	c.Octets += o.Octets
}

// Traffic counts the messages of one direction by what they are on the wire.
type Traffic struct {
	Send           OpCount // with Invalidate or Solicited Event, too
	Write          OpCount
	ReadRequest    OpCount // Octets: those asked for
	ReadResponse   OpCount
	AtomicRequest  OpCount
	AtomicResponse OpCount
	Immediate      OpCount // Immediate Data messages of RFC 7306
}

// Add adds what o has counted.
func (t *Traffic) Add(o *Traffic) {
	t.Send.add(o.Send)
	t.Write.add(o.Write)
	t.ReadRequest.add(o.ReadRequest)
	t.ReadResponse.add(o.ReadResponse)
	t.AtomicRequest.add(o.AtomicRequest)
	t.AtomicResponse.add(o.AtomicResponse)
	t.Immediate.add(o.Immediate)
}

// QPStats is what a QP has counted since it was made, over all of its connections, and how
// full its queues are.
type QPStats struct {
	Sent, Received Traffic

	FlushedSends, FlushedRecvs uint64
	CRCErrors                  uint64

	SendsPosted int  // work requests in the send queue that were not reported
	SendsHeld   int  // those of them of which nothing has been built, or that wait for other posts
	HeldForPeer bool // they wait for the peer's first message (RFC 5044 section 7.1.2)
	ReadsOut    int  // Reads and atomic operations that wait for the peer's response

	RecvsPosted int // of the QP's own receive queue
	// LowestRecvs is the least number of receives that were left when a message had taken
	// one; -1 if none has been taken, or the QP has an SRQ.
	LowestRecvs int

	Local, Remote netip.AddrPort // of the connection, zero without one
	TCP           *TCPStats      // of the connection, nil where it is not one of TCP
}

// TCPStats is a part of TCP_INFO.
type TCPStats struct {
	RTTMicros, RTTVarMicros uint32
	SendMSS, CongWindow     uint32 // bytes; segments
	Unacked, Lost, Retrans  uint32 // segments at this moment
	TotalRetrans            uint32 // segments since the start
	BytesAcked              uint64
	BytesReceived           uint64
	NotSentBytes            uint32
	DeliveryRate            uint64 // bytes a second
}

// String has fmt print what a QPStats has here, and not its address.
func (t *TCPStats) String() string {
	if t == nil {
		return "none"
	}
	return fmt.Sprintf("%+v", *t)
}

// CQStats is what a CQ has counted since it was made.
type CQStats struct {
	// Completions were put into the CQ or returned at once. Those of what package rdmacm or
	// ibverbs posts for itself are among them, although no poll returns them: the Write that opens
	// a stream, and the markers of Drain and Shutdown.
	Completions uint64
	Errors      uint64 // those of them that report a failure, flushes included
	Lost        uint64 // for which there was no room

	CQE     int // capacity, which is more than was asked for if that was no power of two
	Waiting int // completions in the CQ

	// MostWaiting is the most at any time since the CQ was made, or last resized. On the engine,
	// one look at a connection completes as many receives as have come, up to hundreds. The poll
	// that looks takes those that it has room for, at most 255 of each connection directly; the
	// others pass through the CQ, and count here. The flushes at the end of a connection wait
	// there, too: ask before.
	MostWaiting int
}

// LowestFree is the least number of free places since the CQ was made, or last resized. As with
// MostWaiting, what polls return at once does not count: a program that polls less often has less.
func (s *CQStats) LowestFree() int { return s.CQE - s.MostWaiting }

// SRQStats is what an SRQ has counted since it was made. It does not count receives that a
// RecvSource has.
type SRQStats struct {
	Posted uint64 // receives that were posted
	Taken  uint64 // those of them that messages have taken
	Empty  uint64 // messages that found none, which ends their connections

	RecvsPosted int // receives in the SRQ
	// LowestRecvs is the least number of receives that were left when a message had taken
	// one; -1 if none has been taken.
	LowestRecvs int
}

// TerminateCount counts Terminates of one code in one direction (RFC 5040 section 4.8).
type TerminateCount struct {
	Remote             bool // received; otherwise sent
	Layer, EType, Code uint8
	Count              uint64
}

// DeviceStats is what a device has counted since it was opened. Sums are over all QPs that
// are open, and those that were closed.
type DeviceStats struct {
	Sent, Received             Traffic
	FlushedSends, FlushedRecvs uint64
	CRCErrors                  uint64
	CQLost                     uint64 // completions that were lost in full CQs

	// Terminates are ordered by direction, layer, type and code.
	Terminates []TerminateCount
	// OtherTerminates have codes beyond the 64 that are counted singly.
	OtherTerminates uint64

	// Refused counts by limit what was refused or ended. The keys are names of
	// engine.Options' fields (MaxAccepted, MaxPendingPerPeer, FPDUTimeout) and
	// DeviceAttr's (MaxQP, MaxCQ).
	Refused map[string]uint64

	Connections uint64 // streams that have begun
	Failures    uint64 // start-ups that have failed, on either side

	QPs, CQs, MRs, MWs, PDs, SRQs int // open

	Connected int // QPs that have a connection

	// Accepted are the connections that count against MaxAccepted, Closing those against
	// MaxClosing.
	Accepted, Closing int

	// Counters are those of a kernel device's driver, by its names, of a port with its number
	// ("1/sent_pkts"). They count for all processes since the driver was loaded, and are all that
	// such a device has: the fields above are zero there. Over the engine it is nil.
	Counters map[string]uint64
}

// ListenerStats is what a listener has counted since Listen.
type ListenerStats struct {
	Connections uint64 // that TCP has accepted
	Requests    uint64 // that have become a CONNECT_REQUEST
	Refused     uint64 // reset for a limit
	Failed      uint64 // without a good Request in time
	Pending     int    // in the start-up, or not answered by the program
	MaxPending  int
}
