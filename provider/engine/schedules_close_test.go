//go:build schedules

package engine

import (
	"fmt"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

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
