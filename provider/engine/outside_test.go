package engine

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// queue is a program's own queue: of completions, with room for some, and of receives.
type queue struct {
	mu       sync.Mutex
	room     int
	wcs      []provider.WC
	recvs    []provider.RecvWR
	notified int
}

func (q *queue) Complete(wc *provider.WC, solicited bool) (stored, due bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.wcs) >= q.room {
		return false, false
	}
	q.wcs = append(q.wcs, *wc)
	return true, solicited
}

func (q *queue) Notify() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.notified++
}

func (q *queue) NextRecv(sges []provider.SGE) (wrid uint64, n int, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.recvs) == 0 {
		return 0, 0, false
	}
	wr := q.recvs[0]
	q.recvs = q.recvs[1:]
	return wr.WRID, copy(sges, wr.SGList), true
}

// completions returns what has completed, when it is n or more.
func (q *queue) completions(t *testing.T, c *cq, n int) []provider.WC {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		q.mu.Lock()
		wcs := append([]provider.WC(nil), q.wcs...)
		q.mu.Unlock()
		if len(wcs) >= n {
			return wcs
		}
		if time.Now().After(end) {
			t.Fatalf("%d completions, want %d: %+v", len(wcs), n, wcs)
		}
		if k, err := c.Poll(nil); k != 0 || err != nil {
			t.Fatalf("Poll of a CQ with a sink: %d, %v", k, err)
		}
		time.Sleep(100 * time.Microsecond) // as time stands still on a simulated wire otherwise
	}
}

// outsideEnd makes an end whose QP q has its completions and receives with the program.
func outsideEnd(t *testing.T, e *e2eEnd, own *queue) (c *cq, q *qp) {
	t.Helper()
	c = testkit.Must(e.dev.CreateCQ(provider.CQInitAttr{CQE: 9, Sink: own}))(t).(*cq)
	q = testkit.Must(e.pd.CreateQP(provider.QPInitAttr{SendCQ: c, RecvCQ: c, Recvs: own,
		Cap: provider.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxRecvWR: 4, MaxRecvSGE: 2}}))(t).(*qp)
	t.Cleanup(func() {
		closeAll(t, "QP", q)
		testkit.OK(t, c.Close())
	})
	return c, q
}

// TestOutside sends messages of all lengths to receives that a program keeps, with completions to
// the program's queue, on all kinds of wire. The remaining receives are flushed when the QP ends.
func TestOutside(t *testing.T) {
	onWires(t, nil, func(t *testing.T, w e2eWire) {
		network, addr := w.network()
		a, b := newE2EEnd(t, w, network, e2eSetup{}), newE2EEnd(t, w, network, e2eSetup{})
		own := &queue{room: 9}
		c, q := outsideEnd(t, b, own)
		e2eConnect(t, w, e2eSetup{depth: 1}, network, addr, a.q, q, make(chan error, 1),
			make(chan error, 1))
		lengths := []int{0, 1, 1500, 70000, 64}
		var ins []*guarded
		for i := range len(lengths) + 2 {
			in := b.region(70000, provider.AccessLocalWrite)
			ins = append(ins, in)
			own.mu.Lock()
			own.recvs = append(own.recvs, provider.RecvWR{WRID: uint64(i), SGList: split(in.Region, 0,
				70000, 2)})
			own.mu.Unlock()
		}
		for i, n := range lengths {
			src := a.filled(max(n, 1), 0, uint64(i))
			flags := provider.SendSignaled
			if i == 1 {
				flags |= provider.SendSolicited
			}
			a.send(provider.SendWR{Opcode: provider.WRSend, Flags: flags,
				SGList: []provider.SGE{sge(src.Region, 0, n)}})
			a.wait(a.scq, 1)
		}
		for i, wc := range own.completions(t, c, len(lengths)) {
			want := make([]byte, max(lengths[i], 1))
			pattern(want, i)
			n := lengths[i]
			if wc.WRID != uint64(i) || wc.Status != provider.WCSuccess || int(wc.ByteLen) != n ||
				wc.QPN != q.qpn ||
				!bytes.Equal(octetsOf(ins[i].Region)[:n], want[:n]) || !ins[i].untouched(0, n) {
				t.Errorf("message %d of %d bytes: %+v", i, n, wc)
			}
		}
		testkit.Equal(t, "notifications, of the solicited Send", own.notified, 1)
		testkit.OK(t, q.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
		for i, wc := range own.completions(t, c, len(ins))[len(lengths):] {
			if wc.WRID != uint64(len(lengths)+i) || wc.Status != provider.WCWRFlushErr ||
				wc.Opcode != provider.WCRecv {
				t.Errorf("what was left: %+v", wc)
			}
		}
	})
}

// TestOutsideFull: a completion for which the program has no room is lost, and raises CQ_ERR once
// until there is room again.
func TestOutsideFull(t *testing.T) {
	a, _ := e2ePairOf(t)
	own := &queue{room: 1}
	c, q := outsideEnd(t, a, own)
	testkit.OK(t, q.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
	post := func(n int) {
		t.Helper()
		for range n {
			own.mu.Lock()
			own.recvs = append(own.recvs, provider.RecvWR{})
			own.mu.Unlock()
		}
		q.flushAll(provider.WCSuccess)
	}
	events := func() (n int) {
		for {
			e, _, ok, _ := a.dev.async.pop()
			if !ok {
				return n
			}
			if e.Type == provider.EventCQErr && e.CQ == c {
				n++
			}
		}
	}
	post(3)
	testkit.Equal(t, "events when two completions were lost", events(), 1)
	post(1)
	testkit.Equal(t, "events when another one was lost", events(), 0)
	own.mu.Lock()
	own.room = 2
	own.mu.Unlock()
	post(2)
	testkit.Equal(t, "events when one was lost after there had been room", events(), 1)
	if st := testkit.Must(c.Stats())(t); st.Completions != 2 || st.Lost != 4 || st.CQE != 9 ||
		c.CQE() != 9 {
		t.Errorf("counted: %+v", st)
	}
}

// TestOutsideRefuses: what can't be together, and calls that the program's own queue stands for.
func TestOutsideRefuses(t *testing.T) {
	a, _ := e2ePairOf(t)
	own := &queue{room: 9}
	c, q := outsideEnd(t, a, own)
	ch := testkit.Must(a.dev.CreateCompChannel())(t)
	defer func() { testkit.OK(t, ch.Close()) }()
	_, withChannel := a.dev.CreateCQ(provider.CQInitAttr{CQE: 1, Sink: own, Channel: ch})
	srq := testkit.Must(a.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 1,
		MaxSGE: 1}, Recvs: own}))(t)
	defer func() { testkit.OK(t, srq.Close()) }()
	_, both := a.pd.CreateQP(provider.QPInitAttr{SendCQ: c, RecvCQ: c, Recvs: own, SRQ: srq,
		Cap: provider.QPCap{MaxSendWR: 1}})
	recv := []provider.RecvWR{{}}
	_, posted := q.PostRecv(recv)
	_, shared := srq.PostRecv(recv)
	for what, err := range map[string]error{
		"a sink and a channel": withChannel, "an SRQ and a RecvSource": both,
		"a receive to the QP":  posted,
		"a receive to the SRQ": shared, "a limit": srq.Modify(provider.SRQAttr{Limit: 1},
			provider.SRQAttrLimit),
	} {
		testkit.WantErr(t, what, err, syscall.EINVAL)
	}
	testkit.WantErr(t, "a new size", c.Resize(20), errors.ErrUnsupported)
	if _, init, err := q.Query(); err != nil || init.Recvs != provider.RecvSource(own) ||
		init.SRQ != nil || init.Cap.MaxRecvSGE != 2 {
		t.Errorf("the QP was made with %+v, %v", init, err)
	}
}

