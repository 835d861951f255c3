package engine

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/freelist"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// The engine has no interface of its own, so its MAC address is made up: the bit for locally
// administered addresses, and then the project's name. It is the same on every host, because
// nothing that is stable differs on all of them; iWARP addresses peers by IP and never by GID.
var mac = [6]byte{0x02, 'g', 'o', 'v', 's', 0}

// nodeGUID is the EUI-64 of mac (RFC 4291 appendix A). siw makes its GUID from its interface's
// address in the same way.
var nodeGUID = binary.BigEndian.Uint64([]byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]})

// chunk is a pooled buffer, for a batch, or for payload to or from an object.
type chunk = frames.Chunk

// device is an open device, the root of all other objects. Its children count themselves with
// refs.Hold.
type device struct {
	refs   refs.Count
	opts   Options // complete
	memory *memory.Table
	async  asyncQueue
	poller eventLoops
	prog   progressState // of progress.go
	stalls stalls
	chunks freelist.List[chunk] // copies of payload that is being sent

	tally tally
	log   logger

	cm      *cm.Manager
	closing closingConns
	streams sync.WaitGroup // streams whose onDown has not returned yet
	tasks   sync.WaitGroup // goroutines of spawn

	pds, cqs, qps, srqs refs.Limit

	fatal atomic.Bool

	qpnMu   sched.Mutex[locks.QPNumbers]
	qpns    map[uint32]*qp // in use; nil while the QP is being made
	nextQPN uint32
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
	d := &device{opts: opts, memory: memory.NewTable(memory.Config{
		Extensions: opts.Extensions, MaxMR: maxMR, MaxMW: maxMW,
	}), qpns: make(map[uint32]*qp)}
	if err := d.poller.open(opts.Network, opts.ProgressGoroutines); err != nil {
		return nil, err
	}
	d.cm = cm.New(cmConfig(&d.opts), (*cmDevice)(d))
	d.async.init(maxAsync)
	d.log.open(opts.Logger)
	d.chunks.New = func() *chunk { return new(chunk) }
	d.chunks.Idle = func(*chunk) bool { return true } // its content has no meaning
	d.pds.Max, d.cqs.Max, d.qps.Max, d.srqs.Max = maxPD, maxCQ, maxQP, maxSRQ
	var b [4]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	d.nextQPN = binary.LittleEndian.Uint32(b[:])
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

// Name implements provider.Device.
func (d *device) Name() string { return DeviceName }

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

// CreateEventChannel implements provider.Device.
func (d *device) CreateEventChannel() (provider.EventChannel, error) {
	const op = "rdma_create_event_channel"
	if !d.refs.Hold() {
		return nil, failClosed(op, DeviceName)
	}
	return d.cm.NewEventChannel(), nil // calls cmDevice.Release when it is closed
}

// Close implements provider.Device. When it returns nil the device has no
// goroutine left.
func (d *device) Close() error {
	const op = "ibv_close_device"
	first, busy := d.refs.End()
	if busy {
		return failBusy(op, DeviceName, "PDs, CQs or channels")
	}
	if first {
		d.streams.Wait() // QPs are closed when they are flushed, and onDown comes after that
		d.stopProgress()
		d.cm.Wait()
		d.tasks.Wait() // the last step of each may be to let the program close the device
		d.poller.close()
		d.async.close()
		d.log.draining.Wait()
	}
	return nil
}

// spawn calls f on a goroutine that Close waits for. The device must not be closed yet: the caller
// holds something of it, or is a check of stalls.
func (d *device) spawn(f func()) {
	d.tasks.Add(1)
	sched.Go(func() {
		defer d.tasks.Done()
		f()
	})
}

// allocQPN counts a QP and gives it a number that no other has: 24 bits, as in
// libibverbs, and never 0 or 1, which InfiniBand reserves.
func (d *device) allocQPN() (uint32, error) {
	if err := d.qps.Take(); err != nil {
		d.tally.refuse("MaxQP")
		return 0, err
	}
	d.qpnMu.Lock()
	defer d.qpnMu.Unlock()
	for {
		qpn := d.nextQPN & 0xffffff
		d.nextQPN++
		if _, used := d.qpns[qpn]; !used && qpn > 1 {
			d.qpns[qpn] = nil
			return qpn, nil
		}
	}
}

// list enters a QP under its number.
func (d *device) list(q *qp) {
	d.qpnMu.Lock()
	d.qpns[q.qpn] = q
	d.qpnMu.Unlock()
}

// giveQPN returns the number, so that another QP may have it.
func (d *device) giveQPN(qpn uint32) {
	d.qpnMu.Lock()
	delete(d.qpns, qpn)
	d.qpnMu.Unlock()
	d.qps.Give()
}

// errDeviceFatal is why connections end and can't be made once the device has failed.
var errDeviceFatal = fmt.Errorf("the device has failed; close it and open another: %w", syscall.EIO)

// fail is called when a poller has failed, so that arrivals are no longer seen. It raises
// EventDeviceFatal once, and ends all connections, so that no program waits forever.
func (d *device) fail(err error) {
	if d.fatal.Swap(true) {
		return // another progress goroutine has reported it
	}
	d.raise(provider.AsyncEvent{Type: provider.EventDeviceFatal})
	d.qpnMu.Lock()
	qps := slices.Collect(maps.Values(d.qpns))
	d.qpnMu.Unlock()
	for _, q := range qps {
		if q != nil {
			q.mu.Lock()   // enterRTS has returned, or finds the device failed
			q.mu.Unlock() //nolint:staticcheck // waits for the holder
			q.abort(fmt.Errorf("%w: %w", errDeviceFatal, err))
		}
	}
}

// raise queues an asynchronous event. It never blocks.
func (d *device) raise(e provider.AsyncEvent) { d.async.raise(e) }

// pd is a protection domain. Its children are MRs, MWs, QPs and SRQs.
type pd struct {
	memory.Domain
	dev *device
}

// AllocPD implements provider.Device.
func (d *device) AllocPD() (provider.PD, error) {
	const op = "ibv_alloc_pd"
	if !d.refs.Hold() {
		return nil, failClosed(op, DeviceName)
	}
	if err := d.pds.Take(); err != nil {
		d.refs.Drop()
		return nil, fail(op, DeviceName, err)
	}
	return &pd{dev: d, Domain: memory.Domain{Table: d.memory}}, nil
}

func (p *pd) name() string { return "pd" }

// CreateQP implements provider.PD.
func (p *pd) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	if p.Refs.Closed() {
		return nil, failClosed("ibv_create_qp", p.name())
	}
	q, err := newQP(p, init)
	if err != nil {
		return nil, err // not q: a nil *qp is not a nil interface
	}
	return q, nil
}

// Close implements provider.PD.
func (p *pd) Close() error {
	first, busy := p.Refs.End()
	if busy {
		return failBusy("ibv_dealloc_pd", p.name(), "MRs, MWs, QPs or SRQs")
	}
	if first {
		p.dev.pds.Give()
		p.dev.refs.Drop()
	}
	return nil
}
