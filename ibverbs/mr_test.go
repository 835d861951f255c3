package ibverbs_test

import (
	"bytes"
	"encoding"
	"math"
	"os"
	"syscall"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
)

func TestAllocMR(t *testing.T) {
	o := newObjects(t)
	page := os.Getpagesize()
	for _, n := range []int{1, page - 1, page, page + 1, 1 << 20} {
		mr, err := o.pd.AllocMR(n, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
		testkit.OK(t, err)
		b := mr.Bytes()
		if len(b) != n || cap(b) != n || mr.Len() != uint64(n) {
			t.Errorf("AllocMR(%d): %d bytes, capacity %d, Len %d", n, len(b), cap(b), mr.Len())
		}
		if uintptr(unsafe.Pointer(&b[0]))%uintptr(page) != 0 {
			t.Errorf("AllocMR(%d) does not start on a page: %p", n, &b[0])
		}
		if !bytes.Equal(b, make([]byte, n)) {
			t.Errorf("AllocMR(%d) is not zeroed", n)
		}
		for i := range b {
			b[i] = 0xa5
		}
		if mr.Access() != ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead || mr.PD() != o.pd || mr.LKey() != fake.LKey || mr.RKey() != fake.RKey {
			t.Error("the region lost something")
		}
		testkit.OK(t, mr.Close())
	}
	for _, n := range []int{0, -1, math.MinInt, math.MaxInt, math.MaxInt - page + 1} {
		_, err := o.pd.AllocMR(n, 0)
		wantErrno(t, "impossible size", err, syscall.EINVAL)
	}
	_, err := o.pd.AllocMR(math.MaxInt-page, 0)
	wantErrno(t, "more than there is", err, syscall.ENOMEM, "mmap")
}

func TestRegMRKeepsTheCallersMemory(t *testing.T) {
	o := newObjects(t)
	buf := []byte("hello")
	mr := testkit.Must(o.pd.RegMR(buf, 0))(t)
	if &mr.Bytes()[0] != &buf[0] {
		t.Error("the region is not over the slice")
	}
	testkit.OK(t, mr.Close())
	if string(buf) != "hello" {
		t.Error("Close did something to the caller's slice")
	}
}

func TestSGEStaysInside(t *testing.T) {
	o := newObjects(t)
	mr := testkit.Must(o.pd.RegMR(make([]byte, 100), ibverbs.AccessRemoteRead))(t)
	for _, c := range []struct {
		off, n int
		legal  bool
	}{
		{0, 0, true}, {0, 100, true}, {100, 0, true}, {99, 1, true}, {40, 60, true},
		{0, 101, false}, {1, 100, false}, {101, 0, false}, {100, 1, false}, {-1, 1, false}, {0, -1, false}, {5, -5, false},
		{math.MaxInt, 1, false}, {1, math.MaxInt, false}, {math.MaxInt, math.MaxInt, false}, {math.MinInt, 0, false},
	} {
		sge, err := mr.SGE(c.off, c.n)
		remote, rerr := mr.Remote(c.off, c.n)
		if !c.legal {
			wantErrno(t, "SGE outside", err, syscall.EINVAL, "which has 100")
			wantErrno(t, "Remote outside", rerr, syscall.EINVAL, "which has 100")
			continue
		}
		testkit.OK(t, err)
		testkit.OK(t, rerr)
		if want := (ibverbs.SGE{Addr: fake.Addr + uint64(c.off), Length: uint32(c.n), LKey: fake.LKey}); sge != want {
			t.Errorf("SGE(%d, %d) = %+v", c.off, c.n, sge)
		}
		if want := (ibverbs.RemoteRegion{Addr: fake.Addr + uint64(c.off), Len: uint64(c.n), RKey: fake.RKey}); remote != want {
			t.Errorf("Remote(%d, %d) = %+v", c.off, c.n, remote)
		}
	}
}

// TestRemoteNeedsARight: each of the three rights makes a region usable for the peer.
func TestRemoteNeedsARight(t *testing.T) {
	const local = ibverbs.AccessLocalWrite | ibverbs.AccessMWBind | ibverbs.AccessRemoteInvalidate
	o := newObjects(t)
	for access, legal := range map[ibverbs.Access]bool{
		0: false, local: false, ibverbs.AccessRemoteRead: true, ibverbs.AccessReadSink: true,
		ibverbs.AccessLocalWrite | ibverbs.AccessRemoteAtomic: true,
	} {
		mr := testkit.Must(o.pd.RegMR(make([]byte, 8), access))(t)
		_, err := mr.Remote(0, 8)
		if legal {
			testkit.OK(t, err)
			continue
		}
		wantErrno(t, "Remote of a region with the rights "+access.String(), err, syscall.EINVAL,
			"let no peer access it", "AccessRemoteRead")
	}
}

var (
	_ encoding.BinaryAppender    = ibverbs.RemoteRegion{}
	_ encoding.BinaryMarshaler   = ibverbs.RemoteRegion{}
	_ encoding.BinaryUnmarshaler = (*ibverbs.RemoteRegion)(nil)
)

func TestRemoteRegionWireForm(t *testing.T) {
	r := ibverbs.RemoteRegion{Addr: 0x0102030405060708, Len: 0x1112131415161718, RKey: 0x21222324}
	want := []byte{
		1, 2, 3, 4, 5, 6, 7, 8,
		0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18,
		0x21, 0x22, 0x23, 0x24,
	}
	b, err := r.MarshalBinary()
	testkit.OK(t, err)
	if diff := cmp.Diff(want, b); diff != "" || len(b) != ibverbs.RemoteRegionSize {
		t.Errorf("wire form (-want +got):\n%s", diff)
	}
	b, err = r.AppendBinary([]byte{0xa5})
	if err != nil || !bytes.Equal(b, append([]byte{0xa5}, want...)) {
		t.Errorf("AppendBinary: %x, %v", b, err)
	}
	var got ibverbs.RemoteRegion
	testkit.OK(t, got.UnmarshalBinary(want))
	if got != r {
		t.Errorf("round trip gave %+v", got)
	}
	for n := range len(want) {
		wantErrno(t, "prefix", new(ibverbs.RemoteRegion).UnmarshalBinary(want[:n]), syscall.EINVAL)
	}
	wantErrno(t, "one more", got.UnmarshalBinary(append(want, 1)), syscall.EINVAL)
	got = ibverbs.RemoteRegion{}
	testkit.OK(t, got.UnmarshalBinary(append(want, make([]byte, 36)...))) // as RoCE delivers it
	if got != r {
		t.Errorf("with zeros after it: %+v", got)
	}

	last := ibverbs.RemoteRegion{Addr: math.MaxUint64 - 1, Len: 1}
	b, _ = last.MarshalBinary()
	testkit.OK(t, got.UnmarshalBinary(b))
	last.Len = 2
	b, _ = last.MarshalBinary()
	wantErrno(t, "beyond the last address", got.UnmarshalBinary(b), syscall.EINVAL)
	if got.Len != 1 {
		t.Error("a refused form changed the region")
	}
}

func TestRemoteRegionPart(t *testing.T) {
	r := ibverbs.RemoteRegion{Addr: 1000, Len: 100, RKey: 5}
	p, err := r.Part(10, 90)
	if want := (ibverbs.RemoteRegion{Addr: 1010, Len: 90, RKey: 5}); err != nil || p != want {
		t.Errorf("got %+v, %v", p, err)
	}
	for _, c := range [][2]int{{-1, 1}, {0, 101}, {101, 0}, {10, 91}, {0, -1}, {math.MaxInt, math.MaxInt}} {
		_, err := r.Part(c[0], c[1])
		wantErrno(t, "part outside", err, syscall.EINVAL)
	}
}
