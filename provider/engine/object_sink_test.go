package engine

import (
	"bytes"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

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
