//go:build schedules

package engine

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/rundown"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Regions in use, and those who want them back.

// writeWR is a Write of n bytes from src to the region dst.
func writeWR(wrid uint64, src *region, dst *memory.Region, n int) provider.SendWR {
	wr := signalled(provider.WRRDMAWrite, wrid)
	wr.SGList, wr.RKey, wr.RemoteAddr = []provider.SGE{src.sge(0, n)}, dst.STag(), dst.Addr()
	return wr
}

func init() {
	protocols = append(protocols,
		protocol{name: "a gate", preemptions: 3, begin: func(*stage) ([]func(), func() error) {
			var g rundown.Gate
			g.Init()
			uses, during := 0, 0
			use := func() {
				if g.Enter() {
					uses++
					sched.Step()
					uses--
					g.Leave()
				}
			}
			shut := func() {
				g.Shut()
				during += uses
			}
			return []func(){use, shut, func() { use(); use() }, shut}, func() error {
				if during > 0 {
					return errors.New("shut has returned during a use")
				}
				if g.Enter() {
					return errors.New("a use after shut")
				}
				return nil
			}
		}},
		protocol{name: "a Write arrives, and its region is closed", preemptions: 2, begin: func(w *stage) ([]func(), func() error) {
			a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(true))
			src, dst := a.reg(64, 0), b.reg(64, provider.AccessLocalWrite|provider.AccessRemoteWrite)
			pattern(src.b, 5)
			a.send(writeWR(1, src, dst.m, 64), writeWR(2, src, dst.m, 64))
			var after []byte
			return []func(){
					func() { b.dev.poller.Poll() },
					func() { testkit.OK(w.t, dst.m.Close()); after = bytes.Clone(dst.b) },
					func() { b.dev.progress(b.cq) },
				}, func() error {
					if !bytes.Equal(after, dst.b) {
						return errors.New("a region is written after MR.Close has returned")
					}
					return nil
				}
		}},
		closedWhileSent("a message is sent through a narrow window, and its region is closed", true,
			memnet.Options{Window: 1000, MSS: 600}, 4000),
		closedWhileSent("a message without CRC is sent from its region, which is closed", false,
			memnet.Options{Window: 7000, MSS: 6000}, 16000),
		protocol{name: "a Read is answered, and its source is closed", preemptions: 2, begin: func(w *stage) ([]func(), func() error) {
			a, b := w.pair(memnet.Options{Window: 100}, Options{}, sideOptions{}, params(true))
			src, dst := b.reg(200, provider.AccessRemoteRead), a.reg(200, provider.AccessLocalWrite)
			pattern(src.b, 7)
			want := bytes.Clone(src.b)
			wr := signalled(provider.WRRDMARead, 1)
			wr.RKey, wr.RemoteAddr, wr.SGList = src.m.STag(), src.to(0), []provider.SGE{dst.sge(0, 200)}
			a.send(wr)
			return []func(){
					func() { b.dev.poller.Poll(); a.dev.poller.Poll() },
					func() { testkit.OK(w.t, src.m.Close()); clear(src.b) },
				}, func() error {
					got := a.completions()
					switch {
					case len(got) != 1:
						return fmt.Errorf("completions %+v", got)
					case got[0].Status == provider.WCSuccess && !bytes.Equal(dst.b, want):
						return errOctets
					case got[0].Status != provider.WCSuccess && got[0].Status != provider.WCRemAccessErr:
						return fmt.Errorf("completion %+v", got[0])
					}
					return nil
				}
		}},
		protocol{name: "a long Read is answered through a narrow window, and its source is closed",
			preemptions: 1, begin: func(w *stage) ([]func(), func() error) {
				a, b := w.pair(memnet.Options{Window: 1000, MSS: 600}, Options{}, sideOptions{},
					params(true))
				const size = 4000
				src := b.reg(size, provider.AccessRemoteRead)
				dst := a.reg(size, provider.AccessLocalWrite)
				pattern(src.b, 7)
				want := bytes.Clone(src.b)
				wr := signalled(provider.WRRDMARead, 1)
				wr.RKey, wr.RemoteAddr, wr.SGList = src.m.STag(), src.to(0),
					[]provider.SGE{dst.sge(0, size)}
				a.send(wr)
				st := b.qp.stream.Load()
				return []func(){
						func() { b.dev.poller.Poll() },
						func() { testkit.OK(w.t, src.m.Close()); clear(src.b) },
					}, func() error {
						answered := size
						if e := st.ending.Load(); e != nil && e.terminate != nil {
							term := testkit.Must(rdmap.ParseTerminate(e.terminate,
								rdmap.PhaseAfterFirstFPDU))(w.t)
							answered = int(term.Read.SourceTO - src.to(0))
						}
						dst.untouched(0, answered)
						if !bytes.Equal(dst.b[:answered], want[:answered]) {
							return fmt.Errorf("the Terminate counts %d bytes as answered that "+
								"have not all been sent", answered)
						}
						return nil
					}
			}},
		protocol{name: "a completion channel is armed, and something arrives", preemptions: 3, begin: func(w *stage) ([]func(), func() error) {
			a, b := w.pair(memnet.Options{}, Options{}, sideOptions{events: true}, params(true))
			b.recv(provider.RecvWR{WRID: 1})
			seen := 0
			return []func(){
					func() {
						testkit.OK(w.t, b.cq.ReqNotify(false))
						seen = len(b.completions())
					},
					func() { a.send(signalled(provider.WRSend, 1)) },
					func() { b.dev.poller.Poll() },
				}, func() error {
					c, _ := b.ch.pop()
					switch left := len(b.completions()); {
					case seen+left != 1:
						return fmt.Errorf("%d completions, want 1", seen+left)
					case seen == 0 && c != b.cq:
						return errors.New("who has armed the CQ and found nothing in it is not woken")
					}
					return nil
				}
		}},
		protocol{name: "a receive context goes from one stream to another", preemptions: 2, begin: beginContexts},
	)
}

