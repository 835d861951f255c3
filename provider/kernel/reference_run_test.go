//go:build cgo && linux && !nokernel

package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider"
)

// patience limits the duration of a step; a guest without acceleration is slow.
const patience = 2 * time.Minute

// program is a short sequence of verbs calls at the two ends of a connection.
type program struct {
	name   string
	sigAll bool                // of the client's QP
	srq    bool                // the server receives from an SRQ
	noRNR  bool                // a Send that finds no receive is not retried
	run    func(w *connection) // posts and waits
}

// connection is a connected pair of QPs of one provider.
type connection struct {
	t              *testing.T
	facts          facts
	client, server *end
}

// end is one end of the connection, with a CQ for each queue.
type end struct {
	t     *testing.T
	facts facts
	name  string
	dev   provider.Device
	pd    provider.PD
	scq   provider.CQ
	rcq   provider.CQ
	srq   provider.SRQ
	ec    provider.EventChannel
	id    provider.ID
	qp    provider.QP

	// One page each: for all rights, and for one right of the peer only.
	buf, readOnly, writeOnly []byte
	mr, ro, wo               provider.MR

	posted    int // receives
	received  int // their completions
	completed int // of sends

	events chan provider.CMEvent
	over   bool // DISCONNECTED has arrived
	stop   func()
}

func check(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// execute runs a program and returns its facts. It ends the connection, so that all posted work
// completes.
func execute(t *testing.T, from provider.Provider, name string, addr netip.Addr, p program) facts {
	t.Helper()
	w := &connection{t: t, facts: make(facts)}
	w.client, w.server = newEnd(w, from, name, "client"), newEnd(w, from, name, "server")
	defer w.client.close()
	defer w.server.close()
	w.connect(addr, p)
	p.run(w)
	_ = w.client.id.Disconnect() // it may have ended already
	for _, e := range []*end{w.server, w.client} {
		if !e.over {
			e.want(provider.CMDisconnected)
		}
	}
	w.flushed()
	return w.facts
}

func newEnd(w *connection, from provider.Provider, device, name string) *end {
	e := &end{t: w.t, facts: w.facts, name: name, events: make(chan provider.CMEvent, 16)}
	var err error
	e.dev, err = from.Open(device)
	check(e.t, "Open", err)
	e.pd, err = e.dev.AllocPD()
	check(e.t, "AllocPD", err)
	e.scq, err = e.dev.CreateCQ(provider.CQInitAttr{CQE: 64})
	check(e.t, "CreateCQ", err)
	e.rcq, err = e.dev.CreateCQ(provider.CQInitAttr{CQE: 64})
	check(e.t, "CreateCQ", err)
	e.ec, err = e.dev.CreateEventChannel()
	check(e.t, "CreateEventChannel", err)
	const local = provider.AccessLocalWrite
	for _, r := range []struct {
		buf    *[]byte
		mr     *provider.MR
		access provider.Access
	}{
		{&e.buf, &e.mr, local | provider.AccessRemoteWrite | provider.AccessRemoteRead | provider.AccessRemoteAtomic},
		{&e.readOnly, &e.ro, provider.AccessRemoteRead},
		{&e.writeOnly, &e.wo, local | provider.AccessRemoteWrite},
	} {
		*r.buf, err = unix.Mmap(-1, 0, 16384, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
		check(e.t, "mmap", err)
		*r.mr, err = e.pd.RegMR(*r.buf, r.access)
		check(e.t, "RegMR", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var pump sync.WaitGroup
	pump.Go(func() {
		for {
			ev, err := e.ec.Next(ctx)
			if err != nil {
				return
			}
			e.events <- ev
		}
	})
	e.stop = func() {
		cancel()
		pump.Wait()
	}
	return e
}

// close closes the existing objects in order.
func (e *end) close() {
	e.stop()
	var list []interface{ Close() error }
	if e.qp != nil {
		list = append(list, e.qp)
	}
	if e.id != nil {
		list = append(list, e.id)
	}
	if e.srq != nil {
		list = append(list, e.srq)
	}
	for _, o := range append(list, e.mr, e.ro, e.wo, e.scq, e.rcq, e.pd, e.ec, e.dev) {
		if err := o.Close(); err != nil {
			e.t.Errorf("Close of %T: %v", o, err)
		}
	}
	for _, buf := range [][]byte{e.buf, e.readOnly, e.writeOnly} {
		check(e.t, "munmap", unix.Munmap(buf))
	}
}

// want waits for an event and drops others, for example TIMEWAIT_EXIT.
func (e *end) want(typ provider.CMEventType) provider.CMEvent {
	e.t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case ev := <-e.events:
			if ev.Type == typ {
				return ev
			}
			if ev.Status != 0 {
				e.t.Fatalf("%s: %s with status %d instead of %s", e.name, ev.Type, ev.Status, typ)
			}
		case <-timeout:
			e.t.Fatalf("%s: no %s", e.name, typ)
		}
	}
}

func (w *connection) connect(addr netip.Addr, p program) {
	w.t.Helper()
	const depth = 4
	c, s := w.client, w.server
	l, err := s.ec.CreateID(nil)
	check(w.t, "CreateID", err)
	check(w.t, "BindAddr", l.BindAddr(netip.AddrPortFrom(addr, 0)))
	check(w.t, "Listen", l.Listen(1))
	c.id, err = c.ec.CreateID(nil)
	check(w.t, "CreateID", err)
	check(w.t, "ResolveAddr", c.id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), patience))
	c.want(provider.CMAddrResolved)
	check(w.t, "ResolveRoute", c.id.ResolveRoute(patience))
	c.want(provider.CMRouteResolved)
	c.createQP(p.sigAll)
	param := provider.ConnParam{ResponderResources: depth, InitiatorDepth: depth}
	if p.noRNR {
		param.RNRRetryCount = -1
	}
	check(w.t, "Connect", c.id.Connect(param))
	s.id = s.want(provider.CMConnectRequest).ID
	if p.srq {
		s.srq, err = s.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 16, MaxSGE: 4}})
		check(w.t, "CreateSRQ", err)
	}
	s.createQP(false)
	check(w.t, "Accept", s.id.Accept(param))
	c.want(provider.CMEstablished)
	s.want(provider.CMEstablished)
	check(w.t, "Close of the listener", l.Close())
}

