package p9

import (
	"errors"
	"io"
	"math"
	"reflect"
	"syscall"
)

// listing is what a client has read of a directory. Its entries keep their offsets until the client
// begins again, so that the client sees each once, even if entries are removed or created.
type listing struct {
	entries []DirEntry
	end     bool
}

// readBatch is how many entries are read at a time.
const readBatch = 512

// readdir puts as many entries as fit into buf, from offset on. Entry n has the offset n+1, where
// the next one is. reopen opens the directory again.
func (s *fids) readdir(f *fid, buf []byte, offset uint64, first [2]DirEntry,
	reopen func() (File, error),
) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return 0, syscall.EBADF
	}
	if offset == 0 && f.list != nil {
		file, err := reopen()
		if err != nil {
			return 0, err
		}
		_ = f.file.Close() // nothing was written to a directory
		f.file = file
		s.entries.Add(-int64(len(f.list.entries)))
		f.list = nil
	}
	if f.list == nil {
		f.list = &listing{entries: first[:]}
		s.entries.Add(int64(len(first)))
	}
	if offset > math.MaxInt32 {
		return 0, nil
	}
	e := encoder{b: buf}
	for i := int(offset); ; i++ {
		if err := s.extend(f, i); err != nil {
			return 0, err
		}
		if i >= len(f.list.entries) {
			return e.n, nil
		}
		full := e.n
		entry, next := &f.list.entries[i], uint64(i+1)
		e.put(reflect.ValueOf(entry.Qid))
		e.uint(8, next)
		e.uint(1, uint64(entry.Type))
		e.str(entry.Name)
		if e.n <= len(buf) {
			continue
		}
		if full == 0 {
			return 0, syscall.EINVAL // not even one fits, and an empty reply would mean the end
		}
		return full, nil
	}
}

// extend reads on until it has entry i, or reaches the end.
func (s *fids) extend(f *fid, i int) error {
	for i >= len(f.list.entries) && !f.list.end {
		if s.entries.Load() > int64(s.maxEntries) {
			return syscall.ENOMEM
		}
		entries, err := f.file.ReadDir(readBatch)
		f.list.entries = append(f.list.entries, entries...)
		s.entries.Add(int64(len(entries)))
		f.list.end = errors.Is(err, io.EOF)
		if err != nil && !f.list.end {
			return err
		}
		if err == nil && len(entries) == 0 {
			f.list.end = true
		}
	}
	return nil
}
