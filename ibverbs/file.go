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

// RegObject registers size bytes of an object that need not be memory. Peers and work requests read
// its bytes with ReadAt, from offset 0 on, and write them with WriteAt if the rights permit
// writing. So a peer can RDMA Read and Write a file, or generated data, while the program does
// nothing.
//
// The engine calls the methods from any goroutine, and concurrently, as their interfaces permit:
//
//   - ReadAt: up to four calls at once for each connection, because a message that is longer than
//     64 KiB is read ahead in pieces of 64 KiB.
//   - WriteAt: one call at a time for each connection, with up to 64 KiB. Consecutive segments that
//     arrive together are written together.
//   - WriteVectorAt, if the object is a provider.VectorWriterAt: it replaces WriteAt for more than
//     64 KiB of such segments, one call for up to 256 KiB.
//
// Different peers have to order their overlapping writes themselves. The methods may block; only
// their connection waits. A method that blocks in a system call holds a thread, and a Go program
// ends at 10,000 threads (debug.SetMaxThreads), so limit the calls if that many connections may
// come. MR.Close waits for running calls, so a method must not call it. EACCES: the right
// LocalWrite for an object without WriteAt. EINVAL: rights other than LocalWrite, RemoteWrite,
// RemoteRead and ZeroBased, or RemoteWrite without LocalWrite.
//
// A method that fails, or reads or writes less than requested, ends the connection. For a read, the
// bytes before that place are sent first. The peer receives a Terminate. Our own work that names
// the region completes with WCLocProtErr, the peer's Read with WCRemOpErr. QP.Cause wraps the
// method's error, or io.ErrUnexpectedEOF or io.ErrShortWrite if the method returned none. A panic
// in a method ends the program. As with memory, a Write completes at the peer before it has reached
// the object here. A Read or a Send that the peer posts after the Write takes effect after it.
//
// An orderly end of a connection, by Conn.Shutdown of package rdmacm or by Disconnect, waits for
// the running calls and the calls that posted work still needs, however long they take. QP.Close
// and Conn.Close do not. A peer that ends the connection waits only for its own timeout
// (engine.Options.CloseTimeout on the engine), and then resets the connection. If objects may take
// longer, the peer's program should first wait until it knows that all is done.
//
// The region's Bytes is nil. RegObject needs the engine; a kernel device returns
// errors.ErrUnsupported. MapFile works with either, for files.
func (pd *PD) RegObject(object io.ReaderAt, size int64, access Access) (*MR, error) {
	const op = "ibv_reg_mr"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if object == nil {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "the object is nil; pass one")
	}
	if size < 1 {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "the object has %d bytes, and must have "+
			"at least 1", size)
	}
	return pd.register(op, nil, nil, func() (provider.MR, error) { return pd.p.RegObject(object, uint64(size), access) })
}

// MapFile maps n bytes of a file from offset off and registers them (mmap with MAP_SHARED, and
// ibv_reg_mr). Every reader of the file sees what the peer writes; File.Sync brings it to the disk.
// The file may be closed: the mapping stays until MR.Close. off need not be a multiple of the page
// size.
//
// With LocalWrite the file must be open for reading and writing, without it for reading; otherwise
// MapFile returns EACCES. siw always needs both, and otherwise returns EFAULT. Bytes beyond the end
// of the file are EINVAL.
//
// On the engine, if the file is truncated later or its disk fails, a connection that accesses the
// missing bytes ends, as with a failing object (see RegObject). A kernel device pins the pages. If
// the program itself accesses Bytes beyond the end of a truncated file, the fault ends the program,
// as with every mapped file.
//
// Pages that are not in memory are read from the disk when a peer or a work request accesses them.
// The engine does this in a system call, so only the connection waits. It runs at most 4096 such
// calls of the process at a time, because each holds a thread. The program's own access to such a
// page of Bytes is a page fault, and so is the engine's access on kernels before 5.14. A page fault
// holds one of the GOMAXPROCS threads that run Go code for as long as the disk takes, and the
// garbage collector waits for it, too. RegObject with the file itself causes no page faults, but
// copies once more.
//
// On the engine, while f is open, writes of peers and work requests reach the file by system calls,
// because these cause no page faults. So keep f open until MR.Close if speed matters. The calls
// allocate blocks of a sparse file only where something is written. Bytes are copied to the mapped
// pages instead, which is slower, after f was closed, with O_APPEND, O_DIRECT, O_SYNC or O_DSYNC,
// and beyond RLIMIT_FSIZE. The kernel serialises the calls for one file, even if several peers
// write to it. If the file is truncated while such a call runs, the call may extend it again.
func (pd *PD) MapFile(f *os.File, off int64, n int, access Access) (*MR, error) {
	const op = "ibv_reg_mr"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if f == nil {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "the file is nil; pass one that is open")
	}
	if off < 0 || n < 1 || off > math.MaxInt64-int64(n) {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "%d bytes from offset %d; the offset "+
			"must be at least 0, and the length at least 1", n, off)
	}
	info, err := f.Stat()
	if err != nil {
		return nil, &Error{Op: "fstat", Object: f.Name(), Err: err}
	}
	if kind := unmappable(info.Mode()); kind != "" {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "%s is a %s, which can't be mapped; only files can", f.Name(), kind)
	}
	if info.Mode().IsRegular() && info.Size() < off+int64(n) {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "%d bytes from offset %d are not "+
			"within %s, which has %d; map less, or extend the file with Truncate",
			n, off, f.Name(), info.Size())
	}
	before := int(off % int64(os.Getpagesize()))
	if n > math.MaxInt-before {
		return nil, pd.obj.Errorf(op, syscall.EINVAL,
			"%d bytes of a file are more than an address space holds; map less", n)
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
				Err: fmt.Errorf("the kernel pins the pages of a file only if it is open for "+
					"writing, too, whatever the rights are; use os.O_RDWR: %w", err)}
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
		err = fmt.Errorf("the file has to be open for reading, and with AccessLocalWrite for "+
			"writing, too: %w", err)
	}
	if err != nil {
		return fail(err)
	}
	return pages, nil
}

// unmappable returns the kind of a file that has no pages to map, "" for other files.
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
