package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// client is a connection to the server. One goroutine uses it at a time.
type client struct {
	table
	conn    *rdmacm.Conn
	mr      *ibverbs.MR
	region  ibverbs.RemoteRegion // the server's slots
	atomics bool
	ended   context.CancelFunc
	ctx     context.Context // ends with the connection
}

// What the client's own memory holds.
const (
	slotAt = 0    // a slot that was read
	wordAt = 512  // what compare-and-swap has found
	bodyAt = 1024 // a body to write, or a request to send
	textAt = 2048 // the server's answer to a request
	sizeOf = textAt + maxRequest
)

// dial connects to a server. The private data says whether there are atomic operations.
func dial(ctx context.Context, vctx *ibverbs.Context, address string, atomics bool) (_ *client, err error) {
	has, err := hasAtomics(vctx)
	if err != nil {
		return nil, err
	}
	c := new(client)
	c.ctx, c.ended = context.WithCancel(context.Background())
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	c.conn, err = rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{
		PrivateData: []byte{flag1(has && atomics)},
		Prepare: func(_ context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			if err := c.mr.Close(); err != nil { // of an attempt before this one
				return err
			}
			// What an RDMA Read brings is, on iWARP, a write of the peer.
			c.mr, err = conn.PD().AllocMR(sizeOf, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
			if err != nil {
				return err
			}
			return c.postRecv(conn.QP())
		},
	})
	if err != nil {
		return nil, err
	}
	go func() { <-c.conn.Done(); c.ended() }()
	var h hello
	if err := h.unmarshal(c.conn.PrivateData()); err != nil {
		return nil, fmt.Errorf("%s: %w", address, err)
	}
	c.region, c.atomics = h.region, h.atomics
	c.table = table{memory: c, slots: int(h.region.Len / slotSize), owner: uint64(h.owner)}
	if c.slots == 0 {
		return nil, fmt.Errorf("%s: it has a table without slots", address)
	}
	return c, nil
}

func (c *client) close() error {
	err := errors.Join(c.conn.Close(), c.mr.Close())
	c.ended()
	return err
}

// read implements memory: an RDMA Read.
func (c *client) read(ctx context.Context, i int) ([]byte, error) {
	err := c.do(ctx, c.wr(ibverbs.WRRDMARead, i, 0, slotAt, slotSize))
	return c.mr.Bytes()[slotAt:][:slotSize], err
}

// swap implements memory: an atomic operation.
func (c *client) swap(ctx context.Context, i int, old, new uint64) (bool, error) {
	wr := c.wr(ibverbs.WRAtomicCmpAndSwp, i, 0, wordAt, wordSize)
	wr.CompareAdd, wr.Swap = old, new
	if err := c.do(ctx, wr); err != nil {
		return false, err
	}
	was, err := c.mr.Load(wordAt)
	return was == old, err
}

// publish implements memory: a Write and an atomic operation, which the peer performs when
// the Write is placed.
func (c *client) publish(ctx context.Context, i, body int, content []byte, old, new uint64) error {
	n := copy(c.mr.Bytes()[bodyAt:], content)
	write := c.wr(ibverbs.WRRDMAWrite, i, wordSize+body*bodySize, bodyAt, n)
	swap := c.wr(ibverbs.WRAtomicCmpAndSwp, i, 0, wordAt, wordSize)
	swap.CompareAdd, swap.Swap = old, new
	if err := c.do(ctx, write, swap); err != nil {
		return err
	}
	if was, err := c.mr.Load(wordAt); err != nil || was != old {
		return errors.Join(err, fmt.Errorf("slot %d: its word is %#x and not %#x, which we have put there", i, was, old))
	}
	return nil
}

// ask has the server put a value: the way without atomic operations.
func (c *client) ask(ctx context.Context, key, value string) error {
	message := request{key, value}.marshal()
	if len(message) > maxRequest || len(key) > maxData {
		return fmt.Errorf("key and value have %d octets together, there is room for %d", len(key)+len(value), maxData)
	}
	sge, err := c.mr.SGE(bodyAt, copy(c.mr.Bytes()[bodyAt:], message))
	if err != nil {
		return err
	}
	if err := c.do(ctx, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}); err != nil {
		return err
	}
	wc, err := c.wait(ctx, c.conn.RecvCQ())
	if err != nil {
		return err
	}
	if wc.ByteLen > 0 {
		return fmt.Errorf("the server: %s", c.mr.Bytes()[textAt:][:wc.ByteLen])
	}
	return c.postRecv(c.conn.QP())
}

// wr makes a work request between n octets of our memory from at and slot i from off.
func (c *client) wr(opcode ibverbs.WROpcode, i, off, at, n int) ibverbs.SendWR {
	return ibverbs.SendWR{
		Opcode:     opcode,
		SGList:     []ibverbs.SGE{{Addr: c.mr.Addr() + uint64(at), Length: uint32(n), LKey: c.mr.LKey()}},
		RemoteAddr: c.region.Addr + uint64(i*slotSize+off),
		RKey:       c.region.RKey,
	}
}

// do posts work requests and waits until the last is complete, and with it all of them.
func (c *client) do(ctx context.Context, wrs ...ibverbs.SendWR) error {
	wrs[len(wrs)-1].Flags |= ibverbs.SendSignaled
	if err := c.conn.QP().PostSend(wrs...); err != nil {
		return err
	}
	_, err := c.wait(ctx, c.conn.SendCQ())
	return err
}

// wait waits for a completion, until ctx or the connection ends.
func (c *client) wait(ctx context.Context, cq *ibverbs.CQ) (ibverbs.WC, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	var wc [1]ibverbs.WC
	if _, err := cq.PollWait(ctx, wc[:]); err != nil {
		return wc[0], err
	}
	return wc[0], wc[0].Err()
}

func (c *client) postRecv(qp *ibverbs.QP) error {
	sge, err := c.mr.SGE(textAt, maxRequest)
	if err != nil {
		return err
	}
	return qp.PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}})
}

// because adds to err the reason why the connection ended, if that was a protocol error.
func (c *client) because(err error) error {
	var terminate *ibverbs.TerminateError
	if errors.As(c.conn.QP().Cause(), &terminate) {
		return errors.Join(err, terminate)
	}
	return err
}
