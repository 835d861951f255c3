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
}

// What the client's own memory holds.
const (
	slotAt = 0    // a slot that was read
	wordAt = 512  // what compare-and-swap has found
	bodyAt = 1024 // a body to write, or a request to send
	sizeOf = 2048
)

// dial connects to a server. The private data says whether there are atomic operations.
func dial(ctx context.Context, vctx *ibverbs.Context, address string, atomics bool) (_ *client, err error) {
	has, err := hasAtomics(vctx)
	if err != nil {
		return nil, err
	}
	c := new(client)
	defer func() {
		if err != nil {
			err = errors.Join(err, c.close())
		}
	}()
	c.conn, err = rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{
		PrivateData: []byte{flag1(has && atomics)}, Receives: 1, ReceiveSize: maxRequest,
	})
	if err != nil {
		return nil, err
	}
	// On iWARP, the response to an RDMA Read is a write by the peer.
	c.mr, err = c.conn.PD().AllocMR(sizeOf, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		return nil, err
	}
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

func (c *client) close() error { return errors.Join(c.conn.Close(), c.mr.Close()) }

// read implements memory with an RDMA Read.
func (c *client) read(ctx context.Context, i int) ([]byte, error) {
	err := c.conn.Do(ctx, ibverbs.NewRead(c.slot(i, 0, slotSize), c.sge(slotAt, slotSize)))
	return c.mr.Bytes()[slotAt:][:slotSize], err
}

// swap implements memory with an atomic operation.
func (c *client) swap(ctx context.Context, i int, old, new uint64) (bool, error) {
	if err := c.conn.Do(ctx, c.swapWR(i, old, new)); err != nil {
		return false, err
	}
	was, err := c.mr.Load(wordAt)
	return was == old, err
}

// publish implements memory with a Write and an atomic operation, which the peer performs
// when the Write is placed.
func (c *client) publish(ctx context.Context, i, body int, content []byte, old, new uint64) error {
	n := copy(c.mr.Bytes()[bodyAt:], content)
	write := ibverbs.NewWrite(c.slot(i, wordSize+body*bodySize, n), c.sge(bodyAt, n))
	if err := c.conn.Do(ctx, write, c.swapWR(i, old, new)); err != nil {
		return err
	}
	if was, err := c.mr.Load(wordAt); err != nil || was != old {
		return errors.Join(err, fmt.Errorf("slot %d: its word is %#x and not %#x, which we have put there", i, was, old))
	}
	return nil
}

// ask makes the server put a value, because there are no atomic operations.
func (c *client) ask(ctx context.Context, key, value string) error {
	message := request{key, value}.marshal()
	if len(message) > maxRequest || len(key) > maxData {
		return fmt.Errorf("key and value have %d bytes together, there is room for %d", len(key)+len(value), maxData)
	}
	if err := c.conn.Send(ctx, c.sge(bodyAt, copy(c.mr.Bytes()[bodyAt:], message))); err != nil {
		return err
	}
	answer, err := c.conn.Receive(ctx)
	if err != nil {
		return err
	}
	text := string(answer.Data)
	if err := answer.Release(); err != nil {
		return err
	}
	if text != "" {
		return fmt.Errorf("the server: %s", text)
	}
	return nil
}

// swapWR makes a compare-and-swap of the word of slot i. The former word goes to wordAt.
func (c *client) swapWR(i int, old, new uint64) ibverbs.SendWR {
	return ibverbs.NewCompareAndSwap(c.slot(i, 0, wordSize), old, new, c.sge(wordAt, wordSize))
}

// sge names n bytes of our memory from at.
func (c *client) sge(at, n int) ibverbs.SGE {
	return ibverbs.SGE{Addr: c.mr.Addr() + uint64(at), Length: uint32(n), LKey: c.mr.LKey()}
}

// slot names n bytes of slot i from off.
func (c *client) slot(i, off, n int) ibverbs.RemoteRegion {
	return ibverbs.RemoteRegion{
		Addr: c.region.Addr + uint64(i*slotSize+off), Len: uint64(n), RKey: c.region.RKey,
	}
}
