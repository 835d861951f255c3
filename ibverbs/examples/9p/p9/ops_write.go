package p9

import (
	"strings"
	"syscall"
)

// change carries out a request that changes something.
func (c *session) change(to WritableFS, body any) (any, error) {
	switch m := body.(type) {
	case *Twrite:
		return c.write(m)
	case *Tsetattr:
		return nil, c.setattr(to, m)
	case *Tcreate:
		return c.lcreate(to, m)
	case *Tmkdir:
		qid, err := c.make(m.Dir, m.Name, func(p string) error { return to.Mkdir(p, m.Mode&permMask) })
		return &Rqid{qid}, err
	case *Tsymlink:
		if len(m.Target) == 0 || len(m.Target) >= 4096 || strings.Contains(m.Target, "\x00") {
			return nil, syscall.EINVAL
		}
		qid, err := c.make(m.Dir, m.Name, func(p string) error { return to.Symlink(m.Target, p) })
		return &Rqid{qid}, err
	case *Tlink:
		f, err := c.fids.get(m.Fid)
		if err != nil {
			return nil, err
		}
		_, err = c.make(m.Dir, m.Name, func(p string) error {
			old, err := c.tree.path(f.at())
			if err != nil {
				return err
			}
			return to.Link(old, p)
		})
		return nil, err
	case *TunlinkAt:
		f, err := c.fids.get(m.Dir)
		if err != nil {
			return nil, err
		}
		return nil, c.remove(to, func() (*node, string, bool, error) {
			return f.at(), m.Name, m.Flags&RemoveDir != 0, nil
		})
	case *Tfid: // KindRemove, the only one left
		return nil, c.removeFid(to, m)
	case *TrenameAt:
		old, err := c.fids.get(m.OldDir)
		if err != nil {
			return nil, err
		}
		return nil, c.rename(to, m.NewDir, m.NewName, func() (*node, string, error) {
			return old.at(), m.OldName, nil
		})
	case *Trename:
		f, err := c.fids.get(m.Fid)
		if err != nil {
			return nil, err
		}
		return nil, c.rename(to, m.Dir, m.Name, func() (*node, string, error) {
			return c.entry(f)
		})
	}
	return nil, syscall.EOPNOTSUPP
}

// permMask has the mode bits that a client may give to a new file. It leaves out set-user-ID and
// set-group-ID, because the server acts as the user that runs it, whoever the client says it is: a
// client must not make programs that others may run as that user.
const permMask = 0o1777

func (c *session) write(m *Twrite) (any, error) {
	f, file, err := c.opened(m.Fid, m.Offset)
	if err != nil {
		return nil, err
	}
	w, ok := file.(WritableFile)
	if !ok || f.flags&accMode == syscall.O_RDONLY || m.Offset > 1<<63-1-uint64(len(m.Data)) {
		return nil, syscall.EBADF
	}
	n, err := w.WriteAt(m.Data, int64(m.Offset))
	if n == 0 && err != nil {
		return nil, err
	}
	return &Rwrite{uint32(n)}, nil
}

func (c *session) setattr(to WritableFS, m *Tsetattr) error {
	f, err := c.fids.get(m.Fid)
	if err != nil {
		return err
	}
	a := m.Set
	const nano = 1e9
	if a.Valid&^setAll != 0 || a.Size > 1<<63-1 || a.Atime.Nsec >= nano || a.Mtime.Nsec >= nano {
		return syscall.EINVAL
	}
	if a.Valid&SetMode != 0 && a.Mode&0o6000 != 0 {
		return syscall.EPERM // set-user-ID and set-group-ID: see permMask
	}
	a.Mode &= permMask
	if file, err := f.open(); err == nil && (a.Valid&SetSize == 0 || f.flags&accMode != syscall.O_RDONLY) {
		if w, ok := file.(WritableFile); ok {
			return w.SetAttr(a)
		}
	}
	c.tree.changing.RLock()
	defer c.tree.changing.RUnlock()
	p, err := c.tree.path(f.at())
	if err != nil {
		return err
	}
	return to.SetAttr(p, a)
}

