package p9

import (
	"errors"
	"hash/maphash"
	"io"
	"io/fs"
	"sync"
	"syscall"
)

// NewFS returns a read-only FS that serves any fs.FS, or nil for nil.
func NewFS(fsys fs.FS) FS {
	if fsys == nil {
		return nil
	}
	return &ioFS{fsys, maphash.MakeSeed()}
}

// ioFS derives the identity of files from their names.
type ioFS struct {
	fs   fs.FS
	seed maphash.Seed
}

func (f *ioFS) qid(name string, info fs.FileMode) Qid {
	return Qid{Type: qidType(info), Path: maphash.String(f.seed, name)}
}

// attr makes attributes of a file.
func (f *ioFS) attr(name string, info fs.FileInfo) Attr {
	m := info.Mode()
	perm := uint32(m.Perm())
	if perm == 0 { // as in an fs.FS in memory whose maker sets no modes: nobody could read it
		perm = 0o444
		if m.IsDir() {
			perm = 0o555
		}
	}
	t := info.ModTime()
	at := Time{uint64(t.Unix()), uint64(t.Nanosecond())}
	if t.IsZero() {
		at = Time{}
	}
	a := Attr{
		Qid: f.qid(name, m), Mode: perm &^ 0o222, Nlink: 1,
		Size: uint64(info.Size()), BlockSize: 4096, Blocks: (uint64(info.Size()) + 511) / 512,
		Atime: at, Mtime: at, Ctime: at,
	}
	a.Qid.Version = uint32(at.Sec*1e9 + at.Nsec)
	switch a.Qid.Type {
	case QTDir:
		a.Mode |= 0o040000
	case QTSymlink:
		a.Mode |= 0o120000
	default:
		a.Mode |= 0o100000
	}
	return a
}

// qidType returns the type of a file for its qid.
func qidType(m fs.FileMode) uint8 {
	switch {
	case m.IsDir():
		return QTDir
	case m&fs.ModeSymlink != 0:
		return QTSymlink
	}
	return QTFile
}

func (f *ioFS) Stat(name string) (Attr, error) {
	info, err := fs.Lstat(f.fs, name)
	if err != nil {
		return Attr{}, err
	}
	return f.attr(name, info), nil
}

func (f *ioFS) Readlink(name string) (string, error) { return fs.ReadLink(f.fs, name) }

func (f *ioFS) Statfs() (Rstatfs, error) { return Rstatfs{BlockSize: 4096, NameLen: 255}, nil }

func (f *ioFS) Open(name string, _ int) (File, error) {
	if info, err := fs.Lstat(f.fs, name); err != nil {
		return nil, err
	} else if info.Mode().Type()&^fs.ModeDir != 0 {
		return nil, syscall.ELOOP // a symbolic link; other special files have nothing to read
	}
	file, err := f.fs.Open(name)
	if err != nil {
		return nil, err
	}
	random, _ := file.(io.ReaderAt)
	return &ioFile{fs: f, name: name, random: random, file: file}, nil
}

// ioFile is an open file of an fs.FS, which may be readable only from the beginning to the end.
type ioFile struct {
	fs   *ioFS
	name string

	random io.ReaderAt // file, if it is one

	mu   sync.Mutex
	file fs.File // without random, ReadAt may replace it
	at   int64   // where file is, without random
}

func (f *ioFile) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.Close()
}

func (f *ioFile) Stat() (Attr, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := f.file.Stat()
	if err != nil {
		return Attr{}, err
	}
	return f.fs.attr(f.name, info), nil
}

func (f *ioFile) ReadAt(b []byte, offset int64) (int, error) {
	if f.random != nil {
		n, err := f.random.ReadAt(b, offset)
		if errors.Is(err, fs.ErrInvalid) { // what some return after the end
			if info, failed := f.file.Stat(); failed == nil && offset > info.Size() {
				err = io.EOF
			}
		}
		return n, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if offset < f.at { // start from the beginning again
		file, err := f.fs.fs.Open(f.name)
		if err != nil {
			return 0, err
		}
		_ = f.file.Close()
		f.file, f.at = file, 0
	}
	skipped, err := io.CopyN(io.Discard, f.file, offset-f.at)
	f.at += skipped
	if err != nil {
		return 0, err
	}
	n, err := io.ReadFull(f.file, b)
	f.at += int64(n)
	if err == io.ErrUnexpectedEOF {
		err = io.EOF
	}
	return n, err
}

func (f *ioFile) ReadDir(n int) ([]DirEntry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, ok := f.file.(fs.ReadDirFile)
	if !ok {
		return nil, syscall.ENOTDIR
	}
	found, err := dir.ReadDir(n)
	entries := make([]DirEntry, len(found))
	for i, e := range found {
		entries[i] = DirEntry{Name: e.Name(), Qid: f.fs.qid(join(f.name, e.Name()), e.Type())}
		switch entries[i].Qid.Type {
		case QTDir:
			entries[i].Type = dtDir
		case QTSymlink:
			entries[i].Type = 10
		default:
			entries[i].Type = 8
		}
	}
	return entries, err
}
