package engine

import (
	"fmt"
	"log/slog"
	"reflect"
	"runtime"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// DeviceName is the name of the engine's one device.
const DeviceName = "govs0"

// CRCPolicy says whether the engine asks for the CRC in the MPA start-up frames. The CRC is used if
// either side asks (RFC 5044 section 7.1).
type CRCPolicy int

const (
	// CRCPreferred asks for the CRC, so every connection has it, whatever the peer asks for. RFC
	// 5044 section 4.4 requires this unless the path is known to protect data at least as strongly.
	CRCPreferred CRCPolicy = iota
	// CRCOff does not ask; the peer may.
	CRCOff
	// CRCRequired asks as CRCPreferred does, and Connect also fails with CONNECT_ERROR if the
	// peer's Reply does not ask. Such a Reply is legal (RFC 5044 section 7.1.1), but the peer may
	// not check the CRC. A listener requires nothing more, because its own Reply is the last frame.
	CRCRequired

	// CRCOn is CRCPreferred.
	CRCOn = CRCPreferred
)

// DefaultBusyWait is longer than it takes to wake a peer on another CPU and to be woken by its
// answer: round trips between two sleeping ends took 70 to 95 us on a virtual machine. If
// BusyWait were shorter, waits for such a peer, which also has work to do, would count as too long,
// and neither end would ever poll.
const DefaultBusyWait = policy.BusyWait

// Options configures an engine. Every zero value is the default.
//
// The fields are in groups:
//   - what two ends agree on: PeerToPeer, MaxIRD, MaxORD, Extensions, CRC, Conformance;
//   - the data path: TransmitAtOnce, BusyWait, ProgressGoroutines;
//   - time limits: StartupTimeout, FPDUTimeout, SendTimeout, CloseTimeout;
//   - what peers can have of a device at a time: MaxPending, MaxPendingPerPeer, MaxAccepted,
//     MaxAcceptedPerPeer, MaxClosing, MaxClosingPerPeer;
//   - the system and the program: Network, TCP, Logger.
type Options struct {
	// PeerToPeer makes Connect begin with an RTR indication (RFC 6581 section 9), so that the
	// accepting side may send first. A listener serves peers with and without it.
	PeerToPeer bool

	// MaxIRD and MaxORD bound how many RDMA Reads one QP serves, and has outstanding, at a time: 1
	// to 128, default 128.
	MaxIRD, MaxORD int

	// Extensions enables the messages of RFC 7306, in both directions, on all connections. A
	// program can then post WRRDMAWriteWithImm, WRSendWithImm without payload and atomic
	// operations, and receives the peer's. AccessRemoteAtomic is granted, and DeviceAttr.AtomicCap
	// is AtomicHCA.
	//
	// Both ends must enable it, because MPA's start-up does not negotiate it: RFC 7306 section 1.1
	// leaves that to the programs. A peer without it, such as siw, ends the connection at the first
	// such message. If it follows RFC 5040, it sends Terminate 0/2/0x06 (unexpected opcode). This
	// engine does the same when Extensions is off.
	Extensions bool

	// CRC is the policy for the CRC.
	CRC CRCPolicy

	// Conformance is for the conformance suite. Programs leave it zero.
	Conformance Conformance

	// BusyWait is how long a goroutine that waits for a completion event polls for it before it
	// sleeps, if its last wait was no longer than that. Where answers come within microseconds,
	// waking up takes most of the time. While it polls, the goroutine yields the CPU to others. At
	// most GOMAXPROCS-1 goroutines of a process poll at a time, or one if GOMAXPROCS is 1. Default
	// DefaultBusyWait; negative: it sleeps at once. With GOMAXPROCS 1, polling makes a round trip
	// between two processes ten times as fast (docs/benchmarks, "What is the latency?").
	BusyWait time.Duration

	// TransmitAtOnce makes every PostSend transmit before it returns. Without it the engine may
	// defer a post until the program has made the next ones (QP.PostSend in package ibverbs). Set
	// it for a program that cannot accept a post that is late by 0.75 ms, or lost if the process
	// ends. It costs a program that posts one by one most of its rate of short messages.
	TransmitAtOnce bool

	// ProgressGoroutines is how many goroutines of a device move the data of connections that no
	// goroutine of the program polls: connections whose program waits for completion events, and
	// targets of Writes and Reads. A new connection goes to the goroutine that has the fewest, and
	// stays there. Each goroutine has four descriptors. 1 to 256; default GOMAXPROCS, but at most
	// 16 and at most a 32nd of RLIMIT_NOFILE, or 1 if Network is given.
	//
	// More goroutines move more data where CPUs would otherwise be idle and there are many
	// connections. If all CPUs are busy with one goroutine, a second costs up to a twelfth of the
	// message rate (docs/benchmarks, "How do many connections behave?"), so 1 is better. That was
	// measured with both ends on one machine with two CPUs. Keep the default if there are more CPUs
	// than goroutines of the program keep busy.
	ProgressGoroutines int

	// StartupTimeout bounds connecting and the whole MPA start-up, on either side. Default 10 s.
	StartupTimeout time.Duration

	// FPDUTimeout is how long an FPDU may take to arrive, from its first byte to its last, however
	// the peer spreads its bytes. A peer that exceeds it is sent a Terminate (0/0/0xff), and
	// QP.Cause wraps os.ErrDeadlineExceeded. The longest FPDU has 64 KiB, and most have no more
	// than a TCP segment. So a line of 20 kbit/s meets the default of 30 s, and so does a faster
	// one that is interrupted for half of that time. Negative: no limit.
	FPDUTimeout time.Duration

	// SendTimeout bounds how long a peer may leave the socket full instead of taking what the
	// engine sends, above all the answers to its Reads. The time runs from when the socket was
	// found full until the peer has taken the bytes that were left over then, of which at most 64
	// KiB count. Taking single bytes does not restart it. A connection that exceeds it is reset,
	// and QP.Cause wraps os.ErrDeadlineExceeded. Default 60 s; a peer needs more if its objects
	// (RegObject) may take longer to store what they are sent. Negative: no limit.
	//
	// TCP.UserTimeout does not replace it, because it ends a connection only when the peer
	// acknowledges nothing at all, or keeps its window closed, for so long. It never ends a
	// connection whose peer occasionally opens its window by a byte.
	SendTimeout time.Duration

	// CloseTimeout is how long an ended connection, after its own FIN, waits for the peer's FIN
	// before it resets, if MaxClosing permits. Default 1 s.
	//
	// A graceful end also resets when, for CloseTimeout, the peer takes nothing and sends no more
	// of the answer to a Read. After the engine's FIN it resets when the peer acknowledges nothing
	// more of what TCP still sends; the engine checks this four times within CloseTimeout. A peer
	// that makes slow progress has SendTimeout for each 64 KiB. While rdmacm.Conn.Shutdown waits
	// for a graceful end, SendTimeout applies if it is longer than CloseTimeout. The time that
	// objects under regions of this side (RegObject) take does not count, however long it is. The
	// time that the peer's objects take does count, because the protocol does not report it.
	CloseTimeout time.Duration

	// MaxPending bounds the connections of one listener that are in the MPA start-up or are
	// requests that the program has not answered yet (Accept, Reject, or Close of the id). If the
	// peer of a request leaves, the request is withdrawn; but if the program has fetched it by
	// then, it still counts. Further connections wait in TCP's backlog.
	//
	// Default 1024, because each costs a descriptor, a goroutine and some KiB. A silent peer holds
	// its place for StartupTimeout, so silent peers, at two addresses or more, have to open 100
	// connections a second to keep others out. The default is half of MaxAccepted if that is less,
	// because silent connections count there, too, and connections beyond MaxAccepted are reset
	// instead of waiting.
	MaxPending int

	// MaxPendingPerPeer bounds how many of these connections one peer may have without having sent
	// a Request. Further ones are reset. Default half of MaxPending, so that one peer alone keeps
	// nobody out. More than MaxPending is EINVAL; the other limits per peer have the same rule.
	// Here and below, a peer is an IPv4 address or the first 64 bits of an IPv6 address, because a
	// host that has one address of such a prefix can have them all.
	MaxPendingPerPeer int

	// MaxAccepted bounds the connections of the device that came to its listeners, from TCP's
	// handshake to the end of the RDMA stream, over all listeners. MaxAcceptedPerPeer bounds the
	// connections of one peer among them. Further ones are reset. Negative means no limit. A call
	// of an object (RegObject) that outlives its connection takes the connection's place in the
	// count until it returns.
	//
	// By default MaxAccepted is three quarters of the descriptors that the process may have
	// (RLIMIT_NOFILE), so that peers can't take those that the program needs to dial and to open
	// files. It is the number of QPs if that is less (DeviceAttr.MaxQP), or if Network is given.
	// MaxAcceptedPerPeer is half of it by default, so that one peer alone keeps nobody out.
	// Loopback addresses have no limit by default, because a process on the same host has the
	// host's resources anyway.
	MaxAccepted, MaxAcceptedPerPeer int

	// MaxClosing bounds the connections of the device that have ended on this side and wait for the
	// peer's end: streams after a Terminate or a close, rejected requests, and peers that were
	// refused with a Reply. MaxClosingPerPeer bounds the connections of one peer among them. Each
	// has a descriptor and 2 to 3 KiB of heap for up to CloseTimeout.
	//
	// When there are more, the engine takes the peer that has most of them and closes its longest
	// waiting connection at once. TCP still delivers the last bytes, but the peer may see a reset
	// after them. Default 1024, or an eighth of RLIMIT_NOFILE if that is less: it is rare, and
	// harmless, that a thousand connections end in the time that a peer needs to answer a FIN. The
	// default per peer is half of it.
	MaxClosing, MaxClosingPerPeer int

	// Network makes the connections; nil for TCP.
	Network transport.Network

	// TCP adjusts the sockets: congestion control, buffers, segments, keepalive (on by default),
	// user timeout, DSCP, interface. Open fails and names the option if the system can't set one.
	// The engine has its own defaults for LocalReceiveBuffer, LocalSendBuffer and MaxSegment, which
	// their comments describe. TCP is for the default Network, and is EINVAL with another.
	TCP transport.TCPOptions

	// Logger receives what a person may want to know: start-ups that failed, Terminates sent and
	// received, CQs that overflow, limits that were reached, and the first Read whose sink lacks
	// the rights that RNICs require (ibverbs.AccessReadSink). If its Handler accepts
	// slog.LevelDebug when the device is opened, it also receives sends that are held until the
	// peer's first message. Nil, the default, logs nothing.
	//
	// At most 10 records of a level are written in a second, because a peer can cause them. The
	// next record of the level has the number of dropped ones in its attribute "dropped". A
	// goroutine of the device calls the Handler, which must not close the device.
	Logger *slog.Logger
}

// Limits that the engine enforces and Device.Query returns. Where siw has the same limit, the
// number is siw's, so that programs that size by it behave the same on both.
const (
	maxQP      = 102400
	maxQPWR    = 32768
	maxSGE     = memory.MaxSGE // siw: 6
	maxSGERead = 16            // siw: 1
	maxInline  = 512           // bytes; siw: 80
	maxCQ      = 102400
	maxCQE     = 3276800
	maxMR      = 1024000
	maxMW      = 1 << 18 // siw: 0
	maxPD      = 102400
	maxSRQ     = 102400
	maxSRQWR   = 10 * maxQPWR
	maxRdAtom  = 128 // IRD and ORD
	maxMsgSize = 1<<32 - 1
	maxAsync   = 256 // events kept for Device.AsyncEvent

	numCompVectors = 1
)

// complete fills in the defaults, and returns EINVAL for impossible values.
func (o *Options) complete() error {
	setDefault(&o.Conformance.Revision, 2)
	setDefault(&o.StartupTimeout, 10*time.Second)
	setDefault(&o.CloseTimeout, time.Second)
	setDefault(&o.FPDUTimeout, 30*time.Second)
	setDefault(&o.SendTimeout, time.Minute)
	setDefault(&o.BusyWait, DefaultBusyWait)
	files := 2 * maxQP
	if o.Network == nil {
		files = maxDescriptors(files)
	}
	setDefault(&o.MaxAccepted, max(1, min(maxQP, files-files/4)))
	pending := 1024
	if o.MaxAccepted > 0 {
		pending = max(1, min(pending, o.MaxAccepted/2))
	}
	setDefault(&o.MaxPending, pending)
	setDefault(&o.MaxPendingPerPeer, max(1, o.MaxPending/2))
	setDefault(&o.MaxClosing, max(1, min(1024, files/8)))
	setDefault(&o.MaxClosingPerPeer, max(1, o.MaxClosing/2))
	if o.Network == nil {
		setDefault(&o.ProgressGoroutines, min(runtime.GOMAXPROCS(0), policy.MostLoops, max(1, files/32)))
	}
	setDefault(&o.ProgressGoroutines, 1)
	setDefault(&o.MaxIRD, maxRdAtom)
	setDefault(&o.MaxORD, maxRdAtom)
	if err := o.checkConformance(); err != nil {
		return err
	}
	switch {
	case o.CRC < CRCPreferred || o.CRC > CRCRequired:
		return badOption("CRC", int(o.CRC), "CRCPreferred, CRCOff or CRCRequired")
	case o.ProgressGoroutines < 1 || o.ProgressGoroutines > 256:
		return badOption("ProgressGoroutines", o.ProgressGoroutines, "from 1 to 256, or 0 for the default")
	case o.StartupTimeout < 0:
		return badOption("StartupTimeout", o.StartupTimeout, positive)
	case o.CloseTimeout < 0:
		return badOption("CloseTimeout", o.CloseTimeout, positive)
	case o.MaxPending < 0:
		return badOption("MaxPending", o.MaxPending, positive)
	case o.MaxPendingPerPeer < 0:
		return badOption("MaxPendingPerPeer", o.MaxPendingPerPeer, positive)
	case o.MaxClosing < 0:
		return badOption("MaxClosing", o.MaxClosing, positive)
	case o.MaxClosingPerPeer < 0:
		return badOption("MaxClosingPerPeer", o.MaxClosingPerPeer, positive)
	case o.MaxPendingPerPeer > o.MaxPending:
		return badPerPeer("MaxPending", o.MaxPendingPerPeer, o.MaxPending)
	case o.MaxAccepted > 0 && o.MaxAcceptedPerPeer > o.MaxAccepted:
		return badPerPeer("MaxAccepted", o.MaxAcceptedPerPeer, o.MaxAccepted)
	case o.MaxClosingPerPeer > o.MaxClosing:
		return badPerPeer("MaxClosing", o.MaxClosingPerPeer, o.MaxClosing)
	case o.MaxIRD < 1 || o.MaxIRD > maxRdAtom:
		return badOption("MaxIRD", o.MaxIRD, readDepths)
	case o.MaxORD < 1 || o.MaxORD > maxRdAtom:
		return badOption("MaxORD", o.MaxORD, readDepths)
	case isNil(o.Network):
		return fmt.Errorf("engine.Options.Network is a nil %T; leave it out for TCP: %w", o.Network, syscall.EINVAL)
	case o.Network != nil && o.TCP != (transport.TCPOptions{}):
		return fmt.Errorf("engine.Options.TCP is for the default network, and Network is set; "+
			"leave one out: %w", syscall.EINVAL)
	}
	return nil
}

// isNil reports whether a network is a nil pointer, and not nil itself, which means TCP.
func isNil(network transport.Network) bool {
	v := reflect.ValueOf(network)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// The values that numbers of Options may have, in errors.
const positive = "above 0, or 0 for the default"

var readDepths = fmt.Sprintf("from 1 to %d, or 0 for the default", maxRdAtom)

// badOption returns EINVAL for a field of Options; allowed says which values the field may have.
func badOption(name string, value any, allowed string) error {
	return fmt.Errorf("engine.Options.%s is %v, and must be %s: %w", name, value, allowed, syscall.EINVAL)
}

// badPerPeer returns EINVAL for a limit per peer that is above the limit for all peers, all, which
// may be the default.
func badPerPeer(limit string, perPeer, all int) error {
	return badOption(limit+"PerPeer", perPeer, fmt.Sprintf("at most %s, which is %d", limit, all))
}

// roundUp returns the least power of two that is at least n.
func roundUp(n int) int {
	size := 1
	for size < n {
		size *= 2
	}
	return size
}
