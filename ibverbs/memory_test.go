//go:build linux

package ibverbs_test

import (
	"bytes"
	"errors"
	"math"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
)

// Registered memory. The tests of this file run on the engine, and on siw and rxe through
// TestOnSiw and TestOnRxe.

// mapped maps n bytes until the test ends.
func mapped(t *testing.T, n, prot int) []byte {
	t.Helper()
	b := testkit.Must(syscall.Mmap(-1, 0, n, prot, syscall.MAP_ANON|syscall.MAP_PRIVATE))(t)
	t.Cleanup(func() { _ = syscall.Munmap(b) })
	return b
}

// Memory that does not permit what the rights say is refused with the errno of ibv_reg_mr, and the
// program goes on.
//
//rfc:5042 SEC-7.3-01 Manager verifies the ULP's right to the memory it registers
func TestBadRegistrations(t *testing.T) {
	vctx, _ := open()
	defer vctx.Close()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	page := os.Getpagesize()
	readOnly := mapped(t, 4*page, syscall.PROT_READ)
	long := mapped(t, 8<<20, syscall.PROT_READ|syscall.PROT_WRITE)
	testkit.OK(t, syscall.Mprotect(long[4<<20:][:page], syscall.PROT_READ))
	hidden := mapped(t, page, syscall.PROT_NONE)
	hole := testkit.Must(syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE))(t)
	// syscall.Munmap takes whole mappings only.
	testkit.OK(t, syscall.Mprotect(hole[page:2*page], syscall.PROT_NONE))

	file := testkit.Must(os.Create(t.TempDir() + "/short"))(t)
	defer file.Close()
	testkit.OK(t, file.Truncate(int64(page)))
	beyond := testkit.Must(syscall.Mmap(int(file.Fd()), 0, 2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED))(t)
	defer syscall.Munmap(beyond)

	for name, c := range map[string]struct {
		buf    []byte
		access ibverbs.Access
	}{
		"read-only, local write":      {readOnly, ibverbs.AccessLocalWrite},
		"read-only, all rights":       {readOnly[page+5 : page+6], remoteRights},
		"a page of 8 MiB read-only":   {long, ibverbs.AccessLocalWrite},
		"memory without any right":    {hidden, 0},
		"a hole":                      {hole, ibverbs.AccessLocalWrite},
		"beyond the end of a file":    {beyond, ibverbs.AccessLocalWrite},
		"beyond the end of it, inner": {beyond[page+1 : page+2], remoteRights},
	} {
		mr, err := pd.RegMR(c.buf, c.access)
		if onKernel() && name == "memory without any right" {
			// The kernel reads memory that the program itself may not read (FOLL_FORCE). The
			// engine, which is the program, cannot.
			testkit.OK(t, err)
			testkit.OK(t, mr.Close())
			continue
		}
		refused(t, name, err, syscall.EFAULT)
		t.Log(err)
		testkit.OK(t, mr.Close()) // nil
	}
	for name, c := range map[string]struct {
		buf    []byte
		access ibverbs.Access
	}{
		"read-only, to be read":       {readOnly, ibverbs.AccessRemoteRead},
		"the writable part of 8 MiB":  {long[:4<<20], remoteRights},
		"the writable part of a file": {beyond[:page], remoteRights},
		"one byte":                    {hole[page-1 : page], remoteRights},
		"a string's worth of Go heap": {[]byte(strings.Repeat("x", 3)), remoteRights},
	} {
		mr, err := pd.RegMR(c.buf, c.access)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		testkit.OK(t, mr.Close())
	}
	_, err := pd.RegMRIova(make([]byte, 16), math.MaxUint64-15, remoteRights)
	refused(t, "up to 2^64", err, syscall.EINVAL, syscall.EOPNOTSUPP)
	_, err = pd.RegMRIova(nil, 4096, remoteRights)
	refused(t, "nothing, from 4096 on", err, syscall.EINVAL)
	testkit.OK(t, syscall.Munmap(hole))
}

