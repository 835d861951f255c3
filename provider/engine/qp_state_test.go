package engine

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

func (s *side) modify(to provider.QPState) error {
	return s.qp.Modify(provider.QPAttr{State: to}, provider.QPAttrState)
}

func (s *side) wantState(what string, want provider.QPState) {
	s.t.Helper()
	if attr, _ := testkit.Must2(s.qp.Query())(s.t); attr.State != want || attr.CurState != want {
		s.t.Errorf("%s: state %v, want %v", what, attr.State, want)
	}
}

func TestCreateQPArguments(t *testing.T) {
	d, other := unwired(t), unwired(t)
	p := testkit.Must(d.AllocPD())(t).(*pd)
	defer p.Close()
	c := testCQ(t, d, 8, nil)
	good := provider.QPInitAttr{SendCQ: c, RecvCQ: c, Cap: provider.QPCap{MaxSendWR: 3, MaxRecvWR: 5, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 7}}
	for what, breakIt := range map[string]func(*provider.QPInitAttr){
		"no send CQ":       func(i *provider.QPInitAttr) { i.SendCQ = nil },
		"no receive CQ":    func(i *provider.QPInitAttr) { i.RecvCQ = nil },
		"another device's": func(i *provider.QPInitAttr) { i.RecvCQ = testCQ(t, other, 8, nil) },
		"no send queue":    func(i *provider.QPInitAttr) { i.Cap.MaxSendWR = 0 },
		"negative":         func(i *provider.QPInitAttr) { i.Cap.MaxRecvWR = -1 },
	} {
		init := good
		breakIt(&init)
		testkit.WantErr(t, what, errOf(p.CreateQP(init)), syscall.EINVAL)
	}
	init := good
	init.Type = 3
	testkit.WantErr(t, "type UC", errOf(p.CreateQP(init)), errors.ErrUnsupported)
	q := testkit.Must(p.CreateQP(good))(t)
	attr, granted := testkit.Must2(q.Query())(t)
	if want := (provider.QPCap{MaxSendWR: 4, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 7}); attr.Cap != want || granted.Cap != want {
		t.Errorf("granted %+v", granted.Cap)
	}
	if attr.State != provider.QPReset || granted.Type != provider.QPTypeRC {
		t.Errorf("%+v %+v", attr, granted)
	}
	testkit.WantErr(t, "closing its CQ", c.Close(), syscall.EBUSY)
	testkit.WantErr(t, "closing its PD", p.Close(), syscall.EBUSY)
	testkit.OK(t, q.Close())
	testkit.OK(t, q.Close())
	_, _, err := q.Query()
	wantErr(t, err, os.ErrClosed)
	wantErr(t, q.Modify(provider.QPAttr{}, 0), os.ErrClosed)
	wantErr(t, errOf(q.PostSend([]provider.SendWR{{}})), os.ErrClosed)
	wantErr(t, errOf(q.PostRecv([]provider.RecvWR{{}})), os.ErrClosed)
}

