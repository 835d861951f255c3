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

// parts are a connection's objects at the device.
type parts struct {
	cfg  Config
	vctx *ibverbs.Context
	ch   *ibverbs.CompChannel
	cq   *ibverbs.CQ // for both queues, as in C
	conn *rdmacm.Conn

	answers *rdmacm.Request // the request to accept, nil for a Dial

	// own is memory that only this end writes: the send buffer, room for grants that cannot be
	// inline, and the buffers of received messages. The peer writes ring: the ring, and the SGL
	// after it.
	own, ring *ibverbs.MR
	inline    int
}

// extraPlaces are places of the send queue for the two messages that end a stream, so that neither
// has to wait for a place.
const extraPlaces = 2

// bigEndian reports whether this machine is big-endian.
var bigEndian = binary.NativeEndian.Uint16([]byte{1, 0}) != 1

// newParts makes the objects that exist before the connection.
func newParts(vctx *ibverbs.Context, cfg Config) (*parts, error) {
	p := &parts{cfg: cfg, vctx: vctx}
	var err error
	if p.ch, err = vctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	// One more than the queues need, for rdmacm's own work request.
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

// prepare registers the memory of a new connection, and posts its receives.
func (p *parts) prepare(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) error {
	if err := p.freeMemory(); err != nil { // from a try with another local port
		return err
	}
	_, init, err := c.QP().Query()
	if err != nil {
		return err
	}
	// A device without inline data grants 0.
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

// hello returns the private data of this end.
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

// own consists of the send buffer, the entries of grants, and the received messages, in this order.

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

// free frees everything except the connection, which is closed or was never established. If a dial
// was given up, the kernel keeps its QP until the peer has answered or a timeout has passed. The CQ
// and its channel, which need the QP to be closed, are then freed later.
func (p *parts) free() error {
	err := p.freeQueue()
	if errors.Is(err, syscall.EBUSY) {
		go p.freeQueueLater()
		err = nil
	}
	return errors.Join(err, p.freeMemory())
}

// freeQueueLater repeats freeQueue until the QP is closed, but not forever.
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

// freeMemory closes the regions, which unmaps their memory.
func (p *parts) freeMemory() error {
	own, ring := p.own, p.ring
	p.own, p.ring = nil, nil
	return errors.Join(own.Close(), ring.Close())
}
