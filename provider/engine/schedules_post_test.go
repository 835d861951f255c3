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
