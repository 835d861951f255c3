//go:build schedules

package engine

import (
	"bytes"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// What happens at the end of a connection, and after it.

var errOctets = errors.New("the bytes that arrived are not those that were sent")

// stepObject is an object whose calls take steps, so that anything may happen before they return.
type stepObject struct {
	b    []byte
	then func() // if not nil, called in the middle of a WriteAt
}

func (o *stepObject) ReadAt(b []byte, off int64) (int, error) {
	sched.Step()
	return copy(b, o.b[off:]), nil
}

func (o *stepObject) WriteAt(b []byte, off int64) (int, error) {
	sched.Step()
	if o.then != nil {
		o.then()
	}
	n := copy(o.b[off:], b)
	sched.Step()
	return n, nil
}

// toError ends the side's connection as ibv_modify_qp to ERR does.
func (s *side) toError() {
	testkit.OK(s.t, s.qp.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
}

// flushed reports whether the completion of wrid is one in error. It returns an error if there
// is no completion of wrid.
func flushed(all []provider.WC, wrid uint64) (bool, error) {
	for _, wc := range all {
		if wc.WRID == wrid {
			return wc.Status != provider.WCSuccess, nil
		}
	}
	return false, fmt.Errorf("no completion of work request %d in %+v", wrid, all)
}

// registerAndClose are the actors of a registration by work request beside QP.Close. If the work
// request is flushed, the region must not be registered.
func (s *side) registerAndClose() (actors []func(), check func() error) {
	f := testkit.Must(s.pd.AllocFastRegMR(64))(s.t).(*memory.FastRegion)
	s.t.Cleanup(func() { testkit.OK(s.t, f.Close()) })
	testkit.OK(s.t, f.Map(make([]byte, 64)))
	wr := signalled(provider.WRRegMR, 1)
	wr.RKey, wr.Access = incRKey(f.STag()), provider.AccessLocalWrite|provider.AccessRemoteWrite
	var refused error
	return []func(){
			func() { _, refused = s.qp.PostSend([]provider.SendWR{wr}) },
			func() { testkit.OK(s.t, s.qp.Close()) },
		}, func() error {
			if refused != nil {
				return nil // it was closed before
			}
			gone, err := flushed(s.completions(), 1)
			if _, registered := f.Registered(); err == nil && gone && registered {
				err = errors.New("a registration that was flushed was performed: the region is " +
					"open to peers")
			}
			return err
		}
}

func init() {
	protocols = append(protocols,
		protocol{name: "post while the connection ends", preemptions: 2, begin: func(w *stage) ([]func(), func() error) {
			a, _ := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
			return []func(){
					func() { a.send(signalled(provider.WRRDMAWrite, 1), signalled(provider.WRRDMAWrite, 2)) },
					a.toError,
					func() { _, _ = a.qp.PostRecv([]provider.RecvWR{{WRID: 3}}) },
				}, func() error {
					got := a.completions()
					seen := map[uint64]int{}
					failed := false
					for _, wc := range got {
						seen[wc.WRID]++
						if wc.WRID != 3 {
							if failed && wc.Status == provider.WCSuccess {
								return fmt.Errorf("a success after a failure: %+v", got)
							}
							failed = failed || wc.Status != provider.WCSuccess
						}
					}
					if len(got) != 3 || seen[1] != 1 || seen[2] != 1 || seen[3] != 1 {
						return fmt.Errorf("completions %+v, want one of each of 1, 2 and 3", got)
					}
					return nil
				}
		}},
		protocol{
			name: "registration while the connection ends", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, _ := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				return a.registerAndClose()
			},
		},
		protocol{
			name: "registration on a responder that may not send, and its end", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				_, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				return b.registerAndClose()
			},
		},
		protocol{
			name: "registration with a full socket, and the connection's end", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, _ := w.pair(memnet.Options{Window: 50}, Options{}, sideOptions{}, params(false))
				for range 3 {
					a.send(provider.SendWR{Opcode: provider.WRSend})
				}
				return a.registerAndClose()
			},
		},
		protocol{
			name: "a responder posts while the first FPDU arrives", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				return []func(){
						func() { a.send(signalled(provider.WRRDMAWrite, 1)) },
						func() { b.dev.poller.Poll() },
						func() { b.send(signalled(provider.WRRDMAWrite, 2)) },
					}, func() error {
						if err := a.wantSuccesses(1); err != nil {
							return err
						}
						return b.wantSuccesses(2)
					}
			},
		},
		protocol{
			name: "graceful end with a Read outstanding", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				src := b.reg(64, provider.AccessRemoteRead)
				dst := a.reg(64, provider.AccessLocalWrite)
				pattern(src.b, 7)
				wr := signalled(provider.WRRDMARead, 1)
				wr.RKey, wr.RemoteAddr, wr.SGList = src.m.STag(), src.to(0),
					[]provider.SGE{dst.sge(0, 64)}
				a.send(wr)
				return []func(){
						a.qp.disconnect,
						func() {
							_, _ = a.qp.PostSend([]provider.SendWR{
								signalled(provider.WRRDMAWrite, 2),
							})
						},
						func() { b.dev.poller.Poll(); a.dev.poller.Poll() },
					}, func() error {
						got := a.completions()
						if len(got) == 0 || got[0].WRID != 1 ||
							got[0].Status != provider.WCSuccess {
							return fmt.Errorf("completions %+v, want first a success of the Read "+
								"that was outstanding", got)
						}
						if !bytes.Equal(src.b, dst.b) {
							return errOctets
						}
						if a.qp.getState() != provider.QPErr || b.qp.getState() != provider.QPErr {
							return fmt.Errorf("the QPs are in %s and %s, want ERR", a.qp.getState(),
								b.qp.getState())
						}
						return nil
					}
			},
		},
		protocol{
			name: "a receive of object and memory, and QP.Close", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				o := &stepObject{b: make([]byte, 8)}
				om := b.object(o, 8, provider.AccessLocalWrite)
				mem := b.reg(8, provider.AccessLocalWrite)
				object := provider.SGE{Addr: om.Addr(), Length: 8, LKey: om.STag()}
				b.recv(provider.RecvWR{WRID: 9, SGList: []provider.SGE{object, mem.sge(0, 8)}})
				src := a.reg(16, 0)
				pattern(src.b, 3)
				wr := signalled(provider.WRSend, 1)
				wr.SGList = []provider.SGE{src.sge(0, 16)}
				a.send(wr)
				var after []byte
				return []func(){
						func() { b.dev.poller.Poll() },
						func() { testkit.OK(w.t, b.qp.Close()); after = bytes.Clone(mem.b) },
					}, func() error {
						if !bytes.Equal(after, mem.b) {
							return errors.New("memory of a receive is written after QP.Close has " +
								"returned")
						}
						gone, err := flushed(b.completions(), 9)
						if err == nil && !gone && (!bytes.Equal(o.b, src.b[:8]) ||
							!bytes.Equal(mem.b, src.b[8:])) {
							return errOctets
						}
						return err
					}
			},
		},
		protocol{
			name: "an object stores, and nothing is ready meanwhile", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				var others atomic.Int32
				done := make(chan struct{}, 1)
				end := func() {
					if others.Add(1) == 2 {
						done <- struct{}{}
					}
				}
				var spins int
				o := &stepObject{b: make([]byte, 8), then: func() {
					sched.Await(done) // the other actors have ended; nothing may be ready now
					for range 3 {
						spins += b.dev.poller.Poll()
					}
				}}
				om := b.object(o, 8, writable)
				b.recv(provider.RecvWR{WRID: 5})
				src := a.reg(8, 0)
				wr := signalled(provider.WRRDMAWrite, 1)
				wr.SGList, wr.RKey, wr.RemoteAddr = []provider.SGE{src.sge(0, 8)}, om.STag(), om.Addr()
				a.send(wr)
				return []func(){
						func() {
							b.dev.progress(b.cq)
							// readable for as long as the object stores
							a.send(signalled(provider.WRSend, 2))
							end()
						},
						func() { b.dev.poller.Poll(); end() },
					}, func() error {
						if spins > 0 {
							return fmt.Errorf("the poller has the stream ready %d times while its "+
								"object stores", spins)
						}
						w.serve()
						return b.wantSuccesses(5)
					}
			},
		},
		protocol{
			name: "Writes and a Send come while an object stores", preemptions: 2,
			begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
				var early int
				o := &stepObject{b: make([]byte, 24), then: func() { early += len(b.completions()) }}
				om := b.object(o, 24, writable)
				b.recv(provider.RecvWR{WRID: 5})
				src := a.reg(24, 0)
				pattern(src.b, 3)
				write := func(piece int) {
					wr := signalled(provider.WRRDMAWrite, uint64(piece))
					wr.SGList = []provider.SGE{src.sge(8*piece, 8)}
					wr.RKey, wr.RemoteAddr = om.STag(), om.Addr()+uint64(8*piece)
					a.send(wr)
				}
				write(0)
				return []func(){
						func() { b.dev.poller.Poll(); b.dev.poller.Poll() },
						func() { write(1); write(2); a.send(signalled(provider.WRSend, 3)) },
					}, func() error {
						if early > 0 || !bytes.Equal(o.b, src.b) {
							return fmt.Errorf("the object has % x, want % x; %d completions before that",
								o.b, src.b, early)
						}
						return b.wantSuccesses(5)
					}
			},
		},
		protocol{name: "a queue pair is used again", preemptions: 1, begin: func(w *stage) ([]func(), func() error) {
			a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(true))
			a.send(signalled(provider.WRRDMAWrite, 1))
			b.send(signalled(provider.WRSend, 1), signalled(provider.WRSend, 2)) // it may not send yet
			b.reconnect(w, a)
			src, dst := a.reg(8, provider.AccessRemoteRead), b.reg(8, provider.AccessLocalWrite)
			read := signalled(provider.WRRDMARead, 3)
			read.RKey, read.RemoteAddr, read.SGList = src.m.STag(), src.to(0), []provider.SGE{dst.sge(0, 8)}
			bad := signalled(provider.WRSend, 4)
			bad.SGList, bad.Flags = []provider.SGE{{Addr: 1, Length: 8, LKey: 1}}, bad.Flags|provider.SendFence
			return []func(){
					func() { b.send(read, bad) },
					func() { a.dev.poller.Poll(); b.dev.poller.Poll() },
				}, func() error {
					got := b.completions()
					if len(got) != 2 || got[0].WRID != 3 || got[0].Status != provider.WCSuccess ||
						got[1].WRID != 4 || got[1].Status != provider.WCLocProtErr {
						return fmt.Errorf("completions %+v, want a Read that succeeds and a Send that names no memory", got)
					}
					return nil
				}
		}},
	)
}

