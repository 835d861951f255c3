//go:build cgo && linux && !nokernel

package kernel

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// withAtomics returns a region of p that a's atomic operations may change.
func withAtomics(t *testing.T, p *side, buf []byte) provider.MR {
	t.Helper()
	mr := testkit.Must(p.pd.RegMR(buf, allRights|provider.AccessRemoteAtomic))(t)
	t.Cleanup(func() { closeAll(t, mr) })
	return mr
}

func testRxeImmediate(t *testing.T) {
	a, p := connected(t)
	fill(a.buf[:3000], 1)
	for _, c := range []struct {
		name string
		wr   provider.SendWR
		want provider.WC
	}{
		{"Send with payload", provider.SendWR{Opcode: provider.WRSendWithImm, SGList: []provider.SGE{a.sge(0, 3000)}}, provider.WC{Opcode: provider.WCRecv, ByteLen: 3000}},
		{"Send without", provider.SendWR{Opcode: provider.WRSendWithImm}, provider.WC{Opcode: provider.WCRecv}},
		{"inline Send", provider.SendWR{Opcode: provider.WRSendWithImm, Flags: provider.SendInline, Inline: a.buf[:20]}, provider.WC{Opcode: provider.WCRecv, ByteLen: 20}},
		{
			"Write", provider.SendWR{Opcode: provider.WRRDMAWriteWithImm, SGList: []provider.SGE{a.sge(0, 1000), a.sge(1000, 2000)}, RemoteAddr: p.mr.Addr() + 8192, RKey: p.mr.RKey()},
			provider.WC{Opcode: provider.WCRecvRDMAWithImm, ByteLen: 3000},
		},
		{"Write of nothing", provider.SendWR{Opcode: provider.WRRDMAWriteWithImm}, provider.WC{Opcode: provider.WCRecvRDMAWithImm}},
	} {
		clear(p.buf[:16384])
		p.recv(provider.RecvWR{WRID: 7, SGList: []provider.SGE{p.sge(0, 4096)}})
		c.wr.WRID, c.wr.Imm = 8, 0x01020304
		c.wr.Flags |= provider.SendSignaled
		a.send(c.wr)
		got := p.poll(1)[0]
		c.want.WRID, c.want.QPN, c.want.Flags, c.want.Imm = 7, p.qp.QPN(), provider.WCWithImm, 0x01020304
		if got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		// The sender's completion does not have the flags of what it sent.
		if wc := a.poll(1)[0]; wc.WRID != 8 || wc.Status != provider.WCSuccess || wc.Flags != 0 || wc.Imm != 0 {
			t.Errorf("%s completed with %+v", c.name, wc)
		}
		at := 0
		if c.want.Opcode == provider.WCRecvRDMAWithImm {
			at = 8192
		}
		if n := int(c.want.ByteLen); !bytes.Equal(p.buf[at:at+n], a.buf[:n]) || p.buf[at+n] != 0 {
			t.Errorf("%s: bytes differ", c.name)
		}
	}
}

func testRxeAtomics(t *testing.T) {
	a, p := connected(t)
	words := make([]byte, 4096) // a separate page, so that words are aligned
	mr := withAtomics(t, p, words)
	word := binary.NativeEndian.Uint64
	aligned := 8 - mr.Addr()&7
	at := words[aligned : aligned+8]
	binary.NativeEndian.PutUint64(at, 40)
	post := func(wr provider.SendWR) provider.WC {
		t.Helper()
		clear(a.buf[:8])
		wr.WRID, wr.Flags, wr.SGList, wr.RKey = 3, wr.Flags|provider.SendSignaled, []provider.SGE{a.sge(0, 8)}, mr.RKey()
		wr.RemoteAddr += mr.Addr() + aligned
		a.send(wr)
		return a.poll(1)[0]
	}
	for _, c := range []struct {
		name     string
		wr       provider.SendWR
		opcode   provider.WCOpcode
		old, new uint64
	}{
		{"FetchAdd", provider.SendWR{Opcode: provider.WRAtomicFetchAdd, CompareAdd: 2}, provider.WCFetchAdd, 40, 42},
		{"FetchAdd that wraps", provider.SendWR{Opcode: provider.WRAtomicFetchAdd, CompareAdd: ^uint64(1)}, provider.WCFetchAdd, 42, 40},
		{"CmpSwap that does", provider.SendWR{Opcode: provider.WRAtomicCmpAndSwp, CompareAdd: 40, Swap: 0x0123456789abcdef}, provider.WCCompSwap, 40, 0x0123456789abcdef},
		{"CmpSwap that does not", provider.SendWR{Opcode: provider.WRAtomicCmpAndSwp, CompareAdd: 40, Swap: 1}, provider.WCCompSwap, 0x0123456789abcdef, 0x0123456789abcdef},
		{"FetchAdd after a fence", provider.SendWR{Opcode: provider.WRAtomicFetchAdd,
			Flags: provider.SendFence, CompareAdd: 1}, provider.WCFetchAdd, 0x0123456789abcdef,
			0x0123456789abcdf0},
	} {
		wc := post(c.wr)
		if want := (provider.WC{WRID: 3, Opcode: c.opcode, ByteLen: 8, QPN: a.qp.QPN()}); wc != want {
			t.Errorf("%s: %+v, want %+v", c.name, wc, want)
		}
		if old, now := word(a.buf), word(at); old != c.old || now != c.new {
			t.Errorf("%s: %#x found, %#x left, want %#x and %#x", c.name, old, now, c.old, c.new)
		}
	}
	// librxe refuses an unaligned word before the peer can.
	n, err := a.qp.PostSend([]provider.SendWR{{Opcode: provider.WRAtomicFetchAdd, SGList: []provider.SGE{a.sge(0, 8)}, RemoteAddr: mr.Addr() + aligned + 4, RKey: mr.RKey()}})
	if n != 0 {
		t.Errorf("a word that is not aligned: %d posted", n)
	}
	wantErrno(t, "a word that is not aligned", err, syscall.EINVAL)

	attr, err := p.dev.Query()
	if err != nil || attr.AtomicCap != provider.AtomicHCA {
		t.Errorf("%s, %v", attr.AtomicCap, err)
	}
	a, p = connected(t)
	a.send(provider.SendWR{WRID: 4, Opcode: provider.WRAtomicFetchAdd, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 8)}, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()})
	if wc := a.poll(1)[0]; wc.Status != provider.WCRemAccessErr {
		t.Errorf("on a region without the right: %+v", wc)
	}
}

