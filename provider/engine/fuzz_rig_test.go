package engine

import (
	"bytes"
	"encoding/binary"
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
	testkit.Must(q.PostSend([]provider.SendWR{{Opcode: provider.WRBindMW, RKey: r.keys[i], Bind: &info}}))(r.t)
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
	testkit.Equal(r.t, "receive contexts that are counted as kept", p.kept.Load(), 0)
	testkit.Equal(r.t, "streams that linger", r.dev.closing.len(), 0)
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

// invalidateCodes report an STag that the peer may not invalidate: RFC 5040 figure 9 has the
// code with two error types.
var invalidateCodes = []modelCode{rdmapInvalidate, rdmapCannotInv}

// judge returns everything that is wrong with a segment.
func (m *model) judge(s *segment) (errs []modelCode) {
	if s.short {
		return []modelCode{mpaBadMarker}
	}
	bad := func(is bool, codes ...modelCode) {
		if is {
			errs = append(errs, codes...)
		}
	}
	version := uint8(1)
	if m.rdmac {
		version = 0
	}
	if s.t {
		bad(s.dv != version, ddpTaggedVer)
	} else {
		bad(s.dv != version, ddpUntaggedVer)
	}
	bad(s.rv != version, rdmapVersion)
	bad(s.op > 7 && !(m.ext && s.op <= 11), rdmapOpcode)
	bad(s.t != (s.op == 0 || s.op == 2), rdmapOpcode)
	if len(errs) > 0 {
		return errs // the other fields have no meaning then
	}
	if s.t {
		bad(m.taggedOpen && m.taggedOp != s.op, rdmapOpcode)
	}
	switch s.op {
	case 0:
		m.judgeWrite(s, bad)
	case 1:
		m.judgeReadRequest(s, bad)
	case 2:
		m.judgeReadResponse(s, bad)
	case 7:
		m.untagged(s, 2, 1, 0, bad)
		bad(s.n > 52 || !s.l, ddpLong)
		bad(s.n < 4, rdmapOther)
	case 8, 9:
		m.untagged(s, 0, m.sendMSN, m.sendMO, bad)
		bad(m.recv != nil, rdmapOpcode)
		bad(s.n != 8 || !s.l, rdmapOther)
		bad(m.buffer() == nil, ddpNoBuffer)
	case 10:
		m.judgeAtomicRequest(s, bad)
	case 11:
		m.untagged(s, 3, m.answerMSN, 0, bad)
		bad(len(m.asked) == 0 || !m.asked[0].atomic, rdmapOpcode)
		bad(s.n > 12 || !s.l, ddpLong)
		bad(s.n < 12, rdmapOther)
		bad(s.n == 12 && len(m.asked) > 0 && len(s.payload) == 12 &&
			binary.BigEndian.Uint32(s.payload) != m.asked[0].id, rdmapOther)
	default:
		m.judgeSend(s, bad)
	}
	return errs
}

// untagged checks queue, message and offset (RFC 5041 section 7.1).
func (m *model) untagged(s *segment, qn, msn, mo uint32, bad func(bool, ...modelCode)) {
	bad(s.qn != qn, ddpQN, rdmapOpcode)
	bad(s.msn != msn, ddpMSN)
	bad(s.mo != mo, ddpMO)
}

func (m *model) judgeWrite(s *segment, bad func(bool, ...modelCode)) {
	if s.n == 0 {
		return // RFC 5041 section 5.2: neither STag nor TO is looked at
	}
	_, _, errs := m.access(s.stag, s.to, s.n, mayWrite, &writeCodes)
	bad(len(errs) > 0, errs...)
	bad(m.taggedOpen && m.taggedPlaced && m.taggedSTag != s.stag, ddpTaggedSTag)
}

func (m *model) judgeSend(s *segment, bad func(bool, ...modelCode)) {
	m.untagged(s, 0, m.sendMSN, m.sendMO, bad)
	bad(m.recv != nil && m.sendOp != s.op, rdmapOpcode)
	if m.isRTR(s) {
		return
	}
	r := m.buffer()
	if r == nil {
		bad(true, ddpNoBuffer)
		return
	}
	bad(uint64(s.mo)+uint64(s.n) > uint64(lengthOf(r.spans)), ddpLong)
	bad(r.bad && s.n > 0, ddpCatastrophe)
	if s.l && (s.op == 4 || s.op == 6) {
		x := m.find(s.ulp32)
		bad(x == nil || !x.ours || !x.goes, invalidateCodes...)
	}
}

// isRTR reports whether a segment is an RTR indication, which takes no receive (RFC 6581
// section 9.2).
func (m *model) isRTR(s *segment) bool {
	return !m.received && m.peerToPeer && m.wait && s.op == 3 && s.l && s.n == 0
}

func (m *model) judgeReadRequest(s *segment, bad func(bool, ...modelCode)) {
	m.untagged(s, 1, m.readMSN, 0, bad)
	bad(len(m.requests) >= m.depth, ddpNoBuffer)
	bad(s.n > 28 || !s.l, ddpLong)
	bad(s.n < 28, rdmapOther)
	if len(s.payload) != 28 || s.n != 28 {
		return
	}
	size := binary.BigEndian.Uint32(s.payload[12:])
	if size == 0 {
		return
	}
	stag, to := binary.BigEndian.Uint32(s.payload[16:]), binary.BigEndian.Uint64(s.payload[20:])
	_, _, errs := m.access(stag, to, int(size), mayRead, &readCodes)
	bad(len(errs) > 0, errs...)
}

func (m *model) judgeReadResponse(s *segment, bad func(bool, ...modelCode)) {
	if len(m.asked) == 0 || m.asked[0].atomic {
		bad(true, rdmapOpcode)
		return
	}
	a := &m.asked[0]
	done := m.doneBefore(2)
	if s.n > 0 {
		bad(s.stag != a.stag, ddpTaggedSTag)
		bad(s.to != a.to+uint64(done), ddpTaggedBounds)
		bad(done+s.n > int(a.size), ddpTaggedBounds)
	}
	bad(s.l && done+s.n != int(a.size), ddpTaggedBounds)
}

// judgeAtomicRequest checks an Atomic Request as RFC 7306 sections 5.2.1 and 8.2 say,
// with the codes of a Read's source.
func (m *model) judgeAtomicRequest(s *segment, bad func(bool, ...modelCode)) {
	m.untagged(s, 1, m.readMSN, 0, bad)
	bad(len(m.requests) >= m.depth, ddpNoBuffer)
	bad(s.n > 52 || !s.l, ddpLong)
	bad(s.n < 52, rdmapOther)
	if len(s.payload) != 52 || s.n != 52 {
		return
	}
	op := s.payload[3] & 15
	bad(op != 0 && op != 2, rdmapOpcode)
	stag, to := binary.BigEndian.Uint32(s.payload[8:]), binary.BigEndian.Uint64(s.payload[12:])
	_, span, errs := m.access(stag, to, 8, mayAtomic, &readCodes)
	bad(len(errs) > 0, errs...)
	bad(len(errs) == 0 && span.at%8 != 0, rdmapStream)
}

// apply does what a segment without faults asks for.
func (m *model) apply(s *segment, first bool) {
	switch s.op {
	case 0, 2:
		m.place(m.target(s), s.payload)
		m.applyTagged(s)
	case 1:
		m.readMSN++
		p := s.payload
		q := modelRequest{
			stag: binary.BigEndian.Uint32(p), to: binary.BigEndian.Uint64(p[4:]),
			size: binary.BigEndian.Uint32(p[12:]),
		}
		if q.size > 0 {
			stag, to := binary.BigEndian.Uint32(p[16:]), binary.BigEndian.Uint64(p[20:])
			q.mem, q.span, _ = m.access(stag, to, int(q.size), mayRead, &readCodes)
			q.then = append(q.then, m.mem[q.span.at:q.span.at+q.span.n]...)
		}
		m.requests = append(m.requests, q)
	case 7:
		m.end = &modelEnd{remote: true}
	case 8, 9:
		r := m.takeRecv()
		m.recv = nil
		m.sendMSN++
		m.recvWCs = append(m.recvWCs, provider.WC{
			WRID: r.id, Flags: provider.WCWithImm, Imm: binary.BigEndian.Uint32(s.payload),
		})
	case 10:
		m.applyAtomic(s.payload)
	case 11:
		m.answerMSN++
		a := m.asked[0]
		m.asked = m.asked[1:]
		var word [8]byte
		binary.NativeEndian.PutUint64(word[:], binary.BigEndian.Uint64(s.payload[4:]))
		m.place(sub(a.work.spans, 0, 8), word[:])
		m.sendWCs = append(m.sendWCs, provider.WC{WRID: a.work.id, ByteLen: 8})
	default:
		m.applySend(s, first)
	}
}

func (m *model) applyTagged(s *segment) {
	if !m.taggedOpen {
		m.taggedOpen, m.taggedOp, m.taggedPlaced, m.taggedDone = true, s.op, false, 0
	}
	if s.n > 0 {
		m.taggedPlaced, m.taggedSTag = true, s.stag
	}
	m.taggedDone += s.n
	if !s.l {
		return
	}
	m.taggedOpen = false
	if s.op == 2 {
		a := m.asked[0]
		m.asked = m.asked[1:]
		if a.work != nil {
			m.sendWCs = append(m.sendWCs, provider.WC{WRID: a.work.id, ByteLen: a.size})
		}
	}
}

func (m *model) takeRecv() *modelRecv {
	r := m.buffer()
	if m.recv == nil {
		m.recvs = m.recvs[1:]
	}
	return r
}

func (m *model) applySend(s *segment, first bool) {
	if first && m.peerToPeer && m.wait && s.op == 3 && s.l && s.n == 0 {
		m.sendMSN++
		return
	}
	m.place(m.target(s), s.payload)
	r := m.takeRecv()
	m.recv, m.sendOp = r, s.op
	m.sendMO += uint32(s.n)
	if !s.l {
		return
	}
	wc := provider.WC{WRID: r.id, ByteLen: m.sendMO}
	if s.op == 4 || s.op == 6 {
		m.find(s.ulp32).valid = false
		wc.Flags, wc.InvalidatedRKey = provider.WCWithInv, s.ulp32
	}
	m.recvWCs = append(m.recvWCs, wc)
	m.recv, m.sendMO = nil, 0
	m.sendMSN++
}

// applyAtomic does what RFC 7306 section 5.1 says, field by field and bit by bit.
func (m *model) applyAtomic(p []byte) {
	m.readMSN++
	_, span, _ := m.access(binary.BigEndian.Uint32(p[8:]), binary.BigEndian.Uint64(p[12:]), 8, mayAtomic, &readCodes)
	word := m.mem[span.at : span.at+8]
	old := binary.NativeEndian.Uint64(word)
	data, mask := binary.BigEndian.Uint64(p[20:]), binary.BigEndian.Uint64(p[28:])
	compare, compareMask := binary.BigEndian.Uint64(p[36:]), binary.BigEndian.Uint64(p[44:])
	value := old
	if p[3]&15 == 0 {
		carry := uint64(0)
		value = 0
		for bit := range 64 {
			sum := old>>bit&1 + data>>bit&1 + carry
			value |= sum & 1 << bit
			if carry = sum >> 1; mask>>bit&1 == 1 {
				carry = 0
			}
		}
	} else if (old^compare)&compareMask == 0 {
		value = old&^mask | data&mask
	}
	binary.NativeEndian.PutUint64(word, value)
	m.requests = append(m.requests, modelRequest{atomic: true, id: binary.BigEndian.Uint32(p[4:]), value: old})
}
