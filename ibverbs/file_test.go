package ibverbs_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// pattern returns n bytes in which no short sequence repeats nearby.
func pattern(n int, seed byte) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i) ^ byte(i>>8)*31 ^ byte(i>>16)*17 ^ seed
	}
	return b
}

// tempFile returns a file of n bytes, open for reading and writing.
func tempFile(t *testing.T, n int64) *os.File {
	t.Helper()
	f := testkit.Must(os.Create(t.TempDir() + "/file"))(t)
	t.Cleanup(func() { _ = f.Close() })
	testkit.OK(t, f.Truncate(n))
	return f
}

// A peer writes to a mapped file and reads from it.
func TestMemoryFile(t *testing.T) {
	ctx := timeout(t)
	c := link(t)
	const off, size = 5000, 300000
	f := tempFile(t, off+size+7)
	mr := testkit.Must(c.server.PD().MapFile(f, off, size, remoteRights))(t)
	if mr.Len() != size || len(mr.Bytes()) != size || cap(mr.Bytes()) != size {
		t.Errorf("%d bytes, %d of them to be seen", mr.Len(), len(mr.Bytes()))
	}
	local := testkit.Must(c.client.PD().AllocMR(size, remoteRights))(t)
	defer func() { testkit.OK(t, local.Close()) }()
	copy(local.Bytes(), pattern(size, 1))
	src := testkit.Must(local.SGE(0, size))(t)
	r := testkit.Must(mr.Remote(0, size))(t)
	testkit.OK(t, done(t, ctx, c.client, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{src}, RemoteAddr: r.Addr, RKey: r.RKey}))
	clear(local.Bytes())
	testkit.OK(t, read(t, ctx, c.client, local, r)) // also shows that the Write has arrived
	if !bytes.Equal(local.Bytes(), pattern(size, 1)) {
		t.Error("what is read is not what was written")
	}
	testkit.OK(t, mr.Close())
	got := testkit.Must(os.ReadFile(f.Name()))(t)
	want := append(append(make([]byte, off), pattern(size, 1)...), make([]byte, 7)...)
	if !bytes.Equal(got, want) {
		t.Error("the file has other bytes")
	}
}

func TestBadFile(t *testing.T) {
	vctx, _ := open()
	defer vctx.Close()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	f := tempFile(t, 10000)
	reading := testkit.Must(os.Open(f.Name()))(t)
	defer reading.Close()
	closed := testkit.Must(os.Open(f.Name()))(t)
	testkit.OK(t, closed.Close())
	for name, c := range map[string]struct {
		f      *os.File
		off    int64
		n      int
		access ibverbs.Access
		want   syscall.Errno
	}{
		"no file":                {nil, 0, 1, 0, syscall.EINVAL},
		"no bytes":               {f, 0, 0, 0, syscall.EINVAL},
		"-1 bytes":               {f, 0, -1, 0, syscall.EINVAL},
		"from -1":                {f, -1, 1, 0, syscall.EINVAL},
		"beyond the end":         {f, 9999, 2, remoteRights, syscall.EINVAL},
		"far beyond the end":     {f, math.MaxInt64, 1, 0, syscall.EINVAL},
		"2^63-1 bytes":           {f, 1, math.MaxInt, 0, syscall.EINVAL},
		"open for reading":       {reading, 0, 1, ibverbs.AccessLocalWrite, syscall.EACCES},
		"impossible rights":      {f, 0, 1, ibverbs.AccessRemoteWrite, syscall.EINVAL},
		"a file that is no file": {testkit.Must(os.Open("/"))(t), 0, 1, 0, syscall.EINVAL},
	} {
		_, err := pd.MapFile(c.f, c.off, c.n, c.access)
		refused(t, name, err, c.want)
	}
	_, err := pd.MapFile(testkit.Must(os.Open("/"))(t), 0, 1, 0)
	wantErr(t, "a directory", err, syscall.EINVAL, "/ is a directory, which can't be mapped")
	in, out, err := os.Pipe()
	testkit.OK(t, err)
	_, err = pd.MapFile(in, 0, 1, 0)
	wantErr(t, "a pipe", err, syscall.EINVAL, "is a pipe, which can't be mapped")
	testkit.OK(t, errors.Join(in.Close(), out.Close()))
	_, err = pd.RegObject(nil, 1, 0)
	wantErr(t, "no object", err, syscall.EINVAL, "the object is nil")
	_, err = pd.MapFile(closed, 0, 1, 0)
	wantErr(t, "a closed file", err, os.ErrClosed)
	_, err = (*ibverbs.PD)(nil).MapFile(f, 0, 1, 0)
	refused(t, "no PD", err, syscall.EINVAL)
	mr, err := pd.MapFile(reading, 0, 1, ibverbs.AccessRemoteRead)
	if onKernel() {
		refused(t, "a file open for reading, on siw", err, syscall.EFAULT) // kernel-notes/siw-regions.md
		wantErr(t, "a file open for reading", err, syscall.EFAULT, reading.Name(),
			"use os.O_RDWR")
	} else {
		testkit.OK(t, err)
	}
	testkit.OK(t, mr.Close())

	for _, size := range []int64{0, -1} {
		_, err = pd.RegObject(f, size, 0)
		refused(t, "object of nothing", err, syscall.EINVAL)
	}
	_, err = pd.RegObject(nil, 1, 0)
	refused(t, "no object", err, syscall.EINVAL)
	obj, err := pd.RegObject(f, 10000, ibverbs.AccessRemoteRead)
	if onKernel() {
		refused(t, "object with a kernel device", err, syscall.EOPNOTSUPP)
		return
	}
	testkit.OK(t, err)
	if obj.Bytes() != nil || obj.Len() != 10000 {
		t.Errorf("an object has %d bytes in memory, of %d", len(obj.Bytes()), obj.Len())
	}
	testkit.OK(t, obj.Close())
	testkit.OK(t, obj.Close())
	_, err = pd.RegObject(struct{ io.ReaderAt }{f}, 1, ibverbs.AccessLocalWrite)
	refused(t, "object without WriteAt", err, syscall.EACCES)
}