// TestStatesConnected: all edges from the two states of a connected QP, SQD with a peer
// that keeps it there. SQE sends a Terminate, and ERR none.
//
//rfc:5040 RDMAP-6.2.1-02 After Terminate outstanding WRs complete in error
func TestStatesConnected(t *testing.T) {
	const no = syscall.EINVAL
	for from, edges := range map[provider.QPState]map[provider.QPState]error{
		provider.QPRTS: {
			provider.QPReset: no, provider.QPInit: no, provider.QPRTR: no, provider.QPRTS: nil,
			provider.QPSQD: nil, provider.QPSQE: nil, provider.QPErr: nil, 77: no,
		},
		provider.QPSQD: {
			provider.QPReset: no, provider.QPInit: no, provider.QPRTR: no, provider.QPRTS: no,
			provider.QPSQD: nil, provider.QPSQE: nil, provider.QPErr: nil, 77: no,
		},
	} {
		for to, want := range edges {
			story(t, Options{}, params(true), func(s *side, r *raw) {
				what := fmt.Sprintf("%v to %v", from, to)
				s.recv(provider.RecvWR{WRID: 1})
				testkit.OK(t, s.modify(from))
				testkit.WantErr(t, what, s.modify(to), want)
				now := to
				switch {
				case want != nil:
					now = from
				case to == provider.QPSQE:
					now = provider.QPErr
				}
				s.wantState(what, now)
				if now == provider.QPErr {
					if from == provider.QPRTS && to == provider.QPSQE {
						r.wantTerminate(what, fault{iwarp.LayerRDMAP, 0, 0xff}, nil, 0, nil)
					}
					r.wantFIN(what)
					s.wantDown(what)
					s.wantWC("the receive", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
				} else {
					s.noWC(what)
				}
				_, err := s.qp.PostSend([]provider.SendWR{{WRID: 2, Opcode: provider.WRRDMAWrite}})
				switch now {
				case provider.QPSQD: // RFC 5040 has no way back, so it would never be sent
					wantErr(t, err, no)
				case provider.QPErr:
					testkit.OK(t, err)
					s.wantWC("a Write posted after", provider.WC{WRID: 2, Status: provider.WCWRFlushErr})
					s.recv(provider.RecvWR{WRID: 3})
					s.wantWC("a receive posted after", provider.WC{WRID: 3, Status: provider.WCWRFlushErr})
				default:
					testkit.OK(t, err)
					wantErr(t, s.qp.Modify(provider.QPAttr{MaxRdAtomic: 1}, provider.QPAttrMaxRdAtomic), no)
				}
			})
		}
	}
}

// TestQPDisconnect: posted work is still sent, then FIN; the peer's data is still received until
// its FIN.
//
//rfc:5041 DDP-6.2.1-01 Graceful close flushes pending data first
//rfc:5041 DDP-6.2.1-02 Requests after graceful close return an error
//rfc:5041 DDP-6.2.1-05 Reception stays enabled after local half close
//rfc:5044 MPA-7.2-01 Half connection ends when DDP closes the TCP half
func TestQPDisconnect(t *testing.T) {
	story(t, Options{}, params(true), func(s *side, r *raw) {
		sink := s.reg(4, provider.AccessLocalWrite)
		s.recv(provider.RecvWR{WRID: 100}, provider.RecvWR{WRID: 101})
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(0, 4)}},
			provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendFence | provider.SendSignaled})
		s.qp.disconnect()
		s.wantState("while it ends", provider.QPSQD)
		wantErr(t, errOf(s.qp.PostSend([]provider.SendWR{{Opcode: provider.WRSend}})), syscall.EINVAL)
		q := r.wantReadRequest("the Read is still sent", 1)
		r.wantIdle("no FIN before its response")
		r.answer(q)
		r.want("and the Send after it", rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true))
		r.wantFIN("then FIN")
		s.wantWC("the Read", provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: 4})
		s.wantWC("the Send", provider.WC{WRID: 2, Opcode: provider.WCSend})
		r.sendMsg(nil)
		s.wantWC("the peer may still send", provider.WC{WRID: 100, Opcode: provider.WCRecv})
		select {
		case err := <-s.down:
			t.Fatalf("down before the peer's FIN: %v", err)
		default:
		}
		s.qp.disconnect()
		testkit.OK(t, r.c.CloseWrite())
		testkit.WantErr(t, "the end", s.wantDown("the peer's FIN"), os.ErrClosed)
		s.wantWC("what is left is flushed", provider.WC{WRID: 101, Status: provider.WCWRFlushErr})
		s.qp.disconnect()
	})
}

// TestSQDrained: a program that asks for the event gets it once, when all Reads are answered and
// our FIN is out, not before and not again; if that is so already it gets it at once.
func TestSQDrained(t *testing.T) {
	const mask = provider.QPAttrState | provider.QPAttrEnSQDNotify
	drain := provider.QPAttr{State: provider.QPSQD, EnSQDAsyncNotify: true}
	story(t, Options{}, params(true), func(s *side, r *raw) {
		quiet := func(what string) {
			t.Helper()
			synctest.Wait()
			if e, _, ok, _ := s.dev.async.pop(); ok {
				t.Errorf("%s: %v", what, e.Type)
			}
		}
		sink := s.reg(4, provider.AccessLocalWrite)
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(0, 4)}})
		wantErr(t, s.qp.Modify(provider.QPAttr{EnSQDAsyncNotify: true}, provider.QPAttrEnSQDNotify), syscall.EINVAL)
		wantErr(t, s.qp.Modify(provider.QPAttr{State: provider.QPErr, EnSQDAsyncNotify: true}, mask), syscall.EINVAL)
		s.wantState("after what was refused", provider.QPRTS)
		testkit.OK(t, s.qp.Modify(drain, mask))
		q := r.wantReadRequest("the Read", 1)
		quiet("before its response")
		r.answer(q)
		s.wantEvent("the queue is drained", provider.EventSQDrained)
		r.wantFIN("the end")
		s.wantWC("the Read", provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: 4})
		quiet("a second time")
		testkit.OK(t, s.qp.Modify(drain, mask))
		s.wantEvent("asked when it had been drained before", provider.EventSQDrained)
		testkit.OK(t, r.c.CloseWrite())
		s.wantDown("the peer's FIN")
		quiet("in the end")
	})
	story(t, Options{}, params(true), func(s *side, r *raw) {
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled})
		testkit.OK(t, s.qp.Modify(drain, mask))
		r.wantReadRequest("the Read", 1)
		testkit.OK(t, r.c.Close())
		s.wantDown("the peer is gone")
		s.wantEvent("drained by a flush, reported once", provider.EventSQDrained)
		if e, _, ok, _ := s.dev.async.pop(); ok {
			t.Errorf("another event: %v", e.Type)
		}
	})
}

