package p9

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// FS is a file system to serve. Names are those of io/fs: relative to the root, which is ".", with
// slashes, without "..". No method follows a symbolic link in the last element of a name. All
// methods may be called concurrently. An error that wraps a syscall.Errno or an error of io/fs
// reaches the client as that errno.
type FS interface {
	// Stat returns the attributes of a file.
	Stat(name string) (Attr, error)
	// Readlink returns the target of a symbolic link.
	Readlink(name string) (string, error)
	// Open opens a regular file or a directory. flags are those of open(2) on Linux, among
	// O_ACCMODE, O_TRUNC, O_APPEND, O_SYNC, O_DSYNC and O_DIRECTORY.
	Open(name string, flags int) (File, error)
	// Statfs returns the state of the file system.
	Statfs() (Rstatfs, error)
}

// WritableFS is an FS that can be changed. Clients of another FS get EROFS.
type WritableFS interface {
	FS
	// Create creates a file and opens it. flags are those of Open, and O_EXCL.
	Create(name string, flags int, mode uint32) (File, error)
	// Mkdir makes a directory. mode has the permission bits, as in mkdir(2).
	Mkdir(name string, mode uint32) error
	// Symlink makes name a symbolic link. target is any text.
	Symlink(target, name string) error
	// Link makes name another name of the file old.
	Link(old, name string) error
	// Rename replaces name if it exists, as rename(2) does.
	Rename(old, name string) error
	// Remove removes a directory if dir is true, and otherwise a file that is no directory.
	Remove(name string, dir bool) error
	// SetAttr sets the attributes that a.Valid names. After an error, some of them may be set.
	SetAttr(name string, a SetAttr) error
}

// File is an open file or directory. All methods may be called concurrently.
type File interface {
	io.ReaderAt
	io.Closer
	// Stat returns the attributes of the file, even if it has no name any more.
	Stat() (Attr, error)
	// ReadDir returns the next n entries of a directory at most, and io.EOF at its end.
	ReadDir(n int) ([]DirEntry, error)
}

// WritableFile is a File of a WritableFS.
type WritableFile interface {
	File
	io.WriterAt
	// SetAttr does what WritableFS.SetAttr does.
	SetAttr(a SetAttr) error
	// Sync writes the file to stable storage: its bytes only (fdatasync(2)) if dataOnly is true.
	Sync(dataOnly bool) error
}

// DirEntry is an entry of a directory. ReadDir leaves out "." and "..".
type DirEntry struct {
	Name string
	Qid  Qid
	Type uint8 // DT_REG and so on (readdir(3))
}

// Time is a time since 1970.
type Time struct{ Sec, Nsec uint64 }

// Attr are the attributes of a file: those of stat(2), and its qid.
type Attr struct {
	Qid                 Qid
	Mode, UID, GID      uint32
	Nlink, Rdev         uint64
	Size                uint64
	BlockSize, Blocks   uint64
	Atime, Mtime, Ctime Time
}

func (a *Attr) isDir() bool { return a.Qid.Type == QTDir }

// SetAttr says which attributes to set, by the Set bits in Valid, and to what.
type SetAttr struct {
	Valid, Mode, UID, GID uint32
	Size                  uint64
	Atime, Mtime          Time
}

// Bits of SetAttr.Valid. SetAtime without SetAtimeTo means the current time, and SetMtime likewise.
const (
	SetMode    = 0x001
	SetUID     = 0x002
	SetGID     = 0x004
	SetSize    = 0x008
	SetAtime   = 0x010
	SetMtime   = 0x020
	SetCtime   = 0x040 // to now, which changing anything else does
	SetAtimeTo = 0x080
	SetMtimeTo = 0x100
	setAll     = 0x1ff
)

// errno returns the errno with which the server replies. Numbers are Linux's, as in package syscall
// on Linux.
func errno(err error) syscall.Errno {
	var number syscall.Errno
	switch {
	case errors.As(err, &number):
		return number
	case errors.Is(err, fs.ErrNotExist):
		return syscall.ENOENT
	case errors.Is(err, fs.ErrExist):
		return syscall.EEXIST
	case errors.Is(err, fs.ErrPermission):
		return syscall.EACCES
	case errors.Is(err, fs.ErrInvalid):
		return syscall.EINVAL
	case errors.Is(err, os.ErrClosed):
		return syscall.EBADF
	case errors.Is(err, errTooLong):
		return syscall.ENAMETOOLONG
	case errors.Is(err, errors.ErrUnsupported):
		return syscall.EOPNOTSUPP
	}
	return syscall.EIO // as for a symbolic link that an os.Root does not follow
}
