package rsocket

import (
	"errors"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// A WRID has a kind in its upper 8 bits and a number below.
const (
	idKind  = 0xff << 56
	idRecv  = 1 << 56 // the receive's number
	idData  = 2 << 56 // bytes of the send buffer
	idSlots = 3 << 56 // control slots
	idEnd   = 4 << 56 // a shutdown or disconnect
	idWrite = 5 << 56 // a Write before a message; completes only if it fails
)

func receiveID(i int) uint64 { return idRecv | uint64(i) }

// handle processes completions. The caller holds mu and the right to poll.
func (c *Conn) handle(wcs []ibverbs.WC) {
	if len(wcs) == 0 {
		return
	}
	c.recvs = c.recvs[:0]
	for i := range wcs {
		wc := &wcs[i]
		n := int(wc.WRID &^ idKind)
		kind := wc.WRID & idKind
		switch kind {
		case idData:
			c.posted--
			c.st.Sent(n)
		case idSlots:
			c.posted--
			c.st.FreeSlots(n)
		case idEnd:
			c.posted--
		}
		switch {
		case wc.Status != ibverbs.WCSuccess:
			c.lost(wc.Err())
		case kind == idRecv && !c.refused && wc.Opcode != ibverbs.WCRecv:
			// Possible if the device supports RFC 7306. The receive's memory then has an old
			// message.
			c.abort(&proto.Error{Text: "sent immediate data, which is for InfiniBand"})
		case kind == idRecv && !c.refused:
			c.received(n, int(wc.ByteLen))
		}
	}
	if len(c.recvs) > 0 && c.failed == nil {
		if err := c.parts.conn.QP().PostRecv(c.recvs...); err != nil {
			c.lost(err)
		}
	}
	c.grant()
	c.sendEnd()
	c.wakeReady()
}

// received processes the message of n bytes in receive i, and queues the receive for posting. The
// caller holds mu.
func (c *Conn) received(i, n int) {
	at := c.parts.messagesAt() + i*proto.MessageLen
	m, err := c.st.Receive(c.parts.own.Bytes()[at : at+min(n, proto.MessageLen)])
	if err != nil {
		c.abort(err)
		return
	}
	switch m.Kind() {
	case proto.KindData:
		c.in.Octets += uint64(m.Value())
		c.in.Transfers++
	case proto.KindCredits:
		c.out.Grants++
	}
	k := len(c.recvs)
	c.recvSGEs[k] = c.parts.messageSGE(i)
	c.recvs = append(c.recvs, ibverbs.RecvWR{WRID: receiveID(i), SGList: c.recvSGEs[k : k+1]})
}

// abort ends the connection because the peer broke the protocol. The caller holds mu.
func (c *Conn) abort(err error) {
	c.refused = true
	if c.failed == nil {
		c.failed = object.Because(err, syscall.EPROTO)
		_ = c.parts.conn.Disconnect()
	}
	c.kickAll()
}

// lost records that the connection has ended, and why. The caller holds mu.
func (c *Conn) lost(err error) {
	if c.failed != nil {
		return
	}
	c.failed = syscall.ECONNRESET
	if cause := c.parts.conn.QP().Cause(); cause != nil {
		c.failed = object.Because(cause, syscall.ECONNRESET)
	} else if !errors.Is(err, ibverbs.ErrFlushed) {
		c.failed = object.Because(err, syscall.ECONNRESET)
	}
	c.kickAll()
}

// kickAll makes all waiting calls check their conditions again. The caller holds mu.
func (c *Conn) kickAll() {
	for _, s := range c.sides() {
		c.kick(s)
	}
}

// granting is the memory for posting grants.
type granting struct {
	grant proto.Grant
	wrs   [2]ibverbs.SendWR // the Write of the entry, and the message
	sge   [1]ibverbs.SGE
	msg   [proto.MessageLen]byte
	next  int // the place of the next entry that cannot be inline
}

func (g *granting) init() {
	g.wrs[0] = ibverbs.SendWR{WRID: idWrite, Opcode: ibverbs.WRRDMAWrite}
	g.wrs[1] = ibverbs.SendWR{Opcode: ibverbs.WRSend, Inline: g.msg[:],
		Flags: ibverbs.SendSignaled | ibverbs.SendInline}
}

// grant sends the grants that the peer is due. The caller holds mu.
func (c *Conn) grant() {
	g := &c.granting
	if c.failed != nil || c.gone || c.ended == proto.Disconnect {
		return
	}
	for c.st.Grant(&g.grant) {
		wrs := g.wrs[1:]
		if g.grant.Write {
			wrs = g.wrs[:]
			w := &g.wrs[0]
			w.RemoteAddr, w.RKey = g.grant.Addr, g.grant.Key
			if c.parts.inline >= proto.EntryLen {
				w.Flags, w.Inline = ibverbs.SendInline, g.grant.Entry[:]
			} else {
				at := c.parts.entriesAt() + g.next*proto.EntryLen
				g.next = (g.next + 1) % proto.ControlSlots
				copy(c.parts.own.Bytes()[at:], g.grant.Entry[:])
				g.sge[0] = c.parts.ownSGE(at, proto.EntryLen)
				w.SGList = g.sge[:]
			}
		}
		c.st.PutMessage(g.msg[:], g.grant.Msg)
		g.wrs[1].WRID = idSlots | uint64(g.grant.Slots)
		c.posted++
		c.in.Grants++
		if err := c.parts.conn.QP().PostSend(wrs...); err != nil {
			c.lost(err)
			return
		}
	}
}

// sendEnd sends the message that ends the stream, if it is due and nothing prevents it. The caller
// holds mu.
func (c *Conn) sendEnd() {
	if c.ending == c.ended || c.posting || c.gone || c.failed != nil || c.st.Silent() {
		return
	}
	c.ended = c.ending
	if c.st.PeerEnd() == proto.Disconnect {
		return // the peer reads no more
	}
	var msg [proto.MessageLen]byte
	c.st.PutMessage(msg[:], c.ended)
	c.posted++
	err := c.parts.conn.QP().PostSend(ibverbs.SendWR{WRID: idEnd, Opcode: ibverbs.WRSend,
		Flags: ibverbs.SendSignaled | ibverbs.SendInline, Inline: msg[:]})
	if err != nil {
		c.lost(err)
	}
}

// keepAlive sends an empty Write, and schedules its next call.
func (c *Conn) keepAlive() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.failed != nil || c.ended == proto.Disconnect ||
		c.st.PeerEnd() == proto.Disconnect {
		return
	}
	c.look() // may free control slots
	c.emptyWrite()
	c.keepalive.Reset(c.parts.cfg.KeepAlive)
}

