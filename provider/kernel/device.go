//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/cgo/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// siw's vendor id, "bmt", and a limit of its ABI (include/uapi/rdma/siw-abi.h: five SGEs of 16
// bytes).
const (
	siwVendorID  = 0x626d74
	siwMaxInline = 80
)

// bridgePartID is the part id of the device of govs-verbs-test exec's bridge, "govs" in ASCII.
// siw's devices have other part ids. A device with this part id uses siw's library over the engine
// instead of over siw.
const bridgePartID = 0x676f7673

// rxeVendorID is rxe's vendor id; it is not assigned to any vendor
// (drivers/infiniband/sw/rxe/rxe_param.h).
const rxeVendorID = 0xffffff

// device is an open device. Several devices may be open for one RDMA device. They share librdmacm's
// single context for it, but each has its own asynchronous events.
type device struct {
	object
	name   string
	shared *sharedContext
	list   *rdmacm.DeviceList // keeps the context open
	attr   ibv.DeviceAttr
	libsiw bool // the library is siw's
	siw    bool // the driver is siw's too
	rxe    bool

	transport provider.TransportType

	life   context.Context // done when the device is closed
	endJob context.CancelFunc

	eventMu sync.Mutex
	events  []provider.AsyncEvent
	lost    int           // events that were dropped after them
	wake    chan struct{} // filled when events may have arrived
}

// sharedContext is a context of librdmacm, which opens one per RDMA device and process.
type sharedContext struct {
	verbs  *ibv.Context
	source *source
	keys   siwKeys
	memory memoryKeys

	mu      sync.Mutex
	devices map[*device]struct{}
}

var contexts struct {
	mu sync.Mutex
	m  map[*ibv.Context]*sharedContext
}

// openDevice gets the device from librdmacm's list instead of from ibv_open_device, because an id
// accepts only QPs of the context that librdmacm opened.
func openDevice(name string) (*device, error) {
	list, err := rdmacm.GetDevices()
	switch {
	case errors.Is(err, syscall.ENODEV):
		return nil, opError("rdma_get_devices", name, whyNoDevice(name))
	case err != nil:
		return nil, opError("rdma_get_devices", name, noSupport(err))
	}
	for _, verbs := range list.Contexts {
		if got := verbs.Device().Name(); name == "" || name == got {
			d, err := newDevice(got, verbs, list)
			if err != nil {
				list.Free()
				return nil, opError("ibv_open_device", got, err)
			}
			return d, nil
		}
	}
	list.Free()
	return nil, opError("ibv_open_device", name, whyNoDevice(name))
}

func newDevice(name string, verbs *ibv.Context, list *rdmacm.DeviceList) (*device, error) {
	attr, err := verbs.QueryDevice()
	if err != nil {
		return nil, err
	}
	d := &device{
		name: name,
		list: list,
		attr: attr,
		wake: make(chan struct{}, 1),

		transport: provider.TransportType(verbs.Device().TransportType()),
	}
	d.libsiw = attr.VendorID == siwVendorID
	d.siw = d.libsiw && attr.VendorPartID != bridgePartID
	d.rxe = attr.VendorID == rxeVendorID && d.transport == provider.TransportIB
	d.life, d.endJob = context.WithCancel(context.Background())
	if err := d.join(verbs); err != nil {
		d.endJob()
		return nil, err
	}
	return d, nil
}

// join adds d to the devices that share verbs.
func (d *device) join(verbs *ibv.Context) error {
	contexts.mu.Lock()
	defer contexts.mu.Unlock()
	sc := contexts.m[verbs]
	if sc == nil {
		src, err := newSource(verbs.AsyncFD(), "ibv async events")
		if err != nil {
			return err
		}
		sc = &sharedContext{verbs: verbs, source: src, devices: make(map[*device]struct{})}
		if contexts.m == nil {
			contexts.m = make(map[*ibv.Context]*sharedContext)
		}
		contexts.m[verbs] = sc
	}
	sc.mu.Lock()
	sc.devices[d] = struct{}{}
	sc.mu.Unlock()
	d.shared = sc
	return nil
}

