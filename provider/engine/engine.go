package engine

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// DeviceName is the name of the engine's one device.
const DeviceName = "govs0"

// CRCPolicy says what the engine asks for in the MPA start-up frames. The CRC
// is used if either side asks (RFC 5044 section 7.1).
type CRCPolicy int

const (
	// CRCOn asks for the CRC, so that every connection has it. RFC 5044
	// section 4.4 wants this unless the path is known to be as strong.
	CRCOn CRCPolicy = iota
	// CRCOff does not ask; the peer may.
	CRCOff
)

// Placement says when received octets go into registered memory.
type Placement int

const (
	// PlaceVerified places the octets of an FPDU after its CRC was found good
	// (RFC 5044 section 4.4). Each octet is copied once more.
	PlaceVerified Placement = iota
	// PlaceStreaming lets large payload go from the socket into the region
	// while the FPDU arrives, as siw does; a bad CRC then terminates the
	// connection after the fact.
	PlaceStreaming
)

// Options configures an engine. Every zero value is the default.
type Options struct {
	// CRC is what the engine asks for. Without a CRC on a connection both
	// placements are PlaceStreaming.
	CRC       CRCPolicy
	Placement Placement

	// Markers asks peers to put MPA markers into what they send us. What we
	// send has markers if and only if the peer asked (RFC 5044 section 4.3).
	Markers bool

	// Revision of MPA to connect with: 2 (RFC 6581, the default) or 1
	// (RFC 5044). A listener answers in the revision it was asked in.
	Revision int

	// StartupTimeout bounds connecting and the MPA start-up as a whole, on
	// either side. Default 10 s.
	StartupTimeout time.Duration

	// CloseTimeout is how long an ended connection waits for the peer's FIN
	// after its own before it resets. Default 1 s.
	CloseTimeout time.Duration

	// MaxPending bounds the connections of one listener that are in the MPA
	// start-up or wait for Accept or Reject. Default 1024.
	MaxPending int

	// MaxIRD and MaxORD bound the RDMA Reads that one QP serves, and has
	// outstanding, at a time: 1 to 128, default 128.
	MaxIRD, MaxORD int

	// CongestionControl names the TCP algorithm of the sockets; empty for the
	// system's. It is for the default Network only.
	CongestionControl string

	// Network makes the connections; nil for TCP.
	Network transport.Network
}

// Limits that the engine enforces and Device.Query tells. Where siw has the
// same limit the number is siw's, so that programs that size by it behave the
// same on both.
const (
	maxQP      = 102400
	maxQPWR    = 32768
	maxSGE     = 16  // siw: 6
	maxSGERead = 16  // siw: 1
	maxInline  = 512 // octets; siw: 80
	maxCQ      = 102400
	maxCQE     = 3276800
	maxMR      = 1024000
	maxPD      = 102400
	maxRdAtom  = 128 // IRD and ORD
	maxMsgSize = 1<<32 - 1
	maxAsync   = 256 // events kept for Device.AsyncEvent
)

// New makes an engine. opts may be nil; it is copied.
func New(opts *Options) provider.Provider {
	e := &engine{}
	if opts != nil {
		e.opts = *opts
	}
	e.err = e.opts.complete()
	return e
}

// engine implements provider.Provider.
type engine struct {
	opts Options // complete
	err  error   // why no device can be opened with these
}

// complete puts the defaults in and says what is impossible.
func (o *Options) complete() error {
	setDefault(&o.Revision, 2)
	setDefault(&o.StartupTimeout, 10*time.Second)
	setDefault(&o.CloseTimeout, time.Second)
	setDefault(&o.MaxPending, 1024)
	setDefault(&o.MaxIRD, maxRdAtom)
	setDefault(&o.MaxORD, maxRdAtom)
	switch {
	case o.CRC != CRCOn && o.CRC != CRCOff:
		return badOption("CRC", int(o.CRC))
	case o.Placement != PlaceVerified && o.Placement != PlaceStreaming:
		return badOption("Placement", int(o.Placement))
	case o.Revision != 1 && o.Revision != 2:
		return badOption("Revision", o.Revision)
	case o.StartupTimeout < 0:
		return badOption("StartupTimeout", o.StartupTimeout)
	case o.CloseTimeout < 0:
		return badOption("CloseTimeout", o.CloseTimeout)
	case o.MaxPending < 0:
		return badOption("MaxPending", o.MaxPending)
	case o.MaxIRD < 1 || o.MaxIRD > maxRdAtom:
		return badOption("MaxIRD", o.MaxIRD)
	case o.MaxORD < 1 || o.MaxORD > maxRdAtom:
		return badOption("MaxORD", o.MaxORD)
	}
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

func badOption(name string, value any) error {
	return fmt.Errorf("engine option %s = %v: %w", name, value, syscall.EINVAL)
}

// Name implements provider.Provider.
func (e *engine) Name() string { return "engine" }

// Devices implements provider.Provider.
func (e *engine) Devices() ([]provider.DeviceInfo, error) {
	return []provider.DeviceInfo{{
		Name:      DeviceName,
		Provider:  e.Name(),
		NodeType:  provider.NodeRNIC,
		Transport: provider.TransportIWARP,
		NodeGUID:  nodeGUID,
	}}, nil
}

// Open implements provider.Provider. Each call gives a device of its own: what
// belongs to one is foreign to the other.
func (e *engine) Open(name string) (provider.Device, error) {
	const op = "ibv_open_device"
	if name != "" && name != DeviceName {
		return nil, fail(op, name, syscall.ENODEV)
	}
	if e.err != nil {
		return nil, fail(op, DeviceName, e.err)
	}
	d, err := openDevice(e.opts)
	if err != nil {
		return nil, fail(op, DeviceName, err)
	}
	return d, nil
}

// fail makes the error of a failed call.
func fail(op, object string, err error) error {
	return &provider.Error{Op: op, Object: object, Err: err}
}

// failClosed makes the error of a call on something closed.
func failClosed(op, object string) error { return fail(op, object, os.ErrClosed) }

// failBusy makes the error of closing something that others depend on.
func failBusy(op, object, dependants string) error {
	return fail(op, object, fmt.Errorf("%s not closed: %w", dependants, syscall.EBUSY))
}

// failUnsupported makes the error of something the engine does not offer.
func failUnsupported(feature, reason string) error {
	return &provider.UnsupportedError{Feature: feature, Reason: reason}
}

var errForeign = errors.New("belongs to another device or provider")

// failForeign makes the error of an argument of another device or provider.
func failForeign(op, what string) error {
	return fail(op, what, fmt.Errorf("%w: %w", errForeign, syscall.EINVAL))
}
