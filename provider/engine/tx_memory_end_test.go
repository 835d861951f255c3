package engine

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// TestMemoryWorkAfterEnd: work on our own memory that was posted just before the connection
// ended is not done after its flush, however late the poster calls resume, and whatever state
// the transmit side was in.
func TestMemoryWorkAfterEnd(t *testing.T) {
	const size = 100
	posts := map[string]func(s *side, m *region) (post func() error, performed func() bool){
		"a registration": func(s *side, m *region) (func() error, func() bool) {
			f := testFast(s.t, s.pd, size)
			testkit.OK(t, f.Map(make([]byte, size)))
			return func() error { return s.enqueue(regWR(1, f, allRights)) }, func() bool {
				_, registered := f.Registered()
				return registered
			}
		},
		"a bind": func(s *side, m *region) (func() error, func() bool) {
			w := testMW(s.t, s.pd, provider.MWType2)
			return func() error { return s.enqueue(bindWR(1, w, m.m, 0, size, provider.AccessRemoteWrite)) }, isBound(w)
		},
		"a bind of type 1": func(s *side, m *region) (func() error, func() bool) {
			w := testMW(s.t, s.pd, provider.MWType1)
			return func() error {
				_, err := s.qp.enqueueBind(w, 1, signaled, &provider.MWBindInfo{
					LKey: m.m.STag(), Addr: m.to(0), Length: size, Access: provider.AccessRemoteWrite,
				})
				return err
			}, isBound(w)
		},
	}
	states := map[string]func(s *side) mpa.Params{
		"may not send": func(*side) mpa.Params { return responder(true) },
		"sends":        func(*side) mpa.Params { return params(true) },
		"is blocked":   func(*side) mpa.Params { return params(true) },
	}
	ends := map[string]func(s *side){
		"Close":  func(s *side) { testkit.OK(t, s.qp.Close()) },
		"ERR":    func(s *side) { testkit.OK(t, s.modify(provider.QPErr)) },
		"a Read": func(s *side) { s.qp.stream.Load().resume() }, // posted below; it fails
	}
	for what, prepare := range posts {
		for state, p := range states {
			for how, end := range ends {
				if how == "a Read" && state != "sends" {
					continue // the Read is not looked at in other states
				}
				t.Run(what+", the stream "+state+", ended by "+how, func(t *testing.T) {
					story(t, Options{}, p(nil), func(s *side, r *raw) {
						m := s.reg(size, bindable)
						post, performed := prepare(s, m)
						if how == "a Read" {
							bad := []provider.SGE{{Length: 1, LKey: 1}}
							testkit.OK(t, s.enqueue(provider.SendWR{WRID: 2, Opcode: provider.WRRDMARead,
								SGList: bad}))
						}
						testkit.OK(t, post())
						st := s.qp.stream.Load()
						if state == "is blocked" {
							st.tx.blocked.Store(true)
						}
						end(s) // before the poster calls resume
						if how == "a Read" {
							s.wantWC("the Read", provider.WC{WRID: 2, Status: provider.WCLocProtErr})
						}
						s.wantWC("the work", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
						st.resume()
						st.tx.room.Store(true)
						st.resume()
						if performed() {
							t.Error("the work was done after its flush")
						}
						s.noWC("after its flush")
						if how != "Close" { // nor is it done after RESET
							testkit.OK(t, s.modify(provider.QPReset))
							st.resume()
							s.noWC("after RESET")
						}
					})
				})
			}
		}
	}
}

// TestLateResumeAndNextConnection: a poster that calls resume of a stream that is over does not
// touch the queue's work for the next stream.
func TestLateResumeAndNextConnection(t *testing.T) {
	story(t, Options{}, responder(true), func(s *side, r *raw) {
		f := testFast(s.t, s.pd, 10)
		testkit.OK(t, f.Map(make([]byte, 10)))
		old := s.qp.stream.Load()
		for _, state := range []provider.QPState{provider.QPErr, provider.QPReset} {
			testkit.OK(t, s.modify(state))
		}
		mine, theirs := connectTransport(s.t, s.dev.opts.Network, memAddr)
		defer theirs.Close()
		s.start(mine, params(true))
		testkit.OK(t, s.enqueue(regWR(1, f, allRights)))
		old.resume()
		s.noWC("the stream before does not perform it")
		s.qp.stream.Load().resume()
		s.wantWC("the current stream performs it", provider.WC{WRID: 1, Opcode: provider.WCRegMR})
		s.send(invWR(2, f.RKey()))
		s.wantWC("the invalidation", provider.WC{WRID: 2, Opcode: provider.WCLocalInv})
	})
}

// enqueue does the first part of posting: the work request is in the queue, but resume was not
// called.
func (s *side) enqueue(wr provider.SendWR) error {
	_, _, err := s.qp.enqueueSends([]provider.SendWR{wr})
	return err
}

// isBound returns a function that reports whether w is bound.
func isBound(w *memory.Window) func() bool {
	return func() bool { _, bound := w.Bound(); return bound }
}