// reconnect ends the connection of s and peer, and connects them anew with s as the initiator.
func (s *side) reconnect(w *stage, peer *side) {
	s.t.Helper()
	for _, x := range []*side{s, peer} {
		x.toError()
	}
	w.serve()
	for _, x := range []*side{s, peer} {
		x.completions()
		testkit.OK(s.t, x.qp.Modify(provider.QPAttr{State: provider.QPReset}, provider.QPAttrState))
	}
	mine, theirs := connectTransport(s.t, w.network, "192.0.2.2:7472")
	p := params(true)
	s.start(mine, p)
	p.WaitFirstFPDU = true
	peer.start(theirs, p)
	w.serve()
}

func init() {
	protocols = append(protocols, protocol{
		name: "close while the connection ends", preemptions: 2,
		begin: func(w *stage) ([]func(), func() error) {
			a, _ := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(false))
			a.send(signalled(provider.WRRDMARead, 1))
			as := a.qp.stream.Load()
			return []func(){
					func() { as.fail(&ending{cause: errPeerClosed, lost: true}); as.settle() },
					func() { testkit.OK(w.t, a.qp.Close()) },
				}, func() error {
					// Close has returned, so that the program has no use for the QP any more.
					if e, _, ok, _ := a.dev.async.pop(); ok {
						return fmt.Errorf("%v was raised for a QP that is closed", e.Type)
					}
					return nil
				}
		},
	})
}
