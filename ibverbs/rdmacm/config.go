package rdmacm

import (
	"context"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// Defaults of ListenConfig and ConnConfig.
const (
	DefaultBacklog        = 128
	DefaultSendWR         = 64
	DefaultRecvWR         = 64
	DefaultSGE            = 4
	DefaultReadDepth      = 16
	DefaultResolveTimeout = 2 * time.Second
)

// ListenConfig says how to listen. Nil is the zero value.
type ListenConfig struct {
	// Backlog is how many connections may wait at the listener; 0 means DefaultBacklog, and
	// negative is EINVAL. On kernel devices it limits the requests that wait for an answer. On the
	// engine it is the backlog of listen(2), for connections that the engine has not accepted yet.
	// The engine accepts up to engine.Options.MaxPending at a time, which limits the waiting
	// requests.
	Backlog int

	// Resolver resolves names for ListenName. Nil means net.DefaultResolver.
	Resolver *net.Resolver

	// Setup, if not nil, is called with the new id before it is bound, for calls of ID.SetOption.
	// If the port that the provider chose is taken, Setup is called again, with another id.
	Setup func(id *ID) error
}

// ConnConfig says how Dial and Request.Accept make a connection. Nil is the zero value. Dial and
// Accept do not change it, so concurrent calls may share one.
//
// On the engine, a Conn of the zero value that has moved no data needs 14 KiB of
// memory when it was accepted and 21 when it was dialled, and 26 KiB once both of its queues have
// been used. Nearly all of this is room for work requests and completions: with shared CQs and
// NoOpeningWrite, a Conn needs 3 KiB before the first post.
type ConnConfig struct {
	// PD is the protection domain for the QP. If it is nil, the Conn uses the SRQ's PD, or makes
	// and later closes its own.
	PD *ibverbs.PD

	// SRQ is the shared receive queue of the QP; the program closes it. Nil means that the QP has
	// its own receive queue. Connections with one SRQ usually share RecvCQ as well.
	SRQ *ibverbs.SRQ

	// SendCQ and RecvCQ are the QP's completion queues, and may be the same. For a nil one the Conn
	// makes and later closes a CQ with its own completion channel and room for a full queue, or for
	// all receives of the SRQ. A CQ that the program gives needs room for all work that it will
	// have posted to all queues that complete there. Dial and Accept cannot check that. Completions
	// that find no room are lost (EventCQErr, CQ.Stats), and a program that waits for a lost one
	// waits forever.
	SendCQ *ibverbs.CQ
	RecvCQ *ibverbs.CQ

	// Receives and ReceiveSize make the Conn post that many receives of that many bytes each,
	// before the peer can send, for [Conn.Receive]. Both are 0, for none, or both are positive. SRQ
	// and RecvCQ must be nil. Nothing else may post receives or poll RecvCQ: its Poll and PollWait
	// return EBUSY. The memory is on the heap, and is registered until Conn.Close.
	//
	// Receives is how many messages of the peer may be under way, including messages that are
	// received and not yet released. The peer does not know this number, so the two programs have
	// to agree on who may send when: for instance one request, and another after each answer. On
	// iWARP one message too many, or a message longer than ReceiveSize, ends the connection,
	// because the peer neither waits nor retries (RFC 5041 section 7.1). On InfiniBand and RoCE the
	// surplus message waits at the peer (ConnParam.RNRRetryCount).
	Receives    int
	ReceiveSize int

	// Cap holds the QP's sizes. Zero means: DefaultSendWR sends; Receives receives, or
	// DefaultRecvWR without Receives; DefaultSGE for both SGE counts; no inline data.
	Cap ibverbs.QPCap

	SQSigAll bool // every send WR is signalled

	// OnSend, if not nil, is called with completions of work that the program posted itself, while
	// calls of Conn.Do, Read, Write, Send or SendBytes take completions from SendCQ. While no such
	// call is under way, OnSend is not called. Calls of OnSend do not overlap, and OnSend must not
	// wait for one of the other calls. A panic goes to the caller of Do, Read, Write, Send or
	// SendBytes that ran OnSend; the other calls go on. wc is valid only during the call. Nil: such
	// completions are dropped.
	//
	// The program may have posted at most Cap.MaxSendWR signalled work requests of its own that
	// have not come to OnSend, because the Conn's send CQ has room for that many beside the calls'
	// work. After the end of the connection unsignalled work counts as well, because it is flushed.
	// Completions that find no room are lost. On the engine a call whose completion is lost fails
	// with EOVERFLOW when all posted work is complete. On a device that does not count lost
	// completions, the call waits until its context ends.
	OnSend func(wc *ibverbs.WC)

	// ResponderResources (IRD) and InitiatorDepth (ORD) limit the outstanding RDMA Reads of the
	// peer and of this side. 0 means DefaultReadDepth, or less if the device or (in Accept) the
	// peer's offer is less, but at least 1. Negative means none.
	//
	// InitiatorDepth is a limit on both sides, ResponderResources only on the dialling side. On
	// iWARP an acceptor with fewer ResponderResources than the peer's ORD still serves as many
	// Reads as that ORD, as far as the device can. The reason is that the peer's ORD is a request,
	// which an acceptor may not answer with less (RFC 6581 section 9.1); siw and the engine fulfil
	// it. To serve no Reads, give regions no AccessRemoteRead, or reject a Request whose
	// ResponderResources are too many. engine.Options.MaxIRD limits them for all connections of a
	// device.
	ResponderResources int
	InitiatorDepth     int

	// PrivateData goes to the peer: from Dial it becomes Request.PrivateData there, from Accept
	// Conn.PrivateData. ConnParam says how much fits.
	PrivateData []byte

	// Prepare, if not nil, is called when the QP exists and the peer cannot send yet. It can
	// register memory, and post receives (if Receives does not suffice) for a peer that sends at
	// once. It may change param, which holds the parameters that result from the configuration: for
	// instance, it can put the key of a new region into the private data. If Prepare returns an
	// error, Dial or Accept returns it; after a panic they close everything and pass the panic on.
	// Prepare may start a goroutine that waits for messages or for the end. Prepare itself must not
	// call Wait or Receive, because both wait for what happens after it. The program closes its
	// regions, even if Dial or Accept fails. Dial calls Prepare again, with another Conn, if it has
	// to try another local port.
	Prepare func(ctx context.Context, c *Conn, param *ConnParam) error

	// NoOpeningWrite makes Dial send nothing by itself. Without it, Dial on iWARP opens the stream
	// with an RDMA Write of length 0. The reason is that the accepting side may not send before it
	// has received something (RFC 5044 section 7.1.2, rule 4), so the engine holds back posts
	// there. The Write takes no receive and is invisible to the peer's program. It is complete when
	// Dial returns, and gives no completion in SendCQ; QP.Stats counts it. With NoOpeningWrite, the
	// side that dialled has to send first.
	NoOpeningWrite bool

	// LocalAddr, for Dial, is the address to connect from. Zero lets the provider choose.
	LocalAddr netip.AddrPort

	// ResolveTimeout, for Dial, limits the resolution of the address, and then of the route. 0
	// means DefaultResolveTimeout.
	ResolveTimeout time.Duration

	// Resolver resolves names for DialName. Nil means net.DefaultResolver.
	Resolver *net.Resolver

	// Setup, for Dial, if not nil, is called with the new id before it is bound or resolves its
	// address, for calls of ID.SetOption.
	Setup func(id *ID) error

	// Cookie is for Conn.QP().Cookie().
	Cookie any
}

// depth returns the read depth to request. limit is the device's maximum, offered the peer's,
// negative if there is no peer yet.
func depth(configured, limit, offered int) int {
	switch {
	case configured < 0:
		return 0
	case configured > 0:
		return configured
	}
	n := min(DefaultReadDepth, limit)
	if offered >= 0 {
		n = min(n, offered)
	}
	return max(n, 1)
}

// capacity returns the sizes of the QP.
func (c *Conn) capacity(cfg *ConnConfig) (ibverbs.QPCap, error) {
	if n, size := cfg.Receives, cfg.ReceiveSize; n < 0 || size < 0 || (n == 0) != (size == 0) {
		return ibverbs.QPCap{}, object.Errorf("rdma_create_qp", c.peer(), syscall.EINVAL,
			"ConnConfig.Receives is %d and ReceiveSize %d: both must be positive, or both 0 for no receives",
			n, size)
	}
	sizes := cfg.Cap
	def := func(n *int, value int) {
		if *n == 0 {
			*n = value
		}
	}
	def(&sizes.MaxSendWR, DefaultSendWR)
	def(&sizes.MaxRecvWR, cfg.Receives)
	def(&sizes.MaxRecvWR, DefaultRecvWR)
	def(&sizes.MaxSendSGE, DefaultSGE)
	def(&sizes.MaxRecvSGE, DefaultSGE)
	return sizes, nil
}