// part undoes join. The life of d has ended, so none of d's goroutines waits in the source.
func (d *device) part() {
	contexts.mu.Lock()
	defer contexts.mu.Unlock()
	sc := d.shared
	sc.mu.Lock()
	delete(sc.devices, d)
	last := len(sc.devices) == 0
	sc.mu.Unlock()
	if last {
		delete(contexts.m, sc.verbs)
		sc.keys.release()
		sc.source.close()
	}
}

func (d *device) Name() string { return d.name }

func (d *device) Transport() provider.TransportType { return d.transport }

func (d *device) Close() error {
	return opError("ibv_close_device", d.name, d.close(func() error {
		d.endJob()
		d.part()
		d.list.Free()
		return nil
	}))
}

func (d *device) Query() (provider.DeviceAttr, error) {
	if err := d.enter(); err != nil {
		return provider.DeviceAttr{}, opError("ibv_query_device", d.name, err)
	}
	defer d.leave()
	a, err := d.shared.verbs.QueryDevice()
	if err != nil {
		return provider.DeviceAttr{}, opError("ibv_query_device", d.name, err)
	}
	attr := provider.DeviceAttr{
		FWVer:           a.FWVer,
		NodeGUID:        a.NodeGUID,
		SysImageGUID:    a.SysImageGUID,
		MaxMRSize:       a.MaxMRSize,
		PageSizeCap:     a.PageSizeCap,
		VendorID:        a.VendorID,
		VendorPartID:    a.VendorPartID,
		HWVer:           a.HWVer,
		MaxQP:           a.MaxQP,
		MaxQPWR:         a.MaxQPWR,
		DeviceCapFlags:  provider.DeviceCap(a.DeviceCapFlags),
		MaxSGE:          a.MaxSGE,
		MaxSGERd:        a.MaxSGERd,
		MaxCQ:           a.MaxCQ,
		MaxCQE:          a.MaxCQE,
		MaxMR:           a.MaxMR,
		MaxPD:           a.MaxPD,
		MaxQPRdAtom:     a.MaxQPRdAtom,
		MaxResRdAtom:    a.MaxResRdAtom,
		MaxQPInitRdAtom: a.MaxQPInitRdAtom,
		AtomicCap:       provider.AtomicCap(a.AtomicCap),
		MaxMW:           a.MaxMW,
		MaxSRQ:          a.MaxSRQ,
		MaxSRQWR:        a.MaxSRQWR,
		MaxSRQSGE:       a.MaxSRQSGE,
		PhysPortCnt:     a.PhysPortCnt,
		LocalCAAckDelay: a.LocalCAAckDelay,
		MaxPkeys:        a.MaxPkeys,
		NumCompVectors:  d.shared.verbs.NumCompVectors(),
	}
	if d.libsiw {
		attr.MaxInline = siwMaxInline
	}
	return attr, nil
}

func (d *device) QueryPort(port uint8) (provider.PortAttr, error) {
	if err := d.enter(); err != nil {
		return provider.PortAttr{}, opError("ibv_query_port", d.name, err)
	}
	defer d.leave()
	a, err := d.shared.verbs.QueryPort(port)
	if err != nil {
		return provider.PortAttr{}, opError("ibv_query_port",
			fmt.Sprintf("%s port %d", d.name, port), whyNoPort(&d.attr, port, err))
	}
	if d.siw {
		// From Linux 6.12 on siw uses the limit of the network interface. Some interfaces without a
		// limit have 0 there, which siw takes for 0 bytes.
		a.MaxMTU = max(a.MaxMTU, a.ActiveMTU)
	}
	return provider.PortAttr{
		State:        provider.PortState(a.State),
		MaxMTU:       mtuOctets(a.MaxMTU),
		ActiveMTU:    mtuOctets(a.ActiveMTU),
		GIDTblLen:    a.GIDTblLen,
		PortCapFlags: a.PortCapFlags,
		MaxMsgSz:     a.MaxMsgSz,
		PkeyTblLen:   a.PkeyTblLen,
		LinkLayer:    a.LinkLayer,
		PhysState:    a.PhysState,
		ActiveWidth:  a.ActiveWidth,
		ActiveSpeed:  a.ActiveSpeed,
	}, nil
}

