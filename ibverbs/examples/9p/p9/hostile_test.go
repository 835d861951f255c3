package p9_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9/p9test"
)

// encode returns a message.
func encode(t testing.TB, kind uint8, tag uint16, m any) []byte {
	t.Helper()
	b := make([]byte, msize)
	n, err := p9.Encode(b, kind, tag, m)
	if err != nil {
		t.Fatal(err)
	}
	return b[:n]
}

// sized sets the size of a message.
func sized(b []byte, size uint32) []byte {
	binary.LittleEndian.PutUint32(b, size)
	return b
}

// TestHostileClient sends what no client sends, each on a connection of its own. The connection
// ends with an error, and another connection goes on.
func TestHostileClient(t *testing.T) {
	server, dir := directory(t, p9.Limits{})
	put(t, filepath.Join(dir, "f"), "hello")
	honest := attached(t, server)
	version := encode(t, p9.KindVersion, p9.NoTag, &p9.Tversion{Msize: msize, Version: p9.Version})
	attach := encode(t, p9.KindAttach, 1, &p9.Tattach{AFid: p9.NoFid})
	stat := encode(t, p9.KindGetattr, 1, &p9.Tgetattr{})
	walk := encode(t, p9.KindWalk, 1, &p9.Twalk{NewFid: 1, Names: make([]string, 17)})
	for _, c := range []struct {
		name, want string
		messages   [][]byte
	}{
		{"no bytes of 9P", "there may be 7 to", [][]byte{[]byte("GET / HTTP/1.1\r\n\r\n")}},
		{"too short", "there may be 7 to", [][]byte{sized(make([]byte, 7), 6)}},
		{"too long", "a message of 4294967295 bytes", [][]byte{sized(make([]byte, 7), math.MaxUint32)}},
		{"cut off", "unexpected EOF", [][]byte{version, sized(append([]byte(nil), stat...), 100)}},
		{"before Tversion", "type 104 before Tversion", [][]byte{attach}},
		{"msize", "msize 4095", [][]byte{
			encode(t, p9.KindVersion, p9.NoTag, &p9.Tversion{Msize: 4095, Version: p9.Version}),
		}},
		{"longer than agreed", "agreed were 4096", [][]byte{
			encode(t, p9.KindVersion, p9.NoTag, &p9.Tversion{Msize: 4096, Version: p9.Version}),
			encode(t, p9.KindWrite, 1, &p9.Twrite{Data: make([]byte, 4096)}),
		}},
		{"another version", "before Tversion", [][]byte{
			encode(t, p9.KindVersion, p9.NoTag, &p9.Tversion{Msize: 4096, Version: "9P2000.u"}), attach,
		}},
		{"a reply", "type 101 is no request", [][]byte{version, encode(t, p9.KindVersion+1, p9.NoTag, nil)}},
		{"an error", "type 7 is no request", [][]byte{encode(t, p9.KindError, 1, &p9.Rlerror{Errno: 1})}},
		{"a type beyond", "type 254 is no request", [][]byte{version, encode(t, 254, 1, nil)}},
		{"a tag", "type 24 with tag 0xffff", [][]byte{
			version, encode(t, p9.KindGetattr, p9.NoTag, &p9.Tgetattr{}),
		}},
		{"Tversion with a tag", "type 100 with tag 0x1", [][]byte{encode(t, p9.KindVersion, 1, &p9.Tversion{})}},
		{"fields missing", "the fields end elsewhere", [][]byte{version, encode(t, p9.KindWalk, 1, nil)}},
		{"fields too many", "the fields end elsewhere", [][]byte{version, encode(t, p9.KindClunk, 1, &p9.Tgetattr{})}},
		{"too many names", "the fields end elsewhere", [][]byte{version, walk}},
		{"count of data", "the fields end elsewhere", [][]byte{version, encode(t, p9.KindWrite, 1, &p9.Tgetattr{Mask: 5})}},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, ended := pipe(t, server)
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			for _, m := range c.messages {
				if _, err := conn.Write(m); err != nil {
					break // the server has ended it already
				}
			}
			if c.name == "cut off" {
				_ = conn.Close()
			}
			if err := <-ended; err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Serve returns %v, want %q", err, c.want)
			}
		})
		if _, err := honest.Attr(0); err != nil {
			t.Fatalf("after %s, another client: %v", c.name, err)
		}
	}
	_, err := honest.Walk(0, 1, strings.Split(strings.Repeat("f ", 16), " ")[:16]...)
	check(t, "16 names", err, syscall.ENOENT)
}

