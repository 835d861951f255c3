package engine

import (
	"bytes"
	"io"
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// What FuzzReceive keeps from one execution to the next: a device, and regions in one piece of
// memory with guards between them. One goroutine feeds and serves the streams. Nothing waits,
// and no other goroutine takes part.

// handNetwork has streams that its pollers do not serve: the test calls their handlers.
type handNetwork struct{ transport.Network }

func (handNetwork) NewPoller() (transport.Poller, error) {
	p, err := noNetwork{}.NewPoller()
	return handPoller{p.(*noPoller)}, err
}

type handPoller struct{ *noPoller }

func (handPoller) Add(transport.Conn, transport.Handler) error { return nil }
func (handPoller) Remove(transport.Conn)                       {}
func (handPoller) WantRead(transport.Conn, bool) error         { return nil }
func (handPoller) WantWrite(transport.Conn, bool) error        { return nil }

// handConn is a stream that reads from in and writes to out.
type handConn struct {
	in, out     []byte
	eof         bool // after in
	fin, closed bool // by our side
	mss         int
}

func (c *handConn) Readv(bufs [][]byte) (n int, err error) {
	for _, b := range bufs {
		k := copy(b, c.in)
		c.in = c.in[k:]
		n += k
	}
	switch {
	case n > 0:
		return n, nil
	case c.eof:
		return 0, io.EOF
	}
	return 0, transport.ErrWouldBlock
}

func (c *handConn) Writev(bufs [][]byte) (n int, err error) {
	for _, b := range bufs {
		c.out = append(c.out, b...)
		n += len(b)
	}
	return n, nil
}

func (c *handConn) CloseWrite() error          { c.fin = true; return nil }
func (c *handConn) Close() error               { c.closed = true; return nil }
func (c *handConn) Abort() error               { c.closed = true; return nil }
func (c *handConn) MSS() int                   { return c.mss }
func (c *handConn) LocalAddr() netip.AddrPort  { return netip.AddrPort{} }
func (c *handConn) RemoteAddr() netip.AddrPort { return netip.AddrPort{} }

// The numbers by which a program and the model name memory: first the regions of a rig.
const (
	rigAll     = iota // everything but invalidation
	rigWrite          // may only be written; it ends at the highest address
	rigRead           // may only be read
	rigLocal          // not for the peer: receives and sinks are in it
	rigForeign        // of another PD
	rigGoes           // may be invalidated
	rigRegions        // how many regions there are
)

const (
	rigOwnWindow   = rigRegions + iota // of type 2, bound to the QP
	rigOtherWindow                     // of type 2, bound to another QP of the PD
	rigAnyWindow                       // of type 1
	rigNone                            // an STag that names nothing
	rigNames
)

const (
	rigORD   = 4
	rigGuard = 64
	rigOctet = 0xa5 // what memory is filled with
)

const rigRights = provider.AccessLocalWrite | provider.AccessRemoteWrite |
	provider.AccessRemoteRead | provider.AccessRemoteAtomic

// rigSpecs are the regions, in the order of their numbers.
var rigSpecs = [rigRegions]struct {
	size   int
	base   uint64
	access provider.Access
}{
	rigAll:     {24 << 10, 0x100000, rigRights | provider.AccessMWBind},
	rigWrite:   {256, ^uint64(0) - 256, provider.AccessLocalWrite | provider.AccessRemoteWrite},
	rigRead:    {256, 0x300000, provider.AccessRemoteRead},
	rigLocal:   {32 << 10, 0x400000, provider.AccessLocalWrite},
	rigForeign: {256, 0x500000, rigRights},
	rigGoes:    {12 << 10, 0x600000, rigRights | provider.AccessRemoteInvalidate},
}

// rigWindows are the windows over rigAll.
var rigWindows = [...]struct {
	off, n int
	access provider.Access
}{
	{4096, 512, provider.AccessRemoteWrite | provider.AccessRemoteRead},
	{8192, 256, provider.AccessRemoteWrite | provider.AccessRemoteRead},
	{12288, 256, provider.AccessRemoteWrite},
}

// rig is a device for executions with its options.
type rig struct {
	t         testing.TB
	dev       *device
	pd, other *pd
	cq        *cq
	srq       *srq
	mem       []byte
	fresh     []byte          // what mem is between executions
	want      []byte          // memory for the model's copy of mem
	noise     []byte          // the source of payload
	body      []byte          // memory for an FPDU
	room      [4][]byte       // memory for the bytes of a stream, mostly enough
	at        [rigRegions]int // where regions begin in mem
	regions   [rigRegions]*memory.Region
	windows   [len(rigWindows)]*memory.Window
	keys      [len(rigWindows)]uint32
	holder    *qp // of rigOtherWindow
}

func newRig(t testing.TB, opts Options) *rig {
	opts.Network = handNetwork{}
	opts.CloseTimeout = time.Hour
	r := &rig{t: t}
	r.dev = testkit.Must(New(&opts).Open(""))(t).(*device)
	// No timer checks stalled streams: while it has a stream's lock, Ready receives nothing.
	// A poller would report the stream again; here nobody does, once in 10 million programs.
	r.dev.stalls.stop()
	r.pd, r.other = testkit.Must(r.dev.AllocPD())(t).(*pd), testkit.Must(r.dev.AllocPD())(t).(*pd)
	r.srq = testkit.Must(r.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 8,
		MaxSGE: 2}}))(t).(*srq)
	size := rigGuard
	for i := range rigSpecs {
		r.at[i] = size
		size += rigSpecs[i].size + rigGuard
	}
	r.mem = bytes.Repeat([]byte{rigOctet}, size)
	r.fresh = bytes.Clone(r.mem)
	r.noise = make([]byte, 1<<17)
	pattern(r.noise, 1)
	for i := range r.room {
		r.room[i] = make([]byte, 0, 3*mostOctets)
	}
	for i := range rigSpecs {
		r.register(i)
	}
	r.cq = testkit.Must(r.dev.CreateCQ(provider.CQInitAttr{CQE: 256}))(t).(*cq)
	r.holder = r.newQP(false)
	testkit.OK(t, r.holder.start(&handConn{mss: 1460}, mpa.Params{Revision: 2, Enhanced: true},
		func(error) {}))
	for i, typ := range []provider.MWType{provider.MWType2, provider.MWType2, provider.MWType1} {
		r.windows[i] = testkit.Must(r.pd.AllocMW(typ))(t).(*memory.Window)
	}
	r.bind(1, r.holder)
	testkit.OK(t, r.holder.BindMW(r.windows[2], 0, 0, r.bindInfo(2)))
	r.keys[2] = r.windows[2].RKey()
	return r
}

