package ibverbs

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// RegObject registers size bytes of something that need not be memory: peers and
// work requests read its bytes with ReadAt, from offset 0 on, and write them with
// WriteAt if the rights ask for writing. So a peer can RDMA Read and Write a file, or
// whatever a program makes up, without the program taking part.
//
// The methods are called from any goroutine and at the same time, as their interfaces
// permit: ReadAt up to four times at once for each connection, as a message that is longer than 64
// KiB is read ahead in such pieces, and WriteAt once for each, with up to 64 KiB: segments that
// come together and follow each other are written together. If the object is a
// provider.VectorWriterAt, more than 64 KiB of these go to its WriteVectorAt instead, in one call
// with up to 256 KiB. Overlapping writes of different peers are theirs to order. They may block:
// only the connection in question waits. A method that blocks in a system call holds a thread, and
// with 10,000 of these a Go program ends (debug.SetMaxThreads): bound the calls if so many
// connections may come. MR.Close waits for calls that are under way, so that they must not call
// it. Without WriteAt the right LocalWrite is EACCES; other rights than LocalWrite, RemoteWrite,
// RemoteRead and ZeroBased are EINVAL, and so is RemoteWrite without LocalWrite.
//
// When a method fails, or reads or writes less than it was asked for, the connection ends, with
// reads when what is before that byte has been sent: the peer gets a Terminate, work of our own
// that names the region completes with WCLocProtErr, the peer's Read with WCRemOpErr, and QP.Cause
// wraps the method's error, or io.ErrUnexpectedEOF or io.ErrShortWrite if there was none. A panic
// of a method ends the program. A Write of the peer is complete there before it has reached the
// object here, as with memory; a Read or a Send that the peer posts after the Write takes effect
// after it.
//
// The end of a connection in order, by Conn.Shutdown of package rdmacm or by
// Disconnect, waits for the calls under way and those that what is posted still needs,
// however long they take; QP.Close and Conn.Close don't. A peer that ends the
// connection waits for its own timeout only, engine.Options.CloseTimeout with the engine,
// and resets it then: with objects that take longer its program should wait until it
// knows that all is done.
//
// Bytes of the region is nil. It needs the engine: errors.ErrUnsupported with a
// kernel device. MapFile is for files with either.
func (pd *PD) RegObject(object io.ReaderAt, size int64, access Access) (*MR, error) {
	const op = "ibv_reg_mr"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if object == nil {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "nil object")
	}
	if size < 1 {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "an object of %d bytes", size)
	}
	return pd.register(op, nil, nil, func() (provider.MR, error) { return pd.p.RegObject(object, uint64(size), access) })
}

// MapFile maps n bytes of a file from offset off and registers them (mmap with
// MAP_SHARED, and ibv_reg_mr): what the peer writes is in the file, for everybody to
// read; File.Sync brings it to the disk. The file may be closed, the mapping stays
// until MR.Close. off need not be at a page.
//
// With LocalWrite the file must be open for reading and writing, without it for reading; otherwise
// MapFile is EACCES. siw wants it open for both in any case; otherwise it is EFAULT there. Octets
// beyond the end of the file are EINVAL.
//
// On the engine a file that is cut short later, or a disk that fails, ends the
// connection that runs into it, as a failing object does (see RegObject). With a
// kernel device the pages are pinned. The program's own access to Bytes beyond the end
// of a file that was cut short is a fault that ends it, as with every mapped file.
//
// Pages that are not in memory are brought from the disk when a peer or a work request
// comes to them: on the engine in a system call, so that only the connection waits, and at
// most 4096 calls of the process at a time, because each holds a thread. The program's own
// access to such a page of Bytes is a page fault, and so is the engine's on kernels before
// 5.14: it holds one of the GOMAXPROCS threads that run Go code for as long as the disk
// takes, and the garbage collector waits for it, too. RegObject with the file itself has no
// page faults, and copies once more.
//
// On the engine, what peers and work requests write goes to the file in system calls while
// f is open, because these need no page faults: so keep f open until MR.Close if speed
// matters. Holes are filled where something is written, and nowhere else. After f was
// closed, with O_APPEND, O_DIRECT, O_SYNC or O_DSYNC, and beyond RLIMIT_FSIZE, bytes are
// copied to the mapped pages, which is slower. The kernel does one call after the other for
// a file, also where several peers write to it. A file that is cut short at the same moment
// as such a call may be longer again after it.
func (pd *PD) MapFile(f *os.File, off int64, n int, access Access) (*MR, error) {
	const op = "ibv_reg_mr"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "nil file")
	}
	if off < 0 || n < 1 || off > math.MaxInt64-int64(n) {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "%d bytes from %d of a file", n, off)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, &Error{Op: "fstat", Object: f.Name(), Err: err}
	}
	if kind := unmappable(info.Mode()); kind != "" {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "%s is a %s, which can't be mapped; only files can", f.Name(), kind)
	}
	if info.Mode().IsRegular() && info.Size() < off+int64(n) {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "%d bytes from %d of %s, which has %d", n, off, f.Name(), info.Size())
	}
	before := int(off % int64(os.Getpagesize()))
	if n > math.MaxInt-before {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "%d bytes of a file", n)
	}
	pages, err := mapFile(f, off-int64(before), before+n, access&AccessLocalWrite != 0)
	if err != nil {
		return nil, err
	}
	buf := pages[before : before+n : before+n]
	mr, err := pd.register(op, buf, pages, func() (provider.MR, error) {
		p, err := pd.p.RegObject(newMappedFile(f, off, buf), uint64(n), access)
		if errors.Is(err, errors.ErrUnsupported) {
			return pd.p.RegMR(buf, access)
		}
		return p, err
	})
	if err != nil {
		_ = unmap(pages)
		if errors.Is(err, syscall.EFAULT) && access&AccessLocalWrite == 0 {
			err = &Error{Op: op, Object: f.Name(),
				Err: fmt.Errorf("%w; the kernel pins the pages of a file only "+
					"if it is open for reading and writing, whatever the rights are", err)}
		}
		return nil, err
	}
	return mr, nil
}

func mapFile(f *os.File, off int64, n int, write bool) (pages []byte, err error) {
	fail := func(err error) ([]byte, error) { return nil, &Error{Op: "mmap", Object: f.Name(), Err: err} }
	conn, err := f.SyscallConn()
	if err != nil {
		return fail(err)
	}
	var merr error
	if err = conn.Control(func(fd uintptr) { pages, merr = mapShared(fd, off, n, write) }); err == nil {
		err = merr
	}
	if errors.Is(err, syscall.EACCES) {
		err = fmt.Errorf("%w: the file has to be open for reading, and for writing too with LocalWrite", err)
	}
	if err != nil {
		return fail(err)
	}
	return pages, nil
}

// unmappable returns what a file of mode is that has no pages to map, or "".
func unmappable(mode os.FileMode) string {
	switch {
	case mode.IsDir():
		return "directory"
	case mode&os.ModeNamedPipe != 0:
		return "pipe"
	case mode&os.ModeSocket != 0:
		return "socket"
	}
	return ""
}