// closedWhileSent is a Write of size bytes, whose region is closed and then changed. FPDUs arrive
// as the region was, or not at all. Without CRC no CRC shows the difference; dst does.
func closedWhileSent(name string, crc bool, net memnet.Options, size int) protocol {
	return protocol{name: name, preemptions: 1, begin: func(w *stage) ([]func(), func() error) {
		a, b := w.pair(net, Options{}, sideOptions{}, params(crc))
		src, dst := a.reg(size, 0), b.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
		pattern(src.b, 5)
		want, before := bytes.Clone(src.b), bytes.Clone(dst.b)
		return []func(){
				func() { a.send(writeWR(1, src, dst.m, size)) },
				func() {
					testkit.OK(w.t, src.m.Close())
					for i := range src.b {
						src.b[i] = ^want[i]
					}
				},
				func() { b.dev.poller.Poll(); a.dev.poller.Poll(); b.dev.poller.Poll() },
			}, func() error {
				got := a.completions()
				if len(got) != 1 {
					return fmt.Errorf("completions %+v", got)
				}
				for i, x := range dst.b {
					if x != want[i] && (got[0].Status == provider.WCSuccess || x != before[i]) {
						return errOctets
					}
				}
				var term *provider.TerminateError
				cause := b.qp.Cause()
				if got[0].Status != provider.WCSuccess && (!errors.As(cause, &term) || !term.Remote) {
					return fmt.Errorf("the region was gone, and the peer's connection has ended "+
						"with: %w", cause)
				}
				return nil
			}
	}}
}

// again returns a side of another connection of the device of s, in protection domain p.
func (w *stage) again(s *side, p *pd) *side {
	o := &side{t: w.t, dev: s.dev, pd: p, down: make(chan error, 8)}
	o.cq = testkit.Must(o.dev.CreateCQ(provider.CQInitAttr{CQE: 16}))(w.t).(*cq)
	o.qp = o.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2}})
	w.t.Cleanup(func() {
		testkit.OK(w.t, o.qp.Close())
		testkit.OK(w.t, o.cq.Close())
	})
	return o
}

// connect connects two sides that again has returned.
func (w *stage) connect(a, b *side) {
	ca, cb := connectTransport(w.t, w.network, "192.0.2.2:7472")
	p := params(true)
	a.start(ca, p)
	p.WaitFirstFPDU = true
	b.start(cb, p)
}

// beginContexts has four FPDUs of the same length arrive at once: a Write to an object, one to
// memory, a Send without a receive, which ends the stream, and another Write. Then a peer of
// another protection domain names the memory. It must not be reached, and be free.
func beginContexts(w *stage) ([]func(), func() error) {
	a, b := w.pair(memnet.Options{}, Options{}, sideOptions{}, params(true))
	// A second connection between the same devices, in a protection domain of its own.
	domain := func(s *side) *pd {
		p := testkit.Must(s.dev.AllocPD())(w.t).(*pd)
		w.t.Cleanup(func() { testkit.OK(w.t, p.Close()) })
		return p
	}
	a2, b2 := w.again(a, domain(a)), w.again(b, domain(b))
	w.connect(a2, b2)

	o := &stepObject{b: make([]byte, 8)}
	om := b.object(o, 8, writable)
	mem := b.reg(8, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	src, src2 := a.reg(8, 0), a2.reg(8, 0)
	pattern(src.b, 1)
	pattern(src2.b, 2)
	send := signalled(provider.WRSend, 3)
	send.SGList = []provider.SGE{src.sge(0, 4)} // an FPDU of the same length
	a.send(writeWR(1, src, om, 8), writeWR(2, src, mem.m, 8), send, writeWR(4, src, mem.m, 8))
	return []func(){
			func() { b.dev.poller.Poll() },
			func() { a2.send(writeWR(5, src2, mem.m, 8)); b.dev.poller.Poll() },
		}, func() error {
			if !bytes.Equal(mem.b, src.b) {
				return errors.New("memory is written by a peer of another protection domain")
			}
			_, n := mem.m.Uses()
			if _, shut := mem.m.Shut(); n != 0 || shut {
				for range n {
					mem.m.ReleaseRemote() // so that the cleanup ends
				}
				return fmt.Errorf("the region is in use %d times, and nobody uses it: MR.Close would wait for ever", n)
			}
			return nil
		}
}
