package engine

import (
	"bytes"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// interrupted is a stream that calls before just before it takes octets, which is after their
// CRC was calculated. What fails says, if it is not nil, is the error of the write.
type interrupted struct {
	transport.Conn
	before func()
	fails  func() error
}

func (c *interrupted) Writev(bufs [][]byte) (int, error) {
	c.before()
	if c.fails != nil {
		return 0, c.fails()
	}
	return c.Conn.Writev(bufs)
}

// interruptible is a network whose pollers accept an interrupted stream in place of its own.
type interruptible struct{ transport.Network }

func (n interruptible) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	return interruptiblePoller{p}, err
}

type interruptiblePoller struct{ transport.Poller }

func plainConn(c transport.Conn) transport.Conn {
	if i, is := c.(*interrupted); is {
		return i.Conn
	}
	return c
}

func (p interruptiblePoller) Remove(c transport.Conn) { p.Poller.Remove(plainConn(c)) }

func (p interruptiblePoller) WantRead(c transport.Conn, on bool) error {
	return p.Poller.WantRead(plainConn(c), on)
}

func (p interruptiblePoller) WantWrite(c transport.Conn, on bool) error {
	return p.Poller.WantWrite(plainConn(c), on)
}

// interrupt has before called before each write of the side's stream.
func (s *side) interrupt(before func()) { s.interruptWith(before, nil) }

func (s *side) interruptWith(before func(), fails func() error) {
	st := s.qp.stream.Load()
	st.rxMu.Lock()
	st.txMu.Lock()
	defer st.rxMu.Unlock()
	defer st.txMu.Unlock()
	st.conn, st.records = &interrupted{st.conn, before, fails}, nil
}

// thirdParty is a peer of another QP, which writes to the side's memory.
type thirdParty struct {
	t      *testing.T
	st     *stream
	in     *nowhere
	framer mpa.Framer
	seed   int
}

// newThirdParty connects another QP of p to a peer that writes only.
func newThirdParty(t *testing.T, s *side, p *pd) *thirdParty {
	t.Helper()
	c := testkit.Must(p.dev.CreateCQ(provider.CQInitAttr{CQE: 1}))(t).(*cq)
	q := testkit.Must(newQP(p, provider.QPInitAttr{SendCQ: c, RecvCQ: c,
		Cap: provider.QPCap{MaxSendWR: 1}}))(t)
	network := p.dev.opts.Network
	mine, theirs := connectTransport(t, network, tcpAddr)
	x := &thirdParty{t: t, in: &nowhere{Conn: mine}, framer: mpa.NewFramer(false, true)}
	testkit.OK(t, q.start(mine, params(true), func(error) {}))
	x.st = q.stream.Load()
	x.st.rxMu.Lock()
	x.st.conn, x.st.records = x.in, nil
	x.st.rxMu.Unlock()
	t.Cleanup(func() {
		testkit.OK(t, q.Close())
		testkit.OK(t, c.Close())
		testkit.OK(t, theirs.Close())
	})
	return x
}

// write has the peer send a Write, and receives it.
func (x *thirdParty) write(stag uint32, to uint64, n int) {
	x.seed++
	payload := make([]byte, n)
	pattern(payload, x.seed)
	h := rdmap.WriteHeader(stag, to, true)
	x.in.in = testkit.Must(x.framer.AppendFPDU(nil, h.AppendTo(nil), payload))(x.t)
	x.st.pollRx(policy.TurnMost)
	if x.st.over() {
		x.t.Errorf("the Write of the third party was refused: %v", x.st.end.Load().cause)
	}
}

// opening gives a third party on p the right to write to b, in one of the possible ways, and
// returns the STag and offset that its Writes have to name. Windows and registrations by work
// request expose b at once, and the others when the third party writes.
type opening func(t *testing.T, p *pd, b []byte, m *memory.Region) (stag uint32, to uint64)

var openings = map[string]opening{
	"the region's own right": func(t *testing.T, p *pd, b []byte, m *memory.Region) (uint32, uint64) { return m.STag(), m.Addr() },
	"another region": func(t *testing.T, p *pd, b []byte, m *memory.Region) (uint32, uint64) {
		o := testkit.Must(p.RegMR(b, provider.AccessLocalWrite|provider.AccessRemoteWrite))(t).(*memory.Region)
		t.Cleanup(func() { testkit.OK(t, o.Close()) })
		return o.STag(), o.Addr()
	},
	"a window": func(t *testing.T, p *pd, b []byte, m *memory.Region) (uint32, uint64) {
		w := testMW(t, p, provider.MWType1)
		return bindNow(t, ofPD(p), w, m, provider.AccessRemoteWrite), m.Addr()
	},
	"a window of another region": func(t *testing.T, p *pd, b []byte, _ *memory.Region) (uint32, uint64) {
		o := testkit.Must(p.RegMR(b, bindable))(t).(*memory.Region)
		w := testMW(t, p, provider.MWType1)
		t.Cleanup(func() { testkit.OK(t, w.Close()); testkit.OK(t, o.Close()) })
		return bindNow(t, ofPD(p), w, o, provider.AccessRemoteWrite), o.Addr()
	},
	"a registration by work request": func(t *testing.T, p *pd, b []byte, _ *memory.Region) (uint32, uint64) {
		f := testFast(t, p, uint64(len(b)))
		access := provider.AccessLocalWrite | provider.AccessRemoteWrite
		registerNow(t, ofPD(p), f, b, access)
		return f.STag(), f.Addr()
	},
}

