package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// options are those of the client.
type options struct {
	chunk    int
	depth    int
	timeout  time.Duration
	progress bool
}

// pull copies what the server at address offers to a new file.
func pull(ctx context.Context, provider, address, name string, o options) (err error) {
	vctx, err := open(provider, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
	conn, err := dial(ctx, vctx, address, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	var source ibverbs.RemoteRegion
	announcement := conn.PrivateData() // RoCE adds zeros
	if err := source.UnmarshalBinary(announcement[:min(len(announcement), ibverbs.RemoteRegionSize)]); err != nil {
		return fmt.Errorf("%s is not a server of pull: %w", address, err)
	}
	if source.Len == 0 || source.Len > math.MaxInt {
		return fmt.Errorf("%s offers a file of %d octets", address, source.Len)
	}

	part := name + ".part"
	file, err := os.OpenFile(part, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(part) // err says what matters
		}
	}()
	defer func() { err = errors.Join(err, file.Close()) }()
	begin := time.Now()
	if err := read(ctx, conn, source, file, o); err != nil {
		return because(fmt.Errorf("reading from %s: %w", address, err), conn.QP())
	}
	if err := os.Rename(part, name); err != nil {
		return err
	}
	took := time.Since(begin)
	fmt.Printf("%s: %d octets in %.3fs, %s\n", name, source.Len, took.Seconds(), rate(source.Len, took))
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return conn.Shutdown(ctx)
}

// dial connects to the server. Only the time for that is limited.
func dial(ctx context.Context, vctx *ibverbs.Context, address string, o options) (*rdmacm.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	return rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{
		Cap: ibverbs.QPCap{MaxSendWR: o.depth},
	})
}

// read fills file with what is in source, and keeps o.depth Reads under way.
func read(ctx context.Context, conn *rdmacm.Conn, source ibverbs.RemoteRegion, file *os.File, o options) (err error) {
	size := int(source.Len)
	if err := file.Truncate(int64(size)); err != nil {
		return err
	}
	// On iWARP the answer to a Read comes as a Write: the region needs both rights.
	mr, err := conn.PD().MapFile(file, 0, size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	// An error may leave Reads under way: Close has what they bring go nowhere.
	defer func() { err = errors.Join(err, mr.Close()) }()

	// What waits below also ends when the connection does.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-conn.Done():
			cancel()
		case <-ctx.Done():
		}
	}()
	bar := newBar(os.Stderr, source.Len, o.progress)
	defer bar.end()
	posted, arrived, underway := 0, 0, 0
	for arrived < size {
		for underway < o.depth && posted < size {
			n := min(o.chunk, size-posted)
			if err := postRead(conn.QP(), mr, source, posted, n); err != nil {
				return err
			}
			posted += n
			underway++
		}
		wc, err := next(ctx, conn.SendCQ(), o.timeout)
		if err != nil {
			return err
		}
		arrived += int(wc.WRID) // the length
		underway--
		bar.draw(uint64(arrived))
	}
	return nil
}

// postRead reads n octets from offset off of source to the same place in mr.
func postRead(qp *ibverbs.QP, mr *ibverbs.MR, source ibverbs.RemoteRegion, off, n int) error {
	from, err := source.Part(off, n)
	if err != nil {
		return err
	}
	to, err := mr.SGE(off, n)
	if err != nil {
		return err
	}
	return qp.PostSend(ibverbs.SendWR{
		WRID: uint64(n), Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled,
		SGList: []ibverbs.SGE{to}, RemoteAddr: from.Addr, RKey: from.RKey,
	})
}

// next waits for a completion, and no longer than timeout.
func next(ctx context.Context, cq *ibverbs.CQ, timeout time.Duration) (ibverbs.WC, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var wc [1]ibverbs.WC
	if _, err := cq.PollWait(ctx, wc[:]); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("nothing has come for %v: %w", timeout, err)
		}
		return wc[0], err
	}
	return wc[0], wc[0].Err()
}