func (e *end) createQP(sigAll bool) {
	e.t.Helper()
	qp, err := e.id.CreateQP(e.pd, provider.QPInitAttr{
		SendCQ: e.scq, RecvCQ: e.rcq, SRQ: e.srq, SQSigAll: sigAll,
		Cap: provider.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64},
	})
	check(e.t, "CreateQP", err)
	e.qp = qp
}

// sge names n bytes of the region with all rights.
func (e *end) sge(off, n int) provider.SGE {
	return provider.SGE{Addr: e.mr.Addr() + uint64(off), Length: uint32(n), LKey: e.mr.LKey()}
}

// send posts one request. A refusal is a fact.
func (e *end) send(wr provider.SendWR) {
	e.t.Helper()
	if n, err := e.qp.PostSend([]provider.SendWR{wr}); err != nil {
		what := provider.Errno(err).Error()
		if errors.Is(err, errors.ErrUnsupported) {
			what = "unsupported"
		}
		e.facts[[2]string{fmt.Sprintf("%s post %d", e.name, wr.WRID), "errno"}] = what
	} else if n != 1 {
		e.t.Errorf("PostSend: %d of 1", n)
	}
}

// recv posts a receive of each size, with ids that continue from the previous receives, beginning
// at 1.
func (e *end) recv(sizes ...int) {
	e.t.Helper()
	for _, size := range sizes {
		e.recvInto(e.sge(8192, size))
	}
}

func (e *end) recvInto(list ...provider.SGE) {
	e.t.Helper()
	e.posted++
	wrs := []provider.RecvWR{{WRID: uint64(e.posted), SGList: list}}
	post := e.qp.PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	if _, err := post(wrs); err != nil {
		e.t.Fatalf("%s: receive %d: %v", e.name, e.posted, err)
	}
}

// poll fetches all completions.
func (e *end) poll() (any bool) {
	e.t.Helper()
	var wc [16]provider.WC
	for queue, cq := range map[string]provider.CQ{"send": e.scq, "recv": e.rcq} {
		n, err := cq.Poll(wc[:])
		check(e.t, "Poll", err)
		for i := range n {
			e.facts.take(e.name+" "+queue, &wc[i])
			if wc[i].QPN != e.qp.QPN() {
				e.t.Errorf("%s: %+v is of another QP", e.name, wc[i])
			}
		}
		if queue == "send" {
			e.completed += n
		} else {
			e.received += n
		}
		any = any || n > 0
	}
	return any
}

// until polls both ends until done.
func (w *connection) until(what string, done func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); ; {
		c, s := w.client.poll(), w.server.poll()
		if done() {
			return
		}
		if !c && !s {
			if time.Now().After(end) {
				w.t.Fatalf("%s: not within %s; %v", what, patience, w.facts)
			}
			time.Sleep(200 * time.Microsecond)
		}
	}
}

// sent waits until n sends of the end have completed since the connection was made, and received
// until n receives have.
func (w *connection) sent(e *end, n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s: %d sends completed", e.name, n), func() bool { return e.completed >= n })
}

func (w *connection) received(e *end, n int) {
	w.t.Helper()
	w.until(fmt.Sprintf("%s: %d receives completed", e.name, n), func() bool { return e.received >= n })
}

// quiet polls both ends until nothing has arrived for a while.
func (w *connection) quiet() {
	w.t.Helper()
	last := time.Now()
	w.until("quiet", func() bool {
		if w.client.poll() || w.server.poll() {
			last = time.Now()
		}
		return time.Since(last) > 60*time.Millisecond
	})
}

// flushed waits until every receive has completed and nothing else arrives. Receives of an SRQ that
// no message took remain there.
func (w *connection) flushed() {
	w.t.Helper()
	w.until("all receives are flushed", func() bool {
		return w.client.received == w.client.posted && (w.server.srq != nil || w.server.received == w.server.posted)
	})
	w.quiet()
}

// note adds a fact of the program.
func (w *connection) note(what string, value any) {
	w.facts[[2]string{what, "value"}] = fmt.Sprint(value)
}