// TestHostileNumbers sends impossible fids, offsets and counts, which are errors of the request.
func TestHostileNumbers(t *testing.T) {
	server, dir := directory(t, p9.Limits{Fids: 8, OpenFiles: 2, Entries: 100})
	put(t, filepath.Join(dir, "f"), "hello")
	c := attached(t, server)
	if _, err := c.Walk(0, 1, "f"); err != nil {
		t.Fatal(err)
	}
	walk := func(from, to uint32, names ...string) error { _, err := c.Walk(from, to, names...); return err }
	check(t, "a fid twice", walk(0, 1), syscall.EINVAL)
	check(t, "a root twice", c.Attach(1), syscall.EINVAL)
	check(t, "NoFid", walk(0, p9.NoFid), syscall.EINVAL)
	check(t, "a fid that is none", walk(9, 2), syscall.EBADF)
	check(t, "walk through a file", walk(1, 2, "f"), syscall.ENOTDIR)
	_, err := c.Read(1, 0, 1)
	check(t, "read of a fid that is not open", err, syscall.EBADF)
	check(t, "open", c.Open(1, os.O_RDWR), nil)
	check(t, "open twice", c.Open(1, os.O_RDWR), syscall.EBADF)
	check(t, "walk of an open fid to itself", walk(1, 1), syscall.EBADF)
	for _, offset := range []uint64{1 << 63, math.MaxUint64} {
		_, err := c.Read(1, offset, 1)
		check(t, "read at an offset", err, syscall.EINVAL)
		_, err = c.Write(1, offset, []byte("x"))
		check(t, "write at an offset", err, syscall.EINVAL)
	}
	if _, err := c.Write(1, 1<<63-1, []byte("x")); err == nil {
		t.Error("a write that ends behind the last offset succeeds")
	}
	for name, a := range map[string]p9.SetAttr{
		"bits": {Valid: 1 << 31}, "size": {Valid: p9.SetSize, Size: 1 << 63},
		"time": {Valid: p9.SetMtime | p9.SetMtimeTo, Mtime: p9.Time{Nsec: 1e9}},
	} {
		check(t, "setattr of "+name, c.Call(p9.KindSetattr, &p9.Tsetattr{Fid: 1, Set: a}, nil), syscall.EINVAL)
	}
	if _, err := c.ReadDir(1, 0, 100); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("readdir of a file: %v", err)
	}
	check(t, "a link of no target", c.Call(p9.KindSymlink, &p9.Tsymlink{Name: "l"}, nil), syscall.EINVAL)
	check(t, "a link of a long target", c.Call(p9.KindSymlink,
		&p9.Tsymlink{Name: "l", Target: strings.Repeat("x", 4096)}, nil), syscall.EINVAL)

	// Limits, and what becomes free again.
	check(t, "a second file", errors.Join(walk(0, 2, "f"), c.Open(2, 0)), nil)
	check(t, "a third", errors.Join(walk(0, 3, "f"), c.Open(3, 0)), syscall.EMFILE)
	check(t, "the third, without the first", errors.Join(c.Clunk(1), c.Open(3, 0)), nil)
	for fid := uint32(10); fid < 15; fid++ {
		check(t, "fids", walk(0, fid), nil)
	}
	check(t, "one fid more", walk(0, 20), syscall.EMFILE)
	check(t, "one fid more, without another", errors.Join(c.Clunk(10), walk(0, 20)), nil)
	for i := range 200 {
		put(t, filepath.Join(dir, fmt.Sprint(i)), "")
	}
	check(t, "a directory", errors.Join(c.Clunk(2), c.Open(20, 0)), nil)
	for offset := uint64(0); err == nil || errors.Is(err, syscall.EBADF); {
		var entries []p9test.Entry
		if entries, err = c.ReadDir(20, offset, 1000); len(entries) == 0 {
			break
		}
		offset = entries[len(entries)-1].Offset
	}
	check(t, "more entries than the limit of two", func() error {
		check(t, "another", errors.Join(c.Clunk(3), c.Open(11, 0)), nil)
		_, err := c.ReadDir(11, 0, 1000)
		return err
	}(), syscall.ENOMEM)

	// Tversion starts anew.
	var v p9.Rversion
	check(t, "Tversion", c.Tagged(p9.NoTag, p9.KindVersion, &p9.Tversion{Msize: msize, Version: p9.Version}, &v), nil)
	check(t, "a fid from before", c.Clunk(0), syscall.EBADF)
	check(t, "attach", c.Attach(0), nil)
}

