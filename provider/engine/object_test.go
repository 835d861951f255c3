package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
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
		testkit.WantErr(t, c.name, err, c.want, c.cause)
		testkit.Equal(t, c.name+": the MR beside the error", m, nil)
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

// closes checks that the region can be closed, which waits until nothing of it is in use.
func closes(t *testing.T, what string, m *memory.Region) {
	t.Helper()
	done := make(chan error)
	go func() { done <- m.Close() }()
	select {
	case err := <-done:
		testkit.OK(t, err)
	case <-time.After(patience):
		local, remote := m.Uses()
		t.Fatalf("%s: Close does not return: the region is in use %d times locally, %d times "+
			"remotely", what, local, remote)
	}
}

// TestRunAfterStore: FPDUs of the same length that come together are taken as a run, and an
// object interrupts that. However the rest of the run ends, no region stays in use.
func TestRunAfterStore(t *testing.T) {
	const size = 100
	type script struct {
		s    *side
		r    *raw
		o, m *memory.Region // an object, and memory
	}
	write := func(x *script, m *memory.Region) []byte {
		return x.r.fpdu(rdmap.WriteHeader(m.STag(), m.Addr(), true), make([]byte, size))
	}
	send := func(x *script) []byte { // as long as the Writes, whose header is 4 bytes shorter
		x.r.sendMSN++
		return x.r.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, x.r.sendMSN-1, 0, true), make([]byte, size-4))
	}
	for _, c := range []struct {
		name  string
		fpdus func(x *script) [][]byte
		ends  bool // the stream ends because of an FPDU of the run
		waits bool // the object interrupts the run once more
	}{
		{"ended by a Send without a receive", func(x *script) [][]byte {
			return [][]byte{write(x, x.o), write(x, x.m), send(x), write(x, x.m)}
		}, true, false},
		{"ended by the last FPDU", func(x *script) [][]byte {
			return [][]byte{write(x, x.o), write(x, x.m), write(x, x.m), send(x)}
		}, true, false},
		{"interrupted once more", func(x *script) [][]byte {
			return [][]byte{write(x, x.o), write(x, x.m), write(x, x.m), write(x, x.o), write(x, x.m)}
		}, false, true},
		{"whole", func(x *script) [][]byte {
			return [][]byte{write(x, x.o), write(x, x.m), write(x, x.m), write(x, x.m)}
		}, false, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			storyOn(t, memnet.Options{}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
				o := &store{b: make([]byte, size), gate: make(chan struct{}), busy: make(chan struct{}, 8)}
				om := testkit.Must(s.pd.RegObject(o, size, writable))(t).(*memory.Region)
				mm := s.reg(size, writable)
				r.write(bytes.Join(c.fpdus(&script{s, r, om, mm.m}), nil))
				<-o.busy
				synctest.Wait() // everything has arrived, and waits for the object
				o.gate <- struct{}{}
				synctest.Wait()
				testkit.Equal(t, "the stream is over", s.qp.stream.Load() == nil, c.ends)
				closes(t, "the memory", mm.m)
				if c.waits {
					o.gate <- struct{}{}
				}
				synctest.Wait()
				closes(t, "the object", om)
			})
		})
	}
}

// TestRunAfterStoreAndOthers: when a stream of another protection domain gets the receive
// context, its peer can't write to the region that the stream before has written to last.
func TestRunAfterStoreAndOthers(t *testing.T) {
	const size = 100
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		s := newSide(t, Options{Network: network}, sideOptions{})
		other := testkit.Must(s.dev.AllocPD())(t).(*pd)
		otherQP := testkit.Must(newQP(other, provider.QPInitAttr{
			SendCQ: s.cq, RecvCQ: s.cq, Cap: provider.QPCap{MaxSendWR: 1, MaxRecvWR: 1},
		}))(t)
		defer func() { testkit.OK(t, otherQP.Close()); testkit.OK(t, other.Close()) }()
		first := s.connectRaw(network)
		second := newRaw(t, otherQP, network, memAddr, params(true), func(error) {})
		// Not the stream's first FPDU: that one never takes the short path.
		second.send(rdmap.WriteHeader(0, 0, true), nil)
		o := &store{b: make([]byte, size), gate: make(chan struct{}), busy: make(chan struct{}, 8)}
		om := testkit.Must(s.pd.RegObject(o, size, writable))(t).(*memory.Region)
		mm := s.reg(size, writable)
		payload := make([]byte, size)
		var run []byte
		for _, m := range []*memory.Region{om, mm.m} {
			run = append(run, first.fpdu(rdmap.WriteHeader(m.STag(), m.Addr(), true), payload)...)
		}
		for i := range 2 {
			run = append(run, first.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, uint32(i+1), 0, true), payload[4:])...)
		}
		first.write(run)
		<-o.busy
		synctest.Wait()
		o.gate <- struct{}{}
		synctest.Wait()
		copy(mm.b, bytes.Repeat([]byte{0xa5}, size))
		second.send(rdmap.WriteHeader(mm.m.STag(), mm.m.Addr(), true), payload)
		synctest.Wait()
		mm.untouched(0, 0)
		testkit.Equal(t, "a peer that names a region of another protection domain is connected",
			otherQP.stream.Load() != nil, false)
		closes(t, "the memory", mm.m)
		closes(t, "the object", om)
	})
}

