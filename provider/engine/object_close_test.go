package engine

import (
	"bytes"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// sleeper is an object in memory that sleeps in each call.
type sleeper struct {
	store
	takes time.Duration
}

func (o *sleeper) ReadAt(b []byte, off int64) (int, error) {
	time.Sleep(o.takes)
	return o.store.ReadAt(b, off)
}

func (o *sleeper) WriteAt(b []byte, off int64) (int, error) {
	time.Sleep(o.takes)
	return o.store.WriteAt(b, off)
}

// sleeping registers an object of n bytes whose calls take ten CloseTimeouts.
func (s *side) sleeping(n int) (*sleeper, *memory.Region) {
	o := &sleeper{store{b: make([]byte, n)}, 10 * s.dev.opts.CloseTimeout}
	pattern(o.b, 1)
	return o, s.object(o, n, everything)
}

// wantInOrder waits for the end of a connection that we have ended, and the peer after
// us.
func (s *side) wantInOrder(what string) {
	s.t.Helper()
	testkit.WantErr(s.t, what, s.wantDown(what), os.ErrClosed)
}

// TestCloseWaitsForObjects: a graceful end takes the time that objects of ours take, on
// either side of the stream, however short CloseTimeout is.
func TestCloseWaitsForObjects(t *testing.T) {
	const size = 3000
	t.Run("what is posted", func(t *testing.T) {
		story(t, Options{}, params(true), func(s *side, r *raw) {
			o, m := s.sleeping(size)
			s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled,
				SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.STag()}}})
			s.qp.disconnect()
			time.Sleep(o.takes)
			r.wantMessage("the Send", o.b)
			r.wantFIN("FIN after it")
			testkit.OK(t, r.c.CloseWrite())
			s.wantInOrder("a Send from an object")
			s.wantWC("the Send", provider.WC{WRID: 1, Opcode: provider.WCSend})
		})
	})
	t.Run("what the peer has asked for", func(t *testing.T) {
		story(t, Options{}, params(true), func(s *side, r *raw) {
			o, m := s.sleeping(size)
			r.readReq(rdmap.ReadRequest{Size: size, SourceSTag: m.STag(), SourceTO: m.Addr(), SinkSTag: 5})
			synctest.Wait()
			s.qp.disconnect()
			time.Sleep(o.takes)
			r.wantMessage("the response", o.b)
			r.wantFIN("FIN after it")
			testkit.OK(t, r.c.CloseWrite())
			s.wantInOrder("a response from an object")
		})
	})
	t.Run("what has come", func(t *testing.T) {
		story(t, Options{}, params(true), func(s *side, r *raw) {
			o, m := s.sleeping(size)
			payload := bytes.Repeat([]byte{7}, 1000)
			for i := range 3 {
				r.send(rdmap.WriteHeader(m.STag(), m.Addr()+uint64(1000*i), true), payload)
			}
			synctest.Wait()
			s.qp.disconnect()
			r.wantFIN("nothing is left to send")
			testkit.OK(t, r.c.CloseWrite())
			time.Sleep(3 * o.takes)
			s.wantInOrder("Writes to an object")
			testkit.EqualBytes(t, "what has reached the object", o.b, bytes.Repeat([]byte{7}, size))
		})
	})
}

// TestCloseTimeoutBehindObjects: a peer that never closes its side has CloseTimeout for
// it beside the time that objects take, and not once more for each.
func TestCloseTimeoutBehindObjects(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		o, m := s.sleeping(1000)
		write := func() { r.send(rdmap.WriteHeader(m.STag(), m.Addr(), true), make([]byte, 1000)) }
		write()
		synctest.Wait()
		half := s.dev.opts.CloseTimeout / 2
		time.Sleep(half) // of what the object takes, before the end begins
		begin := time.Now()
		s.qp.disconnect()
		time.Sleep(o.takes) // up to half of CloseTimeout after the first store
		write()
		synctest.Wait()
		testkit.WantErr(t, "the end", s.wantDown("no FIN of the peer"), os.ErrDeadlineExceeded)
		testkit.Equal(t, "the time to the end", time.Since(begin), 2*o.takes-half+2*half)
	})
}

// TestCloseTimeoutAfterObject: a peer that has taken nothing while an object was read has
// CloseTimeout for it after that.
func TestCloseTimeoutAfterObject(t *testing.T) {
	const first, size = 1000, 3000
	h := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	window := mpa.FPDULen(h.Len() + first)
	network := memnet.Options{Window: window}
	storyOn(t, network, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		o, m := s.sleeping(size)
		mem := s.reg(first, 0)
		s.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{mem.sge(0, first)}},
			provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled,
				SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.STag()}}})
		half := s.dev.opts.CloseTimeout / 2
		time.Sleep(half)
		s.qp.disconnect() // checks come between the ends of calls
		time.Sleep(o.takes + s.dev.opts.CloseTimeout - half - time.Millisecond)
		r.wantMessage("what filled the window", mem.b)
		r.wantMessage("the Send", o.b)
		r.wantFIN("FIN after it")
		testkit.OK(t, r.c.CloseWrite())
		s.wantInOrder("a Send from an object")
		s.wantWC("the Send", provider.WC{WRID: 1, Opcode: provider.WCSend})
	})
}

// TestCloseTimeoutBesideFIN: CloseTimeout ends when our FIN has gone out, and the time for the
// peer's does not begin before the next moment. The connection goes on.
func TestCloseTimeoutBesideFIN(t *testing.T) {
	network := memnet.Options{Window: 1000}
	storyOn(t, network, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
		mem := s.reg(2000, 0)
		s.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{mem.sge(0, 2000)}})
		begin, limit := time.Now(), s.dev.opts.CloseTimeout
		s.qp.disconnect()
		time.Sleep(limit / 2)
		st := s.qp.stream.Load()
		st.tx.mu.Lock()
		st.enter(phaseFINSent) // as sendFIN does, and nothing of what it does then
		st.tx.mu.Unlock()
		testkit.WantErr(t, "the end", s.wantDown("no FIN of the peer"), os.ErrDeadlineExceeded)
		testkit.Equal(t, "the time to the end", time.Since(begin), 2*limit)
	})
}

// wantMessage waits for the segments of a message, with these bytes in all.
func (r *raw) wantMessage(what string, want []byte) {
	r.t.Helper()
	var got []byte
	for {
		h, payload := r.next(what)
		if got = append(got, payload...); h.Last {
			break
		}
	}
	testkit.EqualBytes(r.t, what, got, want)
}
