package p9_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9/p9test"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const msize = 64 << 10

// pipe makes a server serve one client over a pipe. ended gets the error of Serve.
func pipe(t testing.TB, server *p9.Server) (conn net.Conn, ended chan error) {
	t.Helper()
	near, far := net.Pipe()
	ended = make(chan error, 1)
	go func() {
		err := server.Serve(context.Background(), p9.NewStream(far, msize, 16, time.Second))
		_ = far.Close()
		ended <- err
		close(ended)
	}()
	t.Cleanup(func() { _ = near.Close(); <-ended })
	return near, ended
}

// attached returns a client whose fid 0 is the root.
func attached(t testing.TB, server *p9.Server) *p9test.Client {
	t.Helper()
	conn, ended := pipe(t, server)
	c, err := p9test.New(p9test.Stream{Conn: conn}, msize)
	if err == nil {
		err = c.Attach(0)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		// The end may come while the server still writes an answer.
		if err := <-ended; err != nil && !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Serve: %v", err)
		}
	})
	return c
}

// directory serves a new directory.
func directory(t testing.TB, limits p9.Limits) (*p9.Server, string) {
	t.Helper()
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return p9.NewServer(p9.NewDir(root), limits), dir
}

func check(t testing.TB, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func put(t testing.TB, name, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o777), os.WriteFile(name, []byte(text), 0o666)); err != nil {
		t.Fatal(err)
	}
}