// All operations with a file as an object, on either side.
func TestObject(t *testing.T) {
	ctx := timeout(t)
	for _, size := range []int{1, 1000, 65000, 70001, 400000} {
		c := link(t)
		here, there := tempFile(t, int64(size)), tempFile(t, int64(size)+20)
		a := testkit.Must(c.client.PD().RegObject(here, int64(size), remoteRights))(t)
		b := testkit.Must(c.server.PD().RegObject(there, int64(size)+20, remoteRights))(t)
		defer func() { testkit.OK(t, errors.Join(a.Close(), b.Close())) }()
		is := func(what string, f *os.File, off int64, want []byte) {
			t.Helper()
			got := make([]byte, len(want))
			if _, err := f.ReadAt(got, off); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes, %s: other bytes (%v)", size, what, err)
			}
		}
		put := func(f *os.File, seed byte) []byte {
			t.Helper()
			p := pattern(size, seed)
			testkit.Must(f.WriteAt(p, 0))(t)
			return p
		}
		sge := testkit.Must(a.SGE(0, size))(t)
		r := testkit.Must(b.Remote(10, size))(t)

		p := put(here, 1)
		wr := ibverbs.SendWR{SGList: []ibverbs.SGE{sge}, RemoteAddr: r.Addr, RKey: r.RKey}
		wr.Opcode = ibverbs.WRRDMAWrite
		testkit.OK(t, done(t, ctx, c.client, wr))
		put(here, 2)
		wr.Opcode = ibverbs.WRRDMARead
		testkit.OK(t, done(t, ctx, c.client, wr))
		is("written and read back", here, 0, p)
		is("written", there, 10, p)

		// A Send between them, with memory before and behind.
		p = put(here, 3)
		copy(c.clientMR.Bytes(), "<<>>")
		left, right := testkit.Must(c.clientMR.SGE(0, 2))(t), testkit.Must(c.clientMR.SGE(2, 2))(t)
		in1, in2 := testkit.Must(c.serverMR.SGE(0, 1))(t), testkit.Must(b.SGE(3, size+3))(t)
		testkit.OK(t, c.server.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{in1, in2}}))
		testkit.OK(t, done(t, ctx, c.client, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{left, sge, right}}))
		var wc [1]ibverbs.WC
		testkit.Must(c.server.RecvCQ().PollWait(ctx, wc[:]))(t)
		if wc[0].Err() != nil || int(wc[0].ByteLen) != size+4 {
			t.Fatalf("received %d bytes of %d: %v", wc[0].ByteLen, size+4, wc[0].Err())
		}
		is("sent", there, 3, append(append([]byte("<"), p...), ">>"...))
		if c.serverMR.Bytes()[0] != '<' {
			t.Error("the byte before the object's is missing")
		}
		testkit.OK(t, c.client.Shutdown(ctx))
	}
}