// The peer and SGEs name the region by an address that the program chooses, even 0.
func TestMemoryIova(t *testing.T) {
	ctx := timeout(t)
	c := link(t)
	pd := c.server.PD()
	for name, c2 := range map[string]struct {
		want   uint64
		access ibverbs.Access
		reg    func([]byte, ibverbs.Access) (*ibverbs.MR, error)
	}{
		"zero-based":       {0, ibverbs.AccessZeroBased, pd.RegMR},
		"iova":             {0x7000, 0, func(b []byte, a ibverbs.Access) (*ibverbs.MR, error) { return pd.RegMRIova(b, 0x7000, a) }},
		"iova, zero-based": {0, ibverbs.AccessZeroBased, func(b []byte, a ibverbs.Access) (*ibverbs.MR, error) { return pd.RegMRIova(b, 0x7000, a) }},
		"the last there is": {math.MaxUint64 - 8192, 0, func(b []byte, a ibverbs.Access) (*ibverbs.MR, error) {
			return pd.RegMRIova(b, math.MaxUint64-8192, a)
		}},
	} {
		memory := mapped(t, 8192, syscall.PROT_READ|syscall.PROT_WRITE)
		mr, err := c2.reg(memory, remoteRights|c2.access)
		if onRxe() && name == "the last there is" {
			refused(t, name, err, syscall.EINVAL) // rxe requires the memory's offset in the page
			continue
		}
		if onSiw() {
			// siw accepts it, but the region keeps its virtual address.
			refused(t, name, err, syscall.EOPNOTSUPP)
			wantErr(t, name, err, errors.ErrUnsupported, "siw")
			continue
		}
		testkit.OK(t, err)
		if mr.Addr() != c2.want {
			t.Errorf("%s: address %#x, want %#x", name, mr.Addr(), c2.want)
		}
		copy(c.clientMR.Bytes(), name)
		src := testkit.Must(c.clientMR.SGE(0, len(name)))(t)
		testkit.OK(t, done(t, ctx, c.client, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{src}, RemoteAddr: c2.want + 5000, RKey: mr.RKey()}))
		clear(c.clientMR.Bytes())
		testkit.OK(t, read(t, ctx, c.client, c.clientMR, ibverbs.RemoteRegion{Addr: c2.want + 5000, Len: uint64(len(name)), RKey: mr.RKey()}))
		if got := string(c.clientMR.Bytes()[:len(name)]); got != name {
			t.Errorf("%s: read back %q", name, got)
		}
		// As an SGE, too.
		testkit.OK(t, c.client.QP().PostRecv(ibverbs.RecvWR{}))
		sge := ibverbs.SGE{Addr: c2.want + 5000, Length: 0, LKey: mr.LKey()}
		testkit.OK(t, done(t, ctx, c.server, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}))
		testkit.OK(t, mr.Close())
	}
}