// slow is a file whose reads wait for a token in proceed.
type slow struct {
	fs.FS
	proceed chan struct{}
	waiting *atomic.Int32
}

type slowFile struct {
	fs.File
	slow
}

func (s slow) Open(name string) (fs.File, error) {
	f, err := s.FS.Open(name)
	if name == "slow" && err == nil {
		return slowFile{f, s}, nil
	}
	return f, err
}

func (f slowFile) Read(b []byte) (int, error) {
	f.waiting.Add(1)
	<-f.proceed
	return f.File.Read(b)
}

// TestFlush flushes a read that takes long: the server still serves other requests, and answers the
// flush after the read.
func TestFlush(t *testing.T) {
	files := slow{fstest.MapFS{"slow": {Data: []byte("x")}}, make(chan struct{}), new(atomic.Int32)}
	c := attached(t, p9.NewServer(p9.NewFS(files), p9.Limits{}))
	if _, err := c.Walk(0, 1, "slow"); err != nil {
		t.Fatal(err)
	}
	check(t, "open", c.Open(1, os.O_RDONLY), nil)
	read := c.Start(0x9001, p9.KindRead, &p9.Tread{Fid: 1, Count: 1})
	for files.waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	flushed := make(chan error, 1)
	flush := c.Start(0x9002, p9.KindFlush, &p9.Tflush{OldTag: 0x9001})
	go func() { flushed <- flush(nil) }()
	check(t, "a flush of itself", c.Tagged(0x9003, p9.KindFlush, &p9.Tflush{OldTag: 0x9003}, nil), nil)
	check(t, "a flush of nothing", c.Call(p9.KindFlush, &p9.Tflush{OldTag: 77}, nil), nil)
	if _, err := c.Attr(0); err != nil {
		t.Errorf("beside a slow request: %v", err)
	}
	select {
	case err := <-flushed:
		t.Errorf("the flush is answered (%v) before what it flushes", err)
	case <-time.After(50 * time.Millisecond):
	}
	files.proceed <- struct{}{}
	check(t, "flush", <-flushed, nil)
	var r p9.Rread
	check(t, "the read", read(&r), nil)
}

// slowRemoval is a directory in which a removal waits for a token in proceed, and so does whatever
// uses names.
type slowRemoval struct {
	p9.WritableFS
	waiting, proceed chan struct{}
}

func (s slowRemoval) Remove(name string, dir bool) error {
	s.waiting <- struct{}{}
	<-s.proceed
	return s.WritableFS.Remove(name, dir)
}

