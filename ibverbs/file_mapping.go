package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"
	"unsafe"
)

// fileCalls bounds how many calls for mapped files are under way in the process. Each holds a
// thread while a disk does not answer, and with 10,000 threads a Go program ends
// (debug.SetMaxThreads), so that peers with as many connections could end it. A goroutine that
// waits for its turn holds none.
var fileCalls = make(chan struct{}, 4096)

// mappedFile is a mapped file as an object. A page that has to come from the disk keeps an object
// waiting, and nobody else.
type mappedFile struct {
	mapping
	conn syscall.RawConn // of the file, which is written to while the program has it open; or nil
	at   int64           // where in the file the mapping begins
}

// newMappedFile is for buf, which is mapped from offset off of f.
func newMappedFile(f *os.File, off int64, buf []byte) *mappedFile {
	conn, err := f.SyscallConn()
	if err != nil {
		conn = nil
	}
	return &mappedFile{buf, conn, off}
}

// ReadAt implements io.ReaderAt. The caller of RegObject has said that the bytes are there.
func (f *mappedFile) ReadAt(b []byte, off int64) (int, error) {
	fileCalls <- struct{}{}
	defer func() { <-fileCalls }()
	f.populate(off, len(b), false)
	return f.copy(b, f.mapping[off:])
}

// WriteAt implements io.WriterAt.
func (f *mappedFile) WriteAt(b []byte, off int64) (int, error) {
	return f.WriteVectorAt([][]byte{b}, off)
}

// WriteVectorAt implements provider.VectorWriterAt. It is a system call: file and mapping are the
// same pages, and the call has no page faults, and puts no zeros into pages that it fills. What it
// doesn't write is copied to the mapped pages: the program may have closed the file, or a memory
// file may be sealed.
func (f *mappedFile) WriteVectorAt(b [][]byte, off int64) (n int, err error) {
	fileCalls <- struct{}{}
	defer func() { <-fileCalls }()
	var refused error
	if f.conn != nil {
		n, refused = writeCalls(f.conn, b, f.at+off)
	}
	done := n
	for _, s := range b {
		skip := min(done, len(s))
		done -= skip
		if s = s[skip:]; len(s) == 0 {
			continue
		}
		f.populate(off+int64(n), len(s), true)
		copied, err := f.copy(f.mapping[off+int64(n):], s)
		n += copied
		if err != nil && refused != nil {
			err = fmt.Errorf("%w; %w", refused, err)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// mapping is the bytes of a mapped file. What can't be had of them is an error and not the
// end of the program.
type mapping []byte

// populate has the kernel bring the pages of n bytes in a system call. A page fault
// would do it as well, but Go doesn't know of it: for as long as the disk takes, the
// goroutine keeps its P, and whoever wants to stop the world waits. What the kernel
// doesn't bring, because the file was cut short or it is older than 5.14, is left to
// the fault.
func (m mapping) populate(off int64, n int, write bool) {
	page := uintptr(os.Getpagesize())
	from := uintptr(unsafe.Pointer(unsafe.SliceData(m))) + uintptr(off)
	first := from &^ (page - 1) // where the mapping begins is a page
	populate(first, (from+uintptr(n)-first+page-1)&^(page-1), write)
}

// copy is the built-in one, but for a fault inside the mapping.
func (m mapping) copy(dst, src []byte) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		p := recover()
		if p == nil {
			return
		}
		var fault interface {
			runtime.Error
			Addr() uintptr
		}
		if e, is := p.(error); !is || !errors.As(e, &fault) || !m.holds(fault.Addr()) {
			panic(p)
		}
		n, err = 0, fmt.Errorf("%w: "+
			"the mapped file was cut short, its disk is full, or it can't be read or written", syscall.EIO)
	}()
	return copy(dst, src), nil
}

// holds reports whether a fault at addr may be one inside the mapping. s390x reports the
// address of the page, which begins before a mapping that begins inside it.
func (m mapping) holds(addr uintptr) bool {
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(m)))
	page := begin &^ uintptr(os.Getpagesize()-1)
	return addr >= page && addr < begin+uintptr(len(m))
}
