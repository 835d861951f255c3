package ibverbs

import (
	"context"
	"fmt"
	"math"
	"os"
	"slices"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// PoolClass is a size class of a Pool: Count buffers of Size bytes each.
type PoolClass struct{ Size, Count int }

// Pool hands out registered buffers, which are slices of one memory region outside the Go heap. So
// a program need not register memory for each message, which is slow on kernel devices, or compute
// SGEs.
//
// Pool is safe for concurrent use. Get and Release allocate nothing and take about as long as a
// channel operation. A free buffer keeps the bytes that it had when it was released.
type Pool struct {
	mr      *MR
	classes []poolClass   // by rising size
	slots   []poolSlot    // all buffers
	out     atomic.Int64  // buffers handed out, and calls that wait for one; below 0 once closed
	close   chan struct{} // Close's lock: a channel of capacity 1
	_       [0]func()     // not comparable
}

type poolClass struct {
	size int
	free chan *poolSlot
}

// poolSlot is one buffer. turn is even while the buffer is in the pool and odd while it is handed
// out. A PoolBuf with another turn was released: its buffer may have another user.
type poolSlot struct {
	class  *poolClass
	offset int
	turn   atomic.Uint64
}

// PoolBuf is a buffer from a Pool; give it back with Release. It is a handle that may be copied:
// the first Release ends all copies. The zero PoolBuf is not usable.
type PoolBuf struct {
	pool *Pool
	slot *poolSlot
	turn uint64
}

const poolClosed = math.MinInt64

// poolAlign is the alignment of buffers, so that no two share a cache line.
const poolAlign = 64

// NewPool maps and registers the memory for a pool of these classes, with the rights access for all
// of it. EINVAL: there is no class, a size or count is below 1, or two classes have the same size.
// NewPool also returns the errors of AllocMR.
func (pd *PD) NewPool(access Access, classes []PoolClass, options ...AllocOption) (*Pool, error) {
	const op = "new pool"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if len(classes) == 0 {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "there is no PoolClass; name at least one")
	}
	classes = slices.Clone(classes)
	slices.SortFunc(classes, func(a, b PoolClass) int { return a.Size - b.Size })
	total, count := 0, 0
	for i, c := range classes {
		step := c.Size + poolAlign - 1
		switch {
		case c.Size < 1, c.Count < 1, step < 0, c.Count > (math.MaxInt-total)/step:
			return nil, pd.obj.Errorf(op, syscall.EINVAL, "a PoolClass of %d buffers of %d bytes; "+
				"both must be at least 1, and the pool below 2^63 bytes", c.Count, c.Size)
		case i > 0 && classes[i-1].Size == c.Size:
			return nil, pd.obj.Errorf(op, syscall.EINVAL, "two PoolClasses have buffers of %d "+
				"bytes; add up their Counts in one", c.Size)
		}
		total += c.Count * (step &^ (poolAlign - 1))
		count += c.Count
	}
	mr, err := pd.AllocMR(total, access, options...)
	if err != nil {
		return nil, err
	}
	p := &Pool{mr: mr, classes: make([]poolClass, len(classes)), slots: make([]poolSlot, count), close: make(chan struct{}, 1)}
	offset, next := 0, 0
	for i, c := range classes {
		k := &p.classes[i]
		*k = poolClass{size: c.Size, free: make(chan *poolSlot, c.Count)}
		for range c.Count {
			slot := &p.slots[next]
			slot.class, slot.offset = k, offset
			k.free <- slot
			next++
			offset += (c.Size + poolAlign - 1) &^ (poolAlign - 1)
		}
	}
	return p, nil
}

// MR returns the region that contains all buffers.
func (p *Pool) MR() *MR {
	if p == nil {
		return nil
	}
	return p.mr
}

// errPoolEmpty is allocated once, so that Get is cheap for programs that use up a pool on purpose.
var errPoolEmpty = &Error{Op: "Pool.Get", Err: fmt.Errorf("all buffers of the size are handed "+
	"out; release one, or call Wait: %w", syscall.ENOBUFS)}

// Get hands out the smallest free buffer with room for n bytes. It returns ENOBUFS if none is free,
// and EINVAL if the pool has no buffers of that size.
func (p *Pool) Get(n int) (PoolBuf, error) {
	first, err := p.begin(n)
	if err != nil {
		return PoolBuf{}, err
	}
	for i := first; i < len(p.classes); i++ {
		select {
		case slot := <-p.classes[i].free:
			return p.hand(slot), nil
		default:
		}
	}
	p.out.Add(-1)
	return PoolBuf{}, errPoolEmpty
}

