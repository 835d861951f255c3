package engine

import (
	"bytes"
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
				if over := s.qp.stream.Load() == nil; over != c.ends {
					t.Fatalf("the stream is over: %v", over)
				}
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
		if otherQP.stream.Load() != nil {
			t.Error("the peer has named a region of another protection domain, and is still " +
				"connected")
		}
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
		if !c.idle() {
			t.Error("something is left in the context")
		}
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
		if n == 0 || n > kept {
			t.Errorf("%d %s are kept, want 1 to %d", n, what, kept)
		}
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
