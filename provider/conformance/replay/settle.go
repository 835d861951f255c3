package replay

import (
	"context"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
)

// settle waits until the program has everything, and compares it with what the capture's program
// had.
func (s *session) settle() {
	if err := s.join(); err != nil {
		s.stopped("%v", err)
		return
	}
	if !s.refused && !s.objected { // otherwise what was under way has failed
		s.sendsCompleted()
	}
	s.receivesCompleted()
	s.over()
	for _, r := range s.regions {
		s.compare(fmt.Sprintf("the memory of STag %#08x", r.stag), r.last, r.first)
	}
}

// sendsCompleted checks that all work of the program has been done.
func (s *session) sendsCompleted() {
	for i := range s.program.polled {
		s.succeeded(&s.program.polled[i], "work request")
	}
	left := s.program.posted - len(s.program.polled)
	s.completions(s.program.conn.SendCQ(), left, "work request", func(wc *ibverbs.WC) {})
}

// receivesCompleted checks that each message of the peer has come, in order and octet for octet.
func (s *session) receivesCompleted() {
	next := 0
	s.completions(s.program.conn.RecvCQ(), len(s.receives), "receive", func(wc *ibverbs.WC) {
		want := s.receives[next].octets
		if wc.WRID != uint64(next) || int(wc.ByteLen) != len(want) {
			s.problem("receive %d: WR %d completed with %d octets, the capture's message has %d",
				next+1, wc.WRID, wc.ByteLen, len(want))
		} else {
			s.compare(fmt.Sprintf("the message of receive %d", next+1), want,
				s.program.in[next].Bytes()[:len(want)])
		}
		next++
	})
}

func (s *session) problem(format string, args ...any) {
	s.result.Problems = append(s.result.Problems, fmt.Sprintf(format, args...))
}

// completions waits for n completions of a queue, and calls look for each good one.
func (s *session) completions(cq *ibverbs.CQ, n int, what string, look func(*ibverbs.WC)) {
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Wait)
	defer cancel()
	wcs := make([]ibverbs.WC, 16)
	for done := 0; done < n; {
		k, err := cq.PollWait(ctx, wcs[:min(len(wcs), n-done)])
		for i := range wcs[:k] {
			if s.succeeded(&wcs[i], what) {
				look(&wcs[i])
			}
		}
		done += k
		if err != nil {
			s.problem("%d of %d %ss completed: %v", done, n, what, err)
			return
		}
	}
}

func (s *session) succeeded(wc *ibverbs.WC, what string) bool {
	if wc.Status != ibverbs.WCSuccess {
		s.problem("%s %d completed with %s", what, wc.WRID+1, wc.Status)
	}
	return wc.Status == ibverbs.WCSuccess
}

// over ends the connection, so that nothing is placed any more.
func (s *session) over() {
	_ = s.peer.CloseWrite()
	ctx, cancel := context.WithTimeout(s.ctx, s.cfg.Wait)
	defer cancel()
	if err := s.program.conn.Wait(ctx); err != nil {
		s.problem("the program does not learn that the connection has ended within %v: %v",
			s.cfg.Wait.Round(time.Millisecond), err)
	}
}

// compare notes the first octet that is not as in the capture.
func (s *session) compare(what string, want, got []byte) {
	s.result.Compared += len(want)
	for i := range want {
		if got[i] != want[i] {
			s.problem("%s: octet %d is %#02x, and %#02x in the capture", what, i, got[i], want[i])
			return
		}
	}
}