// TestLongPaths: paths are as long as open(2) takes them, so that a client can't make requests
// slow by directories that are thousands deep. A fid whose path gets longer by a rename is usable
// again after the next.
func TestLongPaths(t *testing.T) {
	server, _ := directory(t, p9.Limits{})
	c := attached(t, server)
	mkdir := func(dir uint32, name string) error {
		return c.Call(p9.KindMkdir, &p9.Tmkdir{Dir: dir, Name: name, Mode: 0o755}, new(p9.Rqid))
	}
	walk := func(from, to uint32, name string) error { _, err := c.Walk(from, to, name); return err }
	rename := func(fid, dir uint32) error {
		return c.Call(p9.KindRename, &p9.Trename{Fid: fid, Dir: dir, Name: "d"}, nil)
	}
	name := strings.Repeat("d", 255)
	const deep = 16 // directories with names of 255 bytes, whose path has 4,095
	for i := range uint32(deep) {
		check(t, "mkdir", mkdir(i, name), nil)
		check(t, "walk", walk(i, i+1, name), nil)
	}
	check(t, "mkdir of a path of 4,097 bytes", mkdir(deep, "d"), syscall.ENAMETOOLONG)
	check(t, "walk to a path of 4,097 bytes", walk(deep, 100, "d"), syscall.ENAMETOOLONG)
	check(t, "mkdir", mkdir(0, "d"), nil)
	check(t, "walk", walk(0, 100, "d"), nil)
	check(t, "mkdir", mkdir(100, name), nil)
	check(t, "walk", walk(100, 101, name), nil)
	check(t, "rename to a path of 4,097 bytes", rename(100, deep), syscall.ENAMETOOLONG)
	check(t, "rename", rename(100, deep-1), nil)
	_, err := c.Attr(101)
	check(t, "a path of 4,097 bytes by the rename", err, syscall.ENAMETOOLONG)
	check(t, "rename", rename(100, 0), nil)
	_, err = c.Attr(101)
	check(t, "the former path", err, nil)
}

// TestWalkOfClunkedFid clunks a fid while a walk from it waits. Another client's fid still names
// the directory of the clunked one.
func TestWalkOfClunkedFid(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	put(t, filepath.Join(dir, "d/f"), "")
	put(t, filepath.Join(dir, "other"), "")
	files := slowRemoval{p9.NewDir(root), make(chan struct{}), make(chan struct{})}
	server := p9.NewServer(files, p9.Limits{})
	hostile, honest := attached(t, server), attached(t, server)
	_, err = honest.Walk(0, 1, "d")
	check(t, "walk", err, nil)
	_, err = hostile.Walk(0, 1, "d", "f")
	check(t, "walk", err, nil)
	removal := hostile.Start(0x9001, p9.KindUnlinkAt, &p9.TunlinkAt{Name: "other"})
	<-files.waiting
	walk := hostile.Start(0x9002, p9.KindWalk, &p9.Twalk{Fid: 1, NewFid: 2})
	time.Sleep(50 * time.Millisecond) // until it waits for the removal
	check(t, "clunk", hostile.Clunk(1), nil)
	files.proceed <- struct{}{}
	check(t, "removal", removal(nil), nil)
	if err := walk(new(p9.Rwalk)); !errors.Is(err, syscall.EBADF) {
		t.Errorf("a walk from a fid that is clunked meanwhile: %v", err)
	}
	_ = hostile.Clunk(2) // there is none
	if _, err := honest.Attr(1); err != nil {
		t.Errorf("another client's fid of the directory: %v", err)
	}
	_, err = honest.Walk(1, 2, "f")
	check(t, "walk from it", err, nil)
}

// slowRename is a directory in which a rename waits for a token in proceed.
type slowRename struct {
	p9.WritableFS
	waiting, proceed chan struct{}
}

func (s slowRename) Rename(from, to string) error {
	s.waiting <- struct{}{}
	<-s.proceed
	return s.WritableFS.Rename(from, to)
}