// Re-registration: what changes, what stays, and which calls are refused and change nothing.
func TestMemoryRereg(t *testing.T) {
	ctx := timeout(t)
	c := link(t)
	pd := c.server.PD()
	other := testkit.Must(pd.Context().AllocPD())(t)
	first, second := []byte("the first memory"), []byte("another piece of memory")
	mr := testkit.Must(pd.RegMR(first, ibverbs.AccessLocalWrite))(t)
	if onKernel() {
		for _, flags := range []ibverbs.ReregFlags{ibverbs.ReregAccess, ibverbs.ReregPD, ibverbs.ReregTranslation} {
			err := mr.Rereg(flags, other, second, ibverbs.AccessRemoteRead)
			wantErr(t, "on siw and rxe", err, errors.ErrUnsupported)
			t.Log(err)
		}
		if mr.PD() != pd || mr.Access() != ibverbs.AccessLocalWrite || &mr.Bytes()[0] != &first[0] {
			t.Error("the refused call changed something")
		}
		testkit.OK(t, mr.Close())
		testkit.OK(t, other.Close())
		return
	}
	see := func(what, want string) {
		t.Helper()
		if err := read(t, ctx, c.client, c.clientMR, testkit.Must(mr.Remote(0, len(want)))(t)); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if got := string(c.clientMR.Bytes()[:len(want)]); got != want {
			t.Errorf("%s: the peer reads %q, want %q", what, got, want)
		}
	}
	addr, key := mr.Addr(), mr.RKey()
	testkit.OK(t, mr.Rereg(ibverbs.ReregAccess, nil, nil, ibverbs.AccessRemoteRead))
	if mr.Access() != ibverbs.AccessRemoteRead || mr.Addr() != addr || mr.RKey() == key {
		t.Errorf("rights %s, address %#x (was %#x), key %#x (was %#x)", mr.Access(), mr.Addr(), addr, mr.RKey(), key)
	}
	see("other rights", string(first))
	testkit.OK(t, mr.Rereg(ibverbs.ReregTranslation, nil, second, 0))
	see("other memory", string(second))
	if &mr.Bytes()[0] != &second[0] || mr.Len() != uint64(len(second)) {
		t.Error("the region is not over the other memory")
	}
	testkit.OK(t, mr.Rereg(ibverbs.ReregPD|ibverbs.ReregAccess, other, nil, ibverbs.AccessZeroBased|ibverbs.AccessRemoteRead))
	if mr.PD() != other || mr.Addr() != 0 {
		t.Errorf("address %#x, PD moved: %v", mr.Addr(), mr.PD() == other)
	}
	wantErrno(t, "the new PD is in use", other.Close(), syscall.EBUSY, "1 MR")
	testkit.OK(t, mr.Rereg(ibverbs.ReregPD, pd, nil, 0))
	testkit.OK(t, other.Close())
	see("another PD and back", string(second))

	key = mr.RKey()
	elsewhere := newObjects(t)
	for name, err := range map[string]error{
		"nothing to change":     mr.Rereg(0, nil, nil, 0),
		"unknown flag":          mr.Rereg(1<<9, nil, nil, 0),
		"no memory":             mr.Rereg(ibverbs.ReregTranslation, nil, nil, 0),
		"impossible rights":     mr.Rereg(ibverbs.ReregAccess, nil, nil, ibverbs.AccessRemoteWrite),
		"no PD":                 mr.Rereg(ibverbs.ReregPD, nil, nil, 0),
		"PD of another context": mr.Rereg(ibverbs.ReregPD, elsewhere.pd, nil, 0),
		"no region":             (*ibverbs.MR)(nil).Rereg(ibverbs.ReregAccess, nil, nil, 0),
	} {
		refused(t, name, err, syscall.EINVAL)
	}
	refused(t, "read-only memory", mr.Rereg(ibverbs.ReregTranslation|ibverbs.ReregAccess, nil, mapped(t, 4096, syscall.PROT_READ), remoteRights), syscall.EFAULT)
	wantErr(t, "closed PD", mr.Rereg(ibverbs.ReregPD, other, nil, 0), os.ErrClosed)
	if mr.RKey() != key {
		t.Error("a refused call changed the key")
	}
	see("after what was refused", string(second))

	// The old key is no longer valid.
	stale := testkit.Must(mr.Remote(0, 4))(t)
	testkit.OK(t, mr.Rereg(ibverbs.ReregAccess, nil, nil, ibverbs.AccessRemoteRead))
	if err := read(t, ctx, c.client, c.clientMR, stale); err == nil {
		t.Error("the key from before a re-registration still opens the region")
	}
	testkit.OK(t, mr.Close())
	wantErr(t, "closed", mr.Rereg(ibverbs.ReregAccess, nil, nil, 0), os.ErrClosed)
}

// Rereg, Close and use at the same time end in one state, without a crash, and the PD has no region
// left.
func TestMemoryReregRaces(t *testing.T) {
	vctx, _ := open()
	defer vctx.Close()
	pd, other := testkit.Must(vctx.AllocPD())(t), testkit.Must(vctx.AllocPD())(t)
	for range 20 {
		mr := testkit.Must(pd.AllocMR(100, remoteRights))(t)
		var wg sync.WaitGroup
		for _, f := range []func(){
			func() { _ = mr.Rereg(ibverbs.ReregPD, other, nil, 0) },
			func() { _ = mr.Rereg(ibverbs.ReregPD, pd, nil, 0) },
			func() { _ = mr.Rereg(ibverbs.ReregAccess, nil, nil, 0) },
			func() { _, _ = mr.SGE(0, 1) },
			func() { _, _, _, _ = mr.RKey(), mr.PD(), mr.Access(), mr.Bytes() },
			func() { testkit.OK(t, mr.Close()) },
		} {
			wg.Go(f)
		}
		wg.Wait()
		testkit.OK(t, mr.Close())
	}
	testkit.OK(t, pd.Close())
	testkit.OK(t, other.Close())
}

