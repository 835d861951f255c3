//go:build schedules

package engine

import (
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// A goroutine that posts while another one transmits leaves a note, and the holder of the lock does
// the work.

func signalled(op provider.WROpcode, wrid uint64) provider.SendWR {
	return provider.SendWR{WRID: wrid, Opcode: op, Flags: provider.SendSignaled}
}

func init() {
	protocols = append(protocols,
		protocol{name: "post, post and poll", preemptions: 2, begin: func(w *stage) ([]func(), func() error) {
			a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
			b.recv(provider.RecvWR{}, provider.RecvWR{})
			return []func(){
					func() { a.send(signalled(provider.WRSend, 1)) },
					func() { a.send(signalled(provider.WRSend, 1)) },
					func() { a.cq.dev.progress(a.cq) },
				}, func() error {
					if err := a.wantSuccesses(1, 1); err != nil {
						return err
					}
					return b.wantSuccesses(0, 0)
				}
		}},
		protocol{name: "post while counts are read", preemptions: 2, begin: func(w *stage) ([]func(), func() error) {
			a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
			b.recv(provider.RecvWR{})
			return []func(){
				func() { a.send(signalled(provider.WRSend, 1)) },
				func() { testkit.Must(a.qp.Stats())(w.t) },
			}, func() error { return a.wantSuccesses(1) }
		}},
		protocol{name: "post while a connection begins", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				w.network = memnet.New(&memnet.Options{Window: 50})
				opts := Options{Network: stillNetwork{w.network}}
				a, b := newSide(w.t, opts, sideOptions{}), newSide(w.t, opts, sideOptions{})
				w.devs = append(w.devs, a.dev, b.dev)
				ca, cb := connectTransport(w.t, w.network, memAddr)
				p := params(true)
				p.WaitFirstFPDU = true
				b.start(cb, p)
				b.recv(provider.RecvWR{}, provider.RecvWR{}, provider.RecvWR{})
				wrs := slices.Repeat([]provider.SendWR{signalled(provider.WRSend, 1)}, 3)
				var sent []uint64
				return []func(){
						func() { a.start(ca, params(true)) },
						func() {
							n, _ := a.qp.PostSend(wrs) // none if it is not connected yet
							sent = slices.Repeat([]uint64{1}, n)
						},
					}, func() error {
						if err := a.qp.Cause(); err != nil {
							return fmt.Errorf("the connection has ended: %w", err)
						}
						if err := a.wantSuccesses(sent...); err != nil {
							return err
						}
						return b.wantSuccesses(make([]uint64, len(sent))...)
					}
			}},
		protocol{
			name: "a socket that fills and has room", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{Window: 100}, Options{}, sideOptions{}, params(true))
				src, dst := a.reg(300, 0), b.reg(300, provider.AccessLocalWrite)
				pattern(src.b, 1)
				b.recv(
					provider.RecvWR{SGList: []provider.SGE{dst.sge(0, 150)}},
					provider.RecvWR{SGList: []provider.SGE{dst.sge(150, 150)}},
				)
				wr := signalled(provider.WRSend, 1)
				wr.SGList = []provider.SGE{src.sge(0, 150)}
				second := wr
				second.SGList = []provider.SGE{src.sge(0, 150)}
				return []func(){
						func() { a.send(wr) },
						func() { b.dev.poller.Poll(); a.dev.poller.Poll() },
						func() { a.send(second) },
					}, func() error {
						if err := a.wantSuccesses(1, 1); err != nil {
							return err
						}
						if err := b.wantSuccesses(0, 0); err != nil {
							return err
						}
						if !slices.Equal(dst.b[:150], src.b[:150]) ||
							!slices.Equal(dst.b[150:], src.b[:150]) {
							return errOctets
						}
						return nil
					}
			},
		},
	)
}

// Polls read a stream and take what has completed, beside others that do so, arm the CQ, or read
// the same stream.

// pollInto polls the side's CQ a few times, with room for so many completions, and appends their
// WRIDs.
func (s *side) pollInto(times, room int, wrids *[]uint64) {
	s.t.Helper()
	for range times {
		wc := make([]provider.WC, room)
		for _, c := range wc[:testkit.Must(s.cq.Poll(wc))(s.t)] {
			*wrids = append(*wrids, c.WRID)
		}
	}
}