// TestRenameIntoClunkedFid clunks the target directory of a rename that is under way. Another
// client's fid still names the parent of that directory, and a fid of the file keeps to the file.
func TestRenameIntoClunkedFid(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	put(t, filepath.Join(dir, "d/to/x"), "")
	put(t, filepath.Join(dir, "f"), "")
	files := slowRename{p9.NewDir(root), make(chan struct{}), make(chan struct{})}
	server := p9.NewServer(files, p9.Limits{})
	hostile, honest := attached(t, server), attached(t, server)
	_, err = honest.Walk(0, 1, "d")
	check(t, "walk", err, nil)
	_, err = hostile.Walk(0, 1, "d", "to")
	check(t, "walk", err, nil)
	_, err = hostile.Walk(0, 2, "f")
	check(t, "walk", err, nil)
	rename := hostile.Start(0x9001, p9.KindRenameAt,
		&p9.TrenameAt{OldName: "f", NewDir: 1, NewName: "g"})
	<-files.waiting
	check(t, "clunk", hostile.Clunk(1), nil)
	files.proceed <- struct{}{}
	check(t, "rename", rename(nil), nil)
	if _, err := hostile.Attr(2); err != nil {
		t.Errorf("the fid of the file that was renamed: %v", err)
	}
	check(t, "clunk", hostile.Clunk(2), nil)
	if _, err := honest.Attr(1); err != nil {
		t.Errorf("another client's fid of the directory above: %v", err)
	}
}

// TestTagTwice uses the tag of a request that is under way.
func TestTagTwice(t *testing.T) {
	files := slow{fstest.MapFS{"slow": {Data: []byte("x")}}, make(chan struct{}, 1), new(atomic.Int32)}
	conn, ended := pipe(t, p9.NewServer(p9.NewFS(files), p9.Limits{}))
	c, err := p9test.New(p9test.Stream{Conn: conn}, msize)
	if err != nil {
		t.Fatal(err)
	}
	check(t, "attach", c.Attach(0), nil)
	_, err = c.Walk(0, 1, "slow")
	check(t, "open", errors.Join(err, c.Open(1, os.O_RDONLY)), nil)
	c.Start(5, p9.KindRead, &p9.Tread{Fid: 1, Count: 1})
	for files.waiting.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	c.Start(5, p9.KindGetattr, &p9.Tgetattr{})
	// The server reads no more, although the first request is still under way.
	if err := conn.SetWriteDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(encode(t, p9.KindGetattr, 6, &p9.Tgetattr{})); err == nil {
		t.Error("the server reads on after a tag that is used twice")
	}
	files.proceed <- struct{}{}
	if err := <-ended; err == nil || !strings.Contains(err.Error(), "tag 0x5 is of a request that has no reply yet") {
		t.Errorf("Serve returns %v", err)
	}
}

// TestClientThatDoesNotRead sends requests and reads no reply: its connection ends when a reply has
// waited as long as the transport allows.
func TestClientThatDoesNotRead(t *testing.T) {
	server, _ := directory(t, p9.Limits{})
	conn, ended := pipe(t, server)
	version := encode(t, p9.KindVersion, p9.NoTag, &p9.Tversion{Msize: msize, Version: p9.Version})
	if _, err := conn.Write(version); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("Serve returns %v", err)
	}
}

// TestNothingAfterHalfAMessage: when a client has not taken the end of a reply in time, it gets no
// other reply, which it would take for the end of the first.
func TestNothingAfterHalfAMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		s := p9.NewStream(far, msize, 2, time.Second)
		send := func(b byte) chan error {
			sent := make(chan error, 1)
			go func() {
				sent <- s.Send(t.Context(), func(buf []byte) int { return copy(buf, bytes.Repeat([]byte{b}, 100)) })
			}()
			return sent
		}
		first := send('a')
		if _, err := io.ReadFull(near, make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		second := send('b')
		for _, sent := range []chan error{first, second} {
			if err := <-sent; !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("Send returns %v", err)
			}
		}
		third := send('c')
		if err := near.SetReadDeadline(time.Now().Add(time.Second / 2)); err != nil {
			t.Fatal(err)
		}
		if n, err := near.Read(make([]byte, 1)); n > 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("the client gets %d bytes more, %v", n, err)
		}
		if err := errors.Join(near.Close(), far.Close()); err != nil {
			t.Error(err)
		}
		<-third
	})
}

