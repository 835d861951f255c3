package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

// The engine has no interface of its own, so its MAC address is made up: the bit for locally
// administered addresses, and then the project's name. It is the same on every host, because
// nothing that is stable differs on all of them; iWARP addresses peers by IP and never by GID.
var mac = [6]byte{0x02, 'g', 'o', 'v', 's', 0}

// nodeGUID is the EUI-64 of mac (RFC 4291 appendix A). siw makes its GUID from its interface's
// address in the same way.
var nodeGUID = binary.BigEndian.Uint64([]byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})

// Transport implements provider.Device.
func (d *device) Transport() provider.TransportType { return provider.TransportIWARP }

// Query implements provider.Device. Every limit that it returns is enforced.
func (d *device) Query() (provider.DeviceAttr, error) {
	if d.refs.Closed() {
		return provider.DeviceAttr{}, failClosed("ibv_query_device", DeviceName)
	}
	return provider.DeviceAttr{
		NodeGUID:        nodeGUID,
		SysImageGUID:    nodeGUID,
		MaxMRSize:       memory.MaxRegion,
		PageSizeCap:     1 << 12,
		MaxQP:           int(d.qps.Max),
		MaxQPWR:         maxQPWR,
		MaxSGE:          maxSGE,
		MaxSGERd:        maxSGERead,
		MaxCQ:           int(d.cqs.Max),
		MaxCQE:          maxCQE,
		MaxMR:           int(d.memory.MRs.Max),
		MaxMW:           int(d.memory.MWs.Max),
		MaxPD:           int(d.pds.Max),
		MaxQPRdAtom:     d.opts.MaxIRD,
		MaxResRdAtom:    d.opts.MaxIRD * int(d.qps.Max),
		MaxQPInitRdAtom: d.opts.MaxORD,
		MaxSRQ:          int(d.srqs.Max),
		MaxSRQWR:        maxSRQWR,
		MaxSRQSGE:       maxSGE,
		AtomicCap:       d.atomicCap(),
		PhysPortCnt:     1,
		MaxInline:       maxInline,
		NumCompVectors:  numCompVectors,
		DeviceCapFlags: provider.DeviceCurrQPStateMod | provider.DeviceSysImageGUID | provider.DeviceSRQResize |
			provider.DeviceMemWindow | provider.DeviceMemWindowType2B | provider.DeviceMemMgtExtensions,
	}, nil
}

// atomicCap returns DeviceAttr.AtomicCap for Query. The CPU performs the operations, so they are
// atomic with the program's own, too. They are not atomic with the operations of another device
// that does not use the CPU, which IBV_ATOMIC_GLOB would promise.
func (d *device) atomicCap() provider.AtomicCap {
	if d.opts.Extensions {
		return provider.AtomicHCA
	}
	return provider.AtomicNone
}

// QueryPort implements provider.Device.
func (d *device) QueryPort(port uint8) (provider.PortAttr, error) {
	const op = "ibv_query_port"
	if err := d.checkPort(op, port); err != nil {
		return provider.PortAttr{}, err
	}
	return provider.PortAttr{
		State:     provider.PortActive,
		MaxMTU:    4096, // the largest of enum ibv_mtu: segments follow TCP's MSS, not this
		ActiveMTU: 1024,
		GIDTblLen: 1,
		MaxMsgSz:  maxMsgSize,
		LinkLayer: 2, // Ethernet
		PhysState: 5, // LinkUp
	}, nil
}

// QueryGID implements provider.Device. The one GID is made from mac, so it is the same on every
// host.
func (d *device) QueryGID(port uint8, index int) (provider.GID, error) {
	const op = "ibv_query_gid"
	var gid provider.GID
	if err := d.checkPort(op, port); err != nil {
		return gid, err
	}
	if index != 0 {
		return gid, fail(op, DeviceName, fmt.Errorf("the index is %d, and the table's only "+
			"entry is 0: %w", index, syscall.EINVAL))
	}
	copy(gid[:], mac[:])
	return gid, nil
}

// QueryGIDTable implements provider.Device.
func (d *device) QueryGIDTable() ([]provider.GIDEntry, error) {
	gid, err := d.QueryGID(1, 0)
	if err != nil {
		return nil, fail("ibv_query_gid_table", DeviceName, errors.Unwrap(err))
	}
	return []provider.GIDEntry{{GID: gid, Port: 1}}, nil
}

// errNoPkey has the errno that libibverbs returns for siw, whatever port and index, because it
// looks for a file in sysfs.
var errNoPkey = fmt.Errorf("%w: %w", failUnsupported("P_Key table", "iWARP has no partitions"), syscall.ENOENT)

// QueryPkey implements provider.Device.
func (d *device) QueryPkey(uint8, int) (uint16, error) {
	const op = "ibv_query_pkey"
	if d.refs.Closed() {
		return 0, failClosed(op, DeviceName)
	}
	return 0, fail(op, DeviceName, errNoPkey)
}

func (d *device) checkPort(op string, port uint8) error {
	if d.refs.Closed() {
		return failClosed(op, DeviceName)
	}
	if port != 1 {
		return fail(op, DeviceName, fmt.Errorf("the port is %d, and the device's only port is "+
			"1: %w", port, syscall.EINVAL))
	}
	return nil
}

// AsyncEvent implements provider.Device. It keeps 256 events. If more came, the call after the last
// one that was kept fails once with ENOBUFS, and says how many were lost.
func (d *device) AsyncEvent(ctx context.Context) (provider.AsyncEvent, error) {
	const op = "ibv_get_async_event"
	for {
		if d.refs.Closed() {
			return provider.AsyncEvent{}, failClosed(op, DeviceName)
		}
		e, lost, ok, more := d.async.pop()
		if more {
			d.async.wake.set() // for the next waiter
		}
		if ok {
			return e, nil
		}
		if lost > 0 {
			return e, fail(op, DeviceName, fmt.Errorf("%d events lost; call AsyncEvent all the time: %w",
				lost, syscall.ENOBUFS))
		}
		if err := d.async.wake.wait(ctx); err != nil {
			return e, fail(op, DeviceName, err)
		}
	}
}
