package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// options are the client's.
type options struct {
	chunk    int
	depth    int
	timeout  time.Duration
	progress bool
}

// pull copies what the server at address offers to a new file.
func pull(ctx context.Context, provider, address, name string, o options) (err error) {
	vctx, err := open(ctx, provider, address, false)
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
		return fmt.Errorf("%s offers a file of %d bytes", address, source.Len)
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
		return fmt.Errorf("reading from %s: %w", address, err)
	}
	if err := os.Rename(part, name); err != nil {
		return err
	}
	took := time.Since(begin)
	fmt.Printf("%s: %d bytes in %.3fs, %s\n", name, source.Len, took.Seconds(), rate(source.Len, took))
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

// read fills file with the bytes of source, and keeps o.depth Reads under way.
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
	// An error may leave Reads under way. Closing the region discards what they still bring.
	defer func() { err = errors.Join(err, mr.Close()) }()

	// Each Read that completes restarts the time limit.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(o.timeout, func() { cancel(fmt.Errorf("nothing has come for %v", o.timeout)) })
	defer silent.Stop()
	bar := newBar(os.Stderr, source.Len, o.progress)
	defer bar.end()
	var mu sync.Mutex
	posted, arrived := 0, 0
	next := func() (off, n int) {
		mu.Lock()
		defer mu.Unlock()
		off, n = posted, min(o.chunk, size-posted)
		posted += n
		return off, n
	}
	var readers sync.WaitGroup
	for range o.depth {
		readers.Go(func() {
			for off, n := next(); n > 0 && ctx.Err() == nil; off, n = next() {
				if err := readPart(ctx, conn, mr, source, off, n); err != nil {
					cancel(err)
					return
				}
				silent.Reset(o.timeout)
				mu.Lock()
				arrived += n
				bar.draw(uint64(arrived))
				mu.Unlock()
			}
		})
	}
	readers.Wait()
	if arrived < size {
		return context.Cause(ctx)
	}
	return nil
}

// readPart reads n bytes from offset off of source to the same place in mr.
func readPart(ctx context.Context, conn *rdmacm.Conn, mr *ibverbs.MR, source ibverbs.RemoteRegion,
	off, n int) error {
	from, err := source.Part(off, n)
	if err != nil {
		return err
	}
	to, err := mr.SGE(off, n)
	if err != nil {
		return err
	}
	return conn.Read(ctx, to, from)
}
