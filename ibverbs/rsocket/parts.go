package rsocket

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// parts are what a connection consists of at the device.
type parts struct {
	cfg  Config
	vctx *ibverbs.Context
	ch   *ibverbs.CompChannel
	cq   *ibverbs.CQ // of both queues, as in C
	conn *rdmacm.Conn

	answers *rdmacm.Request // the request that is accepted, nil for a Dial

	// own is memory that only this end writes: the send buffer, room for grants that can't be
	// inline, and what messages are received in. ring is what the peer writes: the ring, and the
	// SGL after it.
	own, ring *ibverbs.MR
	inline    int
}

// extraPlaces are places of the send queue for the two messages that end a stream, so that neither
// has to wait for a place.
const extraPlaces = 2

// bigEndian is the byte order of this machine.
var bigEndian = binary.NativeEndian.Uint16([]byte{1, 0}) != 1

// newParts makes what exists before the connection.
func newParts(vctx *ibverbs.Context, cfg Config) (*parts, error) {
	p := &parts{cfg: cfg, vctx: vctx}
	var err error
	if p.ch, err = vctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	// One more than there can be, for what rdmacm posts.
	n := cfg.SendQueue + extraPlaces + cfg.receives() + 1
	p.cq, err = vctx.CreateCQ(n, &ibverbs.CQOptions{Channel: p.ch})
	if err != nil {
		return nil, errors.Join(err, p.ch.Close())
	}
	return p, nil
}

func (p *parts) connConfig() *rdmacm.ConnConfig {
	return &rdmacm.ConnConfig{
		SendCQ: p.cq, RecvCQ: p.cq,
		Cap: ibverbs.QPCap{
			MaxSendWR: p.cfg.SendQueue + extraPlaces, MaxRecvWR: p.cfg.receives(),
			MaxSendSGE: 2, MaxRecvSGE: 1, MaxInlineData: p.cfg.Inline,
		},
		Prepare: p.prepare,
	}
}

// prepare registers the memory of a connection that is being made, and posts its receives.
func (p *parts) prepare(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) error {
	if err := p.freeMemory(); err != nil { // of a Dial's former local port
		return err
	}
	_, init, err := c.QP().Query()
	if err != nil {
		return err
	}
	// A device that has none grants none.
	p.inline = min(init.Cap.MaxInlineData, p.cfg.Inline)
	if p.inline < proto.MessageLen {
		return &ibverbs.UnsupportedError{Feature: "rsocket on " + p.vctx.Name(), Reason: fmt.Sprintf(
			"the device takes %d bytes of inline data, and messages have %d", p.inline, proto.MessageLen)}
	}
	p.own, err = c.PD().AllocMR(p.ownLen(), ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	sgl := proto.SGLEntries * proto.EntryLen
	p.ring, err = c.PD().AllocMR(p.cfg.ReceiveBuffer+sgl,
		ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	leaveUntouched(p.vctx, p.own)
	leaveUntouched(p.vctx, p.ring)
	recvs := make([]ibverbs.RecvWR, p.cfg.receives())
	sges := make([]ibverbs.SGE, len(recvs))
	for i := range recvs {
		sges[i] = p.messageSGE(i)
		recvs[i] = ibverbs.RecvWR{WRID: receiveID(i), SGList: sges[i : i+1]}
	}
	if err := c.QP().PostRecv(recvs...); err != nil {
		return err
	}
	hello := p.hello()
	param.PrivateData = hello.Append(nil)
	if p.answers != nil { // as C does
		param.ResponderResources = p.answers.ResponderResources()
		param.InitiatorDepth = p.answers.InitiatorDepth()
	}
	return nil
}

// hello is the private data of this end.
func (p *parts) hello() proto.Hello {
	return proto.Hello{
		BigEndian: bigEndian,
		Credits:   uint16(min(p.cfg.ReceiveQueue, math.MaxUint16)),
		SGL: proto.Region{
			Addr: p.ring.Addr() + uint64(p.cfg.ReceiveBuffer), Key: p.ring.RKey(),
			Len: proto.SGLEntries,
		},
		Data: proto.Region{Addr: p.ring.Addr(), Key: p.ring.RKey(), Len: uint32(p.cfg.ReceiveBuffer / 2)},
	}
}

// The send buffer comes first in own, then the entries of grants, then messages that are received.

func (p *parts) entriesAt() int { return (p.cfg.SendBuffer + ringAlign - 1) &^ (ringAlign - 1) }

func (p *parts) messagesAt() int { return p.entriesAt() + proto.ControlSlots*proto.EntryLen }

func (p *parts) ownLen() int { return p.messagesAt() + p.cfg.receives()*proto.MessageLen }

func (p *parts) ownSGE(off, n int) ibverbs.SGE {
	return ibverbs.SGE{Addr: p.own.Addr() + uint64(off), Length: uint32(n), LKey: p.own.LKey()}
}

func (p *parts) messageSGE(i int) ibverbs.SGE {
	return p.ownSGE(p.messagesAt()+i*proto.MessageLen, proto.MessageLen)
}

// close ends the connection and frees everything.
func (p *parts) close() error { return errors.Join(p.conn.Close(), p.free()) }

// free frees everything but the connection, which is closed, or did not come about. A kernel lets
// go of the QP of one that was given up only when its peer has answered or its time is up. What
// needs the QP to be closed is then freed later.
func (p *parts) free() error {
	err := p.freeQueue()
	if errors.Is(err, syscall.EBUSY) {
		go p.freeQueueLater()
		err = nil
	}
	return errors.Join(err, p.freeMemory())
}

// freeQueueLater is freeQueue when the QP is closed. It does not try for ever.
func (p *parts) freeQueueLater() {
	for wait := time.Millisecond; wait < time.Minute; wait += wait / 2 {
		time.Sleep(min(wait, time.Second))
		if !errors.Is(p.freeQueue(), syscall.EBUSY) {
			return
		}
	}
}

// freeQueue closes the CQ and its channel.
func (p *parts) freeQueue() error {
	if err := p.cq.Close(); err != nil {
		return err
	}
	return p.ch.Close()
}

// freeMemory closes the regions, whose memory is unmapped.
func (p *parts) freeMemory() error {
	own, ring := p.own, p.ring
	p.own, p.ring = nil, nil
	return errors.Join(own.Close(), ring.Close())
}
