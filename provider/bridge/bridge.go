// Package bridge serves the kernel's RDMA ABI from a device of this project. A program that uses
// /dev/infiniband/uverbs0 and /dev/infiniband/rdma_cm, as libibverbs and librdmacm with siw's
// library do, gets the answers that siw would give, and the device does the work.
//
// A [Bridge] serves one program. A [Program] gives it access to that program's memory and
// descriptors. Package cgo/bridge/lib implements Program for the process that it is loaded into;
// tests implement it in Go. As in the kernel, the bridge has a file for each open device: a [File].
// A program's write to the descriptor is a command, which File.Write executes.
//
// Arguments are checked as in the kernel, and errors are the kernel's errnos. Package abi defines
// the messages.
//
// The package is below provider because package kernel can run on it: libibverbs and librdmacm then
// use the bridge's device instead of the kernel's. The bridge calls ibverbs and rdmacm, as a
// program does, so a device of any provider can do the work.
package bridge

import (
	"errors"
	"net/netip"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ibverbs"
)

// Program is the program that a bridge serves. All methods may be called concurrently.
type Program interface {
	// ReadMemory fills b from the program's memory at addr, and WriteMemory stores b there. Both
	// return EFAULT if the program has no such memory; part of b may have been copied.
	ReadMemory(addr uint64, b []byte) error
	WriteMemory(addr uint64, b []byte) error

	// Memory returns length bytes of the program's memory at addr, without copying. The device
	// reads them, and writes them if write is set, until Release is called with the same addr and
	// length. It returns EFAULT if the program has no such memory.
	Memory(addr, length uint64, write bool) ([]byte, error)
	Release(addr, length uint64)

	// Adopt associates f with fd, a descriptor that the bridge has made for the program. When the
	// program closes the last duplicate of fd, f.Close is called. Adopt returns EMFILE if fd cannot
	// be adopted.
	Adopt(fd int, f File) error

	// File returns the File of an adopted descriptor, or nil for any other fd.
	File(fd int) File

	// Own reports that the bridge opens or closes a descriptor for its own use. A child that the
	// program forks must close such descriptors.
	Own(fd int, open bool)
}

// A File is an open device, or a descriptor made by a command.
type File interface {
	// Write executes the command in b, as write(2) on the descriptor would, and returns the number
	// of bytes used: all of b. Errors are errnos. It does not keep b.
	Write(b []byte) (int, error)

	// Close releases the file's objects. No Write is running.
	Close()
}

// Options configures a Bridge.
type Options struct {
	// Device is the device's name for the program; "" means siw0.
	Device string

	// Addresses are the device's addresses. An id that is bound to the unspecified address gets the
	// one of its family, and other addresses are refused with ENODEV. If Addresses is empty, all
	// addresses of the machine belong to the device.
	Addresses []netip.Addr

	// NoOpeningWrite keeps the connecting side from sending on its own. By default it opens the
	// stream with a Write of no bytes, because the accepting side may not send before the other
	// side has sent.
	NoOpeningWrite bool

	// Trace, if not nil, is called after each command.
	Trace func(Call)
}

// A Call is an executed command.
type Call struct {
	Name     string // the name in package abi: "create_qp"
	Request  []any  // values of messages of package abi
	Response []any  // the same; empty after an error
	Err      error  // an errno, or nil
}

// defaultDevice is the name of the device.
const defaultDevice = "siw0"

// A Bridge serves one device to one program.
type Bridge struct {
	vctx *ibverbs.Context
	prog Program
	opts Options

	cm cmState // of rdma_cm: ids belong to the program, not to a descriptor

	watch sync.Once // starts watchEvents

	// registering is held for reading while memory is made a region. So EndMemory finds all regions
	// of the memory that the program is about to remove.
	registering sync.RWMutex

	mu        sync.Mutex
	qps       map[uint32]*queuePair // by number, for rdma_cm
	memory    map[*memoryRegion]struct{}
	stopWatch func() // nil before watchEvents
}

// adopt makes fd stand for f in the program, or closes both if it fails.
func (b *Bridge) adopt(fd int, f File) (int, error) {
	if err := b.prog.Adopt(fd, f); err != nil {
		f.Close()
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// New returns a bridge that serves vctx to prog. The bridge does not close vctx.
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

// Close ends the bridge. Its files must be closed.
func (b *Bridge) Close() {
	b.mu.Lock()
	stop := b.stopWatch
	b.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// queuePairByNumber returns the QP with a number, or nil if there is none. rdma_cm identifies QPs
// by number.
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

// errno converts err to the errno for the program; nil stays nil.
func errno(err error) error {
	if err == nil {
		return nil
	}
	if e := ibverbs.Errno(err); e != 0 {
		return e
	}
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return syscall.EOPNOTSUPP
	case errors.Is(err, os.ErrClosed):
		return syscall.EBADF
	}
	return syscall.EINVAL
}