// Short Sends in lists reach an object in order, even if one read returns many of them.
func TestObjectLists(t *testing.T) {
	ctx := timeout(t)
	c := link(t)
	f := tempFile(t, 64)
	mr := testkit.Must(c.server.PD().RegObject(f, 64, remoteRights))(t)
	defer func() { testkit.OK(t, mr.Close()) }()
	for round := range 20 {
		var sends []ibverbs.SendWR
		for i := range 8 {
			testkit.OK(t, c.server.QP().PostRecv(ibverbs.RecvWR{WRID: uint64(i), SGList: []ibverbs.SGE{testkit.Must(mr.SGE(8*i, 8))(t)}}))
			copy(c.clientMR.Bytes()[8*i:], bytes.Repeat([]byte{byte(8*round + i)}, 8))
			sends = append(sends, ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{testkit.Must(c.clientMR.SGE(8*i, 8))(t)}})
		}
		testkit.OK(t, c.client.QP().PostSend(sends...))
		for i := range 8 {
			var wc [1]ibverbs.WC
			testkit.Must(c.server.RecvCQ().PollWait(ctx, wc[:]))(t)
			testkit.OK(t, wc[0].Err())
			if wc[0].WRID != uint64(i) {
				t.Fatalf("receive %d completed where %d was due", wc[0].WRID, i)
			}
			testkit.Must(c.client.SendCQ().PollWait(ctx, wc[:]))(t)
			testkit.OK(t, wc[0].Err())
		}
		got := make([]byte, 64)
		testkit.Must(f.ReadAt(got, 0))(t)
		if !bytes.Equal(got, c.clientMR.Bytes()[:64]) {
			t.Fatalf("round %d: got % x", round, got)
		}
	}
	testkit.OK(t, c.client.Shutdown(ctx))
}

// failing is an object whose methods fail.
type failing struct{ err error }

func (o failing) ReadAt([]byte, int64) (int, error)  { return 0, o.err }
func (o failing) WriteAt([]byte, int64) (int, error) { return 0, o.err }

// A failure of an object ends the connection: the peer receives a Terminate, our work completes in
// error, and QP.Cause has the reason. The same holds for a mapped file that was truncated.
func TestObjectFails(t *testing.T) {
	broken := errors.New("the object is broken")
	objects := map[string]struct {
		reg  func(*testing.T, *ibverbs.PD) *ibverbs.MR
		want error
	}{
		"object": {func(t *testing.T, pd *ibverbs.PD) *ibverbs.MR {
			return testkit.Must(pd.RegObject(failing{broken}, 100000, remoteRights))(t)
		}, broken},
		"file cut short": {func(t *testing.T, pd *ibverbs.PD) *ibverbs.MR {
			f := tempFile(t, 100000)
			mr := testkit.Must(pd.MapFile(f, 0, 100000, remoteRights))(t)
			testkit.OK(t, f.Truncate(10))
			return mr
		}, syscall.EIO},
		"object shorter than the region": {func(t *testing.T, pd *ibverbs.PD) *ibverbs.MR {
			f := testkit.Must(os.OpenFile("/dev/full", os.O_RDWR, 0))(t)
			t.Cleanup(func() { _ = f.Close() })
			return testkit.Must(pd.RegObject(zeroEnd{f}, 100000, remoteRights))(t)
		}, nil},
	}
	for name, o := range objects {
		for what, try := range map[string]func(t *testing.T, ctx context.Context, c *linked, mr *ibverbs.MR) (*rdmacm.Conn, ibverbs.WCStatus, error){
			"the peer's Read": func(t *testing.T, ctx context.Context, c *linked, mr *ibverbs.MR) (*rdmacm.Conn, ibverbs.WCStatus, error) {
				r := testkit.Must(mr.Remote(50000, 4096))(t)
				return c.server, ibverbs.WCRemOpErr, read(t, ctx, c.client, c.clientMR, r)
			},
			"the peer's Write": func(t *testing.T, ctx context.Context, c *linked, mr *ibverbs.MR) (*rdmacm.Conn, ibverbs.WCStatus, error) {
				r := testkit.Must(mr.Remote(50000, 4096))(t)
				sge := testkit.Must(c.clientMR.SGE(0, 4096))(t)
				testkit.OK(t, done(t, ctx, c.client, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{sge}, RemoteAddr: r.Addr, RKey: r.RKey}))
				return c.server, 0, nil
			},
			"a receive": func(t *testing.T, ctx context.Context, c *linked, mr *ibverbs.MR) (*rdmacm.Conn, ibverbs.WCStatus, error) {
				testkit.OK(t, c.server.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{testkit.Must(mr.SGE(50000, 4096))(t)}}))
				sge := testkit.Must(c.clientMR.SGE(0, 4096))(t)
				testkit.OK(t, done(t, ctx, c.client, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}))
				var wc [1]ibverbs.WC
				testkit.Must(c.server.RecvCQ().PollWait(ctx, wc[:]))(t)
				return c.server, ibverbs.WCLocProtErr, wc[0].Err()
			},
			"a Send": func(t *testing.T, ctx context.Context, c *linked, mr *ibverbs.MR) (*rdmacm.Conn, ibverbs.WCStatus, error) {
				testkit.OK(t, c.client.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{testkit.Must(c.clientMR.SGE(0, 4096))(t)}}))
				sge := testkit.Must(mr.SGE(50000, 4096))(t)
				return c.server, ibverbs.WCLocProtErr, done(t, ctx, c.server, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}})
			},
			"the sink of a Read": func(t *testing.T, ctx context.Context, c *linked, mr *ibverbs.MR) (*rdmacm.Conn, ibverbs.WCStatus, error) {
				r := testkit.Must(c.clientMR.Remote(0, 4096))(t)
				sge := testkit.Must(mr.SGE(50000, 4096))(t)
				return c.server, ibverbs.WCLocProtErr, done(t, ctx, c.server, ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{sge}, RemoteAddr: r.Addr, RKey: r.RKey})
			},
		} {
			t.Run(name+", "+what, func(t *testing.T) {
				ctx := timeout(t)
				c := link(t)
				mr := o.reg(t, c.server.PD())
				// A responder may not send before it has received something.
				testkit.OK(t, read(t, ctx, c.client, c.clientMR, testkit.Must(c.serverMR.Remote(0, 8))(t)))
				defer func() { testkit.OK(t, mr.Close()) }()
				conn, status, err := try(t, ctx, c, mr)
				var wcErr *ibverbs.WCError
				if status != 0 && (!errors.As(err, &wcErr) || wcErr.Status != status) {
					t.Errorf("it ended with %v, want %v", err, status)
				}
				_ = conn.Wait(ctx)
				_ = c.client.Wait(ctx)
				t.Log(conn.QP().Cause(), "|", c.client.QP().Cause())
				var mine, theirs *ibverbs.TerminateError
				switch {
				case !errors.As(conn.QP().Cause(), &mine) || mine.Remote || mine.Err == nil:
					t.Errorf("our cause is %v", conn.QP().Cause())
				case o.want != nil && !errors.Is(mine, o.want):
					t.Errorf("our cause is %v, which is not %v", mine, o.want)
				}
				if !errors.As(c.client.QP().Cause(), &theirs) || !theirs.Remote {
					t.Errorf("the peer's cause is %v, not a Terminate of ours", c.client.QP().Cause())
				}
			})
		}
	}
}