func init() {
	send := func(a *side) { a.send(provider.SendWR{Opcode: provider.WRSend}) }
	protocols = append(protocols,
		protocol{name: "polls of two goroutines, and arrivals", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				b.recv(provider.RecvWR{WRID: 1}, provider.RecvWR{WRID: 2}, provider.RecvWR{WRID: 3})
				send(a)
				send(a)
				var one, other []uint64
				return []func(){
						func() { b.pollInto(2, 1, &one) },
						func() { b.pollInto(2, 2, &other) },
						func() { b.dev.poller.Poll(); send(a) },
					}, func() error {
						var rest []uint64
						for _, c := range b.completions() {
							rest = append(rest, c.WRID)
						}
						all := slices.Concat(one, other)
						slices.Sort(all)
						all = append(all, rest...)
						if !slices.Equal(all, []uint64{1, 2, 3}) || !slices.IsSorted(one) || !slices.IsSorted(other) {
							return fmt.Errorf("the polls had %d and %d, and the CQ has %d; "+
								"want 1 to 3, each once and in order", one, other, rest)
						}
						return nil
					}
			}},
		protocol{name: "a poll, a request for an event, and an arrival", preemptions: 3,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{events: true}, params(false))
				b.recv(provider.RecvWR{WRID: 1})
				var armed, before bool
				var mine, others []uint64
				return []func(){
						func() {
							testkit.OK(w.t, b.cq.ReqNotify(false))
							armed = true
							b.pollInto(1, 1, &mine)
						},
						func() { b.pollInto(2, 1, &others) },
						func() { before = armed; send(a) },
					}, func() error {
						fired, _ := b.ch.pop()
						left := len(b.completions())
						switch {
						case len(mine)+len(others)+left != 1:
							return fmt.Errorf("%d, %d and %d completions, want 1 in all", len(mine), len(others), left)
						case (before || left > 0) && fired != b.cq:
							return fmt.Errorf("no event; armed before the arrival: %t, in the CQ: %d", before, left)
						}
						return nil
					}
			}},
	)
}

// The graceful end of a connection, which several goroutines may ask for.

// toSQD begins a graceful end as ibv_modify_qp to SQD does.
func (s *side) toSQD(notify bool) error {
	return s.qp.Modify(provider.QPAttr{State: provider.QPSQD, EnSQDAsyncNotify: notify},
		provider.QPAttrState|provider.QPAttrEnSQDNotify)
}

// drained takes the device's events, and returns how many EventSQDrained are among them.
func (s *side) drained() (n int) {
	for {
		e, _, ok, _ := s.dev.async.pop()
		if !ok {
			return n
		}
		if e.Type == provider.EventSQDrained {
			n++
		}
	}
}

// wantClosed returns an error unless the streams have closed their sockets, and their QPs are in
// ERR.
func wantClosed(all ...*stream) error {
	for _, s := range all {
		if at, state := s.at(), s.q.getState(); at != phaseClosed || state != provider.QPErr {
			return fmt.Errorf("%s is in %s with a stream in phase %q, want ERR and %q", s.q.name(), state,
				at, phaseClosed)
		}
	}
	return nil
}

func init() {
	protocols = append(protocols,
		protocol{
			name: "to SQD, and to SQD with notification", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				as, bs := a.qp.stream.Load(), b.qp.stream.Load()
				var refused error
				return []func(){
						a.qp.disconnect,
						func() { refused = a.toSQD(true) },
						func() { _, _ = a.qp.PostSend([]provider.SendWR{signalled(provider.WRRDMAWrite, 1)}) },
					}, func() error {
						// The peer's FIN comes after all actors. A Write that was posted as the
						// FIN went out is flushed then, and a flush raises the event, too.
						want := 1
						for _, wc := range a.completions() {
							if wc.Status != provider.WCSuccess {
								want++
							}
						}
						if n := a.drained(); n != want || refused != nil {
							return fmt.Errorf("%d times EventSQDrained, error %v, want %d and none", n,
								refused, want)
						}
						return wantClosed(as, bs)
					}
			},
		},
		protocol{
			name: "to SQD with notification while the connection ends", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				as, bs := a.qp.stream.Load(), b.qp.stream.Load()
				var refused error
				return []func(){
						a.toError,
						func() { refused = a.toSQD(true) },
						func() { b.dev.poller.Poll(); a.dev.poller.Poll() },
					}, func() error {
						if n := a.drained(); n > 1 || n > 0 && refused != nil {
							return fmt.Errorf("%d times EventSQDrained, error %v", n, refused)
						}
						return wantClosed(as, bs)
					}
			},
		},
	)
}