// TestThirdPartyWrites: while memory is being sent to one peer, after the CRC was calculated,
// another peer writes to it. That does not end the connection that the memory is sent on.
func TestThirdPartyWrites(t *testing.T) {
	const size = 150000
	sources := map[string]func(r *region) []provider.SGE{
		"one SGE": func(r *region) []provider.SGE { return []provider.SGE{r.sge(0, size)} },
		"two SGEs": func(r *region) []provider.SGE {
			return []provider.SGE{r.sge(0, size/2), r.sge(size/2, size-size/2)}
		},
	}
	for how, open := range openings {
		for _, markers := range []bool{false, true} {
			for what, sges := range sources {
				for _, foreign := range []bool{false, true} {
					if foreign && how != "another region" {
						continue
					}
					name := how + ", " + what
					if markers {
						name += ", markers"
					}
					if foreign {
						name += ", of another device"
					}
					t.Run(name, func(t *testing.T) {
						p := params(true)
						p.MarkersTx, p.MarkersRx = markers, markers
						a, b := pair(t, interruptible{testkit.Must(tcpNetwork(Options{}))(t)},
							tcpAddr, Options{}, sideOptions{}, p)
						access := bindable
						if how == "the region's own right" {
							access |= provider.AccessRemoteWrite
						}
						src, dst := a.reg(size, access), b.reg(size, provider.AccessLocalWrite|provider.AccessRemoteWrite)
						other := a.pd
						if foreign {
							other = newSide(t,
								Options{Network: testkit.Must(tcpNetwork(Options{}))(t)},
								sideOptions{}).pd
						}
						stag, to := open(t, other, src.b, src.m)
						third := newThirdParty(t, a, other)
						var first chan struct{} // closed when a first Write that has to wait is placed
						a.interrupt(func() {
							switch {
							case !inPlace(src.m): // a copy is being sent
								for at := 0; at < size; at += 10000 {
									third.write(stag, to+uint64(at), 100)
								}
							case first == nil:
								first = make(chan struct{})
								go func() {
									defer close(first)
									third.write(stag, to, 100) // what no later part of the message has
								}()
							}
						})
						for i := range 3 {
							a.send(provider.SendWR{
								WRID: 2, Opcode: provider.WRRDMAWrite, Flags: signaled, SGList: sges(src),
								RemoteAddr: dst.to(0), RKey: dst.m.STag(),
							})
							a.wantWC("the Write", provider.WC{WRID: 2, Opcode: provider.WCRDMAWrite})
							if first != nil {
								<-first
							}
							b.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{dst.sge(0, size)}})
							a.send(provider.SendWR{WRID: 3, Opcode: provider.WRSend, Flags: signaled,
								SGList: sges(src)})
							a.wantWC("the Send", provider.WC{WRID: 3, Opcode: provider.WCSend})
							b.wantWC("the receive", provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: size})
							if src.m.IsStill() {
								t.Fatalf("round %d: a peer has written the memory, and it is sent "+
									"without a copy", i)
							}
							if b.qp.stream.Load() == nil || third.seed == 0 {
								t.Fatalf("round %d: the connection is over, or the third party "+
									"has not written (%d Writes)",
									i, third.seed)
							}
						}
					})
				}
			}
		}
	}
}

// duringSend has first, and then second if it is not nil, called when src is sent for the first
// time. While it is being sent none of ends may be closed, and no octet of it may change.
func (s *side) duringSend(src *region, first, second func(), ends ...chan struct{}) {
	s.interrupt(sync.OnceFunc(func() {
		before := bytes.Clone(src.b)
		go first()
		for end := time.Now().Add(patience); src.m.IsStill() && time.Now().Before(end); {
			time.Sleep(10 * time.Microsecond)
		}
		if second != nil {
			go second()
		}
		time.Sleep(20 * time.Millisecond)
		for i, c := range ends {
			select {
			case <-c:
				s.t.Errorf("call %d has not waited until the memory was sent", i+1)
			default:
			}
		}
		if !bytes.Equal(src.b, before) {
			s.t.Error("the memory has changed while it was being sent")
		}
	}))
}

