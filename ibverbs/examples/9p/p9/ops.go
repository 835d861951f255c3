package p9

import (
	"cmp"
	"errors"
	"io"
	"syscall"
)

// Flags of open(2) on Linux, which Topen uses. Flags outside openFlags concern only the client, or
// clients must not use them.
const (
	accMode    = 3
	flagCreat  = 0o100
	flagExcl   = 0o200
	flagTrunc  = 0o1000
	flagAppend = 0o2000
	openFlags  = accMode | flagTrunc | flagAppend | 0o10000 /* O_DSYNC */ | 0o200000 /* O_DIRECTORY */ |
		0o4000000 /* O_SYNC, without O_DSYNC */
)

// serve carries out a request and returns the reply, whose data may be in buf, the reply's buffer.
func (c *session) serve(buf []byte, kind uint8, body any) (any, error) {
	switch kind {
	case KindFlush:
		return nil, nil
	case KindAttach:
		return c.attach(body.(*Tattach))
	case KindWalk:
		return c.walk(body.(*Twalk))
	case KindClunk:
		return nil, c.fids.clunk(body.(*Tfid).Fid)
	case KindOpen:
		return c.lopen(body.(*Topen))
	case KindRead:
		return c.read(buf, body.(*Tread))
	case KindReaddir:
		return c.readdir(buf, body.(*Treaddir))
	case KindGetattr:
		return c.getattr(body.(*Tgetattr))
	case KindReadlink:
		return c.readlink(body.(*Tfid))
	case KindStatfs:
		return c.statfs(body.(*Tfid))
	case KindFsync:
		return nil, c.fsync(body.(*Tfsync))
	case KindLock, KindGetLock:
		// There are no locks between clients; success would be a lie that costs somebody's data.
		return nil, syscall.ENOLCK
	}
	if body == nil {
		return nil, syscall.EOPNOTSUPP
	}
	to, ok := c.fs.(WritableFS)
	if !ok {
		if kind == KindRemove {
			_ = c.fids.clunk(body.(*Tfid).Fid) // the protocol says so
		}
		return nil, syscall.EROFS
	}
	return c.change(to, body)
}

func (c *session) attach(m *Tattach) (any, error) {
	if m.AFid != NoFid {
		return nil, syscall.EOPNOTSUPP // there is no authentication
	}
	if m.Aname != "" && m.Aname != "/" {
		return nil, syscall.ENOENT
	}
	a, err := c.fs.Stat(".")
	if err != nil {
		return nil, err
	}
	return &Rattach{a.Qid}, c.fids.add(m.Fid, c.tree.use(c.tree.root))
}

// walk walks from name to name. If the first exists and a later one does not, the reply says how
// many exist, and there is no new fid.
func (c *session) walk(m *Twalk) (any, error) {
	f, err := c.fids.get(m.Fid)
	if err != nil {
		return nil, err
	}
	c.tree.changing.RLock()
	defer c.tree.changing.RUnlock()
	var reply Rwalk
	at, err := f.use(c.tree)
	if err != nil {
		return nil, err
	}
	isDir := false
	if len(m.Names) > 0 {
		if isDir, err = c.isDir(at); err != nil {
			c.tree.drop(at)
			return nil, err
		}
	}
	for i, name := range m.Names {
		var next *node
		var a Attr
		err := error(syscall.ENOTDIR)
		if isDir {
			next, a, err = c.step(at, name)
		}
		if err != nil {
			c.tree.drop(at)
			if i == 0 {
				return nil, err
			}
			return &reply, nil
		}
		c.tree.drop(at)
		at, isDir = next, a.isDir()
		reply.Qids = append(reply.Qids, a.Qid)
	}
	if m.NewFid == m.Fid {
		return &reply, c.fids.replace(m.Fid, f, at)
	}
	return &reply, c.fids.add(m.NewFid, at)
}

// isDir reports whether a node is a directory, and not a symbolic link to one: an FS follows links
// in the middle of a path, but in 9P the client does. The caller holds tree.changing.
func (c *session) isDir(n *node) (bool, error) {
	p, err := c.tree.path(n)
	if err != nil {
		return false, err
	}
	a, err := c.fs.Stat(p)
	return a.isDir(), err
}

// step takes the node of a name in a directory. The caller holds tree.changing.
func (c *session) step(dir *node, name string) (n *node, a Attr, err error) {
	var p string
	if name == ".." {
		n = c.tree.parent(dir)
		defer func() {
			if err != nil {
				c.tree.drop(n)
			}
		}()
		p, err = c.tree.path(n)
	} else {
		p, err = c.tree.pathIn(dir, name)
	}
	if err == nil {
		a, err = c.fs.Stat(p)
	}
	if err == nil && n == nil {
		n = c.tree.child(dir, name)
	}
	return n, a, err
}