// mtuOctets converts enum ibv_mtu to bytes: 1 is 256, and each further step doubles. It returns 0
// for a value that the enumeration does not have.
func mtuOctets(mtu uint32) int {
	if mtu < 1 || mtu > 5 {
		return 0
	}
	return 128 << mtu
}

// mtuCode converts bytes to enum ibv_mtu, or 0 if there is no code for that size.
func mtuCode(octets int) uint32 {
	for code := uint32(1); code <= 5; code++ {
		if mtuOctets(code) == octets {
			return code
		}
	}
	return 0
}

func (d *device) QueryGID(port uint8, index int) (provider.GID, error) {
	if err := d.enter(); err != nil {
		return provider.GID{}, opError("ibv_query_gid", d.name, err)
	}
	defer d.leave()
	gid, err := d.shared.verbs.QueryGID(port, index)
	if err == syscall.ENOENT {
		// Over the bridge, and where the kernel has no ioctl for it, libibverbs reads a file.
		err = syscall.EINVAL
	}
	if err != nil {
		return provider.GID{}, opError("ibv_query_gid",
			fmt.Sprintf("%s port %d index %d", d.name, port, index),
			because(whyNoPort(&d.attr, port, err), syscall.EINVAL, "the port's table has no such entry"))
	}
	return gid, nil
}

func (d *device) QueryGIDTable() ([]provider.GIDEntry, error) {
	const op = "ibv_query_gid_table"
	if err := d.enter(); err != nil {
		return nil, opError(op, d.name, err)
	}
	defer d.leave()
	room := 0
	for port := range d.attr.PhysPortCnt {
		a, err := d.shared.verbs.QueryPort(port + 1)
		if err != nil {
			return nil, opError(op, fmt.Sprintf("%s port %d", d.name, port+1), err)
		}
		room += a.GIDTblLen
	}
	table, err := d.shared.verbs.QueryGIDTable(room)
	if err != nil {
		return nil, opError(op, d.name, err)
	}
	var entries []provider.GIDEntry
	for _, e := range table {
		entries = append(entries, provider.GIDEntry{GID: e.GID, Index: int(e.Index), Port: e.Port, Type: provider.GIDType(e.Type), Ifindex: e.NetdevIfindex})
	}
	return entries, nil
}

func (d *device) QueryPkey(port uint8, index int) (uint16, error) {
	const op = "ibv_query_pkey"
	if err := d.enter(); err != nil {
		return 0, opError(op, d.name, err)
	}
	defer d.leave()
	key, err := d.shared.verbs.QueryPkey(port, index)
	if err != nil {
		if d.transport == provider.TransportIWARP {
			err = fmt.Errorf("%w: %w", errNoPkey, err)
		}
		return 0, opError(op, fmt.Sprintf("%s port %d index %d", d.name, port, index), err)
	}
	return key, nil
}

var errNoPkey = &provider.UnsupportedError{Feature: "P_Key table", Reason: "iWARP has no partitions"}