// TestFiles creates, writes, reads, lists and removes files.
func TestFiles(t *testing.T) {
	server, dir := directory(t, p9.Limits{})
	c := attached(t, server)
	check(t, "mkdir", c.Call(p9.KindMkdir, &p9.Tmkdir{Dir: 0, Name: "d", Mode: 0o755}, new(p9.Rqid)), nil)
	_, err := c.Walk(0, 1, "d")
	check(t, "walk", err, nil)
	check(t, "create", c.Create(1, 2, "f", os.O_RDWR|os.O_EXCL), nil)
	check(t, "create again", c.Create(1, 3, "f", os.O_RDWR|os.O_EXCL), syscall.EEXIST)
	n, err := c.Write(2, 3, []byte("hello"))
	if err != nil || n != 5 {
		t.Errorf("write: %d, %v", n, err)
	}
	got, err := c.Read(2, 1, 100)
	if want := "\x00\x00hello"; err != nil || string(got) != want {
		t.Errorf("read: %q, %v, want %q", got, err, want)
	}
	if got, err := c.Read(2, 8, 100); err != nil || len(got) > 0 {
		t.Errorf("read at the end: %q, %v", got, err)
	}
	check(t, "fsync", c.Call(p9.KindFsync, &p9.Tfsync{Fid: 2}, nil), nil)
	check(t, "fdatasync", c.Call(p9.KindFsync, &p9.Tfsync{Fid: 2, DataSync: 1}, nil), nil)
	check(t, "read past what fits", func() error { _, err := c.Read(2, 0, msize); return err }(), syscall.EINVAL)
	a, err := c.Attr(2)
	if err != nil || a.Size != 8 || a.Mode != 0o100644 || a.Nlink != 1 || a.Qid.Type != p9.QTFile {
		t.Errorf("attributes %+v, %v", a, err)
	}
	now := p9.Time{Sec: 1e9, Nsec: 5}
	check(t, "setattr", c.Call(p9.KindSetattr, &p9.Tsetattr{Fid: 2, Set: p9.SetAttr{
		Valid: p9.SetMode | p9.SetSize | p9.SetMtime | p9.SetMtimeTo, Mode: 0o100600, Size: 4, Mtime: now,
	}}, nil), nil)
	if a, err = c.Attr(2); err != nil || a.Size != 4 || a.Mode != 0o100600 || a.Mtime != now {
		t.Errorf("attributes afterwards %+v, %v", a, err)
	}
	check(t, "set-user-ID", c.Call(p9.KindSetattr,
		&p9.Tsetattr{Fid: 2, Set: p9.SetAttr{Valid: p9.SetMode, Mode: 0o4755}}, nil), syscall.EPERM)
	check(t, "symlink", c.Call(p9.KindSymlink, &p9.Tsymlink{Dir: 0, Name: "l", Target: "d/f"}, new(p9.Rqid)), nil)
	qids, err := c.Walk(0, 4, "l")
	if err != nil || qids[0].Type != p9.QTSymlink {
		t.Errorf("walk to a link: %v, %v", qids, err)
	}
	var link p9.Rreadlink
	if err := c.Call(p9.KindReadlink, &p9.Tfid{Fid: 4}, &link); err != nil || link.Target != "d/f" {
		t.Errorf("readlink: %q, %v", link.Target, err)
	}
	check(t, "open a link", c.Open(4, os.O_RDONLY), syscall.ELOOP)
	check(t, "hard link", c.Call(p9.KindLink, &p9.Tlink{Dir: 0, Fid: 2, Name: "h"}, nil), nil)
	if a, _ = c.Attr(2); a.Nlink != 2 {
		t.Errorf("%d links of a file with two", a.Nlink)
	}
	var st p9.Rstatfs
	if err := c.Call(p9.KindStatfs, &p9.Tfid{Fid: 0}, &st); err != nil || st.Type != 0x01021997 || st.Blocks == 0 {
		t.Errorf("statfs: %+v, %v", st, err)
	}
	unlink := func(dir uint32, name string, flags uint32) error {
		return c.Call(p9.KindUnlinkAt, &p9.TunlinkAt{Dir: dir, Name: name, Flags: flags}, nil)
	}
	check(t, "unlink a directory", unlink(0, "d", 0), syscall.EISDIR)
	check(t, "rmdir of a file", unlink(0, "h", p9.RemoveDir), syscall.ENOTDIR)
	check(t, "rmdir of a full directory", unlink(0, "d", p9.RemoveDir), syscall.ENOTEMPTY)
	check(t, "unlink", unlink(1, "f", 0), nil)
	if got, err := c.Read(2, 3, 1); err != nil || string(got) != "h" {
		t.Errorf("read of a file that has no name: %q, %v", got, err)
	}
	check(t, "rmdir", unlink(0, "d", p9.RemoveDir), nil)
	check(t, "remove", c.Call(p9.KindRemove, &p9.Tfid{Fid: 4}, nil), nil)
	check(t, "clunk of a fid that was removed", c.Clunk(4), syscall.EBADF)
	check(t, "clunk", c.Clunk(2), nil)
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 1 || left[0].Name() != "h" {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// TestUnsupported sends requests that the server refuses, each with the errno that Linux expects.
func TestUnsupported(t *testing.T) {
	server, _ := directory(t, p9.Limits{})
	c := attached(t, server)
	for kind, want := range map[uint8]syscall.Errno{
		18: syscall.EOPNOTSUPP, 30: syscall.EOPNOTSUPP, 32: syscall.EOPNOTSUPP, // mknod, xattrwalk, xattrcreate
		102: syscall.EOPNOTSUPP, 52: syscall.ENOLCK, 54: syscall.ENOLCK, // auth, lock, getlock
	} {
		check(t, fmt.Sprintf("type %d", kind), c.Call(kind, &p9.Tfid{}, nil), want)
	}
	check(t, "attach with authentication", c.Call(p9.KindAttach, &p9.Tattach{Fid: 5, AFid: 1}, nil), syscall.EOPNOTSUPP)
	check(t, "attach of a name", c.Call(p9.KindAttach,
		&p9.Tattach{Fid: 5, AFid: p9.NoFid, Aname: "/etc"}, nil), syscall.ENOENT)
	for _, version := range []string{"9P2000", "9P2000.u"} {
		var v p9.Rversion
		err := c.Tagged(p9.NoTag, p9.KindVersion, &p9.Tversion{Msize: msize, Version: version}, &v)
		if err != nil || v.Version != "unknown" {
			t.Errorf("a session of %s begins with %q: %v", version, v.Version, err)
		}
	}
}

// TestReaddir reads a directory in pieces while entries are removed and created.
func TestReaddir(t *testing.T) {
	server, dir := directory(t, p9.Limits{})
	const n = 1200 // more than are read at a time
	for i := range n {
		put(t, filepath.Join(dir, fmt.Sprintf("file%04d", i)), "")
	}
	c := attached(t, server)
	if _, err := c.Walk(0, 1); err != nil {
		t.Fatal(err)
	}
	check(t, "open", c.Open(1, os.O_RDONLY), nil)
	seen := map[string]uint64{}
	for offset := uint64(0); ; {
		entries, err := c.ReadDir(1, offset, 1000)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			break
		}
		for _, e := range entries {
			if seen[e.Name] != 0 {
				t.Fatalf("%s comes twice", e.Name)
			}
			seen[e.Name], offset = e.Offset, e.Offset
			if strings.HasPrefix(e.Name, "file") {
				if err := os.Remove(filepath.Join(dir, e.Name)); err != nil || e.Type != 8 || e.Qid.Path == 0 {
					t.Fatalf("%+v: %v", e, err)
				}
			}
		}
	}
	if len(seen) != n+2 || seen["."] == 0 || seen[".."] == 0 {
		t.Errorf("%d entries, want %d, with . and ..", len(seen), n+2)
	}
	// An offset leads to the entry that comes next, even after a later one was read.
	entries, err := c.ReadDir(1, seen[".."], 1000)
	if err != nil || seen[entries[0].Name] != seen[".."]+1 {
		t.Errorf("from the offset of ..: %+v, %v", entries[0], err)
	}
	// From the beginning, the reply has what is there now.
	if entries, err = c.ReadDir(1, 0, 1000); err != nil || len(entries) != 2 {
		t.Errorf("of a directory that is empty now: %+v, %v", entries, err)
	}
	check(t, "no place for an entry", func() error { _, err := c.ReadDir(1, 0, 10); return err }(), syscall.EINVAL)
	if entries, err := c.ReadDir(1, 1<<62, 1000); err != nil || len(entries) > 0 {
		t.Errorf("from an offset far behind the end: %v, %v", entries, err)
	}
}

// TestRename renames directories above files for which this client and another one have fids.
func TestRename(t *testing.T) {
	server, dir := directory(t, p9.Limits{})
	put(t, filepath.Join(dir, "a/b/f"), "hello")
	put(t, filepath.Join(dir, "x/f"), "another")
	one, two := attached(t, server), attached(t, server)
	for _, c := range []*p9test.Client{one, two} {
		if _, err := c.Walk(0, 1, "a", "b", "f"); err != nil {
			t.Fatal(err)
		}
	}
	rename := func(old, name string) error {
		return one.Call(p9.KindRenameAt, &p9.TrenameAt{OldDir: 0, OldName: old, NewDir: 0, NewName: name}, nil)
	}
	check(t, "rename", rename("a", "c"), nil)
	check(t, "rename to what was", rename("x", "a"), nil) // x/f is a/f now
	check(t, "rename of nothing", rename("x", "y"), syscall.ENOENT)
	check(t, "open", two.Open(1, os.O_RDONLY), nil)
	if got, err := two.Read(1, 0, 10); err != nil || string(got) != "hello" {
		t.Errorf("read: %q, %v", got, err)
	}
	// Rename by fid over a file of another client's fid: that fid has no name afterwards.
	if _, err := two.Walk(0, 2, "a", "f"); err != nil {
		t.Fatal(err)
	}
	if _, err := one.Walk(0, 2, "a"); err != nil {
		t.Fatal(err)
	}
	check(t, "rename by fid", one.Call(p9.KindRename, &p9.Trename{Fid: 1, Dir: 2, Name: "f"}, nil), nil)
	_, err := two.Attr(2)
	check(t, "attributes of what was replaced", err, syscall.ENOENT)
	check(t, "remove of what was replaced", two.Call(p9.KindRemove, &p9.Tfid{Fid: 2}, nil), syscall.ENOENT)
	if got, err := os.ReadFile(filepath.Join(dir, "a/f")); err != nil || string(got) != "hello" {
		t.Errorf("a/f has %q, %v", got, err)
	}
	// If both names are links to one file, both remain, and so do fids.
	put(t, filepath.Join(dir, "name"), "one file")
	_, err = two.Walk(0, 3, "name")
	check(t, "walk", err, nil)
	check(t, "link", two.Call(p9.KindLink, &p9.Tlink{Dir: 0, Fid: 3, Name: "name2"}, nil), nil)
	_, err = two.Walk(0, 4, "name2")
	check(t, "walk", err, nil)
	check(t, "rename to another name of the same", rename("name", "name2"), nil)
	for fid := uint32(3); fid <= 4; fid++ {
		if a, err := two.Attr(fid); err != nil || a.Nlink != 2 {
			t.Errorf("fid %d: %d links, %v", fid, a.Nlink, err)
		}
	}
	check(t, "rename of the root", one.Call(p9.KindRename, &p9.Trename{Fid: 0, Dir: 2, Name: "r"}, nil), syscall.EBUSY)
	check(t, "rename into itself", one.Call(p9.KindRenameAt,
		&p9.TrenameAt{OldDir: 0, OldName: "a", NewDir: 2, NewName: "a"}, nil), syscall.EINVAL)
}

// TestRootIsNotLeft tries to leave the directory: by names, by symbolic links that the client has
// made, and by a directory that becomes a link while the client has it.
func TestRootIsNotLeft(t *testing.T) {
	server, dir := directory(t, p9.Limits{})
	outside := t.TempDir()
	put(t, filepath.Join(outside, "secret"), "secret")
	put(t, filepath.Join(dir, "d/secret"), "not secret")
	c := attached(t, server)
	for _, name := range []string{"", ".", "../x", "/etc", "d/secret", "a\x00b"} {
		_, err := c.Walk(0, 1, name)
		check(t, fmt.Sprintf("walk to %q", name), err, syscall.EINVAL)
		check(t, fmt.Sprintf("create %q", name), c.Create(0, 2, name, os.O_RDWR), syscall.EINVAL)
		check(t, "clunk", c.Clunk(2), nil)
	}
	check(t, "create ..", c.Create(0, 2, "..", os.O_RDWR), syscall.EINVAL)
	check(t, "a long name", c.Create(0, 3, strings.Repeat("x", 256), os.O_RDWR), syscall.ENAMETOOLONG)
	check(t, "clunk", errors.Join(c.Clunk(2), c.Clunk(3)), nil)
	root, _ := c.Attr(0)
	qids, err := c.Walk(0, 1, "..", "..", "d", "..", "..")
	if err != nil || qids[1] != root.Qid || qids[4] != root.Qid {
		t.Errorf("..: %v, %v, want the root, %v", qids, err, root.Qid)
	}
	for i, target := range []string{outside, "../" + filepath.Base(outside), "d", "d/secret"} {
		name := fmt.Sprint("link", i)
		check(t, "symlink", c.Call(p9.KindSymlink, &p9.Tsymlink{Dir: 0, Name: name, Target: target}, new(p9.Rqid)), nil)
		_, err := c.Walk(0, 2, name, "secret")
		check(t, "walk through a link", err, syscall.ENOENT) // the walk ends at the link
		if _, err := c.Walk(0, 3, name); err != nil {
			t.Fatal(err)
		}
		_, err = c.Walk(3, 4, "secret")
		check(t, "walk from a link", err, syscall.ENOTDIR)
		check(t, "open of a link", c.Open(3, os.O_RDONLY), syscall.ELOOP)
		check(t, "create in a link", c.Create(3, 5, "new", os.O_RDWR), syscall.ENOTDIR)
		check(t, "create on a link", c.Create(0, 7, name, os.O_RDWR|os.O_TRUNC), syscall.ELOOP)
		check(t, "create of a link", c.Create(0, 8, name, os.O_RDWR|os.O_EXCL), syscall.EEXIST)
		for what, err := range map[string]error{
			"mkdir":    c.Call(p9.KindMkdir, &p9.Tmkdir{Dir: 3, Name: "new"}, new(p9.Rqid)),
			"symlink":  c.Call(p9.KindSymlink, &p9.Tsymlink{Dir: 3, Name: "new", Target: "x"}, new(p9.Rqid)),
			"link":     c.Call(p9.KindLink, &p9.Tlink{Dir: 3, Fid: 3, Name: "new"}, nil),
			"unlinkat": c.Call(p9.KindUnlinkAt, &p9.TunlinkAt{Dir: 3, Name: "secret"}, nil),
			"renameat": c.Call(p9.KindRenameAt, &p9.TrenameAt{OldDir: 0, OldName: "d", NewDir: 3, NewName: "new"}, nil),
		} {
			check(t, what+" in a link", err, syscall.ENOTDIR)
		}
		check(t, "truncate through a link", c.Call(p9.KindSetattr,
			&p9.Tsetattr{Fid: 3, Set: p9.SetAttr{Valid: p9.SetSize}}, nil), syscall.EOPNOTSUPP)
		check(t, "times of a link", c.Call(p9.KindSetattr, &p9.Tsetattr{Fid: 3, Set: p9.SetAttr{
			Valid: p9.SetMtime | p9.SetMtimeTo, Mtime: p9.Time{Sec: 77},
		}}, nil), nil)
		check(t, "clunk", errors.Join(c.Clunk(3), c.Clunk(5), c.Clunk(7), c.Clunk(8)), nil)
	}
	if _, err := c.Walk(0, 6, "d", "secret"); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "e")),
		os.Symlink(outside, filepath.Join(dir, "d"))); err != nil {
		t.Fatal(err)
	}
	if err := c.Open(6, os.O_RDWR); err == nil {
		got, _ := c.Read(6, 0, 10)
		t.Errorf("opened %q through a directory that became a link", got)
	}
	if a, err := c.Attr(6); err == nil {
		t.Errorf("attributes %+v through a directory that became a link", a)
	}
	files, _ := os.ReadDir(outside)
	info, err := os.Stat(filepath.Join(outside, "secret"))
	above, failed := os.Stat(outside)
	if err != nil || failed != nil || len(files) != 1 || info.Size() != 6 || above.ModTime().Unix() == 77 {
		t.Errorf("outside there are %v, %v, of %v, %v", files, err, above, failed)
	}
}