// TestExposureWaitsForSend: what lets a peer change memory waits until the memory is not being
// sent any more. From then on a copy of it is sent, until the right is gone.
func TestExposureWaitsForSend(t *testing.T) {
	const size = 100000
	// Each returns what exposes the memory of src, and what ends that.
	for how, prepare := range map[string]func(t *testing.T, a *side, src *region) (expose, end func()){
		"the first Write by the region's own right": func(t *testing.T, a *side, src *region) (expose, end func()) {
			m := testkit.Must(a.pd.RegMR(src.b, writable))(t).(*memory.Region)
			if !src.m.IsStill() || !m.IsStill() {
				t.Error("no peer has written the memory, and it is copied")
			}
			third := newThirdParty(t, a, a.pd)
			return func() { third.write(m.STag(), m.Addr(), 100) }, func() { testkit.OK(t, m.Close()) }
		},
		"a window": func(t *testing.T, a *side, src *region) (expose, end func()) {
			w := testMW(t, a.pd, provider.MWType1)
			return func() {
				bindNow(t, &a.qp.peer, w, src.m, provider.AccessRemoteWrite)
			}, func() { testkit.OK(t, w.Close()) }
		},
	} {
		t.Run(how, func(t *testing.T) {
			a, b := pair(t, interruptible{testkit.Must(tcpNetwork(Options{}))(t)}, tcpAddr, Options{},
				sideOptions{}, params(true))
			src, dst := a.reg(size, bindable), b.reg(size, writable)
			write := func(what string) {
				t.Helper()
				a.send(provider.SendWR{
					WRID: 1, Opcode: provider.WRRDMAWrite, Flags: signaled,
					SGList: []provider.SGE{src.sge(0, size)}, RemoteAddr: dst.to(0), RKey: dst.m.STag(),
				})
				a.wantWC(what, provider.WC{WRID: 1, Opcode: provider.WCRDMAWrite})
			}
			expose, end := prepare(t, a, src)
			exposed := make(chan struct{})
			a.duringSend(src, func() { expose(); close(exposed) }, nil, exposed)
			write("a Write meanwhile")
			<-exposed
			if src.m.IsStill() {
				t.Error("a peer can write the memory, and it is sent without a copy")
			}
			write("a Write afterwards")
			end()
			if !src.m.IsStill() {
				t.Error("no peer can write the memory any more, and it is still copied")
			}
			write("a Write at the end")
			b.recv(provider.RecvWR{WRID: 2})
			a.send(provider.SendWR{Opcode: provider.WRSend})
			b.wantWC("all is there", provider.WC{WRID: 2, Opcode: provider.WCRecv})
			if !bytes.Equal(src.b, dst.b) {
				t.Error("the octets that arrived are not those that were sent")
			}
		})
	}
}

// TestWriteWaitsForRegionThatIsClosed: while memory is being sent without a copy, the region that
// the work request names is closed, or registered anew, and a peer writes to the memory by way of
// another region. The Write waits as long as the close does.
func TestWriteWaitsForRegionThatIsClosed(t *testing.T) {
	const size = 100000
	for how, end := range map[string]func(t *testing.T, m *memory.Region){
		"Close": func(t *testing.T, m *memory.Region) { testkit.OK(t, m.Close()) },
		"Rereg": func(t *testing.T, m *memory.Region) {
			n := testkit.Must(m.Rereg(provider.ReregAccess, nil, nil, provider.AccessLocalWrite))(t)
			t.Cleanup(func() { testkit.OK(t, n.Close()) })
		},
	} {
		t.Run(how, func(t *testing.T) {
			a, b := pair(t, interruptible{testkit.Must(tcpNetwork(Options{}))(t)}, tcpAddr, Options{},
				sideOptions{}, params(true))
			src, dst := a.reg(size, writable), b.reg(size, writable)
			other := testkit.Must(a.pd.RegMR(src.b, writable))(t).(*memory.Region)
			t.Cleanup(func() { testkit.OK(t, other.Close()) })
			third := newThirdParty(t, a, a.pd)
			ended, written := make(chan struct{}), make(chan struct{})
			a.duringSend(src, func() { end(t, src.m); close(ended) },
				func() { third.write(other.STag(), other.Addr(), 100); close(written) }, ended, written)
			a.send(provider.SendWR{
				WRID: 1, Opcode: provider.WRRDMAWrite, Flags: signaled,
				SGList: []provider.SGE{src.sge(0, size)}, RemoteAddr: dst.to(0), RKey: dst.m.STag(),
			})
			a.wantWC("the Write", provider.WC{WRID: 1, Opcode: provider.WCRDMAWrite})
			<-ended
			<-written
			b.recv(provider.RecvWR{WRID: 2})
			a.send(provider.SendWR{Opcode: provider.WRSend})
			b.wantWC("all is there", provider.WC{WRID: 2, Opcode: provider.WCRecv})
		})
	}
}

// inPlace reports whether octets are being sent from where they lie in m.
func inPlace(m *memory.Region) bool {
	_, _, still := m.Uses()
	return still > 0
}