func testRxeMaskedAtomics(t *testing.T) {
	a, _ := connected(t)
	for _, op := range []provider.WROpcode{provider.WRMaskedAtomicCmpAndSwp, provider.WRMaskedAtomicFetchAdd} {
		n, err := a.qp.PostSend([]provider.SendWR{{Opcode: op, SGList: []provider.SGE{a.sge(0, 8)}}})
		var unsupported *provider.UnsupportedError
		if n != 0 || !errors.As(err, &unsupported) || !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %d posted, %v", op, n, err)
		}
	}
}

// A Read may have several entries here, and all of them are used.
func testRxeWriteAndRead(t *testing.T) {
	a, p := connected(t)
	for _, size := range []int{1, 1500, 300_001} {
		fill(a.buf[:size], size)
		clear(a.buf[500_000 : 500_000+size+10])
		half := size / 2
		a.send(provider.SendWR{
			WRID: 1, Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled,
			SGList: []provider.SGE{a.sge(0, half), a.sge(half, size-half)}, RemoteAddr: p.mr.Addr() + 1000, RKey: p.mr.RKey(),
		}, provider.SendWR{
			WRID: 2, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled | provider.SendFence,
			SGList: []provider.SGE{a.sge(500_000, half), a.sge(500_010+half, size-half)}, RemoteAddr: p.mr.Addr() + 1000, RKey: p.mr.RKey(),
		})
		wcs := a.poll(2)
		if wcs[0].WRID != 1 || wcs[0].Opcode != provider.WCRDMAWrite || wcs[0].Status != provider.WCSuccess {
			t.Errorf("%d bytes: Write completed with %+v", size, wcs[0])
		}
		if wcs[1].WRID != 2 || wcs[1].Opcode != provider.WCRDMARead || wcs[1].Status != provider.WCSuccess || int(wcs[1].ByteLen) != size {
			t.Errorf("%d bytes: Read completed with %+v", size, wcs[1])
		}
		if !bytes.Equal(a.buf[500_000:500_000+half], a.buf[:half]) || !bytes.Equal(a.buf[500_010+half:500_010+size], a.buf[half:size]) || !bytes.Equal(p.buf[1000:1000+size], a.buf[:size]) {
			t.Errorf("%d bytes arrived changed", size)
		}
	}
	p.idle("the target of Writes and Reads")
}

func testRxePostErrors(t *testing.T) {
	a, p := connected(t)
	many := make([]provider.SGE, 300)
	for i := range many {
		many[i] = a.sge(i, 1)
	}
	good := provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 8)}}
	inline := a.qp.(*qp).init.Cap.MaxInlineData
	for _, c := range []struct {
		name string
		wr   provider.SendWR
	}{
		{"an opcode that verbs have not", provider.SendWR{Opcode: 200}},
		{"too many entries", provider.SendWR{Opcode: provider.WRSend, SGList: many}},
		{"too much inline data", provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, Inline: make([]byte, inline+1)}},
		{"an inline Read", provider.SendWR{Opcode: provider.WRRDMARead, Flags: provider.SendInline, Inline: make([]byte, 16), RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()}},
		{"an inline atomic operation", provider.SendWR{Opcode: provider.WRAtomicFetchAdd, Flags: provider.SendInline, RemoteAddr: p.mr.Addr(), RKey: p.mr.RKey()}},
		{"inline data and entries", provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendInline, SGList: []provider.SGE{a.sge(0, 8)}}},
	} {
		p.recv(provider.RecvWR{WRID: 9, SGList: []provider.SGE{p.sge(0, 8)}})
		n, err := a.qp.PostSend([]provider.SendWR{good, c.wr, good})
		if n != 1 {
			t.Errorf("%s after a good request: %d posted", c.name, n)
		}
		wantErrno(t, c.name+" after a good request", err, syscall.EINVAL)
		if wc := a.poll(1)[0]; wc.WRID != 1 || wc.Status != provider.WCSuccess {
			t.Errorf("%s: the request before it: %+v", c.name, wc)
		}
		p.poll(1)
	}
	_, init, err := p.qp.Query()
	if err != nil || init.Cap.MaxRecvWR < 64 || init.Cap.MaxSendWR < 64 {
		t.Fatalf("Query: %+v, %v", init, err)
	}
	n, err := p.qp.PostRecv(make([]provider.RecvWR, init.Cap.MaxRecvWR+300))
	if n < init.Cap.MaxRecvWR || n == init.Cap.MaxRecvWR+300 {
		t.Errorf("%d receives posted, the queue has %d slots", n, init.Cap.MaxRecvWR)
	}
	wantErrno(t, "a full receive queue", err, syscall.ENOMEM)
}