// AsyncEvent waits for an event of an object of this device, or of a port. If events were dropped
// because too many were kept, one call after the last kept event fails with ENOBUFS and says how
// many were dropped.
func (d *device) AsyncEvent(ctx context.Context) (provider.AsyncEvent, error) {
	for {
		ev, lost, ok := d.popEvent()
		if ok {
			return ev, nil
		}
		if lost > 0 {
			return ev, opError("ibv_get_async_event", d.name,
				fmt.Errorf("%d events lost; call AsyncEvent all the time: %w", lost, syscall.ENOBUFS))
		}
		err := d.shared.source.wait(ctx, d.life, d.wake, func() (bool, error) {
			if err := d.shared.readEvents(); err != nil {
				return false, err
			}
			return d.hasEvent(), nil
		})
		switch {
		case err == nil:
		case err == ctx.Err():
			return provider.AsyncEvent{}, err
		default:
			return provider.AsyncEvent{}, opError("ibv_get_async_event", d.name, err)
		}
	}
}

// readEvents reads all events from the descriptor and gives each to the device of the object that
// it names. The caller has the source's turn.
func (sc *sharedContext) readEvents() error {
	for {
		ev, err := sc.verbs.GetAsyncEvent()
		switch {
		case interrupted(err):
			continue
		case again(err):
			return nil
		case err != nil:
			return err
		}
		sc.dispatch(&ev)
	}
}

// dispatch finds the object of an event before it acknowledges the event, because the object cannot
// be destroyed until then. It drops events of objects that are being closed, and events of object
// kinds that this package does not make.
func (sc *sharedContext) dispatch(ev *ibv.AsyncEvent) {
	defer ev.Ack()
	out := provider.AsyncEvent{Type: provider.AsyncEventType(ev.Type)}
	switch ev.Object {
	case ibv.AsyncCQ:
		if q, ok := cqs.get(ev.Token); ok {
			out.CQ = q
			q.dev.pushEvent(out)
		}
	case ibv.AsyncQP:
		if q, ok := qps.get(ev.Token); ok {
			out.QP = q
			q.dev.pushEvent(out)
		}
	case ibv.AsyncSRQ:
		if r, ok := srqs.get(ev.Token); ok {
			if out.Type == provider.EventSRQLimitReached {
				r.limit.Store(0) // one event per Modify
			}
			out.SRQ = r
			r.dev.pushEvent(out)
		}
	case ibv.AsyncPort:
		out.Port = uint8(ev.Token)
		sc.mu.Lock()
		defer sc.mu.Unlock()
		for d := range sc.devices {
			d.pushEvent(out)
		}
	}
}

// maxEvents limits the events that are kept for a program that does not fetch them. The oldest ones
// are kept, because the first failure explains the rest.
const maxEvents = 1024

func (d *device) pushEvent(ev provider.AsyncEvent) {
	d.eventMu.Lock()
	if len(d.events) == maxEvents {
		d.lost++
	} else {
		d.events = append(d.events, ev)
	}
	d.eventMu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// popEvent removes the oldest event. If there is none, it returns how many were lost after the last
// one.
func (d *device) popEvent() (ev provider.AsyncEvent, lost int, ok bool) {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	if len(d.events) == 0 {
		lost, d.lost = d.lost, 0
		return ev, lost, false
	}
	ev = d.events[0]
	d.events = d.events[1:]
	return ev, 0, true
}

// forgetEvents drops the events for which of returns true, when their object is closed.
func (d *device) forgetEvents(of func(provider.AsyncEvent) bool) {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	d.events = slices.DeleteFunc(d.events, of)
}

func (d *device) hasEvent() bool {
	d.eventMu.Lock()
	defer d.eventMu.Unlock()
	return len(d.events) > 0 || d.lost > 0
}

// memlockError adds the usual cause, the limit of locked memory, to an ENOMEM.
func memlockError(err error) error {
	if !errors.Is(err, syscall.ENOMEM) {
		return err
	}
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) != nil || lim.Cur == unix.RLIM_INFINITY {
		return err
	}
	return fmt.Errorf("registered memory counts against RLIMIT_MEMLOCK, which is %d bytes; raise it with ulimit -l, "+
		"memlock in /etc/security/limits.conf or LimitMEMLOCK= of a systemd unit: %w", lim.Cur, err)
}
