package p9

import (
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// dir is a directory of the system. All names go through an os.Root, so that no symbolic link leads
// out of the directory, even one that is made during a call. Where os.Root has no method, dir makes
// it open the directory that holds a name, and uses the name there without following it.
type dir struct {
	root *os.Root

	mu      sync.Mutex
	devices map[uint64]uint64 // numbers, in the order in which they were seen
}

// NewDir returns an FS that serves a directory for reading and writing. New files get the modes
// that clients ask for, less the process's umask. Close root when no client is served. If root is
// nil, NewDir returns nil.
func NewDir(root *os.Root) WritableFS {
	if root == nil {
		return nil
	}
	return &dir{root: root, devices: make(map[uint64]uint64)}
}

// qid returns the identity of a file. The inode's number is not enough if another file system is
// mounted below the root, so the upper 16 bits, which numbers rarely use, identify the file system.
func (d *dir) qid(dev, ino uint64, mode uint32, version uint32) Qid {
	d.mu.Lock()
	n, ok := d.devices[dev]
	if !ok {
		n = uint64(len(d.devices))
		d.devices[dev] = n
	}
	d.mu.Unlock()
	q := Qid{Path: ino ^ n<<48, Version: version}
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR:
		q.Type = QTDir
	case unix.S_IFLNK:
		q.Type = QTSymlink
	}
	return q
}

func (d *dir) attr(info fs.FileInfo, err error) (Attr, error) {
	if err != nil {
		return Attr{}, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return Attr{}, syscall.EIO
	}
	at := func(t syscall.Timespec) Time { return Time{uint64(t.Sec), uint64(t.Nsec)} }
	// A change within one tick of the clock is only noticed if it changes the size.
	version := uint32(st.Mtim.Nano()) ^ uint32(st.Size)
	return Attr{
		Qid:  d.qid(st.Dev, st.Ino, st.Mode, version),
		Mode: st.Mode, UID: st.Uid, GID: st.Gid,
		Nlink: uint64(st.Nlink), //nolint:unconvert // of other types elsewhere than on amd64
		Rdev:  st.Rdev, Size: uint64(st.Size),
		BlockSize: uint64(st.Blksize), Blocks: uint64(st.Blocks),
		Atime: at(st.Atim), Mtime: at(st.Mtim), Ctime: at(st.Ctim),
	}, nil
}

func (d *dir) Stat(name string) (Attr, error) { return d.attr(d.root.Lstat(name)) }

func (d *dir) Readlink(name string) (string, error) { return d.root.Readlink(name) }

func (d *dir) Mkdir(name string, mode uint32) error {
	if err := d.root.Mkdir(name, fs.FileMode(mode&0o777)); err != nil || mode&unix.S_ISVTX == 0 {
		return err
	}
	return d.root.Chmod(name, fs.FileMode(mode&0o777)|fs.ModeSticky)
}

func (d *dir) Symlink(target, name string) error { return d.root.Symlink(target, name) }

func (d *dir) Link(old, name string) error { return d.root.Link(old, name) }

func (d *dir) Rename(old, name string) error { return d.root.Rename(old, name) }

// in opens the directory that name is in, and calls do with it and the last element of name.
func (d *dir) in(name string, do func(fd int, base string) error) error {
	f, err := d.root.OpenFile(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // nothing was written
	return with(f, func(fd int) error { return do(fd, path.Base(name)) })
}

// with calls do with a file's descriptor.
func with(f *os.File, do func(fd int) error) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	failed := raw.Control(func(fd uintptr) { err = do(int(fd)) })
	return errors.Join(failed, err)
}

// Remove uses unlinkat, because os.Root.Remove would remove a file where a directory is expected.
func (d *dir) Remove(name string, isDir bool) error {
	flags := 0
	if isDir {
		flags = unix.AT_REMOVEDIR
	}
	return d.in(name, func(fd int, base string) error { return unix.Unlinkat(fd, base, flags) })
}

func (d *dir) Statfs() (r Rstatfs, err error) {
	f, err := d.root.Open(".")
	if err != nil {
		return r, err
	}
	defer func() { _ = f.Close() }()
	var st unix.Statfs_t
	if err := with(f, func(fd int) error { return unix.Fstatfs(fd, &st) }); err != nil {
		return r, err
	}
	return Rstatfs{
		BlockSize: uint32(st.Bsize), Blocks: st.Blocks, Free: st.Bfree, Avail: st.Bavail,
		Files: st.Files, FilesFree: st.Ffree,
		ID: uint64(uint32(st.Fsid.Val[0])) | uint64(uint32(st.Fsid.Val[1]))<<32, NameLen: uint32(st.Namelen),
	}, nil
}

func (d *dir) Open(name string, flags int) (File, error) {
	if err := d.check(name); err != nil {
		return nil, err
	}
	return d.open(name, flags, 0)
}

// check refuses a symbolic link, because os.Root follows it, and what openable refuses. It comes
// before opening, because opening has effects on a device or a FIFO.
func (d *dir) check(name string) error {
	info, err := d.root.Lstat(name)
	switch {
	case err != nil:
		return err
	case info.Mode()&fs.ModeSymlink != 0:
		return syscall.ELOOP
	}
	return openable(info)
}

// openable refuses devices, FIFOs and sockets: the client has its own.
func openable(info fs.FileInfo) error {
	if !info.Mode().IsRegular() && !info.IsDir() {
		return syscall.ENXIO
	}
	return nil
}