// e2ePairOf makes two ends that are not connected.
func e2ePairOf(t *testing.T) (a, b *e2eEnd) {
	t.Helper()
	w := e2eWires[0]
	network, _ := w.network()
	return newE2EEnd(t, w, network, e2eSetup{}), newE2EEnd(t, w, network, e2eSetup{})
}

// brokenQueue is a queue one of whose methods panics.
type brokenQueue struct {
	queue
	method string
}

func (p *brokenQueue) in(method string) {
	if method == p.method {
		panic("a fault in " + method)
	}
}

func (p *brokenQueue) Complete(wc *provider.WC, solicited bool) (stored, due bool) {
	p.in("Complete")
	stored, _ = p.queue.Complete(wc, solicited)
	return stored, true
}

func (p *brokenQueue) Notify()       { p.in("Notify") }
func (p *brokenQueue) Taken() uint32 { p.in("Taken"); return 0 }
func (p *brokenQueue) Waits() bool   { p.in("Waits"); return false }

func (p *brokenQueue) NextRecv(sges []provider.SGE) (wrid uint64, n int, ok bool) {
	p.in("NextRecv")
	return p.queue.NextRecv(sges)
}

// TestOutsidePanics: a panic of a program's queue ends the program, although it recovers from all
// panics of its calls: otherwise it would wait for locks of the engine, and its peer with it.
func TestOutsidePanics(t *testing.T) {
	const here = "GOVS_TEST_OUTSIDE_PANICS"
	method := os.Getenv(here)
	if method == "" {
		for _, method := range []string{"Complete", "Notify", "Taken", "Waits", "NextRecv"} {
			cmd := exec.Command(os.Args[0], "-test.run=^TestOutsidePanics$", "-test.timeout=1m")
			cmd.Env = append(os.Environ(), here+"="+method)
			out, err := cmd.CombinedOutput()
			if err == nil || !bytes.Contains(out, []byte("does not return: a fault in "+method)) {
				t.Errorf("%s: the program ended with %v:\n%s", method, err, out)
			}
		}
		return
	}
	d := testkit.Must(New(nil).Open(""))(t).(*device)
	pd := testkit.Must(d.AllocPD())(t)
	own := &brokenQueue{queue: queue{room: 9}, method: method}
	c := testkit.Must(d.CreateCQ(provider.CQInitAttr{CQE: 9, Sink: own}))(t).(*cq)
	q := testkit.Must(pd.CreateQP(provider.QPInitAttr{SendCQ: c, RecvCQ: c, Recvs: own,
		Cap: provider.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxRecvWR: 4, MaxRecvSGE: 2}}))(t).(*qp)
	func() {
		defer func() { _ = recover() }()
		switch method {
		case "Complete", "Notify":
			c.push(provider.WC{}, false)
		case "Taken":
			c.program()
		case "Waits":
			c.isArmed()
		default: // its receives are flushed
			testkit.OK(t, q.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
		}
	}()
	testkit.OK(t, q.Close())
}