// TestClientThatStops sends the beginning of a message: the rest may take as long as the transport
// allows.
func TestClientThatStops(t *testing.T) {
	for _, n := range []int{1, 4, 10} {
		server, _ := directory(t, p9.Limits{})
		conn, ended := pipe(t, server)
		version := encode(t, p9.KindVersion, p9.NoTag, &p9.Tversion{Msize: msize, Version: p9.Version})
		if _, err := conn.Write(version[:n]); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("after %d bytes, Serve returns %v", n, err)
			}
		case <-time.After(time.Minute):
			t.Errorf("after %d bytes, the server waits on", n)
		}
	}
}

// FuzzServe makes a server read bytes, cut into messages as a transport cuts them, over files in
// memory and over a directory. Each request that decodes also encodes to the same bytes.
func FuzzServe(f *testing.F) {
	version := encode(f, p9.KindVersion, p9.NoTag, &p9.Tversion{Msize: msize, Version: p9.Version})
	start := append(version, encode(f, p9.KindAttach, 1, &p9.Tattach{AFid: p9.NoFid})...)
	for _, m := range []struct {
		kind uint8
		m    any
	}{
		{p9.KindWalk, &p9.Twalk{NewFid: 1, Names: []string{"d", "..", "f"}}},
		{p9.KindCreate, &p9.Tcreate{Name: "new", Flags: 2, Mode: 0o644}},
		{p9.KindMkdir, &p9.Tmkdir{Name: "dir", Mode: 0o755}},
		{p9.KindSymlink, &p9.Tsymlink{Name: "s", Target: "../.."}},
		{p9.KindRenameAt, &p9.TrenameAt{OldName: "dir", NewName: "dir2"}},
		{p9.KindUnlinkAt, &p9.TunlinkAt{Name: "dir2", Flags: p9.RemoveDir}},
		{p9.KindSetattr, &p9.Tsetattr{Set: p9.SetAttr{Valid: 0x1ff, Mode: 0o700}}},
		{p9.KindOpen, &p9.Topen{}},
		{p9.KindReaddir, &p9.Treaddir{Count: 1000}},
		{p9.KindWrite, &p9.Twrite{Data: []byte("data")}},
		{p9.KindFlush, &p9.Tflush{OldTag: 1}},
		{p9.KindGetattr, &p9.Tgetattr{Mask: math.MaxUint64}},
		{p9.KindFsync, &p9.Tfsync{}},
		{p9.KindStatfs, &p9.Tfid{}},
		{p9.KindRemove, &p9.Tfid{}},
	} {
		start = append(start, encode(f, m.kind, 2+uint16(m.kind), m.m)...)
		f.Add(append([]byte(nil), start...))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		server, dir := directory(t, p9.Limits{OpenFiles: 10})
		put(t, filepath.Join(dir, "d/f"), "hello")
		memory := p9.NewServer(p9.NewFS(fstest.MapFS{"d/f": {Data: []byte("hello")}}), p9.Limits{})
		for _, s := range []*p9.Server{server, memory} {
			conn, ended := pipe(t, s)
			go func() { _, _ = io.Copy(io.Discard, conn) }()
			_, _ = conn.Write(b)
			_ = conn.Close()
			<-ended
		}
		roundTrip(t, b)
		if _, err := os.Stat(filepath.Dir(dir) + "/new"); err == nil {
			t.Error("a file outside the directory")
		}
	})
}

// roundTrip decodes the messages in b, and encodes those that decode.
func roundTrip(t *testing.T, b []byte) {
	for len(b) >= 7 {
		n := binary.LittleEndian.Uint32(b)
		if n < 7 || uint64(n) > uint64(len(b)) {
			return
		}
		message := b[:n]
		b = b[n:]
		kind, tag, err := p9.Header(message)
		if err != nil {
			t.Fatal(err)
		}
		m := p9.NewRequest(kind)
		if m == nil || p9.Decode(message, m) != nil {
			continue
		}
		again := make([]byte, n)
		if k, err := p9.Encode(again, kind, tag, m); err != nil || k != int(n) || string(again) != string(message) {
			t.Fatalf("% x is encoded as % x, %v", message, again[:k], err)
		}
	}
}