func (c *session) lopen(m *Topen) (any, error) {
	f, err := c.fids.get(m.Fid)
	if err != nil {
		return nil, err
	}
	flags := int(m.Flags) & openFlags
	if _, ok := c.fs.(WritableFS); !ok && (flags&accMode != syscall.O_RDONLY || flags&flagTrunc != 0) {
		return nil, syscall.EROFS
	}
	c.tree.changing.RLock()
	defer c.tree.changing.RUnlock()
	var a Attr
	err = c.fids.open(f, flags, func(n *node) (File, *node, error) {
		p, err := c.tree.path(n)
		if err != nil {
			return nil, nil, err
		}
		file, err := c.fs.Open(p, flags)
		if err != nil {
			return nil, nil, err
		}
		if a, err = file.Stat(); err != nil {
			_ = file.Close()
		}
		return file, nil, err
	})
	return &Ropen{Qid: a.Qid}, err
}

func (c *session) read(buf []byte, m *Tread) (any, error) {
	f, file, err := c.opened(m.Fid, m.Offset)
	if err != nil {
		return nil, err
	}
	if f.flags&accMode == syscall.O_WRONLY {
		return nil, syscall.EBADF
	}
	const before = headSize + 4 // of the bytes in Rread
	if uint64(m.Count) > uint64(len(buf)-before) {
		return nil, syscall.EINVAL
	}
	n, err := file.ReadAt(buf[before:][:m.Count], int64(m.Offset))
	if n == 0 && err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	return &Rread{buf[before:][:n]}, nil
}

// opened returns the open file of a fid for a transfer at an offset.
func (c *session) opened(number uint32, offset uint64) (*fid, File, error) {
	f, err := c.fids.get(number)
	if err != nil {
		return nil, nil, err
	}
	if offset > 1<<63-1 {
		return nil, nil, syscall.EINVAL
	}
	file, err := f.open()
	return f, file, err
}

func (c *session) readdir(buf []byte, m *Treaddir) (any, error) {
	f, file, err := c.opened(m.Fid, m.Offset)
	if err != nil {
		return nil, err
	}
	if a, err := file.Stat(); err != nil {
		return nil, err
	} else if !a.isDir() {
		return nil, syscall.ENOTDIR
	}
	const before = headSize + 4
	if uint64(m.Count) > uint64(len(buf)-before) {
		return nil, syscall.EINVAL
	}
	c.tree.changing.RLock()
	defer c.tree.changing.RUnlock()
	n := f.at()
	var first [2]DirEntry
	for i, at := range []*node{n, cmp.Or(n.parent, n)} {
		first[i] = DirEntry{Name: "..."[:i+1], Type: dtDir, Qid: Qid{Type: QTDir}}
		// The name may have been removed since the file was opened: then its qid is unknown.
		if p, err := c.tree.path(at); err == nil {
			if a, err := c.fs.Stat(p); err == nil {
				first[i].Qid = a.Qid
			}
		}
	}
	k, err := c.fids.readdir(f, buf[before:][:m.Count], m.Offset, first, func() (File, error) {
		p, err := c.tree.path(n)
		if err != nil {
			return nil, err
		}
		return c.fs.Open(p, syscall.O_RDONLY)
	})
	return &Rreaddir{buf[before:][:k]}, err
}

const dtDir = 4 // DT_DIR of readdir(3)

func (c *session) getattr(m *Tgetattr) (any, error) {
	f, err := c.fids.get(m.Fid)
	if err != nil {
		return nil, err
	}
	a, err := c.attr(f)
	return &Rgetattr{Valid: getBasic, Attr: a}, err
}

// attr returns the attributes of a file, even of an open one that no longer has a name.
func (c *session) attr(f *fid) (Attr, error) {
	if file, err := f.open(); err == nil {
		return file.Stat()
	}
	c.tree.changing.RLock()
	defer c.tree.changing.RUnlock()
	p, err := c.tree.path(f.at())
	if err != nil {
		return Attr{}, err
	}
	return c.fs.Stat(p)
}

func (c *session) readlink(m *Tfid) (any, error) {
	f, err := c.fids.get(m.Fid)
	if err != nil {
		return nil, err
	}
	c.tree.changing.RLock()
	defer c.tree.changing.RUnlock()
	p, err := c.tree.path(f.at())
	if err != nil {
		return nil, err
	}
	target, err := c.fs.Readlink(p)
	return &Rreadlink{target}, err
}

func (c *session) statfs(m *Tfid) (any, error) {
	if _, err := c.fids.get(m.Fid); err != nil {
		return nil, err
	}
	r, err := c.fs.Statfs()
	r.Type = 0x01021997 // V9FS_MAGIC
	return &r, err
}

func (c *session) fsync(m *Tfsync) error {
	_, file, err := c.opened(m.Fid, 0)
	if err != nil {
		return err
	}
	if w, ok := file.(WritableFile); ok {
		return w.Sync(m.DataSync != 0)
	}
	return nil // nothing was written
}
