package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
)

// Connections: they are made by the connection manager, and ended in all possible ways.

const worldPort = 7471

// What the responder's program does with a request.
const (
	answerAccept = iota
	answerReject
	answerNothing
	answerClose
)

// listen makes the process's listener.
func (w *world) listen(p *proc) {
	id, err := p.ch.CreateID(nil)
	w.need("an id", err)
	p.port++
	w.need("binding", id.BindAddr(netip.AddrPortFrom(p.addr, worldPort+p.port)))
	w.need("listening", id.Listen(w.d.in(1, 16)))
	p.listener = id
}

// takeEvents takes the events of a channel, for the driver, until the channel is closed.
func (p *proc) takeEvents(ch provider.EventChannel) {
	for {
		e, err := ch.Next(context.Background())
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				p.w.failLater("%s: waiting for an event: %v", p, err)
			}
			return
		}
		p.mu.Lock()
		p.events = append(p.events, e)
		p.mu.Unlock()
	}
}

// unconnected picks a QP that can be connected.
func (w *world) unconnected(p *proc) *queuePair {
	var list []*queuePair
	for _, q := range p.qps {
		if s := q.state(); !q.closing && q.conn == nil && (s == provider.QPReset || s == provider.QPInit) {
			list = append(list, q)
		}
	}
	return one(w.d, list)
}

// connect is a call that asks for a connection.
func (w *world) connect() *call {
	d := w.d
	from, to := one(d, w.living()), one(d, w.living())
	if from == nil || from == to && !d.oneIn(4) || to.listener == nil {
		return nil
	}
	a := w.unconnected(from)
	if a == nil {
		return nil
	}
	c := &connection{no: len(w.conns), answer: d.weighed([]int{20, 1, 1, 1})}
	a.conn, a.side = c, 0
	b := w.unconnected(to)
	if b == nil || b == a {
		a.conn = nil
		return nil
	}
	b.conn, b.side = c, 1
	c.qps = [2]*queuePair{a, b}
	w.conns = append(w.conns, c)
	id, err := from.ch.CreateID(nil)
	w.need("an id", err)
	from.ids = append(from.ids, id)
	c.ids[0] = id
	w.byID[id] = c
	dst := to.listener.LocalAddr()
	param := provider.ConnParam{
		PrivateData: c.privateData(), QP: a.q, ResponderResources: d.upTo(4),
		InitiatorDepth: d.upTo(4),
	}
	return &call{
		name: fmt.Sprintf("connection %d from %s to %s, answer %d", c.no, a, b, c.answer),
		rank: rankOther,
		run: func() {
			err = id.ResolveAddr(netip.AddrPortFrom(from.addr, 0), dst, time.Second)
			if err == nil {
				err = id.ResolveRoute(time.Second)
			}
			if err == nil {
				err = id.Connect(param)
			}
		},
		finish: func() {
			// The QP, or the id, may have been closed since.
			if err != nil {
				if !errors.Is(err, syscall.EINVAL) && !errors.Is(err, os.ErrClosed) {
					w.fail("connecting %s: %v", a, err)
				}
				w.connFailed(c, 0)
			}
		},
	}
}

// connFailed notes that a connection was not established at a side.
func (w *world) connFailed(c *connection, side int) {
	c.failed[side] = true
	c.ending = true
	if !c.up[side] {
		c.leave(side)
	}
	if side == 0 && !c.asked {
		c.failed[1] = true
		c.leave(1)
	}
}

// leave frees the QP of a side for other connections, if it was never connected.
func (c *connection) leave(side int) {
	q := c.qps[side]
	if s := q.state(); q.conn == c && (s == provider.QPReset || s == provider.QPInit) {
		q.conn = nil
	}
}

// events does what programs do when events come, and returns how many came.
func (w *world) events() (happened int) {
	for _, p := range w.procs {
		p.mu.Lock()
		events := p.events
		p.events = nil
		p.mu.Unlock()
		for i := range events {
			w.event(p, &events[i])
		}
		happened += len(events)
	}
	return happened
}

func (w *world) event(p *proc, e *provider.CMEvent) {
	if p.ended {
		if e.Type == provider.CMConnectRequest {
			p.ids = append(p.ids, e.ID)
		}
		return
	}
	w.seen(e.Type.String())
	if e.Type == provider.CMConnectRequest {
		w.request(p, e)
		return
	}
	c := w.byID[e.ID]
	if c == nil || e.Type == provider.CMAddrResolved || e.Type == provider.CMRouteResolved {
		return
	}
	side := 0
	if c.ids[1] == e.ID {
		side = 1
	}
	w.note("connection %d, side %d: %v %d", c.no, side, e.Type, e.Status)
	if c.down[side] || c.failed[side] && side == 0 && e.Type != provider.CMDisconnected {
		w.fail("connection %d, side %d: %v after its last event", c.no, side, e.Type)
	}
	switch e.Type {
	case provider.CMEstablished:
		if c.up[side] {
			w.fail("connection %d, side %d: established twice", c.no, side)
		}
		c.up[side] = true
	case provider.CMDisconnected:
		if !c.up[side] {
			w.fail("connection %d, side %d: disconnected and never established", c.no, side)
		}
		c.down[side], c.ending = true, true
	default:
		if c.up[side] {
			w.fail("connection %d, side %d: %v after it was established", c.no, side, e.Type)
		}
		w.connFailed(c, side)
	}
}