// zeroEnd reads nothing, and fails to write, as /dev/full does.
type zeroEnd struct{ *os.File }

func (zeroEnd) ReadAt([]byte, int64) (int, error) { return 0, io.EOF }

// stuck is an object that blocks until the test lets it answer.
type stuck struct {
	begun chan struct{}
	let   chan struct{}
}

func (o stuck) ReadAt(b []byte, _ int64) (int, error)  { return o.call(b) }
func (o stuck) WriteAt(b []byte, _ int64) (int, error) { return o.call(b) }

func (o stuck) call(b []byte) (int, error) {
	o.begun <- struct{}{}
	<-o.let
	return len(b), nil
}

// A slow object blocks its own connection. It blocks neither other connections of the device nor a
// Close of unrelated objects. Closing its region waits for it.
func TestObjectBlocks(t *testing.T) {
	ctx := timeout(t)
	for _, op := range []ibverbs.WROpcode{ibverbs.WRRDMAWrite, ibverbs.WRRDMARead} {
		c := link(t)
		// More connections of the same device, and their servers.
		l := testkit.Must(rdmacm.Listen(ctx, c.server.PD().Context(), netip.AddrPortFrom(c.server.LocalAddr().Addr(), 0), nil))(t)
		var other [2]*rdmacm.Conn
		var wg sync.WaitGroup
		wg.Go(func() {
			req := testkit.Must(l.Accept(ctx))(t)
			other[0] = testkit.Must(req.Accept(ctx, &rdmacm.ConnConfig{PD: c.server.PD()}))(t)
		})
		other[1] = testkit.Must(rdmacm.Dial(ctx, c.client.PD().Context(), l.Addr(), &rdmacm.ConnConfig{PD: c.client.PD()}))(t)
		wg.Wait()

		o := stuck{make(chan struct{}, 16), make(chan struct{})}
		mr := testkit.Must(c.server.PD().RegObject(o, 4096, remoteRights))(t)
		r := testkit.Must(mr.Remote(0, 4096))(t)
		sge := testkit.Must(c.clientMR.SGE(0, 4096))(t)
		testkit.OK(t, c.client.QP().PostSend(ibverbs.SendWR{Opcode: op, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge}, RemoteAddr: r.Addr, RKey: r.RKey}))
		<-o.begun // no call polled the server's CQ: its progress goroutine came here
		for range 10 {
			testkit.OK(t, read(t, ctx, other[1], c.clientMR, testkit.Must(c.serverMR.Remote(0, 4096))(t)))
		}
		_, err := c.server.RecvCQ().Poll(make([]ibverbs.WC, 1))
		testkit.OK(t, err)
		closed := make(chan error, 1)
		go func() { closed <- mr.Close() }()
		select {
		case <-closed:
			t.Error("the region closed while its object was being used")
		case <-time.After(20 * time.Millisecond):
		}
		testkit.OK(t, c.server.Close()) // doesn't wait
		close(o.let)
		testkit.OK(t, <-closed)
		testkit.OK(t, errors.Join(other[0].Close(), other[1].Close(), l.Close()))
	}
}