// Child processes neither see registered memory change nor take it away from the device: os/exec
// shares the address space until the exec, so nothing is copied.
func TestMemoryForkExec(t *testing.T) {
	ctx := timeout(t)
	c := link(t)
	const size = 4 << 10
	heap := bytes.Repeat([]byte{1}, size)
	onHeap := testkit.Must(c.server.PD().RegMR(heap, remoteRights))(t)
	defer func() { testkit.OK(t, onHeap.Close()) }()
	for i := range 6 {
		fill := byte(i + 2)
		for j := range c.clientMR.Bytes() {
			c.clientMR.Bytes()[j] = fill
		}
		cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "exit 7")
		testkit.OK(t, cmd.Start())
		// While the child runs, and when both sides have touched the pages.
		heap[0], c.serverMR.Bytes()[0] = 0, 0
		src := testkit.Must(c.clientMR.SGE(0, size))(t)
		for _, mr := range []*ibverbs.MR{onHeap, c.serverMR} {
			r := testkit.Must(mr.Remote(0, size))(t)
			testkit.OK(t, done(t, ctx, c.client, ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{src}, RemoteAddr: r.Addr, RKey: r.RKey}))
			// A Write is complete before it has been placed, but a Read after it completes later.
			testkit.OK(t, read(t, ctx, c.client, c.clientMR, r))
			if got := mr.Bytes(); bytes.Count(got, []byte{fill}) != size {
				t.Fatalf("round %d: %d bytes of %d arrived where the program looks", i, bytes.Count(got, []byte{fill}), size)
			}
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
			t.Fatalf("the child: %v", err)
		}
	}
}

// Go memory does not move while it is registered, even if the program has dropped the slice.
// Dropped regions that were never closed are named by their PD.
func TestMemoryForgotten(t *testing.T) {
	ctx := timeout(t)
	c := link(t)
	o := newObjects(t)
	target := func() ibverbs.RemoteRegion {
		mr := testkit.Must(c.server.PD().RegMR(bytes.Repeat([]byte("0123456789abcdef"), 100), remoteRights))(t)
		t.Cleanup(func() { testkit.OK(t, mr.Close()) })
		return testkit.Must(mr.Remote(0, 1600))(t)
	}()
	func() { _ = testkit.Must(o.pd.RegMR(make([]byte, 64), remoteRights))(t) }()
	func() { _ = testkit.Must(o.pd.AllocMR(64, remoteRights))(t) }()
	var churn [][]byte
	for range 50 {
		runtime.GC()
		churn = append(churn, make([]byte, 1600), make([]byte, 64))
	}
	testkit.OK(t, read(t, ctx, c.client, c.clientMR, target))
	if got := string(c.clientMR.Bytes()[:1600]); got != strings.Repeat("0123456789abcdef", 100) {
		t.Errorf("the peer reads %q...", got[:64])
	}
	runtime.KeepAlive(churn)
	testkit.OK(t, o.qp.Close())
	testkit.OK(t, o.mr.Close())
	wantErrno(t, "PD of two forgotten regions", o.pd.Close(), syscall.EBUSY, "2 MR")
}

// TestMemoryZeroed: a region that AllocMR makes has no data of one that was closed before.
//
//rfc:5042 SEC-6.3.2-01 No stale data behind a freshly granted read right
func TestMemoryZeroed(t *testing.T) {
	o := newObjects(t)
	for range 20 {
		mr := testkit.Must(o.pd.AllocMR(10_000, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead))(t)
		if !bytes.Equal(mr.Bytes(), make([]byte, 10_000)) {
			t.Fatal("a new region is not zeroed")
		}
		copy(mr.Bytes(), bytes.Repeat([]byte("secret"), 10_000))
		testkit.OK(t, mr.Close())
	}
	testkit.OK(t, o.qp.Close())
	testkit.OK(t, o.mr.Close())
	testkit.OK(t, o.pd.Close())
}