func (r *rig) register(i int) {
	s, p := &rigSpecs[i], r.pd
	if i == rigForeign {
		p = r.other
	}
	buf := r.mem[r.at[i]:][:s.size:s.size]
	r.regions[i] = testkit.Must(p.RegMRIova(buf, s.base, s.access))(r.t).(*memory.Region)
}

func (r *rig) bindInfo(i int) provider.MWBindInfo {
	w := &rigWindows[i]
	return provider.MWBindInfo{
		LKey: r.regions[rigAll].STag(), Addr: rigSpecs[rigAll].base + uint64(w.off),
		Length: uint64(w.n), Access: w.access,
	}
}

// bind binds a window of type 2 to the peer of q.
func (r *rig) bind(i int, q *qp) {
	info := r.bindInfo(i)
	r.keys[i] = incRKey(r.windows[i].RKey())
	if n, err := q.PostSend([]provider.SendWR{{Opcode: provider.WRBindMW, RKey: r.keys[i], Bind: &info}}); n != 1 {
		r.t.Fatal(err)
	}
}

// sge names n bytes at an offset of a region.
func (r *rig) sge(region, at, n int) provider.SGE {
	return provider.SGE{
		Addr: rigSpecs[region].base + uint64(at), Length: uint32(n), LKey: r.regions[region].STag(),
	}
}

// key returns the STag of the region or window that a number stands for.
func (r *rig) key(i int) uint32 {
	switch {
	case i < rigRegions:
		return r.regions[i].STag()
	case i < rigNone:
		return r.keys[i-rigRegions]
	}
	return 0xfeedface
}

func (r *rig) newQP(shared bool) *qp {
	init := provider.QPInitAttr{
		SendCQ: r.cq, RecvCQ: r.cq,
		Cap: provider.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2},
	}
	if shared {
		init.SRQ = r.srq
	}
	return testkit.Must(newQP(r.pd, init))(r.t)
}

func (r *rig) close(check func(error)) {
	check(r.holder.Close())
	for _, w := range r.windows {
		check(w.Close())
	}
	for _, m := range r.regions {
		check(m.Close())
	}
	for _, o := range []io.Closer{r.srq, r.cq, r.holder.sendCQ, r.pd, r.other, r.dev} {
		check(o.Close())
	}
}

// idle fails the test if something is still held that an ended stream has to give back.
func (r *rig) idle() {
	r.t.Helper()
	p := &r.dev.prog
	if n, m := p.contexts.Lent(), p.batches.Lent(); n != 0 || m != 0 {
		r.t.Fatalf("%d receive contexts and %d batches are held", n, m)
	}
	if n := p.kept.Load(); n != 0 {
		r.t.Fatalf("%d receive contexts are counted as kept", n)
	}
	if n := r.dev.closing.len(); n != 0 {
		r.t.Fatalf("%d streams linger", n)
	}
	for _, c := range p.contexts.All() {
		if c.m != nil || c.nspans != 0 || c.nplace != 0 {
			r.t.Fatal("a receive context that was given back uses a region")
		}
	}
	for i, m := range r.regions {
		if local, remote := m.Uses(); local+remote != 0 {
			r.t.Fatalf("region %d: uses are left: %d by us, %d by the peer", i, local, remote)
		}
	}
}