// TestSpecialFiles puts a FIFO into the directory, and nobody must wait for it.
func TestSpecialFiles(t *testing.T) {
	server, dir := directory(t, p9.Limits{})
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	c := attached(t, server)
	if _, err := c.Walk(0, 1, "fifo"); err != nil {
		t.Fatal(err)
	}
	if a, err := c.Attr(1); err != nil || a.Mode&0o170000 != 0o010000 {
		t.Errorf("attributes %+v, %v", a, err)
	}
	check(t, "open", c.Open(1, os.O_RDONLY), syscall.ENXIO)
	if err := c.Create(0, 2, "fifo", os.O_RDWR); err == nil {
		t.Error("a FIFO was opened by creating it")
	}
}

// TestAppend appends through two fids.
func TestAppend(t *testing.T) {
	server, dir := directory(t, p9.Limits{})
	put(t, filepath.Join(dir, "log"), "")
	c := attached(t, server)
	for fid := range uint32(2) {
		if _, err := c.Walk(0, 1+fid, "log"); err != nil {
			t.Fatal(err)
		}
		check(t, "open", c.Open(1+fid, os.O_WRONLY|syscall.O_APPEND), nil)
	}
	for range 3 {
		for fid := range uint32(2) {
			if _, err := c.Write(1+fid, 0, []byte{'a' + byte(fid)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if got, err := os.ReadFile(filepath.Join(dir, "log")); err != nil || string(got) != "ababab" {
		t.Errorf("%q, %v", got, err)
	}
	_, err := c.Read(1, 0, 1)
	check(t, "read of a file that is open to write", err, syscall.EBADF)
}

// sequential hides that files can be read at any offset.
type sequential struct{ fs.FS }

type onlyRead struct{ fs.File }

func (s sequential) Open(name string) (fs.File, error) {
	f, err := s.FS.Open(name)
	if _, dir := f.(fs.ReadDirFile); err == nil && !dir {
		return onlyRead{f}, nil
	}
	return f, err
}

// TestReadOnly serves an fs.FS, and also one whose files can only be read in sequence.
func TestReadOnly(t *testing.T) {
	data := make([]byte, 100_000)
	for i := range data {
		data[i] = byte(rand.Uint32())
	}
	files := fstest.MapFS{
		"d/f":  {Data: data, Mode: 0o644, ModTime: time.Unix(1e9, 0)},
		"link": {Data: []byte("d/f"), Mode: fs.ModeSymlink | 0o777},
	}
	for name, fsys := range map[string]fs.FS{"at": files, "sequential": sequential{files}} {
		t.Run(name, func(t *testing.T) {
			c := attached(t, p9.NewServer(p9.NewFS(fsys), p9.Limits{}))
			if _, err := c.Walk(0, 1, "d", "f"); err != nil {
				t.Fatal(err)
			}
			check(t, "open to write", c.Open(1, os.O_RDWR), syscall.EROFS)
			check(t, "open to truncate", c.Open(1, os.O_TRUNC), syscall.EROFS)
			check(t, "open", c.Open(1, os.O_RDONLY), nil)
			for _, at := range []int{50_000, 0, 99_999, 100_000, 200_000, 3} {
				got, err := c.Read(1, uint64(at), 1000)
				want := data[min(at, len(data)):min(at+1000, len(data))]
				if err != nil || !bytes.Equal(got, want) {
					t.Errorf("read at %d: %d bytes, %v, want %d", at, len(got), err, len(want))
				}
			}
			a, err := c.Attr(1)
			if err != nil || a.Mode != 0o100444 || a.Size != 100_000 || a.Mtime.Sec != 1e9 {
				t.Errorf("attributes %+v, %v", a, err)
			}
			if _, err := c.Walk(0, 2); err != nil {
				t.Fatal(err)
			}
			check(t, "open the root", c.Open(2, os.O_RDONLY), nil)
			entries, err := c.ReadDir(2, 0, 1000)
			var names []string
			for _, e := range entries {
				names = append(names, fmt.Sprint(e.Name, e.Type))
			}
			if want := []string{".4", "..4", "d4", "link10"}; err != nil || !slices.Equal(names, want) {
				t.Errorf("%v, %v, want %v", names, err, want)
			}
			check(t, "create", c.Create(0, 3, "new", os.O_RDWR), syscall.EROFS)
			_, err = c.Write(1, 0, []byte("x"))
			check(t, "write", err, syscall.EROFS)
			check(t, "remove", c.Call(p9.KindRemove, &p9.Tfid{Fid: 1}, nil), syscall.EROFS)
			check(t, "clunk", c.Clunk(1), syscall.EBADF)
		})
	}
}

// TestSequentialFile reads a file that can only be read in sequence, from many places at once.
func TestSequentialFile(t *testing.T) {
	data := strings.Repeat("0123456789", 100)
	server := p9.NewServer(p9.NewFS(sequential{fstest.MapFS{"f": {Data: []byte(data)}}}), p9.Limits{})
	c := attached(t, server)
	if _, err := c.Walk(0, 1, "f"); err != nil {
		t.Fatal(err)
	}
	check(t, "open", c.Open(1, os.O_RDONLY), nil)
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for k := range 20 {
				at := (i*7 + k*31) % (len(data) - 10)
				if got, err := c.Read(1, uint64(at), 10); err != nil || string(got) != data[at:at+10] {
					t.Errorf("at %d: %q, %v", at, got, err)
				}
			}
		})
	}
	callers.Wait()
	check(t, "clunk", c.Clunk(1), nil)
}

// TestManyCallers creates, writes, reads, renames and removes in many goroutines at the same time.
func TestManyCallers(t *testing.T) {
	server, dir := directory(t, p9.Limits{})
	clients := []*p9test.Client{attached(t, server), attached(t, server)}
	var wg sync.WaitGroup
	for k := range uint32(16) {
		wg.Go(func() {
			c, fid := clients[k%2], 100+10*k
			text := bytes.Repeat([]byte{byte(k)}, 5000)
			for i := range 20 {
				name := fmt.Sprintf("%d.%d", k, i)
				err := c.Create(0, fid, name, os.O_RDWR|os.O_EXCL)
				if err == nil {
					_, err = c.Write(fid, 0, text)
				}
				if err == nil {
					err = c.Call(p9.KindRenameAt, &p9.TrenameAt{OldName: name, NewName: name + "x"}, nil)
				}
				got, failed := c.Read(fid, 0, 10_000)
				if !bytes.Equal(got, text) {
					failed = errors.Join(failed, fmt.Errorf("read %d bytes that are others", len(got)))
				}
				if err := errors.Join(err, failed, c.Call(p9.KindRemove, &p9.Tfid{Fid: fid}, nil)); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestNilAndZeroValues: a server without a file system, a server without a transport and bytes that
// are not a message each fail with an error that says so.
func TestNilAndZeroValues(t *testing.T) {
	empty := &testkit.Empty{Patience: time.Minute}
	empty.Zeros(t, &p9.Server{})
	near, far := net.Pipe()
	t.Cleanup(func() { _, _ = near.Close(), far.Close() })
	for what, fs := range map[string]p9.FS{
		"nil": nil, "of a nil fs.FS": p9.NewFS(nil), "of a nil root": p9.NewDir(nil),
	} {
		empty.Func(t, "Serve of an FS "+what, func() error {
			return p9.NewServer(fs, p9.Limits{}).Serve(t.Context(), p9.NewStream(far, msize, 1, 0))
		})
	}
	server := p9.NewServer(p9.NewFS(fstest.MapFS{}), p9.Limits{})
	empty.Func(t, "Serve without a transport", func() error { return server.Serve(t.Context(), nil) })
	empty.Func(t, "Serve of a stream over nil", func() error {
		return server.Serve(t.Context(), p9.NewStream(nil, msize, 1, 0))
	})
	for what, m := range map[string]any{"a struct": p9.Tfid{}, "a nil pointer": (*p9.Tfid)(nil)} {
		for name, call := range map[string]func() error{
			"Encode": func() error { _, err := p9.Encode(make([]byte, 64), p9.KindClunk, 1, m); return err },
			"Decode": func() error { return p9.Decode(make([]byte, 11), m) },
		} {
			if err := call(); err == nil {
				t.Errorf("%s takes %s", name, what)
			}
		}
	}
	for n := range 7 {
		if p9.Decode(make([]byte, n), nil) == nil {
			t.Errorf("%d bytes are a message", n)
		}
	}
}

// TestStreamOfShortMessages: a stream has messages of 4096 bytes if it is made for shorter ones, or
// for ones of negative length, which would permit a client any length.
func TestStreamOfShortMessages(t *testing.T) {
	near, far := net.Pipe()
	for _, max := range []int{math.MinInt, -1, 0, 4095} {
		if n := p9.NewStream(far, max, 1, 0).MaxMessage(); n != 4096 {
			t.Errorf("for messages of %d bytes MaxMessage is %d", max, n)
		}
	}
	_, _ = near.Close(), far.Close()
}

// TestStreamWithoutReplies: a stream with a limit of 0 replies at a time sends one at a time.
func TestStreamWithoutReplies(t *testing.T) {
	for _, replies := range []int{0, -1} {
		near, far := net.Pipe()
		sent := make(chan error, 1)
		go func() { sent <- p9.NewStream(far, msize, replies, 0).Send(t.Context(), func([]byte) int { return -1 }) }()
		if err := <-sent; err != nil {
			t.Error(err)
		}
		_, _ = near.Close(), far.Close()
	}
}
