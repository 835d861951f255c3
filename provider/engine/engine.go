package engine

import (
	"cmp"
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
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
	err  error   // why no device can be opened with opts; nil if one can
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

// Open implements provider.Provider. Each call returns a separate device, which rejects the objects
// of others.
func (e *engine) Open(name string) (provider.Device, error) {
	const op = "ibv_open_device"
	if name != "" && name != DeviceName {
		return nil, fail(op, name, fmt.Errorf("the engine has one device, %s; open that, or \"\": %w",
			DeviceName, syscall.ENODEV))
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

// openDevice makes a device and starts its progress. opts is complete.
func openDevice(opts Options) (*device, error) {
	if opts.Network == nil {
		network, err := tcpNetwork(opts)
		if err != nil {
			return nil, err
		}
		opts.Network = network
	}
	d := newDevice(opts)
	if err := d.poller.open(opts.Network, opts.ProgressGoroutines); err != nil {
		return nil, err
	}
	d.cm = cm.New(cmConfig(&d.opts), (*cmDevice)(d))
	d.startProgress()
	return d, nil
}

// tcpNetwork makes the network of a device whose Options name none.
//
// With CRC, it bounds the segments, which only matters on links like loopback, whose segments could
// be longer. The MSS there, 65,483, is no multiple of four, so a segment that TCP cuts from the
// middle of a long record may end inside a CRC. Each FPDU would have to be a record of its own (see
// addFPDU). With segments of 32,576 bytes, or 32,564 with time stamps, one record can hold any
// number of FPDUs without pad, so one call sends 256 KiB. Two such segments still fit into one
// packet of the kernel, which has at most 64 KiB.
func tcpNetwork(opts Options) (transport.Network, error) {
	if opts.TCP.MaxSegment == 0 && opts.CRC != CRCOff {
		opts.TCP.MaxSegment = policy.RecordSegment
	}
	opts.TCP.LocalReceiveBuffer = cmp.Or(opts.TCP.LocalReceiveBuffer, policy.LocalReceiveBuffer)
	opts.TCP.LocalSendBuffer = cmp.Or(opts.TCP.LocalSendBuffer, policy.LocalSendBuffer)
	tcp := transport.NewTCP(&opts.TCP)
	return tcp, tcp.Check()
}
