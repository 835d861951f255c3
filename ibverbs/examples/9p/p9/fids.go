package p9

import (
	"sync"
	"sync/atomic"
	"syscall"
)

// fid is the object of a client's fid number.
type fid struct {
	mu    sync.Mutex
	node  *node
	over  bool // clunked, or replaced by another fid
	file  File // nil: not opened
	flags int  // it was opened with these
	list  *listing
}

// at returns what the fid names.
func (f *fid) at() *node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.node
}

// use takes another use of the node that the fid names. It fails with EBADF if the fid was clunked,
// because then the node is no longer held for this fid.
func (f *fid) use(t *tree) (*node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		return nil, syscall.EBADF
	}
	return t.use(f.node), nil
}

// open returns the open file, or EBADF if there is none.
func (f *fid) open() (File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file == nil {
		return nil, syscall.EBADF
	}
	return f.file, nil
}

// fids has the fids of a session.
type fids struct {
	tree *tree
	max  int
	room chan struct{} // a token for each open file

	entries    atomic.Int64 // of directories, in all listings
	maxEntries int

	mu sync.Mutex
	m  map[uint32]*fid
}

func newFids(t *tree, l *Limits) *fids {
	return &fids{
		tree: t, max: l.Fids, maxEntries: l.Entries,
		room: make(chan struct{}, l.OpenFiles), m: make(map[uint32]*fid),
	}
}

func (s *fids) get(number uint32) (*fid, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.m[number]; f != nil {
		return f, nil
	}
	return nil, syscall.EBADF
}

// add makes a fid of a node. It takes over the caller's use of the node, even if it fails.
func (s *fids) add(number uint32, n *node) (err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case number == NoFid || s.m[number] != nil:
		err = syscall.EINVAL
	case len(s.m) >= s.max:
		err = syscall.EMFILE
	default:
		s.m[number] = &fid{node: n}
		return nil
	}
	s.tree.drop(n)
	return err
}

// replace makes a fid name another node. It takes over the caller's use of that node, even if it
// fails.
func (s *fids) replace(number uint32, old *fid, n *node) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old.mu.Lock()
	defer old.mu.Unlock()
	if s.m[number] != old || old.file != nil {
		s.tree.drop(n)
		return syscall.EBADF
	}
	s.m[number] = &fid{node: n}
	old.over = true
	s.tree.drop(old.node)
	return nil
}

// clunk frees a fid.
func (s *fids) clunk(number uint32) error {
	s.mu.Lock()
	f := s.m[number]
	delete(s.m, number)
	s.mu.Unlock()
	if f == nil {
		return syscall.EBADF
	}
	return s.end(f)
}

// end closes a fid that is not in m.
func (s *fids) end(f *fid) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	s.tree.drop(f.node)
	return s.close(f)
}

// clear frees all fids.
func (s *fids) clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.m {
		_ = s.end(f) // the client has gone
	}
	clear(s.m)
}

// open opens the file of a fid with do, which gets the fid's node. If do returns another node, the
// fid names that one from then on.
func (s *fids) open(f *fid, flags int, do func(n *node) (File, *node, error)) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.file != nil || f.over {
		return syscall.EBADF
	}
	select {
	case s.room <- struct{}{}:
	default:
		return syscall.EMFILE
	}
	file, n, err := do(f.node)
	if err != nil {
		<-s.room
		return err
	}
	f.file, f.flags = file, flags
	if n != nil {
		f.node, n = n, f.node
		s.tree.drop(n)
	}
	return nil
}

// close closes the file of a fid. The caller holds f.mu.
func (s *fids) close(f *fid) error {
	if f.file == nil {
		return nil
	}
	err := f.file.Close()
	f.file = nil
	if f.list != nil {
		s.entries.Add(-int64(len(f.list.entries)))
		f.list = nil
	}
	<-s.room
	return err
}
