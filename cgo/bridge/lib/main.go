//go:build linux && cgo

// Command lib is libgovs-bridge.so (go build -buildmode=c-shared): it serves the program that it is
// loaded into from the engine, in that program's own process. preload.c loads it and calls the
// functions that are exported here.
package main

/*
#include <stdint.h>

typedef void (*govs_adopt)(int fd, int kind, uint64_t object);
typedef uint64_t (*govs_find)(int fd);

static inline void govs_call_adopt(govs_adopt f, int fd, int kind, uint64_t object) { f(fd, kind, object); }
static inline uint64_t govs_call_find(govs_find f, int fd) { return f(fd); }
*/
import "C"

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

func main() {}

// Kinds of descriptors, as preload.c has them.
const (
	kindUverbs = 1
	kindCM     = 2
	kindEvents = 3
)

// process is the program: this process. It implements bridge.Program.
type process struct {
	owned []byte // of C: which descriptors are the library's
	adopt C.govs_adopt
	find  C.govs_find

	bridge *bridge.Bridge

	// files are the objects that descriptors stand for, by number. Number 0 is none.
	mu    sync.Mutex
	files atomic.Pointer[[]bridge.File]
}

var self process

//export govs_bridge_init
func govs_bridge_init(owned unsafe.Pointer, n C.int, adopt, find unsafe.Pointer) C.int {
	self.owned = unsafe.Slice((*byte)(owned), int(n))
	self.adopt, self.find = C.govs_adopt(adopt), C.govs_find(find)
	self.files.Store(&[]bridge.File{nil})
	if err := self.start(); err != nil {
		fmt.Fprintf(os.Stderr, "govs-verbs-test exec: opening the engine's device: %v\n", err)
		return -1
	}
	return 0
}

// start opens the engine's device, as the environment says.
func (p *process) start() error {
	s, err := settingsFrom(os.Getenv)
	if err != nil {
		return err
	}
	transport.TrackDescriptors(p.Own)
	vctx, err := ibverbs.Open(s.provider(), "")
	if err != nil {
		return err
	}
	p.bridge = bridge.New(vctx, p, s.bridge())
	return nil
}

//export govs_bridge_open
func govs_bridge_open(kind, flags C.int) C.int {
	var fd int
	var err error
	switch kind {
	case kindUverbs:
		fd, err = self.bridge.OpenUverbs(int(flags))
	case kindCM:
		fd, err = self.bridge.OpenCM(int(flags))
	default:
		err = syscall.ENODEV
	}
	if err != nil {
		return C.int(negative(err))
	}
	return C.int(fd)
}

//export govs_bridge_write
func govs_bridge_write(object C.uint64_t, buf unsafe.Pointer, n C.ulong) (result C.long) {
	f := self.file(uint64(object))
	if f == nil {
		return C.long(negative(syscall.EIO))
	}
	switch {
	case n > 1<<30:
		return C.long(negative(syscall.EINVAL))
	case buf == nil && n >= 8: // the kernel first looks whether there is a header
		return C.long(negative(syscall.EFAULT))
	case buf == nil:
		return C.long(negative(syscall.EINVAL))
	}
	defer guard(func(err error) { result = C.long(negative(err)) })()
	k, err := f.Write(unsafe.Slice((*byte)(buf), int(n)))
	if err != nil {
		return C.long(negative(err))
	}
	return C.long(k)
}

//export govs_bridge_close
func govs_bridge_close(object C.uint64_t) {
	if f := self.forget(uint64(object)); f != nil {
		f.Close()
	}
}

//export govs_bridge_netlink
func govs_bridge_netlink(request unsafe.Pointer, n C.ulong, port C.uint32_t, answers unsafe.Pointer, room C.ulong) (result C.long) {
	switch {
	case n > 1<<20:
		return C.long(negative(syscall.EMSGSIZE))
	case request == nil:
		return C.long(negative(syscall.EFAULT))
	}
	defer guard(func(err error) { result = C.long(negative(err)) })()
	copied := append([]byte(nil), unsafe.Slice((*byte)(request), int(n))...)
	out := unsafe.Slice((*byte)(answers), int(room))[:0]
	for _, a := range self.bridge.Netlink(copied, uint32(port)) {
		if len(out)+4+len(a) > cap(out) {
			return C.long(negative(syscall.ENOBUFS))
		}
		out = binary.NativeEndian.AppendUint32(out, uint32(len(a)))
		out = append(out, a...)
	}
	return C.long(len(out))
}

// A device is what a program polls.
type device interface {
	Progress(cq uint32)
	Attend(cq uint32)
}

//export govs_bridge_progress
func govs_bridge_progress(object C.uint64_t, cq C.uint32_t) {
	if d, ok := self.file(uint64(object)).(device); ok {
		d.Progress(uint32(cq))
	}
}

//export govs_bridge_attend
func govs_bridge_attend(object C.uint64_t, cq C.uint32_t) {
	if d, ok := self.file(uint64(object)).(device); ok {
		d.Attend(uint32(cq))
	}
}

// negative returns the errno of err as C functions of the kernel do.
func negative(err error) int {
	if e := ibverbs.Errno(err); e != 0 {
		return -int(e)
	}
	return -int(syscall.EINVAL)
}

// file returns the object with a number, nil if there is none.
func (p *process) file(object uint64) bridge.File {
	if list := *p.files.Load(); object < uint64(len(list)) {
		return list[object]
	}
	return nil
}

// number gives a file a number. The list is replaced as a whole, so that reading it takes no lock.
func (p *process) number(f bridge.File) uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := append([]bridge.File(nil), *p.files.Load()...)
	for i := 1; i < len(list); i++ {
		if list[i] == nil {
			list[i] = f
			p.files.Store(&list)
			return uint64(i)
		}
	}
	list = append(list, f)
	p.files.Store(&list)
	return uint64(len(list) - 1)
}

// forget takes a file out.
func (p *process) forget(object uint64) bridge.File {
	p.mu.Lock()
	defer p.mu.Unlock()
	list := append([]bridge.File(nil), *p.files.Load()...)
	if object == 0 || object >= uint64(len(list)) {
		return nil
	}
	f := list[object]
	list[object] = nil
	p.files.Store(&list)
	return f
}

// Adopt implements bridge.Program.
func (p *process) Adopt(fd int, f bridge.File) {
	kind := kindEvents
	switch f.(type) {
	case device:
		kind = kindUverbs
	case bridge.CMFile:
		kind = kindCM
	}
	C.govs_call_adopt(p.adopt, C.int(fd), C.int(kind), C.uint64_t(p.number(f)))
}

// File implements bridge.Program.
func (p *process) File(fd int) bridge.File {
	return p.file(uint64(C.govs_call_find(p.find, C.int(fd))))
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
