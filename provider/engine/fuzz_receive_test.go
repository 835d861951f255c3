package engine

import (
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// FuzzReceive makes a peer send a QP what a program describes, legal or not, in pieces, and
// compares everything with a model: all memory, the completions, the answers, how the stream ends,
// and that nothing is held after it.
func FuzzReceive(f *testing.F) {
	for _, p := range seedPrograms() {
		f.Add(p)
	}
	rigs := newRigs(f)
	f.Fuzz(func(t *testing.T, program []byte) {
		if len(program) > 1<<10 {
			return
		}
		rigs.run(t, program)
	})
}

var (
	receiveSeed     = flag.Uint64("receive.seed", 1, "seed of the programs of TestReceiveModel")
	receivePrograms = flag.Int("receive.programs", 4000, "how many programs TestReceiveModel runs")
)

// TestReceiveModel runs random programs, as many as receive.programs says. It is faster than the
// fuzzer, because it does not count coverage.
func TestReceiveModel(t *testing.T) {
	rigs := newRigs(t)
	rnd := rand.New(rand.NewPCG(*receiveSeed, 2))
	n := *receivePrograms
	if testkit.Race { // a device here has one goroutine; ci/test runs all of them without it, too
		n = (n + 7) / 8
	}
	for range n {
		rigs.run(t, drawProgram(rnd))
	}
}

func drawProgram(rnd *rand.Rand) []byte {
	p := make([]byte, 8+rnd.IntN(200))
	for i := range p {
		p[i] = byte(rnd.Uint32())
	}
	return p
}

// seedPrograms returns random programs, too, some for each configuration.
func seedPrograms() (all [][]byte) {
	rnd := rand.New(rand.NewPCG(3, 4))
	for config := range 32 {
		for range 2 {
			p := drawProgram(rnd)
			p[0], p[1] = byte(config*9), byte(config*37)
			all = append(all, p)
		}
	}
	// Payload in three pieces, with and without CRC: of a Write whose CRC is right, or wrong, and
	// of the answer to a Read.
	const crc, ownRead, most = 1, 2 << 2, 0xff
	pieces := []byte{0x1f, 0x22, 0x60, 0x1f, 0x10, 0x00}
	for _, config := range []byte{0, crc} {
		for _, broken := range []byte{0, 0xe0} {
			all = append(all, append([]byte{config, 0, broken, most, 0, 0, 0}, pieces...))
		}
		all = append(all, append([]byte{config, ownRead, 19, 0}, pieces...))
	}
	return all
}

type rigs struct {
	t    testing.TB
	made map[Options]*rig
}

func newRigs(t testing.TB) *rigs {
	r := &rigs{t, make(map[Options]*rig)}
	t.Cleanup(func() {
		for _, x := range r.made {
			x.close(func(err error) { testkit.OK(t, err) })
		}
	})
	return r
}

func (r *rigs) run(t testing.TB, program []byte) {
	var c [2]byte
	copy(c[:], program)
	bit := func(b byte, n int) bool { return b>>n&1 != 0 }
	config := modelConfig{
		crc: bit(c[0], 0), markersRx: bit(c[0], 2), markersTx: bit(c[0], 3), ext: bit(c[0], 4),
		shared: bit(c[0], 5), rdmac: bit(c[0], 6), depth: 4,
	}
	mode := c[1] & 3
	if config.rdmac {
		config.crc, config.markersRx, config.markersTx, config.ext = true, true, true, false
		mode &= 1
	}
	config.wait, config.peerToPeer = mode == 1 || mode == 2, mode >= 2
	opts := Options{Extensions: config.ext}
	x := r.made[opts]
	if x == nil {
		x = newRig(t, opts)
		r.made[opts] = x
	}
	x.t = t
	e := &execution{
		rig: x, m: newModel(config),
		windowed: bit(c[1], 4), few: bit(c[1], 6), own: c[1] >> 2 & 3,
	}
	e.p.calm = bit(c[1], 7)
	e.c = &handConn{mss: 1460, in: x.room[0][:0], out: x.room[1][:0]}
	e.m.in, e.p.ready = x.room[2][:0], x.room[3][:0]
	if bit(c[1], 5) {
		e.c.mss = 65483
	}
	e.p.x, e.p.sendMSN, e.p.readMSN, e.p.answerMSN = e, 1, 1, 1
	if len(program) > 2 {
		e.p.program = program[2:]
	}
	if config.wait && config.peerToPeer {
		e.p.indicate()
	}
	defer func() {
		if t.Failed() { // the rig is not as the next execution needs it
			t.Logf("to repeat it, put []byte(%q) into testdata/fuzz/FuzzReceive; it runs with %+v",
				program, config)
			delete(r.made, opts)
			_ = e.q.Close()
			x.close(func(error) {})
		}
	}()
	e.run()
}

// execution is one program on one stream.
type execution struct {
	*rig
	m    *model
	p    peer
	c    *handConn
	q    *qp
	s    *stream
	done int // bytes of output that the model has seen

	windowed, few bool
	own           byte

	receives              []*modelRecv
	posted, recvAt, works int
}

func (x *execution) fail(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf(format+"\n%+v", append(args, x.m.modelConfig)...)
}

func (x *execution) run() {
	x.prepare()
	down := 0
	params := mpa.Params{
		Revision: 2, Enhanced: true, CRC: x.m.crc, MarkersRx: x.m.markersRx, MarkersTx: x.m.markersTx, RDMAC: x.m.rdmac,
		IRD: x.m.depth, ORD: rigORD, PeerToPeer: x.m.peerToPeer, WaitFirstFPDU: x.m.wait, RTR: mpa.RTRRead | mpa.RTRSend,
	}
	if x.m.peerToPeer && !x.m.wait {
		params.RTR = mpa.RTRRead
		x.m.o.rtr = true
	}
	x.s = testkit.Must(x.q.begin(x.c, params, false, func(error) { down++ }))(x.t)
	x.compare()
	x.work()
	x.compare()
	for after := 0; !x.p.over() && after < 2; {
		x.deliver(x.p.next())
		if x.m.end != nil {
			after++
		}
		x.p.local()
	}
	x.finish()
	if down != 1 {
		x.fail("onDown was called %d times", down)
	}
}

// prepare makes the QP, its receives, and the model of all memory.
func (x *execution) prepare() {
	x.q = x.newQP(x.m.shared)
	x.m.mem = append(x.want[:0], x.mem...)
	x.want = x.m.mem
	add := func(i int, at, n int, base uint64, access provider.Access, ours, goes, valid bool) {
		x.m.memory = append(x.m.memory, &modelMemory{
			stag: x.key(i), base: base, span: modelSpan{at, n}, ours: ours, goes: goes, valid: valid,
			write: access&provider.AccessRemoteWrite != 0, read: access&provider.AccessRemoteRead != 0,
			atomic: x.m.ext && access&provider.AccessRemoteAtomic != 0,
		})
	}
	for i := range rigSpecs {
		s := &rigSpecs[i]
		add(i, x.at[i], s.size, s.base, s.access, i != rigForeign, s.access&provider.AccessRemoteInvalidate != 0, true)
	}
	x.keys[0] = incRKey(x.rig.windows[0].RKey())
	for i := range rigWindows {
		w := &rigWindows[i]
		add(rigRegions+i, x.at[rigAll]+w.off, w.n, rigSpecs[rigAll].base+uint64(w.off), w.access, i != 1, i == 0, i != 0)
	}
	sizes := [][]int{{64}, {0}, {60, 40}, {9000}, {200}, {12}}
	regions := []int{rigLocal, rigLocal, rigLocal, rigLocal, rigRead, rigLocal}
	if x.few {
		sizes, regions = sizes[:3], []int{rigLocal, rigForeign, rigLocal}
		sizes[1] = []int{30}
	}
	for i := range sizes {
		x.receive(sizes[i], regions[i])
	}
}

// receive posts a receive that has pieces of these sizes, all of one region. A receive may not
// be placed in any region but rigLocal.
func (x *execution) receive(sizes []int, region int) {
	bad := region != rigLocal
	r := &modelRecv{id: uint64(1 + x.posted), bad: bad}
	var sges []provider.SGE
	for _, n := range sizes {
		at := 0
		if !bad {
			at = x.recvAt
			x.recvAt += n + 8
		}
		sges = append(sges, x.sge(region, at, n))
		r.spans = append(r.spans, modelSpan{x.at[region] + at, n})
	}
	wr := []provider.RecvWR{{WRID: r.id, SGList: sges}}
	post := x.q.PostRecv
	if x.m.shared {
		post = x.srq.PostRecv
	}
	if n, err := post(wr); n != 1 {
		x.fail("posting a receive: %v", err)
	}
	x.posted++
	x.m.recvs = append(x.m.recvs, r)
	x.receives = append(x.receives, r)
}

// work posts what the QP itself is to do.
func (x *execution) work() {
	if x.q.getState() != provider.QPRTS {
		return
	}
	if x.windowed {
		x.bind(0, x.q)
		x.m.memory[rigOwnWindow].stag, x.m.memory[rigOwnWindow].valid = x.keys[0], true
	}
	at := 16 << 10
	var wrs []provider.SendWR
	add := func(op provider.WROpcode, flags provider.SendFlags, sizes ...int) {
		w := &modelWork{id: uint64(1000 + len(wrs)), op: op}
		wr := provider.SendWR{WRID: w.id, Opcode: op, Flags: flags | provider.SendSignaled, RKey: 77, RemoteAddr: 88}
		for _, n := range sizes {
			w.length += n
			if op == provider.WRSend {
				wr.Flags |= provider.SendInline
				continue
			}
			wr.SGList = append(wr.SGList, x.sge(rigLocal, at, n))
			w.spans = append(w.spans, modelSpan{x.at[rigLocal] + at, n})
			at += n + 8
		}
		wrs = append(wrs, wr)
		x.m.work = append(x.m.work, w)
	}
	switch {
	case x.own == 1:
		add(provider.WRRDMARead, 0, 40)
		add(provider.WRRDMARead, 0, 10, 14)
		add(provider.WRSend, provider.SendFence)
	case x.own == 2 && x.m.ext:
		add(provider.WRAtomicFetchAdd, 0, 8)
		add(provider.WRRDMARead, 0, 30)
		add(provider.WRAtomicCmpAndSwp, 0, 3, 5)
	case x.own == 2:
		add(provider.WRRDMARead, 0, 6000, 3000)
	case x.own == 3:
		for i := range 6 {
			add(provider.WRRDMARead, 0, i*4)
		}
	}
	x.works = len(wrs)
	x.m.posted = true
	if n, err := x.q.PostSend(wrs); n != len(wrs) {
		x.fail("posting work: %v", err)
	}
}

// deliver makes the stream take a piece, and compares what it does.
func (x *execution) deliver(piece []byte) {
	if x.m.end == nil {
		x.m.feed(piece)
	}
	x.c.in = append(x.c.in, piece...)
	if x.s != nil {
		x.s.Ready(true, true)
	}
	x.compare()
}

// compare compares what the stream has sent, and whether it has ended, with the model.
func (x *execution) compare() {
	x.t.Helper()
	sent := x.c.out[x.done:]
	x.done = len(x.c.out)
	if err := x.m.output(sent); err != nil {
		x.fail("what was sent: %v", err)
	}
	var term *provider.TerminateError
	cause := x.q.Cause()
	if cause != nil && !errors.As(cause, &term) {
		x.fail("the stream ended with %v", cause)
	}
	if err := x.m.after(term); err != nil {
		x.fail("%v", err)
	}
}

// finish ends the stream, and compares the final state.
func (x *execution) finish() {
	x.c.eof = true
	if x.s != nil {
		x.s.Ready(true, true)
	}
	cause := x.q.Cause()
	if x.m.end == nil && !errors.Is(cause, io.EOF) && !errors.Is(cause, io.ErrUnexpectedEOF) {
		x.fail("at the peer's FIN the stream ended with %v", cause)
	}
	testkit.OK(x.t, x.q.Close())
	if x.s != nil {
		x.s.Ready(true, true)
	}
	if err := x.m.output(x.c.out[x.done:]); err != nil {
		x.fail("what was sent at the end: %v", err)
	}
	if !x.c.closed || len(x.c.in) > 0 {
		x.fail("the stream is closed: %v, with %d bytes unread", x.c.closed, len(x.c.in))
	}
	if at, same := x.m.final(x.mem); !same {
		x.fail("byte %d of all memory (regions at %v) is %#02x, want %#02x", at, x.at, x.mem[at], x.m.mem[at])
	}
	x.completions()
	x.restore()
	x.idle()
}

// completions compares the completions of both queues, each in its order.
func (x *execution) completions() {
	var wc [64]provider.WC
	n := testkit.Must(x.cq.Poll(wc[:]))(x.t)
	recvs, sends := x.m.recvWCs, x.m.sendWCs
	flushedRecv, flushedSend := uint64(len(recvs)+1), uint64(1000+len(sends))
	for _, got := range wc[:n] {
		queue, next := &recvs, &flushedRecv
		if got.WRID >= 1000 {
			queue, next = &sends, &flushedSend
		}
		if len(*queue) == 0 {
			if got.Status == provider.WCSuccess || got.WRID != *next {
				x.fail("completion %+v, want the failure of %d", got, *next)
			}
			*next++
			continue
		}
		want := (*queue)[0]
		*queue = (*queue)[1:]
		if got.Status != provider.WCSuccess || got.WRID != want.WRID || got.QPN != x.q.qpn ||
			got.InvalidatedRKey != want.InvalidatedRKey || got.Flags != want.Flags ||
			got.Imm != want.Imm ||
			want.Flags&provider.WCWithImm == 0 && got.ByteLen != want.ByteLen {
			x.fail("completion %+v, want %+v", got, want)
		}
	}
	if len(recvs)+len(sends) > 0 {
		x.fail("no completions %+v %+v", recvs, sends)
	}
	// A QP with an SRQ flushes only the receive that it has taken, perhaps for a message that
	// was not accepted. All others stay in the SRQ.
	left := x.posted + 1 - int(flushedRecv)
	if x.m.shared {
		x.srq.mu.Lock()
		left -= int(x.srq.tail - x.srq.head)
		x.srq.head = x.srq.tail
		x.srq.mu.Unlock()
	}
	if left != 0 || int(flushedSend) != 1000+x.works {
		x.fail("%d receives are lost, and %d of %d work requests have completed", left, flushedSend-1000, x.works)
	}
}

// restore undoes what the execution did to the rig.
func (x *execution) restore() {
	copy(x.mem, x.fresh)
	if !x.m.memory[rigGoes].valid {
		testkit.OK(x.t, x.regions[rigGoes].Close())
		x.register(rigGoes)
	}
}