// request answers a CONNECT_REQUEST.
func (w *world) request(p *proc, e *provider.CMEvent) {
	p.ids = append(p.ids, e.ID)
	no := uint32(len(w.conns))
	if len(e.Param.PrivateData) == 4 {
		no = binary.BigEndian.Uint32(e.Param.PrivateData)
	}
	if int(no) >= len(w.conns) { // a stranger's
		w.need("rejecting", notReset(e.ID.Reject(nil)))
		return
	}
	c := w.conns[no]
	if c.asked || c.failed[1] || c.qps[1].p != p || c.qps[1].conn != c {
		_ = e.ID.Reject(nil)
		return
	}
	c.asked, c.ids[1] = true, e.ID
	w.byID[e.ID] = c
	w.note("%s has the request of connection %d", p, no)
	param := provider.ConnParam{QP: c.qps[1].q, ResponderResources: w.d.upTo(4), InitiatorDepth: w.d.upTo(4)}
	switch c.answer {
	case answerAccept:
		err := e.ID.Accept(param)
		if err != nil {
			if notReset(err) != nil && !errors.Is(err, syscall.EINVAL) {
				w.fail("accepting connection %d: %v", no, err)
			}
			w.connFailed(c, 1)
		}
	case answerReject:
		w.need("rejecting", notReset(e.ID.Reject([]byte("no"))))
		w.connFailed(c, 1)
	case answerClose:
		w.closeID(p, e.ID)
		w.connFailed(c, 1)
	default:
		w.connFailed(c, 1)
	}
}

// notReset returns err, or nil if err says that the peer has left.
func notReset(err error) error {
	if errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

func (w *world) closeID(p *proc, id provider.ID) {
	w.need("closing an id", id.Close())
	p.ids = slices.DeleteFunc(p.ids, func(x provider.ID) bool { return x == id })
}

// closeOneID is a call that closes an id, and thereby ends its connection.
func (w *world) closeOneID(p *proc) *call {
	id := one(w.d, p.ids)
	if id == nil {
		return nil
	}
	p.ids = slices.DeleteFunc(p.ids, func(x provider.ID) bool { return x == id })
	c := w.byID[id]
	if c != nil {
		c.ending = true
	}
	return &call{
		name: fmt.Sprintf("%s closes an id", p),
		rank: rankEnd,
		run: func() {
			if err := id.Close(); err != nil {
				w.failLater("closing an id: %v", err)
			}
		},
		finish: func() {
			if c == nil {
				return
			}
			side := 0
			if c.ids[1] == id {
				side = 1
			}
			c.ids[side] = nil
			delete(w.byID, id)
			c.failed[side] = true
			if side == 0 && !c.asked {
				c.failed[1] = true
				c.leave(1)
			}
			c.leave(side)
		},
	}
}

// endConnection is a call that ends a connection in one of the ways in which a program can.
func (w *world) endConnection(q *queuePair) *call {
	c := q.conn
	if c == nil || q.closing || q.state() != provider.QPRTS {
		return nil
	}
	c.ending = true
	id := c.ids[q.side]
	var do func() error
	what := ""
	way := w.d.upTo(3)
	if id == nil {
		way = max(way, 1)
	}
	switch way {
	case 0:
		what, do = "disconnects", id.Disconnect
	case 1:
		what, do = "goes to ERR", func() error {
			return q.q.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState)
		}
	case 2:
		what, do = "goes to SQD", func() error {
			return q.q.Modify(provider.QPAttr{State: provider.QPSQD, EnSQDAsyncNotify: w.ext},
				provider.QPAttrState|provider.QPAttrEnSQDNotify)
		}
	default:
		what, do = "goes to SQE", func() error {
			return q.q.Modify(provider.QPAttr{State: provider.QPSQE}, provider.QPAttrState)
		}
	}
	var ended []seen
	return &call{
		name: fmt.Sprintf("%s %s", q, what),
		rank: rankOther,
		run: func() {
			err := do()
			if err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, os.ErrClosed) { // it may have ended by itself
				w.failLater("%s: %v", q, err)
			}
			if what == "goes to ERR" && err == nil {
				ended = q.endedPeer()
			}
		},
		finish: func() {
			w.seen(what)
			for _, x := range ended {
				x.s.freeze(w, x.b)
			}
		},
	}
}