// Posts that wait for others are transmitted by whichever goroutine posts the last of them, finds
// the CQ empty, or arms it. None of them may leave that to another one that does not see it.

// burst makes a post n Sends that complete, so that as many more are expected.
func (w *stage) burst(a, b *side, n int) {
	w.t.Helper()
	b.recv(make([]provider.RecvWR, 16)...)
	for range n {
		a.send(signalled(provider.WRSend, 1))
	}
	w.serve()
	if err := a.wantSuccesses(slices.Repeat([]uint64{1}, n)...); err != nil {
		w.t.Fatal(err)
	}
	if err := b.wantSuccesses(make([]uint64, n)...); err != nil {
		w.t.Fatal(err)
	}
	a.cq.took() // as if it had not found the CQ empty after that
}

// wantRung returns an error unless the n messages that a has posted since its burst have come to b,
// or the timer knows that a's QP waits.
func wantRung(a, b *side, n int) error {
	list, d := &a.cq.deferred, a.qp.sq.deferral.Load()
	first := list.first == &d.place
	if d.Waits() && !first || !d.Waits() && first || first != list.some.Load() {
		return fmt.Errorf("posts wait: %t; the QP is the CQ's first: %t, of any: %t",
			d.Waits(), first, list.some.Load())
	}
	a.qp.transmitDeferred()
	b.dev.poller.Poll()
	return b.wantSuccesses(make([]uint64, n)...)
}

func init() {
	send := func(a *side) { a.send(signalled(provider.WRSend, 1)) }
	protocols = append(protocols,
		protocol{name: "a post that waits, and a request for an event", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{events: true}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a) },
					func() { w.t.Helper(); _ = a.cq.ReqNotify(false) },
				}, func() error { return b.wantSuccesses(0) }
			}},
		protocol{name: "posts that wait, and an empty CQ", preemptions: 3,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a); send(a) },
					func() { a.dev.progress(a.cq) },
				}, func() error { return wantRung(a, b, 2) }
			}},
		protocol{name: "a post that waits, and a request for an event of its receives", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{events: true, separateCQs: true}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a) },
					func() { w.t.Helper(); _ = a.recvCQ.ReqNotify(false) },
				}, func() error { return b.wantSuccesses(0) }
			}},
		protocol{name: "posts that wait, the last of them, and an empty CQ", preemptions: 3,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a); send(a); send(a) },
					func() { send(a) },
					func() { a.dev.progress(a.cq) },
				}, func() error { return wantRung(a, b, 4) }
			}},
		protocol{name: "posts of two bursts at the same time", preemptions: 3,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				w.burst(a, b, 3)
				return []func(){
					func() { send(a); send(a) },
					func() { send(a); a.completions(); send(a) },
					func() { send(a); a.completions(); send(a) },
				}, func() error { return wantRung(a, b, 6) }
			}},
		protocol{name: "posts that wait, and the end of the queue pair", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				w.burst(a, b, 3)
				return []func(){
						func() { _, _ = a.qp.PostSend([]provider.SendWR{signalled(provider.WRSend, 1)}) },
						func() { _ = a.qp.Close() },
						func() { _ = a.cq.transmitLate(forever, sinceEpoch()) },
					}, func() error {
						a.cq.transmitDeferred()
						if a.cq.deferred.some.Load() || a.qp.sq.deferral.Load().place.listed {
							return fmt.Errorf("a queue pair that is closed still waits")
						}
						for i, wc := range a.completions() {
							if i > 0 || wc.WRID != 1 {
								return fmt.Errorf("completion %d is %+v", i+1, wc)
							}
						}
						return nil
					}
			}},
	)
}
