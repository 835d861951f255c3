package bridge

import (
	"net/netip"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
	"golang.org/x/sys/unix"
)

// Program is the program that a bridge serves. All methods may be called concurrently.
type Program interface {
	// ReadMemory fills b with what is at addr in the program's memory, and WriteMemory stores b
	// there. Both return EFAULT, having moved nothing or a part, if the program has no such memory.
	ReadMemory(addr uint64, b []byte) error
	WriteMemory(addr uint64, b []byte) error

	// Memory returns the program's memory itself, length bytes at addr, which the device reads,
	// and writes if write is set, until Release is called with the same addr and length. EFAULT if
	// the program has no such memory.
	Memory(addr, length uint64, write bool) ([]byte, error)
	Release(addr, length uint64)

	// Adopt says that fd, a descriptor that the bridge has made for the program, stands for f. When
	// the program closes the last duplicate of fd, f.Close is called. EMFILE: it can't be adopted.
	Adopt(fd int, f File) error

	// File returns what fd stands for, nil if it is no descriptor that was adopted.
	File(fd int) File

	// Own says that the bridge has opened or closes a descriptor for itself, which a child that the
	// program forks must close.
	Own(fd int, open bool)
}

// A File is an open device, or a descriptor that a command has made.
type File interface {
	// Write executes the command that is in b, as write(2) on the descriptor would, and returns how
	// many bytes it took: all. Errors are errnos. b is not used after it returns.
	Write(b []byte) (int, error)

	// Close releases what the file has. No Write is under way.
	Close()
}

// Options say what a Bridge is like.
type Options struct {
	// Device is the name that the program sees: siw0 if it is empty.
	Device string

	// Addresses are those of the device. An id that is bound to any address gets the one of its
	// family, and others are refused with ENODEV. Without them all addresses of the machine
	// belong to the device.
	Addresses []netip.Addr

	// NoOpeningWrite has the side that connects send nothing by itself. Otherwise it opens the
	// stream with a Write of no bytes, without which the side that accepted has to wait for it.
	NoOpeningWrite bool

	// Trace is called for each command after its execution, nil for none.
	Trace func(Call)
}

// A Call is a command that was executed.
type Call struct {
	Name     string // as package abi has it: "create_qp"
	Request  []any  // messages of package abi, values
	Response []any  // the same, empty with an error
	Err      error  // an errno, or nil
}

// defaultDevice is the name of the device.
const defaultDevice = "siw0"

// A Bridge serves one program from one device.
type Bridge struct {
	vctx *ibverbs.Context
	prog Program
	opts Options

	cm cmState // of rdma_cm: ids belong to the program, not to a descriptor

	watch sync.Once // for asynchronous events

	// registering is held for reading while memory becomes a region, so that EndMemory finds all
	// regions of memory that a program takes away meanwhile.
	registering sync.RWMutex

	mu        sync.Mutex
	qps       map[uint32]*queuePair // by number, for rdma_cm
	memory    map[*memoryRegion]struct{}
	stopWatch func() // nil before watchEvents
}

// adopt gives the program a descriptor that stands for f, or closes both.
func (b *Bridge) adopt(fd int, f File) (int, error) {
	if err := b.prog.Adopt(fd, f); err != nil {
		f.Close()
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// New returns a bridge that serves prog from vctx, which it does not close.
func New(vctx *ibverbs.Context, prog Program, opts *Options) *Bridge {
	if opts == nil {
		opts = &Options{}
	}
	b := &Bridge{vctx: vctx, prog: prog, opts: *opts, qps: make(map[uint32]*queuePair),
		memory: make(map[*memoryRegion]struct{})}
	b.cm.addresses = numbered(opts.Addresses)
	if b.opts.Device == "" {
		b.opts.Device = defaultDevice
	}
	return b
}

// Close ends the bridge, whose files are closed.
func (b *Bridge) Close() {
	b.mu.Lock()
	stop := b.stopWatch
	b.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// queuePairByNumber returns the QP with a number, nil if there is none: rdma_cm names QPs so.
func (b *Bridge) queuePairByNumber(qpn uint32) *queuePair {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.qps[qpn]
}

func (b *Bridge) trace(c Call) {
	if b.opts.Trace != nil {
		b.opts.Trace(c)
	}
}