// TestQPDisconnectTimeouts: a peer that does not close its side, or takes nothing,
// is reset after CloseTimeout; one that is slow is not.
func TestQPDisconnectTimeouts(t *testing.T) {
	opts := Options{CloseTimeout: 2 * time.Second}
	story(t, opts, params(true), func(s *side, r *raw) {
		begin := time.Now()
		s.qp.disconnect()
		if err := s.wantDown("no FIN of the peer"); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) != opts.CloseTimeout {
			t.Errorf("ended after %v with %v", time.Since(begin), err)
		}
	})
	storyOn(t, memnet.Options{Window: 1000}, opts, params(true), sideOptions{}, func(s *side, r *raw) {
		src := s.reg(100_000, 0)
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, 100_000)}})
		begin := time.Now()
		s.qp.disconnect()
		buf := make([]byte, 10_000)
		for range 10 { // one window a second is progress
			time.Sleep(time.Second)
			testkit.Must(r.c.Readv([][]byte{buf}))(t)
		}
		if err := s.wantDown("the peer takes no more"); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) < 11*time.Second {
			t.Errorf("ended after %v with %v", time.Since(begin), err)
		}
		s.wantWC("the Write is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
	})
	story(t, opts, params(true), func(s *side, r *raw) {
		sink := s.reg(20, provider.AccessLocalWrite)
		for i := range 2 {
			s.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRRDMARead, Flags: provider.SendSignaled, SGList: []provider.SGE{sink.sge(10*i, 10)}})
		}
		begin := time.Now()
		s.qp.disconnect()
		segment := func(q rdmap.ReadRequest, at int) { // a segment a second is progress
			time.Sleep(time.Second)
			r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO+uint64(at), at == 9), []byte{1})
			synctest.Wait()
		}
		first, second := r.wantReadRequest("the first Read", 1), r.wantReadRequest("the second", 2)
		for at := range 10 {
			segment(first, at)
		}
		s.wantWC("the Read whose answer took its time", provider.WC{WRID: 0, Opcode: provider.WCRDMARead, ByteLen: 10})
		for at := range 5 {
			segment(second, at)
		}
		if err := s.wantDown("no more of the second comes"); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(begin) < 16*time.Second {
			t.Errorf("ended after %v with %v", time.Since(begin), err)
		}
		s.wantWC("the second Read is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
	})
	story(t, opts, responder(true), func(s *side, r *raw) {
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRSend})
		s.qp.disconnect()
		r.wantFIN("a responder that may not send sends FIN")
		testkit.OK(t, r.c.CloseWrite())
		s.wantDown("the peer's FIN")
		s.wantWC("the Send is flushed", provider.WC{WRID: 1, Status: provider.WCWRFlushErr})
	})
}

// TestDisconnectWithDribbledAnswers: a peer that answers a Read in dribbles has SendTimeout for
// each 64 KiB before a graceful end is cut short, and empty segments are no answer.
func TestDisconnectWithDribbledAnswers(t *testing.T) {
	const limit, size = 10 * time.Second, 256 << 10
	opts := Options{CloseTimeout: 2 * time.Second, SendTimeout: limit}
	for _, c := range []struct {
		name        string
		octets      int // a second
		least, most time.Duration
	}{
		{"empty segments", 0, opts.CloseTimeout, opts.CloseTimeout},
		{"a byte a second", 1, limit, limit + opts.CloseTimeout},
		{"too little", policy.Chunk/10 - 500, limit, limit + opts.CloseTimeout},
	} {
		story(t, opts, params(true), func(s *side, r *raw) {
			sink := s.reg(size, provider.AccessLocalWrite)
			s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead,
				SGList: []provider.SGE{sink.sge(0, size)}})
			begin := time.Now()
			s.qp.disconnect()
			q := r.wantReadRequest(c.name, 1)
			for at := 0; s.qp.stream.Load() != nil && at+c.octets < size &&
				time.Since(begin) < 3*limit; at += c.octets {
				h := rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO+uint64(at), false)
				_, _ = r.c.Writev([][]byte{r.fpdu(h, make([]byte, c.octets))})
				time.Sleep(time.Second)
				synctest.Wait()
			}
			err := s.wantDown(c.name)
			took := time.Since(begin).Truncate(time.Second)
			if !errors.Is(err, os.ErrDeadlineExceeded) || took < c.least || took > c.most {
				t.Errorf("%s: ended after %v with %v, want %v to %v", c.name, took, err,
					c.least, c.most)
			}
		})
	}
	story(t, opts, params(true), func(s *side, r *raw) {
		sink := s.reg(size, provider.AccessLocalWrite)
		s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMARead, Flags: provider.SendSignaled,
			SGList: []provider.SGE{sink.sge(0, size)}})
		s.qp.disconnect()
		q := r.wantReadRequest("a slow answer", 1)
		const octets = 8 << 10
		for at := 0; at < size; at += octets {
			r.send(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO+uint64(at), at+octets == size),
				make([]byte, octets))
			time.Sleep(time.Second)
		}
		s.wantWC("a Read whose answer is as slow as it may be",
			provider.WC{WRID: 1, Opcode: provider.WCRDMARead, ByteLen: size})
	})
}