// TestShortPathTrustsNobody: the short path for Writes uses the region in the context only for
// the stream whose right to it was checked.
func TestShortPathTrustsNobody(t *testing.T) {
	const size = 100
	storyOn(t, memnet.Options{}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		r.send(rdmap.WriteHeader(0, 0, true), nil)
		synctest.Wait()
		foreign := testkit.Must(s.dev.AllocPD())(t).(*pd)
		defer func() { testkit.OK(t, foreign.Close()) }()
		m := testkit.Must(foreign.RegMR(make([]byte, size),
			provider.AccessLocalWrite|provider.AccessRemoteWrite))(t).(*memory.Region)
		defer func() { testkit.OK(t, m.Close()) }()
		st := s.qp.stream.Load()
		ulpdu := rdmap.WriteHeader(m.STag(), m.Addr(), true)
		segment := ulpdu.AppendTo(nil)
		segment = append(segment, bytes.Repeat([]byte{1}, size)...)
		st.rx.mu.Lock()
		defer st.rx.mu.Unlock()
		st.rx.ensureContext()
		c := st.rx.c
		c.m, c.mFor = m, &memory.Peer{Domain: &foreign.Domain} // as another stream would leave it
		_, _, err := ofPD(foreign).WriteTarget(m.STag(), m.Addr(), size)
		testkit.OK(t, err)
		if st.rx.placeWrite(segment) || octetsOf(m)[0] != 0 {
			t.Error("a Write went to the region of another stream")
		}
		if err := c.resolveWrite(&s.qp.peer, m.STag(), m.Addr(), size); err == nil || c.nplace != 0 || c.m != nil {
			t.Errorf("the region of another stream was found, error %v", err)
		}
		testkit.Equal(t, "the context is idle", c.idle(), true)
		st.rx.park()
	})
}

// TestFreeListsKeepFew: of the buffers that many streams had at the same time, few are kept.
func TestFreeListsKeepFew(t *testing.T) {
	const most, kept = 42 << 20, policy.Kept + 1
	d := unwired(t)
	p := &d.prog
	made := map[string]int{
		"contexts": lendMany(3*kept, p.contexts.Get, p.contexts.Put, p.contexts.Made),
		"batches":  lendMany(3*kept, p.batches.Get, p.batches.Put, p.batches.Made),
		"parts":    lendMany(3*kept, p.parts.Get, p.parts.Put, p.parts.Made),
		"chunks":   lendMany(3*kept, d.chunks.Get, d.chunks.Put, d.chunks.Made),
	}
	for what, n := range made {
		testkit.Within(t, what+" that are kept", n, 1, kept)
	}
	octets := made["contexts"]*(contextOctets+int(unsafe.Sizeof(rxContext{}))) +
		made["chunks"]*policy.Chunk + made["batches"]*int(unsafe.Sizeof(frames.Batch{})) +
		made["parts"]*int(unsafe.Sizeof(rxPart{}))
	if octets > most {
		t.Errorf("they have %d bytes, more than %d", octets, most)
	}
}

// lendMany lends n buffers at the same time, and returns how many there are when all are back.
func lendMany[T any](n int, get func() *T, put func(*T), made func() int) int {
	var all []*T
	for range n {
		all = append(all, get())
	}
	for _, x := range all {
		put(x)
	}
	return made()
}

