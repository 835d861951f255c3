package engine

import (
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

// store is an object in memory that fails and blocks when the test says so.
type store struct {
	mu   sync.Mutex
	b    []byte
	fail error
	gate chan struct{} // if not nil, each call waits for a value
	busy chan struct{} // if not nil, each call says that it has begun
}

func (o *store) enter() error {
	o.mu.Lock()
	gate, busy, err := o.gate, o.busy, o.fail
	o.mu.Unlock()
	if busy != nil {
		busy <- struct{}{}
	}
	if gate != nil {
		<-gate
	}
	return err
}

func (o *store) ReadAt(b []byte, off int64) (int, error) {
	if err := o.enter(); err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if off >= int64(len(o.b)) {
		return 0, io.EOF
	}
	n := copy(b, o.b[off:])
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

func (o *store) WriteAt(b []byte, off int64) (int, error) {
	if err := o.enter(); err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return copy(o.b[off:], b), nil
}

// writable are the rights of a region that peers write to.
const writable = provider.AccessLocalWrite | provider.AccessRemoteWrite

// object registers n bytes of an object until the test ends.
func (s *side) object(o io.ReaderAt, n int, access provider.Access) *memory.Region {
	s.t.Helper()
	m := testkit.Must(s.pd.RegObject(o, uint64(n), access))(s.t).(*memory.Region)
	s.t.Cleanup(func() { testkit.OK(s.t, m.Close()) })
	return m
}

type readOnly struct{ io.ReaderAt }

func TestRegObjectArguments(t *testing.T) {
	p := testPD(t, unwired(t))
	o := &store{b: make([]byte, 100)}
	for _, c := range []struct {
		name   string
		o      io.ReaderAt
		size   uint64
		access provider.Access
		want   syscall.Errno
		cause  string
	}{
		{"nothing", nil, 1, 0, syscall.EINVAL, "the object is nil"},
		{"no octets", o, 0, 0, syscall.EINVAL, "1 to 2^63-1 bytes"},
		{"more than an int64", o, 1 << 63, 0, syscall.EINVAL, "1 to 2^63-1 bytes"},
		{"remote write without local write", o, 1, provider.AccessRemoteWrite, syscall.EINVAL,
			"AccessRemoteWrite needs AccessLocalWrite"},
		{"atomic", o, 1, provider.AccessLocalWrite | provider.AccessRemoteAtomic, syscall.EINVAL,
			"an object's region can only have"},
		{"invalidation by the peer", o, 1, provider.AccessRemoteInvalidate, syscall.EINVAL,
			"an object's region can only have"},
		{"no WriteAt", readOnly{o}, 1, provider.AccessLocalWrite, syscall.EACCES, "no WriteAt"},
	} {
		m, err := p.RegObject(c.o, c.size, c.access)
		wantErr(t, err, c.want)
		if err == nil || !strings.Contains(err.Error(), c.cause) {
			t.Errorf("%s: %v, which lacks %q", c.name, err, c.cause)
		}
		if m != nil {
			t.Errorf("%s: an MR beside the error", c.name)
		}
	}
	m := testkit.Must(p.RegObject(readOnly{o}, 1<<40, provider.AccessRemoteRead|provider.AccessZeroBased))(t)
	if m.Addr() != 0 || m.Len() != 1<<40 {
		t.Errorf("%d octets at %#x", m.Len(), m.Addr())
	}
	wantErr(t, errOf(m.Rereg(provider.ReregAccess, nil, nil, 0)), errors.ErrUnsupported)
	testkit.OK(t, m.Close())
	wantErr(t, errOf(m.Rereg(provider.ReregAccess, nil, nil, 0)), os.ErrClosed)
}

// TestObjectPieces: pieces are the same bytes that Resolve and AppendSpans do.
func TestObjectPieces(t *testing.T) {
	p := testPD(t, unwired(t))
	o := &store{b: []byte("object octets")}
	om := testkit.Must(p.RegObject(o, 13, provider.AccessLocalWrite))(t).(*memory.Region)
	defer om.Close()
	mm := testMR(t, p, 10, provider.AccessLocalWrite)
	copy(octetsOf(mm), "0123456789")
	foreign := testkit.Must(testPD(t, p.dev).RegObject(o, 13, 0))(t).(*memory.Region)
	defer foreign.Close()
	sge := func(m *memory.Region, off, n int) provider.SGE {
		return provider.SGE{Addr: m.Addr() + uint64(off), Length: uint32(n), LKey: m.STag()}
	}
	mixed := []provider.SGE{sge(mm, 2, 3), {}, sge(om, 7, 6), sge(mm, 0, 2)} // "234", "bytes", "01"
	for from := range 11 {
		for n := 1; n <= 11-from; n++ {
			pieces, ok := p.Pieces(mixed, 0, uint64(from), uint64(n))
			if !ok {
				t.Fatalf("%d from %d: not found", n, from)
			}
			got := make([]byte, n)
			pieces = memory.MoveMemory(pieces, got, true)
			for i := range pieces {
				if pieces[i].Region != om {
					t.Errorf("%d from %d: moveMemory has left a piece of memory", n, from)
				}
			}
			if err := memory.ReadPieces(pieces, got); err != nil || string(got) != "234octets01"[from:from+n] {
				t.Errorf("%d from %d: %q, %v", n, from, got, err)
			}
			memory.ReleasePieces(pieces)
		}
	}
	for name, sges := range map[string][]provider.SGE{
		"memory only":          {sge(mm, 0, 10)},
		"beyond the object":    {sge(om, 1, 13)},
		"before the object":    {sge(om, -1, 3)},
		"of another PD":        {sge(foreign, 0, 3)},
		"of nothing":           {{Length: 3, LKey: 1}},
		"too little":           {sge(om, 0, 2)},
		"beyond memory, after": {sge(om, 0, 3), sge(mm, 8, 3)},
	} {
		if _, ok := p.Pieces(sges, 0, 0, 3); ok {
			t.Errorf("%s: found", name)
		}
	}
	// Nothing is in use any more: Close returns.
	testkit.OK(t, om.Close())
	testkit.OK(t, mm.Close())
}