// Wait hands out a buffer of the smallest class with room for n bytes. It waits until one is free
// or ctx is done.
func (p *Pool) Wait(ctx context.Context, n int) (PoolBuf, error) {
	first, err := p.begin(n)
	if err != nil {
		return PoolBuf{}, err
	}
	select {
	case slot := <-p.classes[first].free:
		return p.hand(slot), nil
	default:
	}
	select {
	case slot := <-p.classes[first].free:
		return p.hand(slot), nil
	case <-ctx.Done():
		p.out.Add(-1)
		return PoolBuf{}, &Error{Op: "Pool.Wait", Object: p.mr.obj.Name(), Err: fmt.Errorf(
			"the caller's context ended before a buffer was released: %w", context.Cause(ctx))}
	}
}

// begin counts a buffer of n bytes as handed out, so that the pool stays open, and returns the
// smallest class for it.
func (p *Pool) begin(n int) (int, error) {
	if p == nil || p.mr == nil {
		return 0, errNil("Pool.Get", "pool")
	}
	first := 0
	for first < len(p.classes) && p.classes[first].size < n {
		first++
	}
	if n < 0 || first == len(p.classes) {
		return 0, object.Errorf("Pool.Get", p.mr.obj.Name(), syscall.EINVAL,
			"a buffer of %d bytes is asked for, and the longest has %d; add a PoolClass", n,
			p.classes[len(p.classes)-1].size)
	}
	for {
		out := p.out.Load()
		if out < 0 {
			return 0, &Error{Op: "Pool.Get", Object: p.mr.obj.Name(), Err: os.ErrClosed}
		}
		if p.out.CompareAndSwap(out, out+1) {
			return first, nil
		}
	}
}

func (p *Pool) hand(slot *poolSlot) PoolBuf {
	return PoolBuf{pool: p, slot: slot, turn: slot.turn.Add(1)}
}

// Close deregisters and unmaps the pool's memory. While a buffer is handed out, or a call waits for
// one, Close returns EBUSY with the number of these, and changes nothing.
func (p *Pool) Close() error {
	if p == nil || p.mr == nil {
		return nil
	}
	p.close <- struct{}{}
	defer func() { <-p.close }()
	if !p.out.CompareAndSwap(0, poolClosed) {
		out := p.out.Load()
		if out < 0 {
			return nil
		}
		return object.Errorf("Pool.Close", p.mr.obj.Name(), syscall.EBUSY, "%d buffers are "+
			"handed out or waited for; release them first", out)
	}
	if err := p.mr.Close(); err != nil {
		p.out.Store(0)
		return err
	}
	return nil
}

// errReleased is the error of a PoolBuf that was released.
var errReleased = &Error{Op: "pool buffer", Err: fmt.Errorf("it was released before: %w (%w)", os.ErrClosed, syscall.EINVAL)}

// ok returns an error if b is zero or was released.
func (b PoolBuf) ok() error {
	switch {
	case b.slot == nil:
		return errNil("pool buffer", "buffer")
	case b.slot.turn.Load() != b.turn:
		return errReleased
	}
	return nil
}

// Bytes returns the buffer's memory, as long as its class; nil after Release. Do not use the slice
// after Release, because the buffer goes to another user.
func (b PoolBuf) Bytes() []byte {
	if b.ok() != nil {
		return nil
	}
	mem := b.pool.mr.Bytes()
	return mem[b.slot.offset : b.slot.offset+b.slot.class.size : b.slot.offset+b.slot.class.size]
}

// SGE returns an SGE of n bytes of the buffer from offset off, as MR.SGE does.
func (b PoolBuf) SGE(off, n int) (SGE, error) {
	if err := b.inside("PoolBuf.SGE", off, n); err != nil {
		return SGE{}, err
	}
	return b.pool.mr.SGE(b.slot.offset+off, n)
}

// Remote names n bytes of the buffer from offset off for the peer, as MR.Remote does. The key is
// valid for the whole pool, so a peer that guesses addresses can access the other buffers, too.
func (b PoolBuf) Remote(off, n int) (RemoteRegion, error) {
	if err := b.inside("PoolBuf.Remote", off, n); err != nil {
		return RemoteRegion{}, err
	}
	return b.pool.mr.Remote(b.slot.offset+off, n)
}

func (b PoolBuf) inside(op string, off, n int) error {
	if err := b.ok(); err != nil {
		return err
	}
	if size := b.slot.class.size; off < 0 || n < 0 || off > size || n > size-off {
		return object.Errorf(op, "pool buffer", syscall.EINVAL,
			"%d bytes from offset %d are not within the buffer, which has %d", n, off, size)
	}
	return nil
}

// Release gives the buffer back. Work requests that name it must have completed. A second Release,
// of any copy of the PoolBuf, returns an error that is os.ErrClosed and EINVAL. It does nothing
// else, even if the buffer has another user.
func (b PoolBuf) Release() error {
	if b.slot == nil {
		return b.ok()
	}
	if !b.slot.turn.CompareAndSwap(b.turn, b.turn+1) {
		return errReleased
	}
	b.pool.out.Add(-1) // first: the call that waits for the buffer may then close the pool
	b.slot.class.free <- b.slot
	return nil
}
