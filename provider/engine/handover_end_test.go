package engine

import (
	"runtime"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// leaving is a Conn that ends the goroutine which calls it, and then is none any more.
type leaving struct {
	transport.Conn
	s *stream
}

func (c *leaving) Writev([][]byte) (int, error) {
	c.s.conn = c.Conn
	runtime.Goexit()
	return 0, nil
}

// replaces gives the side's stream another Conn, which may have to know the one before.
func (s *side) replaces(with func(st *stream) transport.Conn) {
	st := s.qp.stream.Load()
	st.rxMu.Lock()
	st.txMu.Lock()
	defer st.rxMu.Unlock()
	defer st.txMu.Unlock()
	st.conn = with(st)
}

// pollInVain polls c in a goroutine that does not return from that, and checks that it does not.
func (p *postman) pollInVain(c *cq, wc []provider.WC) {
	p.t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = recover() }()
		_, err := c.Poll(wc)
		p.t.Errorf("the poll has returned, error %v", err)
	}()
	<-done
}

// TestHandoverEndsWithPanic: after a poll that a panic has ended, completions do not go to its
// program's memory any more.
func TestHandoverEndsWithPanic(t *testing.T) {
	p := newPostman(t, sideOptions{})
	p.to.replaces(func(st *stream) transport.Conn { return &panicking{p.in, st} })
	p.bring(1)
	wc := []provider.WC{{WRID: 99}}
	p.pollInVain(p.to.cq, wc)
	p.to.qp.stream.Load().pollRx(turnMost)
	if wc[0].WRID != 99 || p.to.cq.seen.waiting() != 1 {
		t.Errorf("%d completions in the ring, and %+v where the poll was to put them", p.to.cq.seen.waiting(), wc[0])
	}
}

// TestHandoverIsPutBack: what a poll was handed that does not return is there for the next, before
// what has come since, and the channel fires if the CQ was armed meanwhile.
func TestHandoverIsPutBack(t *testing.T) {
	p := newPostman(t, sideOptions{events: true})
	c := p.to.cq
	// The responder may not send before the first FPDU of its peer: the poll that reads it writes.
	p.to.send(provider.SendWR{Opcode: provider.WRSend})
	p.to.replaces(func(st *stream) transport.Conn { return &leaving{p.in, st} })
	p.bring(3)
	p.pollInVain(c, make([]provider.WC, 2))
	if n := c.seen.waiting(); n != 3 {
		t.Errorf("%d completions in the ring, want 3", n)
	}
	p.wantPolled(c, 8, 0, 2, 0)
	st := testkit.Must(c.Stats())(t)
	if st.Completions != 3 || st.MostWaiting != 3 {
		t.Errorf("counted %+v, want 3 completions, which have waited", st)
	}
	testkit.OK(t, c.ReqNotify(true))
	c.putBack([]provider.WC{{WRID: 7}})
	if fired, _ := p.to.ch.pop(); fired != c || c.seen.waiting() != 1 {
		t.Errorf("%d completions in the ring; the channel has fired for %v", c.seen.waiting(), fired)
	}
}

// TestHandoverOfOtherQPsIsPutBack: a poll that another stream has ended loses none of a QP that is
// well.
func TestHandoverOfOtherQPsIsPutBack(t *testing.T) {
	lost := 0
	for range 20 { // which stream is the first differs
		p := newPostman(t, sideOptions{})
		q := p.beside(nil)
		p.bring(3)
		q.bring(1)
		q.to.replaces(func(st *stream) transport.Conn { return &panicking{q.in, st} })
		p.pollInVain(p.to.cq, make([]provider.WC, 8))
		n := 0
		for range 5 {
			wc := make([]provider.WC, 8)
			n += testkit.Must(p.to.cq.Poll(wc))(t)
		}
		if n != 4 {
			lost += 4 - n
		}
	}
	if lost != 0 {
		t.Errorf("%d completions were lost", lost)
	}
}

// TestPutBackWithoutRoom: as many as there is room for are put back, the youngest, and the others
// count as lost.
func TestPutBackWithoutRoom(t *testing.T) {
	p := newPostman(t, sideOptions{cqe: 4})
	c := p.to.cq
	for id := range uint64(2) {
		c.push(provider.WC{WRID: 10 + id}, false)
	}
	c.putBack([]provider.WC{{WRID: 1}, {WRID: 2}, {WRID: 3}})
	wc := make([]provider.WC, 8)
	n := testkit.Must(c.Poll(wc))(t)
	if n != 4 || wc[0].WRID != 2 || wc[1].WRID != 3 || wc[2].WRID != 10 || wc[3].WRID != 11 {
		t.Errorf("polled %+v", wc[:n])
	}
	if st := testkit.Must(c.Stats())(t); st.Lost != 1 || st.Completions != 4 {
		t.Errorf("counted %+v, want 4 completions and one that was lost", st)
	}
}
