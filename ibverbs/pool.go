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

// PoolClass is a kind of buffers of a Pool: Count of them, of Size bytes each.
type PoolClass struct{ Size, Count int }

// Pool hands out registered buffers: slices of one memory region, which is mapped
// off the Go heap. It saves a program from registering for each message, which is
// slow with kernel devices, and from putting together SGEs by hand.
//
// It is safe for concurrent use. Get and Release allocate nothing and take about as
// long as a channel operation. A buffer that lies idle keeps the bytes that it had
// when it was released.
type Pool struct {
	mr      *MR
	classes []poolClass   // by rising size
	slots   []poolSlot    // all buffers
	out     atomic.Int64  // buffers handed out, and calls that wait for one; below 0 once closed
	close   chan struct{} // a lock for Close: one place
	_       [0]func()     // not comparable
}

type poolClass struct {
	size int
	free chan *poolSlot
}

// poolSlot is one buffer. turn is even while it is in the pool and odd while it is
// out: it says of a PoolBuf that was kept too long that the buffer is somebody else's.
type poolSlot struct {
	class  *poolClass
	offset int
	turn   atomic.Uint64
}

// PoolBuf is a buffer from a Pool, to be given back by Release. It is a handle that
// may be copied; all copies end with the first Release. The zero PoolBuf is of no use.
type PoolBuf struct {
	pool *Pool
	slot *poolSlot
	turn uint64
}

const poolClosed = math.MinInt64

// poolAlign is where buffers begin: no two share a cache line.
const poolAlign = 64

// NewPool maps and registers the memory for a pool of these classes, with the rights
// access for all of it. Errors: EINVAL for no class, a size or count below 1 or two
// classes of one size; those of AllocMR.
func (pd *PD) NewPool(access Access, classes []PoolClass, options ...AllocOption) (*Pool, error) {
	const op = "new pool"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if len(classes) == 0 {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "no class of buffers")
	}
	classes = slices.Clone(classes)
	slices.SortFunc(classes, func(a, b PoolClass) int { return a.Size - b.Size })
	total, count := 0, 0
	for i, c := range classes {
		step := c.Size + poolAlign - 1
		switch {
		case c.Size < 1, c.Count < 1, step < 0, c.Count > (math.MaxInt-total)/step:
			return nil, pd.obj.Errorf(op, syscall.EINVAL, "%d buffers of %d bytes", c.Count, c.Size)
		case i > 0 && classes[i-1].Size == c.Size:
			return nil, pd.obj.Errorf(op, syscall.EINVAL, "two classes of %d bytes", c.Size)
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

// MR returns the region that all buffers are part of.
func (p *Pool) MR() *MR {
	if p == nil {
		return nil
	}
	return p.mr
}

// errPoolEmpty is a value so that an empty pool, which programs may run into on
// purpose, costs little.
var errPoolEmpty = &Error{Op: "pool get", Err: fmt.Errorf("%w: all buffers of the size are handed "+
	"out; release one, or call Wait", syscall.ENOBUFS)}

// Get hands out the smallest buffer with room for n bytes. It is ENOBUFS if there
// is none at the moment, and EINVAL if the pool has none of that size at all.
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

// Wait is Get that waits for a buffer of the smallest size that n bytes fit into,
// until ctx is done.
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
		return PoolBuf{}, &Error{Op: "pool wait", Object: p.mr.obj.Name(), Err: fmt.Errorf(
			"the caller's context ended before a buffer was released: %w", context.Cause(ctx))}
	}
}

// begin keeps the pool open for a buffer of n bytes, and says which class is the
// smallest for it.
func (p *Pool) begin(n int) (int, error) {
	if p == nil || p.mr == nil {
		return 0, errNil("pool get", "pool")
	}
	first := 0
	for first < len(p.classes) && p.classes[first].size < n {
		first++
	}
	if n < 0 || first == len(p.classes) {
		return 0, object.Errorf("pool get", p.mr.obj.Name(), syscall.EINVAL, "a buffer of %d bytes from a pool whose longest has %d", n, p.classes[len(p.classes)-1].size)
	}
	for {
		out := p.out.Load()
		if out < 0 {
			return 0, &Error{Op: "pool get", Object: p.mr.obj.Name(), Err: os.ErrClosed}
		}
		if p.out.CompareAndSwap(out, out+1) {
			return first, nil
		}
	}
}

func (p *Pool) hand(slot *poolSlot) PoolBuf {
	return PoolBuf{pool: p, slot: slot, turn: slot.turn.Add(1)}
}

// Close deregisters and unmaps the pool's memory. While a buffer is handed out, or
// somebody waits for one, it is EBUSY and says how many; the pool stays as it is.
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
		return object.Errorf("close pool", p.mr.obj.Name(), syscall.EBUSY, "%d buffers are handed out or waited for", out)
	}
	if err := p.mr.Close(); err != nil {
		p.out.Store(0)
		return err
	}
	return nil
}

// errReleased is the error of all uses of a PoolBuf after its Release.
var errReleased = &Error{Op: "pool buffer", Err: fmt.Errorf("it was released before: %w (%w)", os.ErrClosed, syscall.EINVAL)}

// ok returns an error if the buffer was released.
func (b PoolBuf) ok() error {
	switch {
	case b.slot == nil:
		return errNil("pool buffer", "buffer")
	case b.slot.turn.Load() != b.turn:
		return errReleased
	}
	return nil
}

// Bytes returns the buffer's memory, of the size of its class; nil once it is
// released. The slice must not be used after Release, as somebody else gets it.
func (b PoolBuf) Bytes() []byte {
	if b.ok() != nil {
		return nil
	}
	mem := b.pool.mr.Bytes()
	return mem[b.slot.offset : b.slot.offset+b.slot.class.size : b.slot.offset+b.slot.class.size]
}

// SGE names n bytes of the buffer from offset off, as MR.SGE does.
func (b PoolBuf) SGE(off, n int) (SGE, error) {
	if err := b.inside("SGE", off, n); err != nil {
		return SGE{}, err
	}
	return b.pool.mr.SGE(b.slot.offset+off, n)
}

// Remote names n bytes of the buffer from offset off for the peer, as MR.Remote
// does. The key is that of all the pool: a peer that guesses can reach the other
// buffers, too.
func (b PoolBuf) Remote(off, n int) (RemoteRegion, error) {
	if err := b.inside("remote", off, n); err != nil {
		return RemoteRegion{}, err
	}
	return b.pool.mr.Remote(b.slot.offset+off, n)
}

func (b PoolBuf) inside(op string, off, n int) error {
	if err := b.ok(); err != nil {
		return err
	}
	if size := b.slot.class.size; off < 0 || n < 0 || off > size || n > size-off {
		return object.Errorf(op, "pool buffer", syscall.EINVAL, "%d bytes from offset %d of a buffer of %d", n, off, size)
	}
	return nil
}

// Release gives the buffer back. Work requests that name it must have completed. A
// second Release, of whichever copy of the PoolBuf, is an error that is os.ErrClosed
// and EINVAL, and does nothing, also when the buffer is somebody else's by now.
func (b PoolBuf) Release() error {
	if b.slot == nil {
		return b.ok()
	}
	if !b.slot.turn.CompareAndSwap(b.turn, b.turn+1) {
		return errReleased
	}
	b.pool.out.Add(-1) // first: the call that waits for the buffer may close the pool next
	b.slot.class.free <- b.slot
	return nil
}
