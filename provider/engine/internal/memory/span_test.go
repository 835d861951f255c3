package memory

import (
	"bytes"
	"math"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

func TestResolveLocal(t *testing.T) {
	d := testTable(t)
	p := testPD(t, d)
	rw := testMR(t, p, 100, bindable)
	ro := testMR(t, p, 100, 0)
	window := testMW(t, p, provider.MWType1)
	testkit.OK(t, window.bind(ofPD(p), window.RKey(), part(rw, 0, 100, provider.AccessRemoteRead)))
	foreign := testMR(t, testPD(t, d), 100, allRights)
	closed := testMR(t, p, 100, allRights)
	testkit.OK(t, closed.Close())
	flipped := sge(rw, 0, 1)
	flipped.LKey ^= 1
	for _, c := range []struct {
		name string
		need provider.Access
		sges []provider.SGE
		want bool
	}{
		{"none", 0, nil, true},
		{"source", 0, []provider.SGE{sge(ro, 0, 100), sge(rw, 99, 1)}, true},
		{"sink", provider.AccessLocalWrite, []provider.SGE{sge(rw, 0, 100)}, true},
		{"sink without local write", provider.AccessLocalWrite, []provider.SGE{sge(rw, 0, 1), sge(ro, 0, 1)}, false},
		{"beyond the end", 0, []provider.SGE{sge(rw, 1, 100)}, false},
		{"before the start", 0, []provider.SGE{sge(rw, -1, 1)}, false},
		{"other PD", 0, []provider.SGE{sge(foreign, 0, 1)}, false},
		{"closed", 0, []provider.SGE{sge(closed, 0, 1)}, false},
		{"wrong key", 0, []provider.SGE{flipped}, false},
		{"a window's key", 0, []provider.SGE{{Addr: rw.Addr(), Length: 1, LKey: window.RKey()}}, false},
		{"key 0", 0, []provider.SGE{{Addr: rw.Addr(), Length: 1}}, false},
		{"length 0 names nothing", provider.AccessLocalWrite, []provider.SGE{{Addr: 17, LKey: 1}, sge(foreign, 500, 0), sge(rw, 3, 1)}, true},
	} {
		spans, got := p.Resolve(c.sges, c.need, make([]Span, 0, 4))
		testkit.Equal(t, c.name, got, c.want)
		if !got {
			continue
		}
		ReleaseSpans(spans)
		var n uint64
		for _, s := range c.sges {
			n += uint64(s.Length)
		}
		for _, s := range spans {
			n -= uint64(len(s.Bytes))
		}
		testkit.Equal(t, c.name+": bytes too few", n, 0)
	}
	for _, m := range []*Region{rw, ro, foreign} {
		if n, _ := m.Uses(); n != 0 {
			t.Errorf("%d uses of %s are left", n, m.name())
		}
	}
}

// TestAppendSpans takes every range out of a message of several pieces.
func TestAppendSpans(t *testing.T) {
	p := testPD(t, testTable(t))
	m := testMR(t, p, 32, 0)
	for i := range m.buf {
		m.buf[i] = byte(i)
	}
	spans, _ := p.Resolve([]provider.SGE{sge(m, 20, 5), sge(m, 0, 1), sge(m, 7, 0), sge(m, 3, 9)}, 0, nil)
	defer ReleaseSpans(spans)
	message := []byte{20, 21, 22, 23, 24, 0, 3, 4, 5, 6, 7, 8, 9, 10, 11}
	for off := range len(message) + 1 {
		for n := range len(message) - off + 1 {
			pieces := AppendSpans(nil, spans, uint64(off), uint64(n))
			if got := bytes.Join(pieces, nil); !bytes.Equal(got, message[off:off+n]) {
				t.Fatalf("%d bytes at %d are %v, want %v", n, off, got, message[off:off+n])
			}
			for _, b := range pieces {
				if len(b) == 0 {
					t.Fatalf("%d bytes at %d: an empty piece", n, off)
				}
			}
		}
	}
}

// TestPeersAccess makes each check of what a peer names fail by itself.
//
//rfc:5041 DDP-7.1t1-01 Tagged: STag valid for this stream
//rfc:5041 DDP-7.1t2-01 Tagged: STag has a buffer allowing placement (rights)
//rfc:5041 DDP-7.1t5-01 Tagged: 64-bit TO+len does not wrap
//rfc:5041 DDP-8.3.1-1-01 Stream cannot use STag of another PD
//rfc:5041 DDP-8.3.1-5-01 Read/write rights separately grantable and revocable
//rfc:5040 RDMAP-7.2-07 ReadReq source STag valid
//rfc:5040 RDMAP-7.2-08 ReadReq source STag associated with this stream
//rfc:5041 DDP-4.2-05 STag valid for the stream
//rfc:5042 SEC-6.1.1-01 Streams that share no STags: own PDs, or STags of a stream
//rfc:5042 SEC-6.1.1-02 Cross-PD access refused
//rfc:5042 SEC-6.3.5-01 Write-only buffer is not readable
func TestPeersAccess(t *testing.T) {
	d := testTable(t)
	p := testPD(t, d)
	q := ofPD(p)
	w := testMR(t, p, 100, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	r := testMR(t, p, 100, provider.AccessRemoteRead)
	foreign := testMR(t, testPD(t, d), 100, allRights)
	closed := testMR(t, p, 100, allRights)
	testkit.OK(t, closed.Close())
	invalidated := testMR(t, p, 100, allRights)
	testkit.OK(t, q.Invalidate(invalidated.stag))
	high := testMR(t, p, 100, allRights)
	high.base = math.MaxUint64 - 200
	checkAccess(t, []access{
		{"write only", q, w.stag, w.base, 100, nil, rdmap.ErrReadAccess},
		{"read only", q, r.stag, r.base, 100, ddp.ErrTaggedAccess, nil},
		{"key off by one", q, w.stag + 1, w.base, 1, ddp.ErrInvalidSTag, rdmap.ErrReadInvalidSTag},
		{"closed", q, closed.stag, closed.base, 1, ddp.ErrInvalidSTag, rdmap.ErrReadInvalidSTag},
		{"invalidated", q, invalidated.stag, invalidated.base, 1, ddp.ErrInvalidSTag, rdmap.ErrReadInvalidSTag},
		{"other PD", q, foreign.stag, foreign.base, 1, ddp.ErrSTagNotAssociated, rdmap.ErrReadNotAssociated},
		{"wraps", q, high.stag, math.MaxUint64 - 9, 11, ddp.ErrTOWrap, rdmap.ErrReadTOWrap},
		{"after", q, high.stag, high.base + 1, 100, ddp.ErrBaseBounds, rdmap.ErrReadBaseBounds},
		{"before", q, high.stag, high.base - 1, 1, ddp.ErrBaseBounds, rdmap.ErrReadBaseBounds},
		{"nothing of nothing", q, 0, 0, 0, nil, nil},
	})
}

// access is what the peer of q names, and the errors of writing and reading there, nil for none.
type access struct {
	name            string
	q               *Peer
	stag            uint32
	to              uint64
	n               int
	asWrite, asRead error
}

func checkAccess(t *testing.T, all []access) {
	t.Helper()
	check := func(c *access, how string, m *Region, b []byte, err, want error) {
		testkit.Equal(t, c.name+", "+how, err, want)
		if (m != nil) != (want == nil && c.n > 0) || len(b) != 0 && len(b) != c.n {
			t.Errorf("%s, %s: region %v, %d bytes", c.name, how, m != nil, len(b))
		}
		m.endPeerUse()
	}
	for _, c := range all {
		m, b, err := c.q.WriteTarget(c.stag, c.to, c.n)
		check(&c, "write", m, b, err, c.asWrite)
		m, b, err = c.q.ReadSource(c.stag, c.to, uint32(c.n))
		check(&c, "read", m, b, err, c.asRead)
	}
}
