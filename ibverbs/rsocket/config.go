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

// Defaults of Config. Those of sizes are C's.
const (
	DefaultSendBuffer    = 128 << 10
	DefaultReceiveBuffer = 128 << 10
	DefaultSendQueue     = 384
	DefaultReceiveQueue  = 384
	DefaultInline        = 64
	DefaultLinger        = 5 * time.Second
)

// The least and the most that Config permits. A device may have smaller queues.
const (
	minBuffer = proto.LowWater
	maxBuffer = 1 << 30
	minQueue  = 16
	maxQueue  = 0xfffe
)

// Config says how the connections of a Dialer or a Listener are made. Every zero value is the
// default; what is outside of the bounds is EINVAL.
type Config struct {
	// SendBuffer is how many bytes of the connection may be on their way, from Write to the
	// completion of the RDMA Write, 2048 to 1 GiB. Default DefaultSendBuffer. Messages of up to
	// Inline bytes take none of it.
	SendBuffer int

	// ReceiveBuffer is the size of the ring that the peer writes into, 2048 bytes to 1 GiB,
	// rounded up to a multiple of 64. Default DefaultReceiveBuffer. The peer may write half of it
	// before the program reads.
	ReceiveBuffer int

	// SendQueue and ReceiveQueue are the sizes of the queues in work requests, 16 to 65534, and at
	// most what the device has. Defaults DefaultSendQueue and DefaultReceiveQueue. A transfer takes
	// two places of SendQueue, of which four are kept for credits. ReceiveQueue is how many
	// transfers the peer may make before the program reads.
	SendQueue    int
	ReceiveQueue int

	// Inline is how many bytes of a transfer may go with the work request, 4 to 65535; where the
	// device grants less, that counts. The engine refuses more than 512. Default DefaultInline.
	Inline int

	// KeepAlive is how often an RDMA Write of no bytes is sent, so that the end of a peer that
	// vanished is noticed by TCP. 0: never. Below a millisecond it is EINVAL.
	KeepAlive time.Duration

	// Linger is how long Close waits at most until what was written is handed to TCP. Default
	// DefaultLinger. Negative: Close does not wait.
	Linger time.Duration
}

// settings is a Config with its defaults.
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

// receives returns how many receives are posted. ReceiveQueue of them are what the peer has credits
// for. Beside data it sends credits, at most one for each transfer of ours whose completion we have
// not polled, and two messages that end the stream. Without receives for these, a peer that uses
// all of its credits while we only write would end the connection, as iWARP has no RNR.
func (c Config) receives() int {
	return c.ReceiveQueue + (c.SendQueue-proto.ControlSlots)/2 + 1 + extraPlaces
}

// ringAlign is what a ring is a multiple of: each half begins in a cache line of its own, and the
// SGL after the ring is aligned.
const ringAlign = 64

// supported returns an error if the device can't carry rsocket's messages as this package sends
// them.
func supported(vctx *ibverbs.Context) error {
	if _, err := vctx.Query(); err != nil { // of a nil or closed context
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

	// LocalAddr is the address to connect from. Zero leaves it to the device.
	LocalAddr netip.AddrPort

	// Timeout bounds Dial, if it is positive.
	Timeout time.Duration
}

// ListenConfig says how to listen. The zero value is usable.
type ListenConfig struct {
	Config

	// Backlog is how many connections may wait at the listener; 0 means rdmacm.DefaultBacklog.
	Backlog int

	// Refused, if not nil, is called for each peer that asked for a connection and got none: its
	// private data is not rsocket's, or the connection could not be made. An Accept calls it.
	Refused func(peer netip.AddrPort, err error)
}