// TestGivenBackIdle: a free list panics if it is given back something that is still in use.
func TestGivenBackIdle(t *testing.T) {
	p := testPD(t, unwired(t))
	m := testMR(t, p, 10, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	defer m.Close()
	panics := func(what string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s was taken back", what)
			}
		}()
		f()
	}
	contexts := &p.dev.prog.contexts
	for what, dirty := range map[string]func(c *rxContext){
		"a region": func(c *rxContext) { c.m = m },
		"spans":    func(c *rxContext) { c.nspans = 1 },
		"a place":  func(c *rxContext) { c.nplace = 1 },
		"pieces":   func(c *rxContext) { c.pieces = []memory.Piece{{Region: m}} },
	} {
		c := contexts.Get()
		dirty(c)
		panics("a context with "+what, func() { contexts.Put(c) })
	}
	s := (&stream{dev: p.dev}).link()
	s.tx.format = frames.NewFormat(true, false, false)
	s.tx.format.SetEMSS(100)
	s.tx.b = p.dev.prog.batches.Get()
	s.tx.b.Prepare(&s.tx.format, policy.BatchOctets, policy.BudgetMost)
	h := rdmap.WriteHeader(0, 0, true)
	s.tx.b.Add(&h, nil, 0, true)
	panics("a batch that is not sent", s.tx.putBatch)
	s.tx.dropBatch()
}

// sinkStory begins a Read of 300 bytes whose sink is an object that waits for gate.
func sinkStory(t *testing.T,
	story func(s *side, r *raw, m *memory.Region, o *written, response func(from, end int) []byte)) {
	t.Helper()
	const size = 300
	storyOn(t, together, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		o := &written{b: make([]byte, size), gate: make(chan struct{})}
		m := testkit.Must(s.pd.RegObject(o, size, provider.AccessLocalWrite))(t).(*memory.Region)
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
			SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.STag()}}})
		q := r.wantReadRequest("the Read", 1)
		story(s, r, m, o, func(from, end int) []byte {
			h := rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO+uint64(from), end == size)
			return r.fpdu(h, octets(size)[from:end])
		})
	})
}

// TestReadCompletesAfterStore: a Read completes when all of it is in the object, and so does what
// comes after it.
func TestReadCompletesAfterStore(t *testing.T) {
	sinkStory(t, func(s *side, r *raw, m *memory.Region, o *written, response func(from, end int) []byte) {
		mem := s.reg(10, provider.AccessLocalWrite)
		s.recv(provider.RecvWR{WRID: 2, SGList: []provider.SGE{mem.sge(0, 10)}})
		send := r.fpdu(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true), octets(10))
		r.write(slices.Concat(response(0, 100), response(100, 200), response(200, 300), send))
		synctest.Wait()
		s.noWC("an object that has not stored")
		o.gate <- struct{}{}
		s.wantWC("the Read", provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: 300})
		s.wantWC("the receive", provider.WC{WRID: 2, Opcode: provider.WCRecv, ByteLen: 10})
		if want := []string{"300 at 0"}; !slices.Equal(o.calls, want) || !bytes.Equal(o.b, octets(300)) {
			t.Errorf("written were %v, want %v, or other bytes", o.calls, want)
		}
		closes(t, "the object", m)
	})
}

// TestSinkClosedBetweenStores: the sink of a Read is deregistered while the first segments of the
// response are stored. Close waits for that store, and the next segment fails the Read.
func TestSinkClosedBetweenStores(t *testing.T) {
	sinkStory(t, func(s *side, r *raw, m *memory.Region, o *written, response func(from, end int) []byte) {
		r.write(slices.Concat(response(0, 100), response(100, 200)))
		synctest.Wait()
		closed := make(chan error, 1)
		go func() { closed <- m.Close() }()
		synctest.Wait()
		if len(closed) > 0 {
			t.Fatal("Close has returned before the store is done")
		}
		r.write(response(200, 300))
		o.gate <- struct{}{}
		testkit.OK(t, <-closed)
		s.wantWC("the Read", provider.WC{WRID: 1, Status: provider.WCLocProtErr})
		testkit.Equal(t, "what was written", fmt.Sprint(o.calls), "[200 at 0]")
		s.wantDown("a Read whose sink is gone")
	})
}