func (c *session) lcreate(to WritableFS, m *Tcreate) (any, error) {
	f, err := c.fids.get(m.Fid)
	if err != nil {
		return nil, err
	}
	c.tree.changing.RLock()
	defer c.tree.changing.RUnlock()
	flags := int(m.Flags) & (openFlags | flagExcl)
	var a Attr
	err = c.fids.open(f, flags, func(dir *node) (File, *node, error) {
		p, err := c.nameIn(dir, m.Name)
		if err != nil {
			return nil, nil, err
		}
		file, err := to.Create(p, flags, m.Mode&permMask)
		if err != nil {
			return nil, nil, err
		}
		if a, err = file.Stat(); err != nil {
			_ = file.Close()
			return nil, nil, err
		}
		return file, c.tree.child(dir, m.Name), nil
	})
	return &Ropen{Qid: a.Qid}, err
}

// nameIn returns the path of a name in a directory. It checks that dir is a directory: a symbolic
// link in its place would be followed, because it is not the last element of the path.
func (c *session) nameIn(dir *node, name string) (string, error) {
	p, err := c.tree.pathIn(dir, name)
	if err != nil {
		return "", err
	}
	isDir, err := c.isDir(dir)
	if err == nil && !isDir {
		err = syscall.ENOTDIR
	}
	return p, err
}

// make lets do make something under a name in a directory, and returns its qid.
func (c *session) make(dir uint32, name string, do func(p string) error) (Qid, error) {
	f, err := c.fids.get(dir)
	if err != nil {
		return Qid{}, err
	}
	c.tree.changing.RLock()
	defer c.tree.changing.RUnlock()
	p, err := c.nameIn(f.at(), name)
	if err != nil {
		return Qid{}, err
	}
	if err := do(p); err != nil {
		return Qid{}, err
	}
	a, err := c.fs.Stat(p)
	return a.Qid, err
}

// entry returns the directory and name of a fid's file. The caller holds tree.changing.
func (c *session) entry(f *fid) (*node, string, error) {
	n := f.at()
	if n == c.tree.root {
		return nil, "", syscall.EBUSY
	}
	// A removed file has no name, though another file may have that name by now.
	_, err := c.tree.path(n)
	return n.parent, n.name, err
}

// remove removes the name that which returns; the bool says whether it is a directory's.
func (c *session) remove(to WritableFS, which func() (*node, string, bool, error)) error {
	c.tree.changing.Lock()
	defer c.tree.changing.Unlock()
	dir, name, isDir, err := which()
	if err != nil {
		return err
	}
	p, err := c.nameIn(dir, name)
	if err != nil {
		return err
	}
	if err := to.Remove(p, isDir); err != nil {
		return err
	}
	c.tree.remove(dir, name)
	return nil
}

// removeFid removes the file that a fid names, and frees the fid, even if the removal fails.
func (c *session) removeFid(to WritableFS, m *Tfid) error {
	f, err := c.fids.get(m.Fid)
	if err != nil {
		return err
	}
	defer func() { _ = c.fids.clunk(m.Fid) }()
	return c.remove(to, func() (*node, string, bool, error) {
		dir, name, err := c.entry(f)
		if err != nil {
			return nil, "", false, err
		}
		isDir, err := c.isDir(f.at())
		return dir, name, isDir, err
	})
}

// rename renames the name that which returns.
func (c *session) rename(to WritableFS, dir uint32, name string, which func() (*node, string, error)) error {
	f, err := c.fids.get(dir)
	if err != nil {
		return err
	}
	c.tree.changing.Lock()
	defer c.tree.changing.Unlock()
	oldDir, oldName, err := which()
	if err != nil {
		return err
	}
	from, err := c.nameIn(oldDir, oldName)
	if err != nil {
		return err
	}
	newDir, err := f.use(c.tree) // the directory may be clunked before the rename ends
	if err != nil {
		return err
	}
	defer c.tree.drop(newDir)
	p, err := c.nameIn(newDir, name)
	if err != nil {
		return err
	}
	same := c.sameFile(from, p)
	if err := to.Rename(from, p); err != nil {
		return err
	}
	if !same {
		c.tree.rename(oldDir, oldName, newDir, name)
	}
	return nil
}

// sameFile reports whether two names are links to one file: then rename(2) removes neither name.
func (c *session) sameFile(p, q string) bool {
	a, err := c.fs.Stat(p)
	if err != nil {
		return false
	}
	b, err := c.fs.Stat(q)
	return err == nil && a.Qid.Path == b.Qid.Path
}
