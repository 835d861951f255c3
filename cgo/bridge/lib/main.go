//go:build linux && cgo

// Command lib is libgovs-bridge.so (go build -buildmode=c-shared). It serves the program that loads
// it from the engine, in that program's process. preload.c loads it and calls its exported
// functions.
package main

/*
#cgo LDFLAGS: -Wl,--wrap=pthread_create

#include <stdint.h>
#include <stdlib.h>

typedef void (*govs_adopt)(int fd, int kind, uint64_t object);
typedef uint64_t (*govs_find)(int fd);
typedef const char *(*govs_setting)(const char *name);
typedef int (*govs_frames)(uint64_t addr, uint64_t n);

static inline void govs_call_adopt(govs_adopt f, int fd, int kind, uint64_t object)
{
	f(fd, kind, object);
}
static inline uint64_t govs_call_find(govs_find f, int fd) { return f(fd); }
static inline int govs_call_frames(govs_frames f, uint64_t addr, uint64_t n) { return f(addr, n); }
static inline const char *govs_call_setting(govs_setting f, const char *name) { return f(name); }

void govs_watch_faults(void);
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge"
	"github.com/govs-rdma/govs/provider/bridge/recording"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

func main() {}

// Kinds of descriptors, as in preload.c.
const (
	kindUverbs = 1
	kindCM     = 2
	kindEvents = 3
)

// process is the program: this process. It implements bridge.Program.
type process struct {
	owned []byte // C memory: which descriptors are the library's
	adopt C.govs_adopt
	find  C.govs_find
	pid   int

	// frames reports whether n bytes at addr are in the stack frames of the bridge's caller. It is
	// nil if that is not known.
	frames func(addr uint64, n int) bool

	bridge  *bridge.Bridge
	regions regions
	record  *recorder // nil if commands are not recorded

	complained string // the last cause that complain has printed

	// files are the objects of descriptors, by number. Number 0 is not used. The list is replaced
	// as a whole, so reading it needs no lock.
	mu    sync.Mutex
	files atomic.Pointer[[]*openFile]
}

// openFile is an object that descriptors stand for. As in the kernel, it is closed when its last
// descriptor is closed and the calls of other threads have returned; the last of these closes it.
type openFile struct {
	bridge.File
	uses atomic.Int64 // one for all its descriptors, and one per running call
}

var self process

//export govs_bridge_init
func govs_bridge_init(owned unsafe.Pointer, n C.int, adopt, find, frames,
	setting unsafe.Pointer) C.int {
	self.owned = unsafe.Slice((*byte)(owned), int(n))
	self.adopt, self.find = C.govs_adopt(adopt), C.govs_find(find)
	self.frames = func(addr uint64, n int) bool {
		return C.govs_call_frames(C.govs_frames(frames), C.uint64_t(addr), C.uint64_t(n)) != 0
	}
	self.pid = os.Getpid()
	self.files.Store(&[]*openFile{nil})
	C.govs_watch_faults()
	if err := self.start(C.govs_setting(setting)); err != nil {
		self.complain(os.Stderr, err)
		return -1
	}
	return 0
}

// complain prints why the device cannot be opened. A program usually tries to open it more than
// once, so the same cause is printed only once. The caller has preload.c's lock.
func (p *process) complain(to io.Writer, err error) {
	if text := err.Error(); text != p.complained {
		p.complained = text
		fmt.Fprintf(to, "govs-verbs-test exec: opening the engine's device: %s\n", text)
	}
}

// start opens the engine's device according to the environment that exec has set. setting returns a
// variable's value at the program's start.
func (p *process) start(setting C.govs_setting) error {
	s, err := settingsFrom(func(name string) string {
		text := C.CString(name)
		defer C.free(unsafe.Pointer(text))
		return C.GoString(C.govs_call_setting(setting, text))
	})
	if err != nil {
		return err
	}
	transport.TrackDescriptors(p.Own)
	vctx, err := ibverbs.Open(s.provider(), "")
	if err == nil {
		if err = p.ownRuntime(); err != nil {
			_ = vctx.Close()
		}
	}
	if err != nil { // the netpoller has started all the same, and now there may be descriptors for this
		_ = p.ownRuntime()
		return err
	}
	p.bridge, p.record = bridge.New(vctx, p, s.bridge()), s.recorder()
	return nil
}

//export govs_bridge_open
func govs_bridge_open(kind, flags C.int) C.int {
	var fd int
	var err error
	switch kind {
	case kindUverbs:
		fd, err = self.bridge.OpenUverbs(int(flags))
		self.record.opened(recording.Uverbs, err)
	case kindCM:
		fd, err = self.bridge.OpenCM(int(flags))
		self.record.opened(recording.CM, err)
	default:
		err = syscall.ENODEV
	}
	if err != nil {
		return C.int(negative(err))
	}
	return C.int(fd)
}

//export govs_bridge_write
func govs_bridge_write(object C.uint64_t, buf unsafe.Pointer, n C.ulong) C.long {
	k, err := self.write(uint64(object), buf, uint64(n))
	if err != nil {
		return C.long(negative(err))
	}
	return C.long(k)
}

// write executes the command of n bytes at buf.
func (p *process) write(object uint64, buf unsafe.Pointer, n uint64) (k int, err error) {
	f := p.use(object)
	if f == nil {
		return 0, syscall.EBADF // another thread has closed it
	}
	defer p.done(f)
	if n < 8 { // the kernel first checks for a header
		return 0, syscall.EINVAL
	}
	octets, err := p.octets(buf, min(n, longestCommand))
	if err != nil {
		return 0, err
	}
	if p.record != nil {
		k, err = p.record.write(p, f.File, octets)
	} else {
		k, err = f.Write(octets)
	}
	if k == longestCommand {
		k = int(n)
	}
	return k, err
}

// longestCommand is more than a header can say, in bytes. uverbs refuses a longer write, and
// rdma_cm does not look at the rest of it, so the rest is not copied: its copy could exceed
// RLIMIT_AS, which ends the process.
const longestCommand = 2 << 20

// octets returns the program's n bytes at buf, themselves or a copy.
func (p *process) octets(buf unsafe.Pointer, n uint64) ([]byte, error) {
	if p.inFrames(uint64(uintptr(buf)), int(n)) {
		return unsafe.Slice((*byte)(buf), int(n)), nil
	}
	addr := uint64(uintptr(buf))
	if n > 1<<12 { // checked before allocating so much
		if err := p.transfer(unix.SYS_PROCESS_VM_READV, addr, make([]byte, 8)); err != nil {
			return nil, err
		}
	}
	octets := make([]byte, n)
	return octets, p.transfer(unix.SYS_PROCESS_VM_READV, addr, octets)
}

//export govs_bridge_close
func govs_bridge_close(object C.uint64_t) { self.close(uint64(object)) }

// close is called when an object's last descriptor is closed.
func (p *process) close(object uint64) {
	if f := p.forget(object); f != nil {
		p.record.closed(f.File) // first, because a thread that waits for an event may see the end and exit
		p.done(f)
	}
}

// done ends one use of an object.
func (p *process) done(f *openFile) {
	if f.uses.Add(-1) == 0 {
		f.Close()
	}
}

//export govs_bridge_netlink
func govs_bridge_netlink(request unsafe.Pointer, n C.ulong, port C.uint32_t, answers unsafe.Pointer,
	room C.ulong) C.long {
	out := unsafe.Slice((*byte)(answers), int(room))[:0]
	out, err := self.netlink(request, uint64(n), uint32(port), out)
	if err != nil {
		return C.long(negative(err))
	}
	return C.long(len(out))
}

// netlink answers the request of n bytes from the socket with address port. It appends the answers
// to out, each after its length, and returns ENOBUFS if out's capacity is too small.
func (p *process) netlink(request unsafe.Pointer, n uint64, port uint32, out []byte) (
	answers []byte, err error) {
	if n > 1<<20 {
		return nil, syscall.EMSGSIZE
	}
	octets, err := p.octets(request, n)
	if err != nil {
		return nil, err
	}
	got := p.bridge.Netlink(octets, port)
	p.record.netlink(octets, got)
	for _, a := range got {
		if len(out)+4+len(a) > cap(out) {
			return nil, syscall.ENOBUFS
		}
		out = binary.NativeEndian.AppendUint32(out, uint32(len(a)))
		out = append(out, a...)
	}
	return out, nil
}

// A device is a File that a program polls.
type device interface {
	Progress(cq uint32)
	Attend(cq uint32)
}

//export govs_bridge_progress
func govs_bridge_progress(object C.uint64_t, cq C.uint32_t) {
	self.poll(uint64(object), func(d device) { d.Progress(uint32(cq)) })
}

//export govs_bridge_attend
func govs_bridge_attend(object C.uint64_t, cq C.uint32_t) {
	self.poll(uint64(object), func(d device) { d.Attend(uint32(cq)) })
}

// negative returns err's errno, negated as in the kernel's C functions.
func negative(err error) int {
	if e := ibverbs.Errno(err); e != 0 {
		return -int(e)
	}
	return -int(syscall.EINVAL)
}

// use returns the object with a number, or nil, for a call that ends with done.
func (p *process) use(object uint64) *openFile {
	f := p.file(object)
	if f == nil {
		return nil
	}
	for n := f.uses.Load(); n > 0; n = f.uses.Load() {
		if f.uses.CompareAndSwap(n, n+1) {
			return f
		}
	}
	return nil
}

// poll calls call with the device that has a number, if there is one.
func (p *process) poll(object uint64, call func(device)) {
	f := p.use(object)
	if f == nil {
		return
	}
	defer p.done(f)
	if d, ok := f.File.(device); ok {
		call(d)
	}
}

// file returns the object with a number, or nil if there is none.
func (p *process) file(object uint64) *openFile {
	if list := *p.files.Load(); object < uint64(len(list)) {
		return list[object]
	}
	return nil
}

// number gives a file the lowest free number.
func (p *process) number(f bridge.File) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := slices.Clone(*p.files.Load())
	at := 1
	for at < len(list) && list[at] != nil {
		at++
	}
	if at == len(list) {
		list = append(list, nil)
	}
	list[at] = &openFile{File: f}
	list[at].uses.Store(1)
	p.files.Store(&list)
	return uint64(at)
}

// forget removes a file and returns it.
func (p *process) forget(object uint64) *openFile {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.file(object)
	if f != nil {
		list := slices.Clone(*p.files.Load())
		list[object] = nil
		p.files.Store(&list)
	}
	return f
}

// Adopt implements bridge.Program.
func (p *process) Adopt(fd int, f bridge.File) error {
	if fd >= len(p.owned) {
		return syscall.EMFILE
	}
	kind := kindEvents
	switch f.(type) {
	case device:
		kind = kindUverbs
	case bridge.CMFile:
		kind = kindCM
	}
	C.govs_call_adopt(p.adopt, C.int(fd), C.int(kind), C.uint64_t(p.number(f)))
	return nil
}

// File implements bridge.Program.
func (p *process) File(fd int) bridge.File {
	f := p.file(uint64(C.govs_call_find(p.find, C.int(fd))))
	if f == nil {
		return nil
	}
	return f.File
}

// Own implements bridge.Program.
func (p *process) Own(fd int, open bool) {
	if fd < 0 || fd >= len(p.owned) {
		return
	}
	p.owned[fd] = 0
	if open {
		p.owned[fd] = 1
	}
}
