package rsocket

import (
	"fmt"
	"math"
	"net/netip"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// Defaults of Config. The sizes are C's defaults.
const (
	DefaultSendBuffer    = 128 << 10
	DefaultReceiveBuffer = 128 << 10
	DefaultSendQueue     = 384
	DefaultReceiveQueue  = 384
	DefaultInline        = 64
	DefaultLinger        = 5 * time.Second
)

// The limits of Config. A device may have smaller queues.
const (
	minBuffer = proto.LowWater
	maxBuffer = 1 << 30
	minQueue  = 16
	maxQueue  = 0xfffe
)

// Config says how a Dialer or a Listener makes its connections. Zero values mean defaults; values
// outside the limits are EINVAL.
type Config struct {
	// SendBuffer limits the bytes between Write and the completion of the RDMA Write, 2048 bytes to
	// 1 GiB. Default DefaultSendBuffer. Transfers of up to Inline bytes do not count.
	SendBuffer int

	// ReceiveBuffer is the size of the ring that the peer writes into, 2048 bytes to 1 GiB, rounded
	// up to a multiple of 64. Default DefaultReceiveBuffer. The peer may write all of it before the
	// program reads.
	ReceiveBuffer int

	// SendQueue and ReceiveQueue are the sizes of the queues in work requests, 16 to 65534, and at
	// most what the device has. Defaults DefaultSendQueue and DefaultReceiveQueue. A transfer takes
	// two places of SendQueue; four places are reserved for credits. The peer may make up to
	// ReceiveQueue transfers before the program reads.
	SendQueue    int
	ReceiveQueue int

	// Inline is how many bytes of a transfer may be in the work request itself, 4 to 65535. The
	// device may grant less. The engine refuses more than 512. Default DefaultInline.
	Inline int

	// KeepAlive is the interval of empty RDMA Writes, by which TCP notices that a peer has
	// vanished. 0 means never. Less than a millisecond is EINVAL.
	KeepAlive time.Duration

	// Linger is how long Close waits at most until written data is handed to TCP. Default
	// DefaultLinger. Negative: Close does not wait.
	Linger time.Duration
}

// settings checks c and returns it with its defaults.
func (c Config) settings(vctx *ibverbs.Context) (Config, error) {
	attr, err := vctx.Query()
	if err != nil {
		return c, err
	}
	mostSends := min(maxQueue, attr.MaxQPWR-extraPlaces)
	if c.SendQueue == 0 {
		c.SendQueue = min(DefaultSendQueue, mostSends)
	}
	mostReceives := min(maxQueue, attr.MaxQPWR-Config{SendQueue: c.SendQueue}.receives())
	for _, f := range []struct {
		name           string
		value          *int
		def, low, high int
	}{
		{"SendBuffer", &c.SendBuffer, DefaultSendBuffer, minBuffer, maxBuffer},
		{"ReceiveBuffer", &c.ReceiveBuffer, DefaultReceiveBuffer, minBuffer, maxBuffer},
		{"SendQueue", &c.SendQueue, DefaultSendQueue, minQueue, mostSends},
		{"ReceiveQueue", &c.ReceiveQueue, min(DefaultReceiveQueue, mostReceives), minQueue, mostReceives},
		{"Inline", &c.Inline, DefaultInline, proto.MessageLen, math.MaxUint16},
	} {
		if *f.value == 0 {
			*f.value = f.def
		}
		if *f.value < f.low || *f.value > f.high {
			return c, fmt.Errorf("%s of rsocket.Config is %d, and must be from %d to %d, or 0 for %d: %w",
				f.name, *f.value, f.low, f.high, f.def, syscall.EINVAL)
		}
	}
	if c.KeepAlive != 0 && c.KeepAlive < time.Millisecond {
		return c, fmt.Errorf("KeepAlive of rsocket.Config is %v, and must be at least %v, or 0 for none: %w",
			c.KeepAlive, time.Millisecond, syscall.EINVAL)
	}
	if c.Linger == 0 {
		c.Linger = DefaultLinger
	}
	c.ReceiveBuffer = (c.ReceiveBuffer + ringAlign - 1) &^ (ringAlign - 1)
	return c, nil
}

// receives returns how many receives are posted. The peer has credits for ReceiveQueue of them.
// Besides data it sends credits, at most one message for each of our transfers whose completion we
// have not polled, and two messages that end the stream. Without receives for these, a peer that
// uses all of its credits while we only write would end the connection, because iWARP has no RNR.
func (c Config) receives() int {
	return c.ReceiveQueue + (c.SendQueue-proto.ControlSlots)/2 + 1 + extraPlaces
}

// ringAlign is the unit of a ring's size: each half begins in its own cache line, and the SGL after
// the ring is aligned.
const ringAlign = 64

// supported returns an error if the device cannot carry rsocket's messages as this package sends
// them.
func supported(vctx *ibverbs.Context) error {
	if _, err := vctx.Query(); err != nil { // a nil or closed context
		return err
	}
	if vctx.Transport() == ibverbs.TransportIWARP {
		return nil
	}
	return &ibverbs.UnsupportedError{Feature: "rsocket on " + vctx.Name(),
		Reason: "on InfiniBand and RoCE its messages are immediate data, which this package does not " +
			"send; use a device of iWARP"}
}

// Dialer makes connections. The zero value is usable.
type Dialer struct {
	Config

	// LocalAddr is the address to connect from. Zero lets the device choose.
	LocalAddr netip.AddrPort

	// Timeout limits Dial, if it is positive.
	Timeout time.Duration
}

// ListenConfig says how to listen. The zero value is usable.
type ListenConfig struct {
	Config

	// Backlog is how many connections may wait at the listener; 0 means rdmacm.DefaultBacklog.
	Backlog int

	// Refused, if not nil, is called for each peer that requested a connection and did not get one,
	// because its private data is not rsocket's, or the connection could not be made. peer is zero
	// if it is not known. Accept calls Refused.
	Refused func(peer netip.AddrPort, err error)
}