// endedPeer looks at the spans that the peer of q could change until the connection ended just
// now. It leaves out objects, which take longer.
func (q *queuePair) endedPeer() []seen {
	c, side := q.conn, q.side
	return lookAt(q.p.mem.through(func(s *extent) bool {
		return c != nil && s.conn == c && s.side == side && s.via.object == nil
	}))
}

// closeQP is a call that closes a QP.
func (w *world) closeQP(q *queuePair) *call {
	if q == nil || q.closing {
		return nil
	}
	q.closing = true
	if q.conn != nil {
		q.conn.ending = true
	}
	var ended, own []seen
	var ends []rightEnds
	return &call{
		name: fmt.Sprintf("%s is closed", q),
		rank: rankEnd,
		run: func() {
			if err := q.q.Close(); err != nil {
				w.failLater("closing %s: %v", q, err)
			}
			ended = q.endedPeer()
			own = q.ownSpans()
			for _, r := range q.p.rights {
				if r.qp == q && r.state != dead {
					ends = append(ends, r.ends(nil))
				}
			}
		},
		finish: func() {
			q.closed = true
			for _, x := range slices.Concat(ended, own) {
				x.s.freeze(w, x.b)
			}
			w.rightsEnd(ends, false)
			w.seen("QP closed")
		},
	}
}

// ownSpans looks at the sinks of q's own work, without objects.
func (q *queuePair) ownSpans() []seen {
	var spans []*extent
	for _, o := range q.sends {
		spans = append(spans, o.local...)
	}
	for _, r := range q.recvs {
		spans = append(spans, r.spans...)
	}
	spans = slices.DeleteFunc(spans, func(s *extent) bool { return s.via.object != nil })
	return lookAt(spans)
}

// resetQP resets a QP that has failed, so that it can be connected again.
func (w *world) resetQP(q *queuePair) {
	if q == nil || q.closing || q.state() != provider.QPErr {
		return
	}
	w.quietly() // so that no goroutine is in the middle of something
	for w.drain(q.scq)+w.drain(q.rcq) > 0 {
	}
	w.accounted(q)
	if c := q.conn; c != nil {
		w.connectionOver(c, q.side)
	}
	w.note("%s is reset", q)
	w.need("resetting", q.q.Modify(provider.QPAttr{State: provider.QPReset}, provider.QPAttrState))
	for _, r := range q.p.rights {
		if r.qp == q && r.state != dead {
			w.rightsEnd([]rightEnds{r.ends(nil)}, false)
		}
	}
	q.conn, q.failed, q.rfailed = nil, false, false
	w.seen("QP reset")
}

// accounted checks that everything that was posted to a QP in ERR has completed, except
// successes that are not reported. Work whose completion a CQ has lost is over as well.
func (w *world) accounted(q *queuePair) {
	lossy := q.lossy()
	for _, o := range q.sends {
		if !lossy && (q.failed || q.signaled(o)) {
			w.fail("%s is in %v, and %d sends have not completed, the first %s (%v)", q, q.state(), len(q.sends), o, q.q.Cause())
		}
		if lossy {
			w.memoryLost(o)
		}
		w.retire(o, !lossy, nil)
	}
	q.sends = nil
	if len(q.recvs) > 0 && !lossy {
		w.fail("%s is in %v, and %d receives have not completed, the first %d (%v)",
			q, q.state(), len(q.recvs), q.recvs[0].id, q.q.Cause())
	}
	for _, r := range q.recvs {
		for _, s := range r.spans {
			if s.frozen {
				s.drop()
			} else {
				w.over(s, s.look())
			}
		}
		delete(w.recvs, r.id)
	}
	q.recvs = nil
}

// signaled reports whether a success of o is reported.
func (q *queuePair) signaled(o *op) bool {
	return q.sigAll || o.wr.Flags&provider.SendSignaled != 0
}

// memoryLost is for work on our own memory whose completion was lost: only the engine knows
// whether it was done.
func (w *world) memoryLost(o *op) {
	w.workOver(o)
	for _, r := range []*right{o.begins, o.ends} {
		if r == nil {
			continue
		}
		if r.isThere() {
			r.state = live
		} else if r.state != dead {
			w.rightsEnd([]rightEnds{r.ends(nil)}, false)
		}
	}
}

// connectionOver freezes the spans that the peer could change at a side whose QP is not
// connected any more. No other goroutine runs.
func (w *world) connectionOver(c *connection, side int) {
	for _, s := range c.qps[side].p.mem.through(func(s *extent) bool { return s.conn == c && s.side == side }) {
		w.over(s, s.look())
	}
	for _, o := range c.placing[1-side] {
		for _, s := range o.remote {
			if s.late == nil {
				s.drop()
			}
		}
	}
	c.placing[1-side] = nil
}