// emptyWrite sends an empty Write, if there is a control slot. The caller holds mu.
func (c *Conn) emptyWrite() {
	if c.failed != nil || !c.st.Keepalive() {
		return
	}
	c.posted++
	c.keepalives++
	err := c.parts.conn.QP().PostSend(ibverbs.SendWR{WRID: idSlots | 1, Flags: ibverbs.SendSignaled,
		Opcode: ibverbs.WRRDMAWrite})
	if err != nil {
		c.lost(err)
	}
}

// An end that has dialled sends empty Writes until it has received something from its peer: the
// first after firstNudge, each later one after twice the time, mostNudges in all. The reason is
// that siw does not read data that comes between its Reply and the end of its accept, until more
// comes (kernel-notes/siw-first-fpdu.md). Without these Writes both ends would wait forever.
//
// A peer over siw may send before it has read anything. Its accept has ended by then, so one more
// Write suffices. After a second credit message no Write is needed, because that message answers
// data of this end.
const (
	firstNudge = 100 * time.Millisecond
	mostNudges = 5
)

// nudge schedules up to left of these Writes, the first after wait. The caller holds mu.
func (c *Conn) nudge(left int, wait time.Duration) {
	c.nudges = time.AfterFunc(wait, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.closed {
			return
		}
		c.look()
		if c.out.Grants > 1 || c.st.PeerEnd() != 0 || c.failed != nil ||
			c.ended == proto.Disconnect {
			return
		}
		heard := c.in.Transfers+c.out.Grants > 0
		c.emptyWrite()
		if left > 1 && !heard {
			c.nudge(left-1, 2*wait)
		}
	})
}