// TestCloseFlushes: Close sends the FPDU under way to its end, then FIN, and abort resets the
// connection. All that was posted completes before either returns, a Write of which TCP has not
// the last byte with an error, and the cause is theirs.
//
//rfc:5040 RDMAP-5.5-14-01 Send/Write not complete before DDP is done
//rfc:5041 DDP-5.4-01 Source completion means the LLP accepted responsibility only
func TestCloseFlushes(t *testing.T) {
	for _, cause := range []error{os.ErrClosed, syscall.ECONNABORTED} {
		storyOn(t, memnet.Options{Window: 1000}, Options{}, params(true), sideOptions{}, func(s *side, r *raw) {
			src := s.reg(100_000, 0)
			s.send(provider.SendWR{WRID: 1, Opcode: provider.WRRDMAWrite, SGList: []provider.SGE{src.sge(0, 100_000)}})
			s.recv(provider.RecvWR{WRID: 2})
			if cause == os.ErrClosed {
				testkit.OK(t, s.qp.Close())
			} else {
				s.qp.abort(cause)
				s.qp.abort(nil) // nothing happens
			}
			var wc [4]provider.WC
			if n, _ := s.cq.Poll(wc[:]); n != 2 || wc[0].WRID != 1 || wc[1].WRID != 2 ||
				wc[0].Status != provider.WCWRFlushErr {
				t.Errorf("%d completions %+v", n, wc[:n])
			}
			testkit.WantErr(t, "the end", s.wantDown("the end"), cause)
			if cause != os.ErrClosed {
				for r.read(patience) {
				}
				testkit.WantErr(t, "what the peer of an abort has read", r.err, syscall.ECONNRESET)
				return
			}
			r.next("the FPDU under way")
			r.wantFIN("then FIN")
			synctest.Wait()
		})
	}
}

// fullNetwork has pollers whose Add fails.
type fullNetwork struct {
	*memnet.Network
	before func() // is called before Add returns the error
}

func (n *fullNetwork) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	return &fullPoller{p, n}, err
}

type fullPoller struct {
	transport.Poller
	n *fullNetwork
}

func (p *fullPoller) Add(transport.Conn, transport.Handler) error {
	p.n.before()
	return syscall.ENOSPC
}

// TestStartFailsWhileSomebodyPosts: a stream whose poller refuses it holds nothing in the end,
// even if the program has found the QP in RTS and has posted more than the socket takes.
func TestStartFailsWhileSomebodyPosts(t *testing.T) {
	network := &fullNetwork{Network: memnet.New(&memnet.Options{Window: 1000})}
	s := newSide(t, Options{Network: network}, sideOptions{})
	q := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 4, MaxSendSGE: 1}})
	mine, theirs := connectTransport(t, network, memAddr)
	m := s.reg(100_000, provider.AccessLocalWrite)
	network.before = func() {
		_, err := q.PostSend([]provider.SendWR{{Opcode: provider.WRSend,
			Flags: provider.SendSignaled, SGList: []provider.SGE{m.sge(0, 100_000)}}})
		testkit.OK(t, err)
	}
	err := q.start(mine, params(true), func(error) { t.Error("onDown is called") })
	testkit.WantErr(t, "start", err, syscall.ENOSPC)
	testkit.Equal(t, "batches that are lent", s.dev.prog.batches.Lent(), 0)
	testkit.OK(t, mine.Close())
	testkit.OK(t, theirs.Close())
	testkit.OK(t, q.Close())
	testkit.OK(t, m.m.Close())
}
