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

// fileCalls bounds the concurrent calls for mapped files in the process. A call holds a thread
// while a disk does not answer, and a Go program ends at 10,000 threads (debug.SetMaxThreads).
// Without a bound peers with as many connections could end it. A goroutine that waits for its turn
// holds no thread.
var fileCalls = make(chan struct{}, 4096)

// mappedFile is a mapped file as an object of RegObject, so that a page that has to come from the
// disk blocks only the connection that needs it.
type mappedFile struct {
	mapping
	conn syscall.RawConn // for writing while the program has the file open; or nil
	at   int64           // the mapping's offset in the file
}

// newMappedFile returns the object for buf, which is mapped from offset off of f.
func newMappedFile(f *os.File, off int64, buf []byte) *mappedFile {
	conn, err := f.SyscallConn()
	if err != nil {
		conn = nil
	}
	return &mappedFile{buf, conn, off}
}

// ReadAt implements io.ReaderAt. The engine reads only inside the size given to RegObject.
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

// WriteVectorAt implements provider.VectorWriterAt. It writes with a system call, because file and
// mapping share their pages, and the call causes no page faults and does not zero pages that it
// fills. Bytes that the call does not write are copied to the mapped pages: the program may have
// closed the file, or a memory file may be sealed.
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

// mapping is the bytes of a mapped file. Access to bytes that cannot be had returns an error
// instead of ending the program.
type mapping []byte

// populate makes the kernel read the pages of n bytes in a system call. A page fault would also do
// it, but the Go scheduler does not see the fault: while the disk is read, the goroutine keeps its
// P, and stopping the world has to wait. Pages that the kernel does not read, because the file was
// truncated or the kernel is older than 5.14, are left to the page fault.
func (m mapping) populate(off int64, n int, write bool) {
	page := uintptr(os.Getpagesize())
	from := uintptr(unsafe.Pointer(unsafe.SliceData(m))) + uintptr(off)
	first := from &^ (page - 1) // the page of the first byte is mapped, too
	populate(first, (from+uintptr(n)-first+page-1)&^(page-1), write)
}

// copy copies as the built-in copy does, and returns EIO for a fault inside the mapping.
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
		n, err = 0, fmt.Errorf("the mapped file was cut short, its disk is full, or it can't "+
			"be read or written: %w", syscall.EIO)
	}()
	return copy(dst, src), nil
}

// holds reports whether a fault at addr may be inside the mapping. s390x reports the address of the
// page, which is before the mapping if the mapping begins inside the page.
func (m mapping) holds(addr uintptr) bool {
	begin := uintptr(unsafe.Pointer(unsafe.SliceData(m)))
	page := begin &^ uintptr(os.Getpagesize()-1)
	return addr >= page && addr < begin+uintptr(len(m))
}