func (d *dir) Create(name string, flags int, mode uint32) (File, error) {
	if flags&os.O_EXCL == 0 { // otherwise nothing that exists is opened
		if err := d.check(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return d.open(name, flags|os.O_CREATE, fs.FileMode(mode&0o777))
}

// open opens a file without waiting for the other end of a FIFO.
func (d *dir) open(name string, flags int, mode fs.FileMode) (File, error) {
	f, err := d.root.OpenFile(name, flags|unix.O_NONBLOCK|unix.O_NOCTTY, mode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = openable(info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &dirFile{File: f, dir: d, appends: flags&os.O_APPEND != 0}, nil
}

func (d *dir) SetAttr(name string, a SetAttr) error {
	info, err := d.root.Lstat(name)
	if err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 && a.Valid&(SetMode|SetSize) != 0 {
		return syscall.EOPNOTSUPP
	}
	if a.Valid&SetSize != 0 {
		f, err := d.Open(name, os.O_WRONLY)
		if err != nil {
			return err
		}
		err = f.(*dirFile).Truncate(int64(a.Size))
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return a.set(
		func(uid, gid int) error { return d.root.Lchown(name, uid, gid) },
		func(mode fs.FileMode) error { return d.root.Chmod(name, mode) },
		// os.Root.Chtimes follows a link.
		func(ts []unix.Timespec) error {
			return d.in(name, func(fd int, base string) error {
				return unix.UtimesNanoAt(fd, base, ts, unix.AT_SYMLINK_NOFOLLOW)
			})
		})
}

// set sets everything but the size: the owner before the mode, because a new owner takes bits from
// the mode, and the times last, because all other changes change them.
func (a *SetAttr) set(chown func(uid, gid int) error, chmod func(fs.FileMode) error,
	chtimes func([]unix.Timespec) error,
) error {
	if a.Valid&(SetUID|SetGID) != 0 {
		uid, gid := -1, -1
		if a.Valid&SetUID != 0 {
			uid = int(int32(a.UID))
		}
		if a.Valid&SetGID != 0 {
			gid = int(int32(a.GID))
		}
		if err := chown(uid, gid); err != nil {
			return err
		}
	}
	if a.Valid&SetMode != 0 {
		mode := fs.FileMode(a.Mode & 0o777)
		if a.Mode&unix.S_ISVTX != 0 {
			mode |= fs.ModeSticky
		}
		if err := chmod(mode); err != nil {
			return err
		}
	}
	if a.Valid&(SetAtime|SetMtime) == 0 {
		return nil
	}
	atime, err := timespec(a.Valid, SetAtime, SetAtimeTo, a.Atime)
	if err != nil {
		return err
	}
	mtime, err := timespec(a.Valid, SetMtime, SetMtimeTo, a.Mtime)
	if err != nil {
		return err
	}
	return chtimes([]unix.Timespec{atime, mtime})
}

func timespec(valid, set, to uint32, t Time) (unix.Timespec, error) {
	switch {
	case valid&set == 0:
		return unix.Timespec{Nsec: unix.UTIME_OMIT}, nil
	case valid&to == 0:
		return unix.Timespec{Nsec: unix.UTIME_NOW}, nil
	}
	return unix.TimeToTimespec(time.Unix(int64(t.Sec), int64(t.Nsec)))
}

// dirFile is an open file of a dir.
type dirFile struct {
	*os.File
	dir     *dir
	appends bool

	mu   sync.Mutex
	rest []byte // of what getdents64 returned
	dev  uint64
}

func (f *dirFile) Stat() (Attr, error) { return f.dir.attr(f.File.Stat()) }

// WriteAt appends if the file was opened with O_APPEND, as pwrite does on Linux.
func (f *dirFile) WriteAt(b []byte, offset int64) (int, error) {
	if f.appends {
		return f.Write(b)
	}
	return f.File.WriteAt(b, offset)
}

func (f *dirFile) Sync(dataOnly bool) error {
	if !dataOnly {
		return f.File.Sync()
	}
	return with(f.File, unix.Fdatasync)
}

func (f *dirFile) SetAttr(a SetAttr) error {
	if a.Valid&SetSize != 0 {
		if err := f.Truncate(int64(a.Size)); err != nil {
			return err
		}
	}
	return a.set(f.Chown, f.Chmod, func(ts []unix.Timespec) error {
		return with(f.File, func(fd int) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(fd), ts, 0)
		})
	})
}

// ReadDir reads entries with getdents64, because os.File.ReadDir leaves their inodes out.
func (f *dirFile) ReadDir(n int) (entries []DirEntry, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.dev == 0 {
		info, err := f.File.Stat()
		if err != nil {
			return nil, err
		}
		f.dev = info.Sys().(*syscall.Stat_t).Dev
	}
	for len(entries) < n {
		if len(f.rest) == 0 {
			buf := make([]byte, 32<<10)
			k := 0
			err := with(f.File, func(fd int) (err error) { k, err = unix.ReadDirent(fd, buf); return err })
			if err != nil {
				return entries, err
			}
			if k == 0 {
				return entries, io.EOF
			}
			f.rest = buf[:k]
		}
		// struct linux_dirent64: d_ino, d_off, d_reclen, d_type, d_name and a NUL.
		const head = 19
		length := int(binary.NativeEndian.Uint16(f.rest[16:]))
		record := f.rest[:length]
		f.rest = f.rest[length:]
		name := unix.ByteSliceToString(record[head:])
		if name == "." || name == ".." {
			continue
		}
		kind := record[18]
		entries = append(entries, DirEntry{
			Name: name, Type: kind,
			// d_type has the type bits of a mode, shifted.
			Qid: f.dir.qid(f.dev, binary.NativeEndian.Uint64(record), uint32(kind)<<12, 0),
		})
	}
	return entries, nil
}
