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
	// negative is EINVAL. On kernel devices it is how many requests wait for an answer. On the
	// engine it is listen(2)'s: connections that the engine has not taken over yet wait in it. The
	// engine takes over as many as engine.Options.MaxPending at a time, which bounds the requests
	// that wait.
	Backlog int

	// Resolver looks names up for ListenName. Nil: net.DefaultResolver.
	Resolver *net.Resolver

	// Setup, if not nil, is called with the new id before it is bound: the place
	// for ID.SetOption. Where the port that the provider chose is taken, it is called again, with
	// another id.
	Setup func(id *ID) error
}

// ConnConfig says how Dial and Request.Accept make a connection. Nil is the zero value. They do not
// change it, so concurrent calls may share one.
//
// On the engine, a Conn of the zero value that has moved no data needs 14 KiB of
// memory when it was accepted and 21 when it was dialled, and 26 KiB once both of its queues have
// been used. Nearly all of that is room for work requests and completions: with shared CQs and
// NoOpeningWrite it is 3 KiB before the first post.
type ConnConfig struct {
	// PD is the protection domain for the QP. Nil: that of the SRQ, or the Conn
	// makes one, which it closes.
	PD *ibverbs.PD

	// SRQ is the shared receive queue that the QP takes its receives from, and
	// remains the program's to close. Nil: the QP has a queue of its own.
	// Connections with one SRQ usually share RecvCQ as well.
	SRQ *ibverbs.SRQ

	// SendCQ and RecvCQ are where the QP completes, and may be the same. Nil:
	// the Conn makes one, with a completion channel of its own and room for a
	// full queue, or for all that the SRQ holds, which it closes. One that is given needs room for
	// all that the program will have posted to all queues that complete to it, which Dial and
	// Accept cannot know: completions that find no room are lost (EventCQErr, CQ.Stats), and
	// a program that waits for a lost one waits for ever.
	SendCQ *ibverbs.CQ
	RecvCQ *ibverbs.CQ

	// Receives and ReceiveSize make the Conn post that many receives of that many bytes each,
	// before the peer can send, for [Conn.Receive]. Both are 0, for none, or both are positive.
	// SRQ and RecvCQ have to be nil, and nobody else may post receives or poll RecvCQ, whose Poll
	// and PollWait are EBUSY. The memory is the heap's, registered until Conn.Close.
	//
	// Receives is how many messages of the peer may be under way, which counts those that are
	// received and not yet released. The peer can't know it, so the two programs have to agree on
	// who may send when: for instance one request, and one more after each answer. On iWARP one
	// message too many ends the connection, and so does one that is longer than ReceiveSize,
	// because the peer neither waits nor tries again (RFC 5041 section 7.1). On InfiniBand and
	// RoCE one too many waits at the peer (ConnParam.RNRRetryCount).
	Receives    int
	ReceiveSize int

	// Cap holds the QP's sizes. Zero means DefaultSendWR, Receives or else DefaultRecvWR, and
	// DefaultSGE for both kinds, but no inline data.
	Cap ibverbs.QPCap

	SQSigAll bool // every send WR is signalled

	// OnSend, if not nil, is called with each completion of SendCQ that belongs to no call of
	// Conn.Do, Read, Write, Send or SendBytes, while these take completions from there. One of them
	// calls it at a time; it must not wait for another. A panic goes to whoever called that one,
	// and the others go on. wc is valid during the call. While no call is under way, OnSend is not
	// called. Nil: such completions are dropped.
	//
	// At most Cap.MaxSendWR signalled work requests of the program's own may be posted that have
	// not come to OnSend: the Conn's send CQ has room for these beside the calls' work.
	// Work that is posted after the end of the connection counts as well, signalled or not, because
	// it is flushed. Completions that find no room are lost. On the engine a call whose completion
	// is lost fails (EOVERFLOW) when all that was posted is complete; on a device that does not
	// count what is lost, it waits until its context ends.
	OnSend func(wc *ibverbs.WC)

	// ResponderResources (IRD) and InitiatorDepth (ORD) are how many RDMA Reads
	// the peer, and we, may have outstanding. 0 means DefaultReadDepth, or
	// less if the device or, when accepting, the peer's offer is less, but at
	// least 1. Negative means none.
	//
	// InitiatorDepth is a limit on either side, ResponderResources on the side that dials only. On
	// iWARP an acceptor with fewer ResponderResources than the peer's ORD serves as many Reads as
	// the peer's ORD all the same, as far as the device can: the ORD is a request for them, which
	// an acceptor may not answer with less (RFC 6581 section 9.1), and siw and the engine meet it.
	// To serve no Reads, give regions no AccessRemoteRead, or reject a Request whose
	// ResponderResources are too many; engine.Options.MaxIRD bounds them for all connections of a
	// device.
	ResponderResources int
	InitiatorDepth     int

	// PrivateData goes to the peer: with Dial it is Request.PrivateData there,
	// with Accept it is Conn.PrivateData. See ConnParam for how much fits.
	PrivateData []byte

	// Prepare, if not nil, is called when the QP exists, before the peer can
	// send to it: the place to register memory and, where Receives does not do,
	// to post receives, since the peer may send at once. It may change param,
	// which holds what the rest of the configuration comes to; for instance put
	// the key of a region just registered into its private data. An error ends
	// Dial or Accept with it;
	// so does a panic, which goes on to the caller when everything is closed.
	// A goroutine that waits for messages or for the end may be started here;
	// Wait or Receive in Prepare itself would wait for what only comes after it.
	// Regions remain the program's to close, also if Dial or Accept fails.
	// Dial calls it again, with another Conn, if it has to try another local
	// port.
	Prepare func(ctx context.Context, c *Conn, param *ConnParam) error

	// NoOpeningWrite has Dial send nothing by itself. Otherwise, on iWARP, it opens the stream
	// with an RDMA Write of length 0, because the accepting side may not send before it has
	// received something (RFC 5044 section 7.1.2, rule 4): the engine holds back what is
	// posted there. The Write takes no receive and is invisible to the peer's program, and it has
	// completed when Dial returns, without a completion in SendCQ. QP.Stats counts it. Without it
	// the side that dialled has to send first.
	NoOpeningWrite bool

	// LocalAddr, for Dial, is the address to connect from. Zero leaves it to
	// the provider.
	LocalAddr netip.AddrPort

	// ResolveTimeout, for Dial, limits the resolution of address and route
	// each. 0 means DefaultResolveTimeout.
	ResolveTimeout time.Duration

	// Resolver looks names up for DialName. Nil: net.DefaultResolver.
	Resolver *net.Resolver

	// Setup, for Dial, is called with the new id before it is bound or resolves its
	// address, if not nil: the place for ID.SetOption.
	Setup func(id *ID) error

	// Cookie is for Conn.QP().Cookie().
	Cookie any
}

// depth turns a configured read depth into the one to ask for. limit is the
// device's, offered the peer's, negative if there is none.
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