// TestPeersOfOneFile: several peers write to one file at the same time, as mappings and as objects.
// When work after a Write is complete, a reader with its own descriptor sees the Write's bytes. The
// same holds for a Read whose sink is in the file.
func TestPeersOfOneFile(t *testing.T) {
	const peers, stripe, rounds = 3, 70_001, 8 // a stripe is not a multiple of the page size
	kinds := map[string]func(pd *ibverbs.PD, f *os.File) (*ibverbs.MR, error){
		"mapped": func(pd *ibverbs.PD, f *os.File) (*ibverbs.MR, error) {
			return pd.MapFile(f, 0, peers*stripe, remoteRights)
		},
	}
	if !onKernel() {
		kinds["object"] = func(pd *ibverbs.PD, f *os.File) (*ibverbs.MR, error) {
			return pd.RegObject(f, peers*stripe, remoteRights)
		}
	}
	for kind, reg := range kinds {
		t.Run(kind, func(t *testing.T) {
			f := tempFile(t, peers*stripe)
			t.Run("peers", func(t *testing.T) {
				for i := range peers {
					t.Run(fmt.Sprint(i), func(t *testing.T) {
						t.Parallel()
						c := link(t)
						mr := testkit.Must(reg(c.server.PD(), f))(t)
						defer func() { testkit.OK(t, mr.Close()) }()
						p := &stripePeer{c, mr, i * stripe, stripe}
						for round := range byte(rounds) {
							p.fill(t, timeout(t), f.Name(), round*peers+byte(i))
						}
					})
				}
			})
		})
	}
}

// stripePeer is a peer that has n bytes of a file, from off on.
type stripePeer struct {
	*linked
	mr     *ibverbs.MR
	off, n int
}

// fill makes the peer write to its stripe, and then the stripe's owner read into it.
func (p *stripePeer) fill(t *testing.T, ctx context.Context, file string, seed byte) {
	t.Helper()
	local := testkit.Must(p.client.PD().AllocMR(p.n, remoteRights))(t)
	defer func() { testkit.OK(t, local.Close()) }()
	is := func(what string) {
		t.Helper()
		f := testkit.Must(os.Open(file))(t)
		defer f.Close()
		got := make([]byte, p.n)
		if _, err := f.ReadAt(got, int64(p.off)); err != nil || !bytes.Equal(got, local.Bytes()) {
			t.Errorf("%s: the file has other bytes; %v", what, err)
		}
		if mapped := p.mr.Bytes(); mapped != nil && !bytes.Equal(mapped[p.off:][:p.n], local.Bytes()) {
			t.Errorf("%s: the mapping has other bytes", what)
		}
	}
	copy(local.Bytes(), pattern(p.n, seed))
	there := testkit.Must(p.mr.Remote(p.off, p.n))(t)
	testkit.OK(t, done(t, ctx, p.client, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite,
		SGList:     []ibverbs.SGE{testkit.Must(local.SGE(0, p.n))(t)},
		RemoteAddr: there.Addr, RKey: there.RKey}))
	testkit.OK(t, read(t, ctx, p.client, p.clientMR, testkit.Must(p.serverMR.Remote(0, 8))(t)))
	is("a Read after a Write")

	copy(local.Bytes(), pattern(p.n, ^seed))
	here := testkit.Must(local.Remote(0, p.n))(t)
	testkit.OK(t, done(t, ctx, p.server, ibverbs.SendWR{Opcode: ibverbs.WRRDMARead,
		SGList:     []ibverbs.SGE{testkit.Must(p.mr.SGE(p.off, p.n))(t)},
		RemoteAddr: here.Addr, RKey: here.RKey}))
	is("a Read into the file")
}
